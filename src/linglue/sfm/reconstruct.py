"""A folder of images to a sparse model: every stage keeps what it finished, so that a killed run resumes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from linglue.core.engine import Engine
from linglue.core.fingerprint import file_sha256, fingerprint
from linglue.core.pool import Pool
from linglue.core.progress import Stopwatch
from linglue.errors import LinGlueError
from linglue.io.pair_list import Pair, read_pairs, write_pairs
from linglue.matcher import MatcherConfig
from linglue.sfm.cameras import CameraConfig
from linglue.sfm.current import current_state
from linglue.sfm.extract import ExtractConfig, Extracted, extract_images
from linglue.sfm.map import MappingConfig
from linglue.sfm.map_stores import Inputs, map_stores
from linglue.sfm.match import build_matcher, match_pairs
from linglue.sfm.pairs import PairsConfig, choose_pairs
from linglue.sfm.scan import ImageFile, Scan, ScanConfig, scan_images
from linglue.sfm.store import FeatureStore
from linglue.sfm.summary import Summary
from linglue.sfm.workspace import Workspace


@dataclass(frozen=True)
class ReconstructConfig:
    """Everything a user can choose.

    Example:
        >>> ReconstructConfig(pairs=PairsConfig("sequential", overlap=5)).pictures
        True
    """

    extract: ExtractConfig = field(default_factory=ExtractConfig)
    pairs: PairsConfig = field(default_factory=PairsConfig)
    matcher: MatcherConfig = field(default_factory=MatcherConfig)
    cameras: CameraConfig = field(default_factory=CameraConfig)
    mapping: MappingConfig = field(default_factory=MappingConfig)
    scan: ScanConfig = field(default_factory=ScanConfig)
    engine: Engine = field(default_factory=Pool)  # where images are extracted and pairs matched
    pictures: bool = True
    overwrite: bool = False  # also what LinGlue did not make


def reconstruct(images: Path, work: Workspace, config: ReconstructConfig | None = None) -> Summary:
    """The sparse model of the images in a folder, in `work.model`; what the work folder has already is kept.

    Args:
        images: the folder, with any subfolders.
        work: where everything is kept. Imported features in it are used as they are.
        config: all settings.

    Returns:
        What the model came to, as WORK/summary.json has it.

    Example:
        >>> config = ReconstructConfig(engine=Pool(4))
        >>> summary = reconstruct(Path("images"), Workspace(Path("WORK")), config)  # doctest: +SKIP
    """
    config = config or ReconstructConfig()
    watch = Stopwatch("cpu")
    work.check_free(work.outputs(), config.overwrite)  # before anything is written, a lock included
    with work.locked(), work.features(repair=True) as features, work.matches(repair=True) as matches:
        with watch.stage("extract"):
            found = scan_images(images, features, config.scan, work.not_images(images))
            _check_enough(images, found.images, found.problems)  # before any is extracted
            if config.pairs.method == "list":  # its names are checked before hours of work
                choose_pairs(config.pairs, _listed(found), features.get)
            extracted = extract_images(found.images, config.extract, features, config.engine)
            _check_enough(images, extracted.images, [*found.problems, *extracted.problems])
            if not features.imported():
                work.note(extract=config.extract.settings(), images=str(images.absolute()))
        with watch.stage("pairs"):
            pairs = _choose(config, found, extracted, features, work)
        with watch.stage("match"):
            match_pairs(pairs, config.matcher, features, matches, config.engine)
        inputs = Inputs(
            names=[image.name for image in extracted.images],
            paths={image.name: image.path for image in extracted.images},
            pairs=pairs,
            problems=(*found.problems, *extracted.problems),
            notes=tuple(found.notes),
            settings={**_settings(config, features), "pairs": asdict(config.pairs)},
        )
        return map_stores(work, features, matches, inputs, config.cameras, config.mapping, config.pictures, watch)


def map_work(
    work: Workspace,
    cameras: CameraConfig | None = None,
    mapping: MappingConfig | None = None,
    images: Path | None = None,
    pictures: bool = True,
    overwrite: bool = False,
) -> Summary:
    """Database, verification and model from features and matches as they stand in a work folder.

    Args:
        work: with features, and matches of some pairs.
        cameras: as for `reconstruct`.
        mapping: as for `reconstruct`.
        images: folder of the images, for EXIF and colours; None: where they were extracted from.
        pictures: also draw the model.
        overwrite: replace what LinGlue did not make, too.

    Returns:
        As `reconstruct`.

    Example:
        >>> map_work(Workspace(Path("WORK"))).model.points  # doctest: +SKIP
    """
    watch = Stopwatch("cpu")
    if not work.matches_file.is_file():
        raise LinGlueError(f"{work.folder}: holds no matches, expected a folder of `linglue match-pairs`")
    with work.locked():
        work.check_free([path for path in work.outputs() if path != work.pairs], overwrite)
        with work.features() as features, work.matches() as matches:
            state = current_state(work, features, matches)
            if not state.matched:
                raise LinGlueError(
                    f"{work.folder}: holds no current matches, expected a folder of `linglue match-pairs`"
                )
            names = sorted(name for name, count in state.counts.items() if count)
            paths = features.paths() if images is None else {name: images / name for name in names}
            there = {name: paths[name] for name in names if name in paths and paths[name].is_file()}
            inputs = Inputs(
                names=names,
                paths=there,
                pairs=sorted(state.matched),
                problems=tuple(state.problems()),
                notes=(),
                settings={"extract": work.notes().get("extract", {})},
            )
            config = cameras or CameraConfig()
            return map_stores(work, features, matches, inputs, config, mapping or MappingConfig(), pictures, watch)


def _check_enough(images: Path, usable: Sequence[ImageFile], problems: Sequence[str]) -> None:
    if len(usable) < 2:
        why = f" ({'; '.join(problems[:3])}{'; …' if len(problems) > 3 else ''})" if problems else ""
        count = f"{len(usable)} usable image{'s' * (len(usable) != 1)}"
        raise LinGlueError(f"{images}: {count}, expected at least 2{why}")


def _choose(
    config: ReconstructConfig, found: Scan, extracted: Extracted, features: FeatureStore, work: Workspace
) -> list[Pair]:
    usable = {image.name: image.path for image in extracted.images}
    made_from = pairs_fingerprint(config.pairs, usable, features)
    if work.is_made(work.pairs, made_from):
        return read_pairs(work.pairs)
    # A list may name images that turned out useless; what is wrong with them is told already.
    names = _listed(found) if config.pairs.method == "list" else usable
    pairs = choose_pairs(config.pairs, names, features.get, usable)
    pairs = [pair for pair in pairs if usable.keys() >= set(pair)]
    if not pairs:
        raise LinGlueError(f"none of the {len(usable)} images is to be matched with another, expected any pair")
    with work.making(work.pairs, made_from):
        write_pairs(work.pairs, pairs)
    return pairs


def _listed(found: Scan) -> set[str]:
    """Names that a list of pairs may have."""
    return {image.name for image in found.images} | found.duplicates


def pairs_fingerprint(config: PairsConfig, names: Sequence[str] | Mapping[str, Any], features: FeatureStore) -> str:
    """Of all that decides which pairs are chosen.

    Args:
        config: how they are chosen; files that it names count by their content.
        names: of the images.
        features: their features.
    """
    made_from = features.made_from()
    files = {str(path): file_sha256(path) for path in (config.pair_list, config.positions) if path is not None}
    return fingerprint(pairs=asdict(config), files=files, features={name: made_from[name] for name in names})


def _settings(config: ReconstructConfig, features: FeatureStore) -> dict[str, Any]:
    extract = {"imported": features.kind()} if features.imported() else config.extract.settings()
    return {"extract": extract, "matcher": dict(build_matcher(config.matcher).settings)}
