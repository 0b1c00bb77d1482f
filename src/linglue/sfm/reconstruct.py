"""A folder of photographs to a sparse model: every stage keeps what it finished, so that a killed run goes on."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from linglue.core.atomic import atomic_path
from linglue.core.fingerprint import settings_hash
from linglue.core.stopwatch import Stopwatch
from linglue.errors import LinGlueError
from linglue.io.colmap_database import write_database
from linglue.io.pair_list import Pair, write_pairs
from linglue.matcher import MatcherConfig
from linglue.sfm.cameras import CameraConfig, Cameras, assign_cameras
from linglue.sfm.extract import ExtractConfig, Extracted, extract_photos
from linglue.sfm.feature_store import FeatureStore
from linglue.sfm.map import MappingConfig, build_model, verified_matches, verify_geometry
from linglue.sfm.match import match_pairs
from linglue.sfm.match_store import MatchStore
from linglue.sfm.pairs import PairsConfig, choose_pairs
from linglue.sfm.places import first_at_place, merge_places
from linglue.sfm.positions import exif_positions, read_positions
from linglue.sfm.retrieval import Retrieval
from linglue.sfm.scan import Survey, survey
from linglue.sfm.sparse_model import ModelStatistics, colour_points, registered_names, write_model
from linglue.sfm.summary import Summary, read_summary, write_summary
from linglue.sfm.workspace import Workspace


@dataclass(frozen=True)
class ReconstructConfig:
    """Everything a user can choose."""

    extract: ExtractConfig = field(default_factory=ExtractConfig)
    pairs: PairsConfig = field(default_factory=PairsConfig)
    pair_list: Path | None = None  # for the method `list`
    positions: Path | None = None  # for the method `positions`; None: EXIF
    matcher: MatcherConfig = field(default_factory=MatcherConfig)
    cameras: CameraConfig = field(default_factory=CameraConfig)
    mapping: MappingConfig = field(default_factory=MappingConfig)
    masks: Path | None = None
    workers: int = 1
    pictures: bool = True


def reconstruct(images: Path, work: Workspace, config: ReconstructConfig | None = None) -> Summary:
    """The sparse model of the photographs in a folder, in `work.model`; what the work folder has already is kept."""
    config = config or ReconstructConfig()
    watch = Stopwatch("cpu")
    with work.locked(), work.features() as features, work.matches() as matches:
        with watch.stage("extract"):
            found = survey(images, features, config.masks, besides=work.folder)
            extracted = extract_photos(found.photos, config.extract, features, config.workers)
            _check_enough(images, extracted)
        with watch.stage("pairs"):
            pairs = _choose(config, found, extracted, features)
            write_pairs(work.pairs, pairs)
        with watch.stage("match"):
            match_pairs(pairs, config.matcher, features, matches, config.workers)
        paths = {photo.name: photo.path for photo in extracted.photos}
        sizes = features.sizes()
        cameras = assign_cameras(paths, {name: sizes[name] for name in paths}, config.cameras)
        problems = (*found.problems, *extracted.problems, *cameras.problems)
        made_from = _fingerprint(pairs, matches, cameras, config.mapping)
        finished = _finished(work, made_from)
        if finished is not None:
            return replace(finished, problems=problems, notes=tuple(found.notes))
        with watch.stage("database"):
            _write_database(work, made_from, pairs, cameras, features, matches)
        with watch.stage("verification"):
            verify_geometry(work.database, config.mapping)
            verified = verified_matches(work.database)
        with watch.stage("model"):
            mapped = build_model(work.database, cameras.given, config.mapping)
            colour_points(mapped.model, paths)
            write_model(mapped.model, work.model)
        registered = registered_names(mapped.model)
        with watch.stage("retrieval"):  # for `linglue localize`
            Retrieval.build(registered, features.get).save(work.retrieval)
        if config.pictures:
            with watch.stage("pictures"):
                _draw(work, mapped.model, list(paths), verified, registered)
        summary = Summary(
            model=ModelStatistics.of(mapped.model, len(paths)),
            matched_pairs=len(pairs),
            verified_pairs=len(verified),
            unregistered=tuple(sorted(paths.keys() - set(registered))),
            smaller_models=mapped.smaller,
            seconds=dict(watch.seconds),
            settings={"made_from": made_from, **_settings(config)},
            problems=problems,
            notes=tuple(found.notes),
        )
        write_summary(work.summary, summary)  # last: it says that all is there
    return summary


def _check_enough(images: Path, extracted: Extracted) -> None:
    if len(extracted.photos) < 2:
        why = f" ({'; '.join(extracted.problems)})" if extracted.problems else ""
        raise LinGlueError(f"{images}: {len(extracted.photos)} usable photographs, expected at least 2{why}")


def _choose(config: ReconstructConfig, found: Survey, extracted: Extracted, features: FeatureStore) -> list[Pair]:
    usable = {photo.name: photo.path for photo in extracted.photos}
    positions = None
    if config.pairs.method == "positions":
        positions = exif_positions(usable) if config.positions is None else read_positions(config.positions)
    # A list may name photographs that turned out useless; what is wrong with them is told already.
    listed = {photo.name for photo in found.photos} | found.duplicates
    names = listed if config.pairs.method == "list" else usable
    pairs = choose_pairs(config.pairs, names, features.get, positions, config.pair_list)
    pairs = [pair for pair in pairs if usable.keys() >= set(pair)]
    if not pairs:
        raise LinGlueError(f"none of the {len(usable)} photographs is to be matched with another, expected any pair")
    return pairs


def _fingerprint(pairs: Sequence[Pair], matches: MatchStore, cameras: Cameras, mapping: MappingConfig) -> str:
    """Of all that decides the model."""
    made_from = matches.made_from()
    by_name = {name: f"{id(camera)}" for name, camera in cameras.by_name.items()}
    groups = {key: number for number, key in enumerate(dict.fromkeys(by_name.values()))}  # who shares with whom
    described = {
        name: [groups[by_name[name]], camera.model.name, camera.width, camera.height, *camera.params.tolist()]
        for name, camera in cameras.by_name.items()
    }
    return settings_hash(
        {
            "linglue": version("linglue"),
            "matches": [[*pair, made_from[pair]] for pair in pairs],
            "cameras": described,
            "given": sorted(cameras.given),
            "mapping": asdict(mapping),
        }
    )


def _finished(work: Workspace, made_from: str) -> Summary | None:
    """The summary of an earlier run that made the same model, if that is still there."""
    if not (work.summary.is_file() and work.model.is_dir() and work.retrieval.is_file()):
        return None
    try:
        summary = read_summary(work.summary)
    except LinGlueError:  # of another LinGlue: make it again
        return None
    return summary if summary.settings.get("made_from") == made_from else None


def _write_database(
    work: Workspace,
    made_from: str,
    pairs: Sequence[Pair],
    cameras: Cameras,
    features: FeatureStore,
    matches: MatchStore,
) -> None:
    """COLMAP's database of all pairs. One that was made from the same before stays, with what was verified in it."""
    if work.database.is_file() and _record(work.database_record) == made_from:
        return
    work.database_record.unlink(missing_ok=True)
    first = {name: first_at_place(features.get(name).keypoints) for name in cameras.by_name}
    found = ((a, b, merge_places(matches.get(a, b)[0], first[a], first[b])) for a, b in pairs)
    write_database(work.database, cameras.by_name, features.get, found)
    with atomic_path(work.database_record) as temporary:
        temporary.write_text(json.dumps({"made_from": made_from}), encoding="utf-8")


def _record(path: Path) -> str | None:
    try:
        return str(json.loads(path.read_text(encoding="utf-8"))["made_from"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _settings(config: ReconstructConfig) -> dict[str, Any]:
    return {
        "extract": config.extract.settings(),
        "pairs": asdict(config.pairs),
        "matcher": dict(config.matcher.build().settings),
        "cameras": asdict(config.cameras),
        "mapping": asdict(config.mapping),
    }


def _draw(
    work: Workspace, model: Any, names: Sequence[str], verified: Mapping[Pair, int], registered: Sequence[str]
) -> None:
    from linglue.viz.scene import draw_match_graph, draw_model

    work.pictures.mkdir(exist_ok=True)
    draw_model(work.pictures / "model.png", model)
    draw_match_graph(work.pictures / "matches.png", names, verified, registered)
