"""The data of a run: which sources make its pairs, and the feature caches filled from them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path

from linglue.core.engine import Engine
from linglue.core.pool import Pool
from linglue.errors import LinGlueError
from linglue.features import make_extractor
from linglue.features.base import Extractor
from linglue.training.cache.build import CacheConfig, Sources, build_cache
from linglue.training.cache.store import FeatureCache
from linglue.training.config import SMALLEST_SIDE, DataConfig, RunConfig, SfmPairs, TeacherPairs
from linglue.training.images.image_set import ImageSet
from linglue.training.sources.homography import HomographyConfig, HomographySource
from linglue.training.sources.interface import PairSource
from linglue.training.sources.labels import scene_folders
from linglue.training.sources.parallax import ParallaxConfig, ParallaxSource

SHARD_PAIRS = 60
HELD_OUT = 0.1  # share of the images that is validated on


def synthetic_sources(data: DataConfig) -> dict[str, tuple[PairSource, float]]:
    """The sources that make pairs out of single images, with their shares; validated on, too."""
    sides = (SMALLEST_SIDE, data.longer_side)
    every: dict[str, tuple[PairSource, float]] = {
        "homography": (HomographySource(HomographyConfig(views=data.views, longer_side=sides)), data.homography),
        "parallax": (ParallaxSource(ParallaxConfig(views=data.views, longer_side=sides)), data.parallax),
    }
    return {name: entry for name, entry in every.items() if entry[1] > 0}


def real_sources(data: DataConfig, held_out: bool) -> dict[str, tuple[PairSource, float]]:
    """The sources of real pairs that the run asks for: of what it learns from, or of what it validates on.

    Each is imported only then.

    Args:
        data: the run's.
        held_out: whether the scenes to validate on are meant.
    """
    sources: dict[str, tuple[PairSource, float]] = {}
    if data.sfm.share > 0 or data.sfm.held_out:
        folders = _scenes("sfm", scene_folders(data.sfm.reconstructions), data.sfm, held_out)
        if folders and (held_out or data.sfm.share > 0):
            from linglue.training.sources.sfm import SfmSource, TracksConfig

            sources["sfm"] = (SfmSource(TracksConfig(tuple(map(str, folders)))), data.sfm.share)
    if data.teacher.share > 0 or data.teacher.held_out:
        folders = _scenes("teacher", scene_folders(data.teacher.labels), data.teacher, held_out)
        if folders and (held_out or data.teacher.share > 0):
            from linglue.training.sources.teacher import TeacherConfig, TeacherSource

            sets = tuple((str(data.teacher.images / labels.name), str(labels)) for labels in folders)
            for images, labels in sets:
                if not Path(images).is_dir():
                    raise LinGlueError(f"{images}: no such folder, expected the images that {labels} labels")
            config = TeacherConfig(sets, views=data.views)
            if held_out:
                config = replace(config, relit=0, smaller=0, rotated=0, views=2)
            sources["teacher"] = (TeacherSource(config), data.teacher.share)
    if data.megadepth.share > 0 and (data.megadepth.validation is not None or not held_out):
        from linglue.training.sources.megadepth import MegaDepthConfig, MegaDepthSource, split_scenes

        m = data.megadepth
        scenes = split_scenes(m.root, m.training, m.validation, m.test)[int(held_out)]
        sources["megadepth"] = (MegaDepthSource(MegaDepthConfig(str(m.root), scenes=scenes)), m.share)
    return sources


def _scenes(name: str, folders: Iterable[Path], source: SfmPairs | TeacherPairs, held_out: bool) -> list[Path]:
    """The scenes to learn from, or those to validate on; every pattern must fit some scene."""
    every = list(folders)
    for pattern in (*source.held_out, *source.exclude):
        if not any(fnmatchcase(folder.name, pattern) for folder in every):
            names = ", ".join(folder.name for folder in every[:5])
            raise LinGlueError(f"data.{name} names {pattern!r}, expected scenes such as {names}")

    def fits(folder: Path, patterns: tuple[str, ...]) -> bool:
        return any(fnmatchcase(folder.name, pattern) for pattern in patterns)

    used = [folder for folder in every if not fits(folder, source.exclude)]
    if source.share > 0 and all(fits(folder, source.held_out) for folder in used):
        raise LinGlueError(f"data.{name} leaves none of {len(every)} scenes to learn from, expected at least 1")
    return [folder for folder in used if fits(folder, source.held_out) == held_out]


def prepare_data(config: RunConfig, engine: Engine | None = None) -> tuple[FeatureCache, dict[str, FeatureCache]]:
    """Training pairs and, per source, validation pairs from what is held out; made where missing.

    Everything is opened before the first pair is made: what is missing or wrong shows at once.

    Args:
        config: of the run.
        engine: where pairs are made; None: `data.workers` processes.
    """
    data, engine = config.data, engine or Pool(config.data.workers)
    training, held_out = split_images(data)
    synthetic = synthetic_sources(data)
    sources = {**synthetic, **real_sources(data, held_out=False)}
    checks = {**synthetic, **real_sources(data, held_out=True)}
    extractor = make_extractor(data.features, data.extractor_weights)
    validation = {
        name: _cache(config, f"validation/{name}", {name: (source, 1.0)}, held_out, extractor, 1 + number, engine)
        for number, (name, (source, _)) in enumerate(checks.items())
    }
    return _cache(config, "pairs", sources, training, extractor, 0, engine), validation


def split_images(data: DataConfig) -> tuple[ImageSet, ImageSet]:
    """The images to make training pairs of, and those for validation."""
    training, held_out = ImageSet.in_folder(data.images).split(HELD_OUT)
    if len(training) < 4 or len(held_out) < 2:
        raise LinGlueError(f"{data.images}: {len(training) + len(held_out)} images, expected at least about 30")
    return training, held_out


def _cache(
    config: RunConfig, folder: str, sources: Sources, images: ImageSet, extractor: Extractor, seed: int, engine: Engine
) -> FeatureCache:
    """The pairs in a folder of the run; the seed says whether they are for training (0) or validation."""
    data = config.data
    pairs = data.validation_pairs if seed else data.pairs
    size = CacheConfig(
        pairs=pairs,
        shard_size=min(SHARD_PAIRS, pairs),
        keypoints=data.keypoints,
        min_matches=data.min_matches,
        unrelated=0 if seed else data.unrelated,
        seed=seed,
    )
    return build_cache(config.output / folder, sources, images, extractor, size, engine)
