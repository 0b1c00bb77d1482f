"""The last stages of a work folder: COLMAP's database, verification, model, pictures and summary from its stores.

Each is recorded with what it was made from. What is there and still true is kept; what is missing is made again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from linglue.core.fingerprint import fingerprint
from linglue.core.progress import Stopwatch
from linglue.errors import LinGlueError
from linglue.io.colmap.database import write_database
from linglue.io.pair_list import Pair
from linglue.sfm.cameras import CameraConfig, Cameras, assign_cameras
from linglue.sfm.current import matches_fingerprint
from linglue.sfm.map import MappingConfig, build_model, verified_matches, verify_geometry
from linglue.sfm.retrieval import Retrieval
from linglue.sfm.sparse_model import ModelStatistics, colour_points, read_model, registered_names, write_model
from linglue.sfm.store import FeatureStore, MatchStore
from linglue.sfm.summary import Summary, read_summary, write_summary
from linglue.sfm.workspace import MODEL_FILES, Workspace
from linglue.types import FloatArray, IndexArray

if TYPE_CHECKING:
    import pycolmap


@dataclass(frozen=True)
class Inputs:
    """What a model is made of."""

    names: Sequence[str]  # of all images
    paths: Mapping[str, Path]  # image files by name, where they are known: for EXIF and colours
    pairs: Sequence[Pair]  # that are matched
    problems: tuple[str, ...]
    notes: tuple[str, ...]
    settings: Mapping[str, Any]


@dataclass(frozen=True)
class _Plan:
    """What is to be made, and from what."""

    made_from: str
    matches: str  # their fingerprint
    state: dict[str, Any]  # of the images and their features and cameras, to know whether a model can be continued
    cameras: Cameras  # in the order of their images' ids
    start: Path | None  # the model to continue from


def map_stores(
    work: Workspace,
    features: FeatureStore,
    matches: MatchStore,
    inputs: Inputs,
    camera_config: CameraConfig,
    mapping: MappingConfig,
    pictures: bool,
    watch: Stopwatch,
) -> Summary:
    """The model of the images in `work.model` and all that goes with it.

    A model of fewer images with the same features and cameras is continued. The caller holds the folder's lock.

    Args:
        work: the folder.
        features: its features, open.
        matches: its matches, open.
        inputs: the images and pairs that the model is made of.
        camera_config: which camera each image has.
        mapping: how the model is made.
        pictures: also draw it.
        watch: gets the seconds of every stage.
    """
    sizes = features.sizes()
    cameras = assign_cameras(inputs.paths, {name: sizes[name] for name in inputs.names}, camera_config)
    plan = _plan(work, features, matches, inputs, cameras, mapping)
    problems = (*inputs.problems, *cameras.problems)
    drawings = work.drawings if pictures else ()
    wanted = (work.database, work.model, work.retrieval, *drawings, work.summary)
    if all(work.is_made(path, plan.made_from) for path in wanted) and _is_whole(work):
        return replace(read_summary(work.summary), problems=problems, notes=_notes(work, inputs))
    with watch.stage("database"):
        _ensure_database(work, plan, inputs.pairs, features, matches)
    with watch.stage("verification"):
        verified = _ensure_verified(work, plan, mapping)
    with watch.stage("model"):
        model, smaller = _ensure_model(work, plan, inputs, mapping)
    registered = registered_names(model)
    with watch.stage("retrieval"):
        _ensure_retrieval(work, plan, registered, features)
    if not all(work.is_made(path, plan.made_from) for path in drawings):
        with watch.stage("pictures"):
            _draw(work, plan.made_from, model, inputs.names, verified, registered)
    unregistered = sorted(set(inputs.names) - set(registered))
    summary = Summary(
        model=ModelStatistics.of(model, len(inputs.names)),
        matched_pairs=len(inputs.pairs),
        verified_pairs=len(verified),
        unregistered=tuple(unregistered),
        smaller_models=smaller,
        seconds=dict(watch.seconds),
        settings=_settings(plan, inputs, camera_config, mapping),
        problems=problems,
        notes=_notes(work, inputs),
        reasons={name: _why_unregistered(name, inputs.pairs, verified) for name in unregistered},
    )
    with work.making(work.summary, plan.made_from):  # last: it says that all is there
        write_summary(work.summary, summary)
    return summary


def _settings(plan: _Plan, inputs: Inputs, cameras: CameraConfig, mapping: MappingConfig) -> dict[str, Any]:
    return {
        "made_from": plan.made_from,
        **inputs.settings,
        "cameras": asdict(cameras),
        "mapping": asdict(mapping),
    }


def _ensure_verified(work: Workspace, plan: _Plan, mapping: MappingConfig) -> dict[Pair, int]:
    """The number of verified matches of each pair."""
    if work.notes().get("verified") != plan.made_from:
        verify_geometry(work.database, mapping)
        work.note(verified=plan.made_from)
    return verified_matches(work.database)


def _ensure_retrieval(work: Workspace, plan: _Plan, names: list[str], features: FeatureStore) -> None:
    """For `linglue localize`."""
    if not work.is_made(work.retrieval, plan.made_from):
        with work.making(work.retrieval, plan.made_from):
            Retrieval.build(names, features.get).save(work.retrieval)


def _plan(
    work: Workspace,
    features: FeatureStore,
    matches: MatchStore,
    inputs: Inputs,
    cameras: Cameras,
    mapping: MappingConfig,
) -> _Plan:
    made_from, old = features.made_from(), work.notes().get("mapped", {})
    matched = matches.current(made_from, inputs.pairs)
    state = {
        "features": {name: made_from[name] for name in inputs.names},
        "matcher": sorted({row.matcher for row in matched.values()}),
        "mapping": asdict(mapping),
        "given": sorted(cameras.given),
    }
    of_matches = matches_fingerprint(matched)
    # The order of the images decides their ids only: the model means the same.
    made = fingerprint(matches=of_matches, **state, cameras=_describe(cameras, sorted(cameras.by_name)))
    order = [name for name in old.get("cameras", {}) if name in cameras.by_name]
    order += [name for name in cameras.by_name if name not in set(order)]
    continues = _can_continue(work, old, {**state, "cameras": _describe(cameras, order)})
    if continues or work.is_made(work.model, made):  # images that have an id in the model must keep it
        cameras = replace(cameras, by_name={name: cameras.by_name[name] for name in order})
    state["cameras"] = _describe(cameras, list(cameras.by_name))
    return _Plan(made, of_matches, state, cameras, work.model if continues else None)


def _describe(cameras: Cameras, order: Sequence[str]) -> dict[str, Any]:
    """The camera of every image as JSON values, and who shares it, numbered in this order."""
    groups: dict[int, int] = {}
    described = {}
    for name in order:
        camera = cameras.by_name[name]
        group = groups.setdefault(id(camera), len(groups))
        described[name] = [group, camera.model.name, camera.width, camera.height, *camera.params.tolist()]
    return described


def _can_continue(work: Workspace, old: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
    """Whether the model in the folder is one of some of the images, with the same features and cameras."""
    names = old.get("features", {})
    if not names or len(names) >= len(new["features"]) or not work.is_made(work.model, old["made_from"]):
        return False
    same = all(old[key] == new[key] for key in ("matcher", "mapping"))
    kept = all(new[key].get(name) == value for key in ("features", "cameras") for name, value in old[key].items())
    return same and kept and set(old["given"]) <= set(new["given"]) and new["mapping"]["mapper"] == "incremental"


def _is_whole(work: Workspace) -> bool:
    return all((work.model / name).is_file() for name in MODEL_FILES)


def _ensure_database(
    work: Workspace, plan: _Plan, pairs: Sequence[Pair], features: FeatureStore, matches: MatchStore
) -> None:
    """COLMAP's database of all pairs. One that was made from the same before stays, with what was verified in it."""
    if work.is_made(work.database, plan.made_from):
        return
    work.note(verified=None)
    first = {name: first_at_point(features.keypoints(name).keypoints) for name in plan.cameras.by_name}
    found = ((a, b, merge_points(matches.get(a, b)[0], first[a], first[b])) for a, b in pairs)
    with work.making(work.database, plan.made_from, changes=True):
        write_database(work.database, plan.cameras.by_name, features.keypoints, found)


