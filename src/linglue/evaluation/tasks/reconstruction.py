"""3D reconstruction as the ETH local feature benchmark measures it: models of one scene by different matchers.

All methods get the very same features and pairs and go through `sfm.reconstruct`, verification, mapper and
refinement included; only COLMAP's own pipeline does everything by itself. Known intrinsics are given to all.

    WORK/SCENE/HASH/features.db, intrinsics.txt, matches-METHOD.db, models-HASH/METHOD/…

HASH stands for what decides the content beside the images, so other settings lead to other folders. What is there
is not made again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from linglue.core.atomic import atomic_path
from linglue.core.engine import Engine
from linglue.core.fingerprint import code_sha256, settings_hash
from linglue.core.optional import need
from linglue.core.pool import Pool
from linglue.dense.dense import DenseConfig, densify
from linglue.errors import LinGlueError
from linglue.evaluation.colmap_pipeline import ColmapConfig, reconstruct_by_colmap
from linglue.evaluation.known_poses import KnownScene, is_eth3d, load_known_scene
from linglue.evaluation.methods import Methods, Prepared, prepare
from linglue.evaluation.result import Result, Table
from linglue.evaluation.settings import check_scene_names, common_settings, size_note
from linglue.evaluation.store import matches_file, scene_folder
from linglue.io.colmap.database import open_database
from linglue.io.pair_list import read_pairs
from linglue.matcher import MatcherConfig
from linglue.sfm.cameras import CameraConfig
from linglue.sfm.extract import ExtractConfig, extract_images
from linglue.sfm.map import MappingConfig
from linglue.sfm.reconstruct import ReconstructConfig, reconstruct
from linglue.sfm.scan import check_images, scan_images
from linglue.sfm.sparse_model import ModelStatistics, aligned_errors, read_model
from linglue.sfm.summary import Summary
from linglue.sfm.workspace import Workspace

COLMAP = "colmap"  # the name of COLMAP's own pipeline among the methods
BASE = "linglue"  # the method whose time others are compared with
_MODEL_CODE = (
    "evaluation/colmap_pipeline.py",
    "geometry/colmap.py",
    "geometry/pixels.py",
    "io/colmap/database.py",
    "sfm/map.py",
    "sfm/map_stores.py",
)


@dataclass(frozen=True)
class ModelSettings:
    """How scenes are reconstructed, the same for all methods."""

    methods: Mapping[str, MatcherConfig]  # by the name to show
    extract: ExtractConfig
    mapping: MappingConfig
    engine: Engine  # where images are extracted and pairs matched
    colmap: ColmapConfig | None = None  # COLMAP's own pipeline as a further method
    dense: DenseConfig | None = None  # how dense points are made; None: they are not


@dataclass(frozen=True)
class ModelScore:
    """How good the model of one method is; without one, why there is none."""

    scene: str
    method: str
    model: ModelStatistics | None
    made: bool  # in this run, at least in part
    keypoints: float  # mean per image
    seconds: float  # of matching alone, per pair: median; COLMAP's is a mean
    position_errors: Mapping[str, float]  # by image, in the unit of the truth; empty without truth
    rotation_errors: Mapping[str, float]  # degrees
    reason: str | None = None
    dense: int | None = None  # points
    inlier_pairs: int | None = None  # pairs with verified matches
    inlier_matches: int | None = None  # in all of them


@dataclass(frozen=True)
class _SharedWorkspace(Workspace):
    """The folder of one method's model; features and matches lie above it, where other models find them too."""

    above: Path

    @property
    def features_file(self) -> Path:
        return Workspace(self.above).features_file

    @property
    def matches_file(self) -> Path:
        return matches_file(self.above, self.folder.name)


def load_scene(folder: Path) -> KnownScene:
    """A scene to reconstruct.

    Args:
        folder: with images/ and gt/ (see `linglue.io.views`), of ETH3D, or any folder of images (such as those of the
            ETH local feature benchmark), of which nothing is known.
    """
    if (folder / "gt").is_dir() or is_eth3d(folder):
        return load_known_scene(folder)
    images = folder / "images" if (folder / "images").is_dir() else folder
    check_images(images)
    return KnownScene(folder.resolve().name, images, {})


