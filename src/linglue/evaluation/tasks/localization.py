"""Visual localization on data with known poses: how far from the truth a camera is placed, and how often close enough.

Two protocols. Leave-one-out: each image of a scene is localized in a map of all others, whose poses are the truth and
whose points are triangulated from our matches; the image itself has no influence on the map. Queries, in Aachen's
layout: a reference model with known poses and lists of query images with intrinsics; the truth may be unknown.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

import numpy as np
from tqdm import tqdm

from linglue.core.fingerprint import file_sha256
from linglue.errors import LinGlueError
from linglue.evaluation.known_poses import (
    KnownScene,
    KnownView,
    find_model,
    triangulate,
    views_of,
    write_known_database,
)
from linglue.evaluation.recipes import MethodRecipe
from linglue.evaluation.report import Table, percent
from linglue.geometry.pose import Pose, rotation_error
from linglue.io.pair_list import Pair, make_pair
from linglue.io.poses import read_poses, write_poses
from linglue.localization.absolute_pose import ModelPoints, PoseConfig, PoseEstimate, estimate_pose
from linglue.sfm.cameras import read_intrinsics
from linglue.sfm.extract import ExtractConfig, extract_images
from linglue.sfm.match import match_pairs
from linglue.sfm.pairs import AUTO_EXHAUSTIVE, exhaustive
from linglue.sfm.retrieval import TOP, Retrieval
from linglue.sfm.scan import ImageFile
from linglue.sfm.sparse_model import read_model
from linglue.sfm.store import FeatureStore, MatchStore
from linglue.sfm.workspace import Workspace

if TYPE_CHECKING:
    import pycolmap

WITHIN = ((0.05, 0.5), (0.25, 2.0), (0.5, 5.0), (5.0, 10.0))  # metres, degrees; the last three are Aachen's


@dataclass(frozen=True, eq=False)
class QueryScene:
    """A reference model with known poses, and images to localize in it."""

    name: str
    images: Path  # folder that all names are relative to
    views: dict[str, KnownView]  # of the reference model, by image name
    queries: dict[str, pycolmap.Camera]  # by image name
    truth: dict[str, Pose]  # of queries by image name; empty where it is not known


@dataclass(frozen=True)
class Measurement:
    """How images are localized, the same for all methods."""

    recipes: Sequence[MethodRecipe]
    extract: ExtractConfig
    pose: PoseConfig
    top: int = TOP  # images of a large map that are matched with a query
    workers: int = 1


@dataclass(frozen=True)
class ImageScore:
    """How well one method placed one image."""

    scene: str
    image: str
    position_error: float | None  # in the truth's unit, metres as a rule; infinite without a pose, None without truth
    rotation_error: float | None  # degrees
    inliers: int
    correspondences: int
    reason: str | None  # why there is no pose


@dataclass(frozen=True)
class Measured:
    """What was found in one scene."""

    scores: dict[str, list[ImageScore]]  # by method
    poses: dict[str, Path]  # by method: the file of poses
    problems: list[str]


def is_query_scene(folder: Path) -> bool:
    """Whether a folder has Aachen's layout."""
    return (folder / "queries").is_dir()


def load_query_scene(folder: Path, model: Path | None = None, truth: Path | None = None) -> QueryScene:
    """Aachen's layout: images/images_upright (or images), queries/*_with_intrinsics.txt and a COLMAP model.

    Names in lists and model are relative to the images. `truth`: a file of poses, by whole or last names.
    """
    upright = folder / "images" / "images_upright"
    images = upright if upright.is_dir() else folder / "images"
    if not images.is_dir():
        raise LinGlueError(f"{images}: no such folder, expected images/images_upright and images")
    lists = sorted((folder / "queries").glob("*_with_intrinsics.txt"))
    if not lists:
        raise LinGlueError(f"{folder / 'queries'}: holds no list, expected files *_with_intrinsics.txt")
    queries = {name: camera for path in lists for name, camera in read_intrinsics(path).items()}
    views = views_of(read_model(model or find_model(folder)))
    known = {} if truth is None else read_poses(truth)
    found = {
        name: pose for name in queries if (pose := known.get(name, known.get(PurePosixPath(name).name))) is not None
    }
    if known and not found:
        raise LinGlueError(f"{truth}: holds no pose of any query, expected the names in {lists[0]}")
    return QueryScene(folder.resolve().name, images, views, queries, found)