def _ensure_model(
    work: Workspace, plan: _Plan, inputs: Inputs, mapping: MappingConfig
) -> tuple[pycolmap.Reconstruction, tuple[int, ...]]:
    """The model, and the numbers of images in smaller ones beside it."""
    if work.is_made(work.model, plan.made_from) and _is_whole(work):
        return read_model(work.model), tuple(work.notes().get("smaller_models", ()))
    continued = None if plan.start is None else len(work.notes()["mapped"]["features"])
    mapped = build_model(work.database, plan.cameras.given, mapping, plan.start)
    colour_points(mapped.model, inputs.paths)
    work.note(
        mapped={"made_from": plan.made_from, "matches": plan.matches, **plan.state},
        smaller_models=list(mapped.smaller),
        continued_from=continued,
    )
    with work.making(work.model, plan.made_from):
        write_model(mapped.model, work.model)
    return mapped.model, mapped.smaller


def _notes(work: Workspace, inputs: Inputs) -> tuple[str, ...]:
    continued = work.notes().get("continued_from")
    if continued is None:
        return inputs.notes
    told = f"the model of {continued} images was continued; `linglue clean {work.folder} --model` makes it anew"
    return (*inputs.notes, told)


def _why_unregistered(name: str, pairs: Sequence[Pair], verified: Mapping[Pair, int]) -> str:
    own = [pair for pair in pairs if name in pair]
    good = {pair: verified[pair] for pair in own if pair in verified}
    if not own:
        return "in no pair"
    if not good:
        return f"none of its {len(own)} pairs has verified matches"
    best = max(good, key=lambda pair: good[pair])
    partner = best[0] if best[1] == name else best[1]
    return f"{len(good)} verified pairs, at most {good[best]} matches ({partner}): too few points of the model in view"