def evaluate(
    scenes: Sequence[str | Path],
    methods: Methods,
    work: str | Path,
    extract: ExtractConfig | None = None,
    *,
    seed: int = 0,
    engine: Engine | None = None,
    dense: DenseConfig | None = None,
) -> Result:
    """Measure matchers by the sparse models they lead to (ETH protocol): images, points, tracks, errors.

    Args:
        scenes: folders with images/ and gt/ (known intrinsics, true poses), or any folders of images.
        methods: matchers by name, or configurations; the name "colmap" stands for COLMAP's own pipeline.
        work: folder where features, matches and models are kept; what is there is not made again.
        extract: how features are taken; None: what users of the pipeline get.
        seed: of verification and mapper.
        engine: where images are extracted and pairs matched; None: in this process.
        dense: how the dense points of every model are made and counted; None: they are not.

    Returns:
        One row per method and camera with a true pose; a table with one line per scene and method.

    Example:
        >>> print(evaluate(["scene"], ["linglue", "colmap"], "work").text())  # doctest: +SKIP
    """
    folders, work, extract = [Path(scene) for scene in scenes], Path(work), extract or ExtractConfig()
    version = need("pycolmap", "evaluation of reconstruction").__version__
    check_scene_names(folders)
    loaded = [load_scene(folder) for folder in folders]
    named = methods if isinstance(methods, Mapping) else [method for method in methods if method != COLMAP]
    prepared = prepare(named, extract) if named else Prepared({}, {}, {})
    engine, mapping = engine or Pool(), MappingConfig(seed=seed)  # COLMAP gets as many threads as one of its workers
    colmap = ColmapConfig(extract.max_keypoints, extract.resize, engine.threads, seed) if COLMAP in methods else None
    hows = [ModelSettings(names, config, mapping, engine, None, dense) for config, names in prepared.by_front_end()]
    if colmap is not None:
        hows.append(ModelSettings({}, extract, mapping, engine, colmap, dense))
    scores = [score for scene in loaded for how in hows for score in measure(scene, work, how)]
    summary, made = summarise(scores), sum(score.made for score in scores)
    settings = {
        **common_settings("reconstruction", extract, prepared.settings),
        "scenes": [str(scene) for scene in folders],
        "seed": seed,
        "colmap": version,
    }
    reasons = [f"{s.scene}, {s.method}: {s.reason}" for s in scores if s.reason is not None]
    return Result(
        "reconstruction",
        summary,
        csv_rows(scores),
        "cameras",
        tables(summary),
        _note(prepared, extract, seed, colmap is not None, dense),
        settings,
        made,
        len(scores) - made,
        prepared.missing,
        reasons,
    )


def _note(prepared: Prepared, extract: ExtractConfig, seed: int, with_colmap: bool, dense: DenseConfig | None) -> str:
    """How the table came about."""
    note = (
        f"settings: {size_note(prepared, extract)}, seed {seed}; same features, pairs, verification, mapper and robust "
        "refinement for all matchers; known intrinsics given where a scene has gt/; mm if its truth is in metres, "
        "after the best similarity; time: median of matching a pair"
    )
    if with_colmap:
        note += (
            f"\n{COLMAP}: its own CPU SIFT, matcher (all pairs, mean time) and mapper with default options, without "
            "our refinement; it keeps whole scales of its SIFT, so more keypoints than allowed"
        )
    if dense is not None:
        note += f"\ndense points: by our plane sweep from images with a longer side of {dense.longer_side}, fused"
    return note


def measure(scene: KnownScene, work: Path, how: ModelSettings) -> list[ModelScore]:
    """The scores of all methods on a scene; models and all before them are made where the work folder lacks them.

    Args:
        scene: to reconstruct.
        work: work folder.
        how: methods and settings.
    """
    above = scene_folder(work, scene.name, how.extract)
    models = above / f"models-{settings_hash({'code': code_sha256(*_MODEL_CODE), **asdict(how.mapping)})}"
    with Workspace(above).locked():
        cameras = CameraConfig(intrinsics=_write_intrinsics(above / "intrinsics.txt", scene))
        scores = [_by_method(scene, _SharedWorkspace(models / name, above), name, cameras, how) for name in how.methods]
        if how.colmap is not None:
            scores.append(_by_colmap(scene, _SharedWorkspace(models / COLMAP, above), how, how.colmap))
    return scores


def _write_intrinsics(path: Path, scene: KnownScene) -> str | None:
    """The known cameras as a list for `sfm.cameras`, if there are any."""
    if not scene.views:
        return None
    lines = [
        " ".join([name, camera.model.name, str(camera.width), str(camera.height), *map(repr, camera.params.tolist())])
        for name, camera in ((name, view.camera) for name, view in scene.views.items())
    ]
    with atomic_path(path) as temporary:
        temporary.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return str(path)


def _by_method(
    scene: KnownScene, work: Workspace, method: str, cameras: CameraConfig, how: ModelSettings
) -> ModelScore:
    """The score of a matcher, with all of our pipeline around it."""
    config = ReconstructConfig(
        extract=how.extract,
        matcher=how.methods[method],
        cameras=cameras,
        mapping=how.mapping,
        engine=how.engine,
        pictures=False,
    )
    before = _written(work.summary)
    try:
        summary = reconstruct(scene.images, work, config)
    except LinGlueError as error:
        return _failed(scene, method, error)
    with work.matches() as matches:
        all_seconds = matches.seconds()
    seconds = float(np.median([all_seconds[pair] for pair in read_pairs(work.pairs)]))
    return _score(scene, method, work, summary, seconds, _written(work.summary) != before, how.dense)