def leave_one_out(scene: KnownScene, work: Workspace, how: Measurement) -> Measured:
    """Localize each image in the map of all others. Features and matches are made once, in the work folder."""
    if len(scene.views) < 3:
        raise LinGlueError(f"{scene.images}: holds {len(scene.views)} images with poses, expected at least 3")
    found: dict[str, dict[str, PoseEstimate]] = {}
    with work.locked(), work.features() as features:
        names, problems = _extract(scene.images, scene.views, how, features)
        _check_sizes(scene.images, {name: scene.views[name].camera for name in names}, features)
        views = {name: scene.views[name] for name in names}
        pairs = _map_pairs(names, how.top, features)
        partners: dict[str, list[str]] = {name: [] for name in names}
        for name0, name1 in pairs:
            partners[name0].append(name1)
            partners[name1].append(name0)
        for recipe in how.recipes:
            with _matches(work, recipe, pairs, features, how) as matches:
                database = _database(work, recipe, views, pairs, features, matches)
                for name in _progress(names, recipe):
                    others = {other: view for other, view in views.items() if other != name}
                    points = ModelPoints.of(triangulate(database, others, how.pose.seed))
                    estimate = _localize(points, name, views[name].camera, partners[name], features, matches, how)
                    found.setdefault(recipe.name, {})[name] = estimate
    truth = {name: view.cam_from_world for name, view in scene.views.items()}
    return _measured(scene.name, work, list(scene.views), truth, found, problems, whole_names=True)


def localize_scene(scene: QueryScene, work: Workspace, how: Measurement) -> Measured:
    """Localize the queries in the reference model, whose points are triangulated anew from our matches."""
    found: dict[str, dict[str, PoseEstimate]] = {}
    with work.locked(), work.features() as features:
        names, problems = _extract(scene.images, [*scene.views, *scene.queries], how, features)
        cameras = {**{name: view.camera for name, view in scene.views.items()}, **scene.queries}
        _check_sizes(scene.images, {name: cameras[name] for name in names}, features)
        views = {name: scene.views[name] for name in names if name in scene.views}
        queries = [name for name in names if name in scene.queries]
        if len(views) < 2:
            raise LinGlueError(f"{scene.images}: {len(views)} images of the reference model, expected 2 or more")
        pairs = _map_pairs(list(views), how.top, features)
        retrieval = Retrieval.build(views, features.get)
        partners = {
            name: [other for other, _ in retrieval.nearest(retrieval.describe(features.get(name)), how.top)]
            for name in queries
        }
        wanted = {make_pair(name, other) for name, others in partners.items() for other in others}
        for recipe in how.recipes:
            with _matches(work, recipe, sorted({*pairs, *wanted}), features, how) as matches:
                database = _database(work, recipe, views, pairs, features, matches)
                points = ModelPoints.of(triangulate(database, views, how.pose.seed))
                found[recipe.name] = {
                    name: _localize(points, name, scene.queries[name], partners[name], features, matches, how)
                    for name in _progress(queries, recipe)
                }
    whole_names = len({PurePosixPath(name).name for name in scene.queries}) < len(scene.queries)
    return _measured(scene.name, work, list(scene.queries), scene.truth, found, problems, whole_names)


def _extract(images: Path, names: Iterable[str], how: Measurement, store: FeatureStore) -> tuple[list[str], list[str]]:
    """The images that have features now, and a line about each of the others."""
    photos, problems = [], []
    for name in dict.fromkeys(names):
        path = images / name
        if not path.is_file():
            problems.append(f"{name}: no such image in {images}, left out")
            continue
        sha256 = store.known_sha256(path) or file_sha256(path)
        store.remember_sha256(path, sha256)
        photos.append(ImageFile(name, path, sha256))
    extracted = extract_images(photos, how.extract, store, how.workers)
    return [photo.name for photo in extracted.images], [*problems, *extracted.problems]


def _check_sizes(images: Path, cameras: Mapping[str, pycolmap.Camera], store: FeatureStore) -> None:
    sizes = store.sizes()
    for name, camera in cameras.items():
        if (camera.width, camera.height) != sizes[name]:
            raise LinGlueError(
                f"{images / name}: image is {sizes[name].width}x{sizes[name].height} pixels, its camera was calibrated "
                f"for {camera.width}x{camera.height}; expected the same size"
            )


def _map_pairs(names: Sequence[str], top: int, store: FeatureStore) -> list[Pair]:
    """All pairs of a small scene, the most similar images of a large one."""
    return exhaustive(names) if len(names) <= AUTO_EXHAUSTIVE else Retrieval.build(names, store.get).pairs(top)


def _matches(
    work: Workspace, recipe: MethodRecipe, pairs: Sequence[Pair], features: FeatureStore, how: Measurement
) -> MatchStore:
    """The matches of a method, all there."""
    store = MatchStore(work.folder / f"matches-{recipe.name}.db")
    try:
        match_pairs(pairs, recipe, features, store, how.workers)
    except BaseException:
        store.close()
        raise
    return store


def _database(
    work: Workspace,
    recipe: MethodRecipe,
    views: Mapping[str, KnownView],
    pairs: Sequence[Pair],
    features: FeatureStore,
    matches: MatchStore,
) -> Path:
    path = work.folder / f"database-{recipe.name}.db"
    write_known_database(path, views, features.get, pairs, lambda name0, name1: matches.get(name0, name1)[0])
    return path


