"""The data of a run: which generators make its pairs, and the feature caches filled from them."""

from __future__ import annotations

from linglue.errors import LinGlueError
from linglue.features import make_extractor
from linglue.training.build_cache import CacheConfig, build_cache
from linglue.training.cache import FeatureCache
from linglue.training.config import SMALLEST_SIDE, DataConfig, RunConfig
from linglue.training.sources.homography import HomographyConfig, HomographyGenerator
from linglue.training.sources.pairs import PairGenerator
from linglue.training.sources.parallax import ParallaxConfig, ParallaxGenerator
from linglue.training.sources.photos import Photos

SHARD_PAIRS = 60

Weighted = dict[str, tuple[PairGenerator, float]]  # generators by name, with their shares


def from_photos(data: DataConfig) -> Weighted:
    """The generators that make pairs out of single photographs; what validation is made by, too."""
    sides = (SMALLEST_SIDE, data.longer_side)
    every: Weighted = {
        "homography": (HomographyGenerator(HomographyConfig(longer_side=sides)), data.homography),
        "parallax": (ParallaxGenerator(ParallaxConfig(longer_side=sides)), data.parallax),
    }
    return {name: maker for name, maker in every.items() if maker[1] > 0}


def from_scenes(data: DataConfig, held_out: bool) -> Weighted:
    """The sources of real image pairs that the run asks for: of what it learns from, or of what it validates on.

    Each is imported only then.
    """
    made: Weighted = {}
    folders = tuple(str(f) for f in data.sfm.reconstructions if (f in data.sfm.held_out) == held_out)
    if folders and (held_out or data.sfm.share > 0):
        from linglue.training.sources.sfm import SfmGenerator, TracksConfig

        made["sfm"] = (SfmGenerator(TracksConfig(folders)), data.sfm.share)
    labelled = zip(data.teacher.images, data.teacher.labels, strict=True)
    sets = tuple((str(i), str(k)) for i, k in labelled if (i in data.teacher.held_out) == held_out)
    if sets and (held_out or data.teacher.share > 0):
        from linglue.training.sources.teacher import TeacherConfig, TeacherGenerator

        made["teacher"] = (TeacherGenerator(TeacherConfig(sets)), data.teacher.share)
    if data.megadepth.share > 0 and not held_out:
        from linglue.training.sources.megadepth import MegaDepth, MegaDepthConfig

        made["megadepth"] = (MegaDepth(MegaDepthConfig(str(data.megadepth.root))), data.megadepth.share)
    return made


def prepare_data(config: RunConfig) -> tuple[FeatureCache, dict[str, FeatureCache]]:
    """Training pairs and, per generator, validation pairs from what is held out; made where missing."""
    data = config.data
    training, held_out = Photos.in_folder(data.photos).split(0.1)
    if len(training) < 4 or len(held_out) < 2:
        raise LinGlueError(f"{data.photos}: {len(training) + len(held_out)} photographs, expected at least about 30")
    synthetic = from_photos(data)
    if not synthetic:
        raise LinGlueError("data.homography and data.parallax are both 0, expected at least one positive share")
    # All sources are opened before the first pair is made: what is missing shows at once.
    makers = {**synthetic, **from_scenes(data, held_out=False)}
    checks = {**synthetic, **from_scenes(data, held_out=True)}
    extractor = make_extractor(data.features, data.extractor_weights)
    validation = {}
    for number, (name, (generator, _)) in enumerate(checks.items()):
        size = CacheConfig(
            pairs=data.validation_pairs,
            shard_size=min(SHARD_PAIRS, data.validation_pairs),
            keypoints=data.keypoints,
            unrelated=0,
            seed=1 + number,
        )
        folder = config.output / "validation" / name
        validation[name] = build_cache(folder, {name: (generator, 1.0)}, held_out, extractor, size, data.workers)
    size = CacheConfig(
        pairs=data.pairs,
        shard_size=min(SHARD_PAIRS, data.pairs),
        keypoints=data.keypoints,
        unrelated=data.unrelated,
        seed=0,
    )
    return build_cache(config.output / "pairs", makers, training, extractor, size, data.workers), validation