def _draw(
    work: Workspace,
    made_from: str,
    model: pycolmap.Reconstruction,
    names: Sequence[str],
    verified: Mapping[Pair, int],
    registered: Sequence[str],
) -> None:
    from linglue.viz.model import draw_match_graph, draw_model

    try:
        work.pictures.mkdir(exist_ok=True)
    except OSError as error:
        raise LinGlueError(f"{work.pictures}: cannot be made a folder ({error.strerror})") from error
    of_model, of_matches = work.drawings
    with work.making(of_model, made_from):
        draw_model(of_model, model)
    with work.making(of_matches, made_from):
        draw_match_graph(of_matches, names, verified, registered)


def first_at_point(keypoints: FloatArray) -> IndexArray:
    """(N,) for each of the keypoints (N, 2) the first one at the very same point, mostly itself.

    SIFT has several keypoints with different orientations at one point: they are one observation.
    """
    _, first, point = np.unique(keypoints, axis=0, return_index=True, return_inverse=True)
    return np.asarray(first[point.reshape(-1)], dtype=np.int64)


def merge_points(indices: IndexArray, first0: IndexArray, first1: IndexArray) -> IndexArray:
    """Matches (K, 2), best first, between the first keypoints of their points; each point of an image is matched once.

    Otherwise the tracks of one point would split by orientations.

    Args:
        indices: (K, 2) keypoints of image 0 and image 1.
        first0: (N0,) for each keypoint the first at the same point.
        first1: (N1,) the same for image 1.
    """
    merged = np.column_stack([first0[indices[:, 0]], first1[indices[:, 1]]])
    for side in (0, 1):
        _, best = np.unique(merged[:, side], return_index=True)
        merged = merged[np.sort(best)]
    return merged