def _localize(
    points: ModelPoints,
    name: str,
    camera: pycolmap.Camera,
    partners: Sequence[str],
    features: FeatureStore,
    matches: MatchStore,
    how: Measurement,
) -> PoseEstimate:
    found = [(other, matches.get(name, other)[0]) for other in partners]
    return estimate_pose(points, features.get(name).keypoints, found, camera, config=how.pose)


def _progress(names: Sequence[str], recipe: MethodRecipe) -> Iterable[str]:
    bar: Iterable[str] = tqdm(names, desc=f"localize ({recipe.name})", unit="image", disable=None)
    return bar


def _measured(
    scene: str,
    work: Workspace,
    names: Sequence[str],
    truth: Mapping[str, Pose],
    found: Mapping[str, Mapping[str, PoseEstimate]],
    problems: list[str],
    whole_names: bool,
) -> Measured:
    """Scores of all images, also of those that could not be used, and the poses as files for other programs."""
    scores, files = {}, {}
    for method, estimates in found.items():
        scores[method] = [score_image(scene, name, estimates.get(name), truth.get(name)) for name in names]
        poses = {
            name if whole_names else PurePosixPath(name).name: estimate.cam_from_world
            for name, estimate in estimates.items()
            if estimate.cam_from_world is not None
        }
        files[method] = work.folder.parent / f"poses-{method}.txt"
        write_poses(files[method], poses)
    return Measured(scores, files, problems)


def score_image(scene: str, image: str, estimate: PoseEstimate | None, truth: Pose | None) -> ImageScore:
    """Without an estimate the image could not even be used, which counts as failure."""
    pose = None if estimate is None else estimate.cam_from_world
    position = rotation = None
    if truth is not None:
        position = float("inf") if pose is None else float(np.linalg.norm(pose.centre - truth.centre))
        rotation = float("inf") if pose is None else rotation_error(pose.rotation, truth.rotation)
    if estimate is None:
        return ImageScore(scene, image, position, rotation, 0, 0, "the image could not be used")
    return ImageScore(scene, image, position, rotation, estimate.inliers, estimate.correspondences, estimate.reason)


def within_name(metres: float, degrees: float) -> str:
    """ "0.25 m 2°"."""
    return f"{metres:g} m {degrees:g}°"


def summarise(scores: Mapping[str, Sequence[ImageScore]]) -> dict[str, dict[str, dict[str, Any]]]:
    """Per scene (and "all" of them, if several) and method: shares in [0, 1] and medians over images."""
    scenes = list(dict.fromkeys(s.scene for images in scores.values() for s in images))
    return {
        scene: {method: _summary([s for s in images if scene in ("all", s.scene)]) for method, images in scores.items()}
        for scene in (scenes if len(scenes) == 1 else [*scenes, "all"])
    }


def _summary(images: Sequence[ImageScore]) -> dict[str, Any]:
    known = [(s.position_error, s.rotation_error) for s in images if s.position_error is not None]
    errors = np.array(known, dtype=np.float64).reshape(-1, 2)
    summary: dict[str, Any] = {
        "images": len(images),
        "localized": float(np.mean([s.reason is None for s in images])),
        "inliers": float(np.median([s.inliers for s in images])),
        "with_truth": len(errors),
    }
    if len(errors):
        summary["within"] = {within_name(*limit): float((errors <= limit).all(axis=1).mean()) for limit in WITHIN}
        summary["position_error"], summary["rotation_error"] = (float(v) for v in _median(errors))
    return summary


def _median(errors: np.ndarray) -> np.ndarray:
    """(2,) per column; the larger of the two in the middle, so that infinite errors need no arithmetic."""
    return np.sort(errors, axis=0)[len(errors) // 2]


def tables(summary: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> list[Table]:
    """Shares in percent, median errors, median inliers; dashes where the truth is not known."""
    rows = []
    for scene, methods in summary.items():
        for method, values in methods.items():
            within = values.get("within")
            position, rotation = values.get("position_error"), values.get("rotation_error")
            rows.append(
                (
                    scene,
                    method,
                    str(values["images"]),
                    percent(values["localized"]),
                    *(percent(within[within_name(*limit)]) if within else "–" for limit in WITHIN),
                    _number(position, 3),
                    _number(rotation, 3),
                    f"{values['inliers']:.0f}",
                )
            )
    header = (
        "scene",
        "method",
        "images",
        "localized %",
        *(f"≤ {within_name(*limit)}" for limit in WITHIN),
        "median m",
        "median °",
        "inliers",
    )
    return [Table(header, tuple(rows), labels=2)]


def _number(value: float | None, digits: int) -> str:
    return "–" if value is None or not np.isfinite(value) else f"{value:.{digits}f}"


def csv_rows(scores: Mapping[str, Sequence[ImageScore]]) -> list[dict[str, Any]]:
    """One row per method and image."""
    return [
        {
            "method": method,
            "scene": s.scene,
            "image": s.image,
            "position_error": s.position_error,
            "rotation_error": s.rotation_error,
            "inliers": s.inliers,
            "correspondences": s.correspondences,
            "reason": s.reason,
        }
        for method, images in scores.items()
        for s in images
    ]