def _by_colmap(scene: KnownScene, work: Workspace, how: ModelSettings, config: ColmapConfig) -> ModelScore:
    """The score of COLMAP's own pipeline on the images that the others use."""
    work.folder.mkdir(parents=True, exist_ok=True)
    before = _written(work.summary)
    try:
        with work.features() as features:
            found = scan_images(scene.images, features)
            files = extract_images(found.images, how.extract, features, how.engine).images
        cameras = {name: view.camera for name, view in scene.views.items()}
        summary = reconstruct_by_colmap(scene.images, files, cameras, work, config)
    except LinGlueError as error:
        return _failed(scene, COLMAP, error)
    seconds = summary.seconds["match"] / summary.matched_pairs
    return _score(scene, COLMAP, work, summary, seconds, _written(work.summary) != before, how.dense)


def _written(path: Path) -> int | None:
    """When a file was written, in nanoseconds."""
    return path.stat().st_mtime_ns if path.is_file() else None


def _failed(scene: KnownScene, method: str, error: LinGlueError) -> ModelScore:
    return ModelScore(scene.name, method, None, True, float("nan"), float("nan"), {}, {}, str(error))


def _score(
    scene: KnownScene,
    method: str,
    work: Workspace,
    summary: Summary,
    seconds: float,
    made: bool,
    dense: DenseConfig | None,
) -> ModelScore:
    positions: dict[str, float] = {}
    rotations: dict[str, float] = {}
    reason = None
    with open_database(work.database) as database:
        keypoints = database.num_keypoints() / summary.model.images
        inliers = database.num_verified_image_pairs(), database.num_inlier_matches()
    if scene.views:
        truth = {name: view.cam_from_world.matrix for name, view in scene.views.items()}
        try:
            positions, rotations = aligned_errors(read_model(work.model), truth)
        except LinGlueError as error:  # too few cameras: the model counts all the same
            reason = str(error)
    cloud = None
    if dense is not None:
        with work.locked():
            cloud = len(densify(work, work.folder / "dense.ply", dense))
    found = (scene.name, method, summary.model, made, keypoints, seconds, positions, rotations, reason, cloud)
    return ModelScore(*found, *inliers)


def summarise(scores: Sequence[ModelScore]) -> dict[str, dict[str, dict[str, Any]]]:
    """Per scene and method: the numbers of the model, mean and median errors of its cameras, seconds per pair.

    Args:
        scores: of all scenes and methods.
    """
    summary: dict[str, dict[str, dict[str, Any]]] = {}
    for s in scores:
        values: dict[str, Any] = {} if s.model is None else asdict(s.model)
        values |= {"keypoints": s.keypoints, "seconds": s.seconds}
        for name, errors in (("position_error", s.position_errors), ("rotation_error", s.rotation_errors)):
            for of in (np.mean, np.median) if errors else ():
                values[f"{of.__name__}_{name}"] = float(of(list(errors.values())))
        counts = {"dense": s.dense, "inlier_pairs": s.inlier_pairs, "inlier_matches": s.inlier_matches}
        values |= {name: count for name, count in counts.items() if count is not None}
        if s.reason is not None:
            values["reason"] = s.reason
        summary.setdefault(s.scene, {})[s.method] = values
    return summary


def tables(summary: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> list[Table]:
    """One row per scene and method; dashes where there is no model, or no truth while another scene has one.

    Args:
        summary: of `summarise`.
    """
    known = any("mean_position_error" in values for methods in summary.values() for values in methods.values())
    timed = all(BASE in methods for methods in summary.values())
    columns = {
        "keypoints": ("keypoints", 0, 1),
        "inlier pairs": ("inlier_pairs", 0, 1),
        "inlier matches": ("inlier_matches", 0, 1),
        "points": ("points", 0, 1),
        "observations": ("observations", 0, 1),
        "track": ("track_length", 2, 1),
        "error px": ("reprojection_error", 3, 1),
    }
    if any("dense" in values for methods in summary.values() for values in methods.values()):
        columns["dense points"] = ("dense", 0, 1)
    if known:
        columns |= {
            "mean mm": ("mean_position_error", 2, 1000),
            "median mm": ("median_position_error", 2, 1000),
            "mean °": ("mean_rotation_error", 4, 1),
            "median °": ("median_rotation_error", 4, 1),
        }
    rows = []
    for scene, methods in summary.items():
        base = methods[BASE]["seconds"] if timed else 1e-3
        for method, values in methods.items():
            registered = f"{values['registered']}/{values['images']}" if "images" in values else "–"
            numbers = [_number(values.get(key), digits, factor) for key, digits, factor in columns.values()]
            rows.append((scene, method, registered, *numbers, _number(values["seconds"], 2 if timed else 0, 1 / base)))
    header = ("scene", "method", "registered", *columns, f"time/{BASE}" if timed else "ms")
    return [Table(header, tuple(rows), labels=2)]


def _number(value: float | None, digits: int, factor: float) -> str:
    return "–" if value is None or not np.isfinite(value * factor) else f"{value * factor:.{digits}f}"


def csv_rows(scores: Sequence[ModelScore]) -> list[dict[str, Any]]:
    """One row per method and camera with a true pose and an own one.

    Args:
        scores: of all scenes and methods.
    """
    return [
        {
            "scene": s.scene,
            "method": s.method,
            "image": image,
            "position_error": position,
            "rotation_error": s.rotation_errors[image],
        }
        for s in scores
        for image, position in s.position_errors.items()
    ]
