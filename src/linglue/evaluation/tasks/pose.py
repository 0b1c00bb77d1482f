"""Real scenes with known cameras: relative pose AUC and epipolar precision.

A scene is a folder in one of the layouts of `linglue.evaluation.pose_scenes`.
Pixel thresholds are meant at a longer side of `REFERENCE_SIDE` and scaled to each original image, so that the
size of the originals does not matter.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from linglue.core.engine import Engine
from linglue.core.progress import progress
from linglue.errors import LinGlueError
from linglue.evaluation.estimators import RobustSettings, check_estimators, relative_pose, version
from linglue.evaluation.methods import Methods, Prepared, prepare
from linglue.evaluation.metrics import auc
from linglue.evaluation.pose_scenes import MAX_GAP, PosePair, load_scene
from linglue.evaluation.result import Result, Table, pair_columns, percent, relative
from linglue.evaluation.settings import (
    TIME_NOTE,
    check_scene_names,
    common_settings,
    extraction_note,
    robust_note,
)
from linglue.evaluation.store import PROGRESS_DELAY, Prediction, predict
from linglue.geometry.camera import Camera
from linglue.geometry.epipolar import epipolar_distances, essential_matrix, fundamental_matrix
from linglue.geometry.pose import direction_error, rotation_error
from linglue.sfm.extract import ExtractConfig
from linglue.types import FloatArray

REFERENCE_SIDE = 1024  # pixels of the longer side at which thresholds are meant
CORRECT = 3.0  # pixels: farther from its epipolar line in either image, a match is wrong
EPIPOLAR = ("1e-4", "5e-4", "1e-3")  # SuperGlue's limits of the squared distances from both lines, at depth 1
SUPERGLUE = "5e-4"  # the one in its tables
AUC_THRESHOLDS = (5, 10, 20)  # degrees
ESTIMATOR_THRESHOLD = 1.0  # pixels
MANY = 4  # scenes beyond which a table has one row for all, and a second table a column for each


@dataclass(frozen=True)
class PoseScore:
    """How good one method is on one pair."""

    pair: str
    scene: str
    keypoints: tuple[int, int]
    matches: int
    correct: int  # at most CORRECT pixels from the epipolar line in both images
    rotation_error: float  # degrees; infinite where the estimator fails
    translation_error: float  # degrees
    seconds: float
    epipolar: tuple[float, ...]  # share of matches within EPIPOLAR; 0 without matches

    @property
    def matching_score(self) -> float:
        """SuperGlue's: share of the keypoints of image 0 that have a match within its limit."""
        return self.epipolar[EPIPOLAR.index(SUPERGLUE)] * self.matches / max(1, self.keypoints[0])

    @property
    def precision(self) -> float:
        """Share of correct matches; 0 without matches."""
        return self.correct / max(1, self.matches)

    @property
    def error(self) -> float:
        """Degrees: the larger of the two errors."""
        return max(self.rotation_error, self.translation_error)


def score_pair(truth: PosePair, prediction: Prediction, robust: RobustSettings) -> PoseScore:
    """`robust.threshold` is in pixels at the reference size, like CORRECT.

    Args:
        truth: the pair and its cameras.
        prediction: of one method.
        robust: threshold in pixels at the reference size, and seed.
    """
    camera0, camera1 = truth.view0.camera, truth.view1.camera
    scale0, scale1 = _scale(camera0), _scale(camera1)
    for image, camera, size in (
        (truth.pair.image0, camera0, prediction.image_size0),
        (truth.pair.image1, camera1, prediction.image_size1),
    ):
        if camera.size != size:
            raise LinGlueError(
                f"{image}: image is {size[0]}x{size[1]} pixels, its camera was calibrated for "
                f"{camera.size[0]}x{camera.size[1]}; expected the same size"
            )
    fundamental = fundamental_matrix(truth.view0, truth.view1)
    distance0, distance1 = epipolar_distances(fundamental, prediction.points0, prediction.points1)
    distance = np.maximum(distance0 / scale0, distance1 / scale1)  # (K,) pixels at the reference size
    rotation = translation = float("inf")
    pose = relative_pose(prediction.points0, prediction.points1, camera0, camera1, robust, scale=(scale0 + scale1) / 2)
    if pose is not None:
        rotation = rotation_error(pose.rotation, truth.one_from_zero.rotation)
        translation = direction_error(pose.translation, truth.one_from_zero.translation)
    return PoseScore(
        truth.pair.name,
        truth.scene or truth.pair.group,
        prediction.keypoints,
        len(distance),
        int((distance <= CORRECT).sum()),
        rotation,
        translation,
        prediction.seconds,
        epipolar_precision(truth, prediction.points0, prediction.points1),
    )


