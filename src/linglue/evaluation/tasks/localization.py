"""Visual localization on data with known poses: how far from the truth a camera is placed, and how often close enough.

Two protocols. Leave-one-out: each image of a scene is localized in a map of all others, whose poses are the truth and
whose points are triangulated from our matches; the image itself has no influence on the map. Queries, in Aachen's
layout: a reference model with known poses and lists of query images with intrinsics; the truth may be unknown.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from linglue.core.engine import Engine
from linglue.core.optional import need
from linglue.core.progress import progress
from linglue.errors import LinGlueError
from linglue.evaluation.known_poses import (
    KnownScene,
    KnownView,
    find_model,
    load_known_scene,
    triangulate,
    views_of,
    write_known_database,
)
from linglue.evaluation.methods import Methods, Prepared, prepare
from linglue.evaluation.result import Result
from linglue.evaluation.settings import check_scene_names, common_settings, size_note
from linglue.evaluation.store import extract_named, matches_file, scene_folder
from linglue.evaluation.tasks.localization_scores import ImageScore, csv_rows, score_image, summarise, tables
from linglue.geometry.pose import Pose
from linglue.io.pair_list import Pair, make_pair
from linglue.io.poses import read_poses, write_poses
from linglue.localization.absolute_pose import REFERENCE_SIDE, ModelPoints, PoseConfig, PoseEstimate, estimate_pose
from linglue.matcher import MatcherConfig
from linglue.sfm.cameras import read_intrinsics
from linglue.sfm.extract import ExtractConfig
from linglue.sfm.match import match_pairs
from linglue.sfm.pairs import AUTO_EXHAUSTIVE, exhaustive
from linglue.sfm.retrieval import TOP, Retrieval
from linglue.sfm.sparse_model import read_model
from linglue.sfm.store import FeatureStore, MatchStore
from linglue.sfm.workspace import Workspace

if TYPE_CHECKING:
    import pycolmap


@dataclass(frozen=True, eq=False)
class QueryScene:
    """A reference model with known poses, and images to localize in it."""

    name: str
    images: Path  # folder that all names are relative to
    views: dict[str, KnownView]  # of the reference model, by image name
    queries: dict[str, pycolmap.Camera]  # by image name
    truth: dict[str, Pose]  # of queries by image name; empty where it is not known
    labels: dict[str, str]  # of queries by image name: the scene's name, and the list's where there are several


@dataclass(frozen=True)
class LocalizationSettings:
    """How images are localized, the same for all methods."""

    methods: Mapping[str, MatcherConfig]  # by the name to show
    extract: ExtractConfig
    pose: PoseConfig
    top: int = TOP  # images of a large map that are matched with a query
    engine: Engine | None = None  # where images are extracted and pairs matched


@dataclass(frozen=True)
class Measured:
    """What was found in one scene."""

    scores: dict[str, list[ImageScore]]  # by method
    poses: dict[str, Path]  # by method: the file of poses
    problems: list[str]


def is_query_scene(folder: Path) -> bool:
    """Whether a folder has Aachen's layout.

    Args:
        folder: of the scene.
    """
    return (folder / "queries").is_dir()


def load_query_scene(folder: Path, model: Path | None = None, truth: Path | None = None) -> QueryScene:
    """Aachen's layout (v1.1, as hloc has it): images/images_upright (or images), queries/*_with_intrinsics.txt and a
    COLMAP model, e.g. 3D-models/aachen_v_1_1. Names in lists and model are relative to the images.

    Args:
        folder: of the data set.
        model: the COLMAP model, where the folder has several or none.
        truth: a file of poses, by whole or last names.
    """
    upright = folder / "images" / "images_upright"
    images = upright if upright.is_dir() else folder / "images"
    if not images.is_dir():
        raise LinGlueError(f"{images}: no such folder, expected images/images_upright and images")
    lists = sorted((folder / "queries").glob("*_with_intrinsics.txt"))
    if not lists:
        raise LinGlueError(f"{folder / 'queries'}: holds no list, expected files *_with_intrinsics.txt")
    listed = {path: read_intrinsics(path) for path in lists}
    queries = {name: camera for cameras in listed.values() for name, camera in cameras.items()}
    views = views_of(read_model(model or find_model(folder)))
    known = {} if truth is None else read_poses(truth)
    found = {
        name: pose for name in queries if (pose := known.get(name, known.get(PurePosixPath(name).name))) is not None
    }
    if known and not found:
        raise LinGlueError(f"{truth}: holds no pose of any query, expected the names in {lists[0]}")
    scene = folder.resolve().name
    labels = {
        name: f"{scene} {path.name.partition('_')[0]}" if len(lists) > 1 else scene  # day_time_queries…: day
        for path, cameras in listed.items()
        for name in cameras
    }
    return QueryScene(scene, images, views, queries, found, labels)


def evaluate(
    scenes: Sequence[str | Path],
    methods: Methods,
    work: str | Path,
    extract: ExtractConfig | None = None,
    *,
    model: str | Path | None = None,
    truth: str | Path | None = None,
    top: int = TOP,
    pose: PoseConfig | None = None,
    engine: Engine | None = None,
) -> Result:
    """Measure matchers by the camera poses they lead to: each image among the others, or queries in Aachen's layout.

    Args:
        scenes: folders with images/ and gt/ or a COLMAP model, or with queries/ besides.
        methods: matchers by name, or configurations (see `evaluation.methods.prepare`).
        work: folder where features and matches are kept; what is there is not made again.
        extract: how features are taken; None: what users of the pipeline get.
        model: the COLMAP model of the one scene, where its folder has several or none.
        truth: file of the queries' poses of the one scene.
        top: similar images matched in large scenes.
        pose: how poses are estimated.
        engine: where images are extracted and pairs matched; None: in this process.

    Returns:
        One row per method and image; `files["poses"]` are the files of poses.

    Example:
        >>> print(evaluate(["scene"], ["mnn", "linglue"], "work").text())  # doctest: +SKIP
    """
    folders, work = [Path(scene) for scene in scenes], Path(work)
    extract, pose = extract or ExtractConfig(), pose or PoseConfig()
    need("pycolmap", "evaluation of localization")
    if top < 1:
        raise LinGlueError(f"--top is {top}, expected at least 1")
    loaded = _load_all(folders, *(None if path is None else Path(path) for path in (model, truth)))
    prepared = prepare(methods, extract)
    hows = [LocalizationSettings(matchers, config, pose, top, engine) for config, matchers in prepared.by_front_end()]
    measured = [_measure(scene, work, how) for scene in loaded for how in hows]
    scores = {name: [score for m in measured for score in m.scores.get(name, ())] for name in prepared.ready}
    problems = list(dict.fromkeys(problem for m in measured for problem in m.problems))
    poses = [str(path) for m in measured for path in m.poses.values()]
    summary, rows = summarise(scores), csv_rows(scores)
    settings = {
        **common_settings("localization", extract, prepared.settings),
        "scenes": [str(folder) for folder in folders],
        "top": top,
        "pose": asdict(pose),
    }
    results = ("localization", summary, rows, "images", tables(summary), _note(prepared, extract, pose), settings)
    return Result(*results, len(rows), 0, prepared.missing, problems, {"poses": poses})


def _note(prepared: Prepared, extract: ExtractConfig, pose: PoseConfig) -> str:
    """The settings in a line for people."""
    return (
        f"settings: {size_note(prepared, extract)}; known intrinsics; error at most {pose.max_error:g} px at a longer "
        f"side of {REFERENCE_SIDE}, at least {pose.min_inliers} inliers, seed {pose.seed}; distances in the "
        "unit of the truth"
    )


def _load_all(folders: Sequence[Path], model: Path | None, truth: Path | None) -> list[KnownScene | QueryScene]:
    """All scenes are read before any is worked on, so that complaints come at once."""
    check_scene_names(folders)
    for option, value in (("--model", model), ("--truth", truth)):
        if value is not None and len(folders) > 1:
            raise LinGlueError(f"{option} is {value}, expected only with a single scene")
    return [_load(folder, model, truth) for folder in folders]


def _load(folder: Path, model: Path | None, truth: Path | None) -> KnownScene | QueryScene:
    if is_query_scene(folder):
        return load_query_scene(folder, model, truth)
    if truth is not None:
        raise LinGlueError(f"--truth is {truth}, expected only with a folder queries/, {folder} has none")
    return load_known_scene(folder, model)


def _measure(scene: KnownScene | QueryScene, work: Path, how: LocalizationSettings) -> Measured:
    folder = Workspace(scene_folder(work, scene.name, how.extract))
    if isinstance(scene, QueryScene):
        return localize_scene(scene, folder, how)
    return leave_one_out(scene, folder, how)


def leave_one_out(scene: KnownScene, work: Workspace, how: LocalizationSettings) -> Measured:
    """Localize each image in the map of all others. Features and matches are made once, in the work folder.

    Args:
        scene: images with known poses.
        work: where features and matches are kept.
        how: methods and settings.
    """
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
        for method in how.methods:
            with _matches(work, method, pairs, features, how) as matches:
                database = _database(work, method, views, pairs, features, matches)
                for name in _progress(names, method):
                    others = {other: view for other, view in views.items() if other != name}
                    points = ModelPoints.of(triangulate(database, others, how.pose.seed))
                    estimate = _localize(points, name, views[name].camera, partners[name], features, matches, how)
                    found.setdefault(method, {})[name] = estimate
    truth = {name: view.cam_from_world for name, view in scene.views.items()}
    return _measured(dict.fromkeys(scene.views, scene.name), work, truth, found, problems, whole_names=True)


def localize_scene(scene: QueryScene, work: Workspace, how: LocalizationSettings) -> Measured:
    """Localize the queries in the reference model, whose points are triangulated anew from our matches.

    Args:
        scene: reference model and queries.
        work: where features and matches are kept.
        how: methods and settings.
    """
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
        for method in how.methods:
            with _matches(work, method, sorted({*pairs, *wanted}), features, how) as matches:
                database = _database(work, method, views, pairs, features, matches)
                points = ModelPoints.of(triangulate(database, views, how.pose.seed))
                found[method] = {
                    name: _localize(points, name, scene.queries[name], partners[name], features, matches, how)
                    for name in _progress(queries, method)
                }
    whole_names = len({PurePosixPath(name).name for name in scene.queries}) < len(scene.queries)
    return _measured(scene.labels, work, scene.truth, found, problems, whole_names)


def _extract(
    images: Path, names: Iterable[str], how: LocalizationSettings, store: FeatureStore
) -> tuple[list[str], list[str]]:
    """The images that have features now, and a line about each of the others."""
    done = extract_named(images, names, how.extract, store, how.engine)
    return [image.name for image in done.images], done.problems


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
    work: Workspace, method: str, pairs: Sequence[Pair], features: FeatureStore, how: LocalizationSettings
) -> MatchStore:
    """The matches of a method, all there."""
    store = MatchStore(matches_file(work.folder, method))
    try:
        match_pairs(pairs, how.methods[method], features, store, how.engine)
    except BaseException:
        store.close()
        raise
    return store


def _database(
    work: Workspace,
    method: str,
    views: Mapping[str, KnownView],
    pairs: Sequence[Pair],
    features: FeatureStore,
    matches: MatchStore,
) -> Path:
    path = matches_file(work.folder, method).with_suffix(".colmap.db")
    write_known_database(path, views, features.get, pairs, lambda name0, name1: matches.get(name0, name1)[0])
    return path


def _localize(
    points: ModelPoints,
    name: str,
    camera: pycolmap.Camera,
    partners: Sequence[str],
    features: FeatureStore,
    matches: MatchStore,
    how: LocalizationSettings,
) -> PoseEstimate:
    found = [(other, matches.get(name, other)[0]) for other in partners]
    return estimate_pose(points, features.get(name).keypoints, found, camera, config=how.pose)


def _progress(names: Sequence[str], method: str) -> Iterable[str]:
    bar: Iterable[str] = progress(names, desc=f"localize ({method})", unit="image")
    return bar


def _measured(
    labels: Mapping[str, str],
    work: Workspace,
    truth: Mapping[str, Pose],
    found: Mapping[str, Mapping[str, PoseEstimate]],
    problems: list[str],
    whole_names: bool,
) -> Measured:
    """Scores of all images, also of those that could not be used, and the poses as files for other programs.

    `labels`: the scene's name in tables by image name.
    """
    scores, files = {}, {}
    for method, estimates in found.items():
        scores[method] = [
            score_image(scene, name, estimates.get(name), truth.get(name)) for name, scene in labels.items()
        ]
        poses = {
            name if whole_names else PurePosixPath(name).name: estimate.cam_from_world
            for name, estimate in estimates.items()
            if estimate.cam_from_world is not None
        }
        files[method] = work.folder.parent / f"poses-{method}.txt"
        write_poses(files[method], poses)
    return Measured(scores, files, problems)