def epipolar_precision(truth: PosePair, points0: FloatArray, points1: FloatArray) -> tuple[float, ...]:
    """SuperGlue's precision: share of matches whose squared distances from both epipolar lines add up to less.

    Args:
        truth: the pair and its cameras.
        points0: (K, 2) pixels of image 0.
        points1: (K, 2) their matches in image 1.

    Returns:
        One share for each of EPIPOLAR; 0 without matches.
    """
    rays = [view.camera.rays(points)[:, :2] for view, points in ((truth.view0, points0), (truth.view1, points1))]
    distance0, distance1 = epipolar_distances(essential_matrix(truth.one_from_zero), *rays)
    errors = distance0**2 + distance1**2  # (K,), at depth 1
    return tuple(float((errors < float(limit)).mean()) if len(errors) else 0.0 for limit in EPIPOLAR)


def _scale(camera: Camera) -> float:
    """Original pixels per pixel at the reference size."""
    return max(camera.size) / REFERENCE_SIDE


def evaluate(
    scenes: Sequence[str | Path],
    methods: Methods,
    work: str | Path,
    extract: ExtractConfig | None = None,
    *,
    max_gap: int = MAX_GAP,
    threshold: float = ESTIMATOR_THRESHOLD,
    seed: int = 0,
    engine: Engine | None = None,
) -> Result:
    """Measure matchers on scenes with known cameras: relative pose AUC and epipolar precision.

    Args:
        scenes: folders in a layout of `linglue.evaluation.pose_scenes`.
        methods: matchers by name, or configurations (see `evaluation.methods.prepare`).
        work: folder where features and matches are kept; what is there is not made again.
        extract: how features are taken; None: the default front-end, 2048 keypoints, longer side 1024.
        max_gap: pairs are at most this many images apart, where a scene has no pairs.txt.
        threshold: inlier threshold of the estimator in pixels at a longer side of REFERENCE_SIDE.
        seed: of the estimator.
        engine: where images are extracted and pairs matched; None: in this process.

    Returns:
        One row per method and pair; a table per scene and of all scenes.

    Example:
        >>> print(evaluate(["scene"], ["mnn", "aliked:lightglue"], "work").text())  # doctest: +SKIP
    """
    folders, work = [Path(scene) for scene in scenes], Path(work)
    extract = extract or ExtractConfig(max_keypoints=2048, resize=1024)
    check_estimators(["poselib"])
    check_scene_names(folders)
    groups: dict[str, list[PosePair]] = {}
    for truth in (truth for scene in folders for truth in load_scene(scene, max_gap)):
        groups.setdefault(truth.pair.group, []).append(truth)
    prepared = prepare(methods, extract)
    robust = RobustSettings(threshold, seed)
    made = 0
    scores: dict[str, list[PoseScore]] = {name: [] for name in prepared.ready}
    for truths in progress(groups.values(), desc="pose", unit="scene", delay=PROGRESS_DELAY):
        new, predictions = predict(work, [truth.pair for truth in truths], prepared, engine)
        made += new
        for name, found in predictions.items():
            for truth, prediction in zip(truths, found, strict=True):
                scores[name].append(score_pair(truth, prediction, robust))
    summary = summarise(scores)
    settings = {
        **common_settings("pose", extract, prepared.settings, robust),
        "scenes": [str(scene) for scene in folders],
        "max_gap": max_gap,
        "estimators": {"poselib": version("poselib")},
        "pixels": f"at a longer side of {REFERENCE_SIDE}",
        "correct": f"symmetric epipolar distance <= {CORRECT} px",
    }
    note = _note(prepared, extract, list(summary.values())[-1], max_gap, robust)
    rows = csv_rows(scores)
    return Result(
        "pose", summary, rows, "pairs", tables(summary), note, settings, made, len(rows) - made, prepared.missing
    )


def _note(
    prepared: Prepared, extract: ExtractConfig, summary: Mapping[str, Any], max_gap: int, robust: RobustSettings
) -> str:
    """The settings in a line for people."""
    return (
        f"{extraction_note(prepared, extract, summary)}, at most {max_gap} images apart or as "
        f"listed; thresholds at a longer side of {REFERENCE_SIDE}, correct: at most {CORRECT:g} px from the epipolar "
        f"line in both images; P@{SUPERGLUE} and MS: SuperGlue's epipolar precision and matching score; relative pose "
        f"by {version('poselib')}, {robust_note(robust)}; error: larger of rotation and translation direction, whose "
        f"sign is ignored\n{TIME_NOTE}"
    )


def summarise(scores: Mapping[str, Sequence[PoseScore]]) -> dict[str, dict[str, dict[str, Any]]]:
    """Per scene (and "all" of them, if several) and method: means over pairs, AUC in [0, 1], median seconds.

    Args:
        scores: by method.
    """
    scenes = list(dict.fromkeys(s.scene for pairs in scores.values() for s in pairs))
    summary: dict[str, dict[str, dict[str, Any]]] = {}
    for scene in scenes if len(scenes) == 1 else [*scenes, "all"]:
        for method, all_pairs in scores.items():
            summary.setdefault(scene, {})[method] = _mean([s for s in all_pairs if scene in ("all", s.scene)])
    return summary


def _mean(pairs: Sequence[PoseScore]) -> dict[str, Any]:
    return {
        "pairs": len(pairs),
        "keypoints": float(np.mean([s.keypoints for s in pairs])),
        "matches": float(np.mean([s.matches for s in pairs])),
        "correct": float(np.mean([s.correct for s in pairs])),
        "precision": float(np.mean([s.precision for s in pairs])),
        "epipolar": dict(zip(EPIPOLAR, np.mean([s.epipolar for s in pairs], axis=0).tolist(), strict=True)),
        "matching_score": float(np.mean([s.matching_score for s in pairs])),
        "auc": dict(zip(map(str, AUC_THRESHOLDS), auc([s.error for s in pairs], AUC_THRESHOLDS), strict=True)),
        "seconds": float(np.median([s.seconds for s in pairs])),
    }


def tables(summary: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> list[Table]:
    """Matches, epipolar precision and pose AUC; in percent where not counts. Many scenes get a table of their own.

    Args:
        summary: of `summarise`.
    """
    timed = all("mnn" in methods for methods in summary.values())
    rows = []
    many = len(summary) - 1 > MANY
    for scene, methods in ((name, summary[name]) for name in (["all"] if many else summary)):
        base = methods["mnn"]["seconds"] if timed else None
        for method, values in methods.items():
            rows.append(
                (
                    scene,
                    method,
                    f"{values['matches']:.0f}",
                    f"{values['correct']:.0f}",
                    percent(values["precision"]),
                    percent(values["epipolar"][SUPERGLUE]),
                    percent(values["matching_score"]),
                    *(percent(values["auc"][str(t)]) for t in AUC_THRESHOLDS),
                    relative(values["seconds"], base),
                )
            )
    header = (
        "scene",
        "method",
        "matches",
        "correct",
        "precision %",
        f"P@{SUPERGLUE}",
        "MS",
        *(f"AUC@{t}°" for t in AUC_THRESHOLDS),
        "time/mnn" if timed else "ms",
    )
    return [Table(header, tuple(rows), labels=2), *([_by_scene(summary)] if many else [])]


def _by_scene(summary: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> Table:
    """AUC@10° of every method in every scene."""
    scenes = [name for name in summary if name != "all"]
    rows = [
        (method, *(percent(summary[scene][method]["auc"]["10"]) for scene in scenes)) for method in summary[scenes[0]]
    ]
    return Table(("AUC@10° by scene", *scenes), tuple(rows))


def csv_rows(scores: Mapping[str, Sequence[PoseScore]]) -> list[dict[str, Any]]:
    """One row per method and pair.

    Args:
        scores: by method.
    """
    return [
        {
            **pair_columns(method, s),
            "scene": s.scene,
            "precision": round(s.precision, 6),
            **{f"precision@{limit}": round(share, 6) for limit, share in zip(EPIPOLAR, s.epipolar, strict=True)},
            "matching_score": round(s.matching_score, 6),
            "rotation_error": s.rotation_error,
            "translation_error": s.translation_error,
        }
        for method, pairs in scores.items()
        for s in pairs
    ]
