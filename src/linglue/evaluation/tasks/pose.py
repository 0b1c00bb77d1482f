"""Real scenes with known cameras: relative pose AUC and epipolar precision.

A scene is a folder with `images/` and `gt/IMAGE.txt` (see `linglue.io.views`); `pairs.txt`, if there, lists its pairs.
Pixel thresholds are meant at a longer side of `REFERENCE_SIDE` and scaled to each original image, so that the
size of the originals does not matter.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from linglue.errors import LinGlueError
from linglue.evaluation.estimators import RobustSettings, check_estimators, relative_pose, version
from linglue.evaluation.methods import Methods, prepare
from linglue.evaluation.metrics import auc
from linglue.evaluation.result import Result, Table, pair_columns, percent, relative
from linglue.evaluation.settings import (
    TIME_NOTE,
    check_scene_names,
    common_settings,
    extraction_note,
    robust_note,
)
from linglue.evaluation.store import PROGRESS_DELAY, Pair, Prediction, predict
from linglue.geometry.camera import Camera, View
from linglue.geometry.epipolar import epipolar_distances, fundamental_matrix
from linglue.geometry.pose import Pose, direction_error, rotation_error
from linglue.io.images import IMAGE_SUFFIXES
from linglue.io.pair_list import read_pairs
from linglue.io.views import read_view
from linglue.sfm.extract import ExtractConfig

REFERENCE_SIDE = 1024  # pixels of the longer side at which thresholds are meant
CORRECT = 3.0  # pixels: farther from its epipolar line in either image, a match is wrong
AUC_THRESHOLDS = (5, 10, 20)  # degrees
ESTIMATOR_THRESHOLD = 1.0  # pixels
MAX_GAP = 6  # pairs are at most this many images apart, unless a scene lists its own


@dataclass(frozen=True, eq=False)
class PosePair:
    """Two images of a scene and where they were taken."""

    pair: Pair
    view0: View
    view1: View

    @property
    def one_from_zero(self) -> Pose:
        """The true relative pose, in the unit of the scene."""
        return self.view1.from_view(self.view0)


@dataclass(frozen=True)
class PairScore:
    """How good one method is on one pair."""

    pair: str
    scene: str
    keypoints: tuple[int, int]
    matches: int
    correct: int  # at most CORRECT pixels from the epipolar line in both images
    rotation_error: float  # degrees; infinite where the estimator fails
    translation_error: float  # degrees
    seconds: float

    @property
    def precision(self) -> float:
        """Share of correct matches; 0 without matches."""
        return self.correct / max(1, self.matches)

    @property
    def error(self) -> float:
        """Degrees: the larger of the two errors."""
        return max(self.rotation_error, self.translation_error)


def load_scene(scene: Path, max_gap: int = MAX_GAP) -> list[PosePair]:
    """The pairs of a scene and their cameras.

    Args:
        scene: folder with images/ and gt/.
        max_gap: pairs are all images at most this far apart in the order of their names, unless the scene has a file
            pairs.txt that lists them.
    """
    if max_gap < 1:
        raise LinGlueError(f"--max-gap is {max_gap}, expected at least 1")
    for folder in (scene, scene / "images", scene / "gt"):
        if not folder.is_dir():
            raise LinGlueError(f"{folder}: no such folder, expected a scene with images/ and gt/")
    images = sorted(p for p in (scene / "images").iterdir() if p.suffix.lower() in IMAGE_SUFFIXES)
    if len(images) < 2:
        raise LinGlueError(f"{scene / 'images'}: holds {len(images)} images, expected at least 2")
    paths = {image.name: image for image in images}
    views = {name: read_view(scene / "gt" / f"{name}.txt") for name in paths}
    group = scene.resolve().name
    pairs = []
    for name0, name1 in _chosen_pairs(scene, list(paths), max_gap):
        pair = PosePair(Pair(group, paths[name0], paths[name1]), views[name0], views[name1])
        if np.linalg.norm(pair.one_from_zero.translation) < 1e-9:
            raise LinGlueError(
                f"{scene}: {name0} and {name1} were taken from one place, expected pairs with a baseline"
            )
        pairs.append(pair)
    return pairs


def _chosen_pairs(scene: Path, names: list[str], max_gap: int) -> list[tuple[str, str]]:
    listed = scene / "pairs.txt"
    if not listed.is_file():
        return [(names[i], other) for i in range(len(names)) for other in names[i + 1 : i + 1 + max_gap]]
    pairs = read_pairs(listed)
    if not pairs:
        raise LinGlueError(f"{listed}: holds no pair, expected at least one")
    unknown = next((name for pair in pairs for name in pair if name not in names), None)
    if unknown is not None:
        raise LinGlueError(f"{listed}: {unknown!r} is no image of the scene, expected names in {scene / 'images'}")
    return pairs


def score_pair(truth: PosePair, prediction: Prediction, robust: RobustSettings) -> PairScore:
    """`robust.threshold` is in pixels at the reference size, like CORRECT."""
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
    return PairScore(
        truth.pair.name,
        truth.pair.group,
        prediction.keypoints,
        len(distance),
        int((distance <= CORRECT).sum()),
        rotation,
        translation,
        prediction.seconds,
    )


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
) -> Result:
    """Measure matchers on scenes with known cameras: relative pose AUC and epipolar precision.

    Args:
        scenes: folders with images/ and gt/, and maybe pairs.txt.
        methods: matchers by name, or configurations (see `evaluation.methods.prepare`).
        work: folder where features and matches are kept; what is there is not made again.
        extract: how features are taken; None: SIFT, 2048 keypoints, longer side 1024.
        max_gap: pairs are at most this many images apart, where a scene has no pairs.txt.
        threshold: inlier threshold of the estimator in pixels at a longer side of REFERENCE_SIDE.
        seed: of the estimator.

    Returns:
        One row per method and pair; a table per scene and of all scenes.
    """
    folders, work = [Path(scene) for scene in scenes], Path(work)
    extract = extract or ExtractConfig(max_keypoints=2048, resize=1024)
    check_estimators(["poselib"])
    check_scene_names(folders)
    loaded = [load_scene(scene, max_gap) for scene in folders]
    prepared = prepare(methods, extract)
    robust = RobustSettings(threshold, seed)
    made = 0
    scores: dict[str, list[PairScore]] = {name: [] for name in prepared.ready}
    for truths in tqdm(loaded, desc="pose", unit="scene", disable=None, delay=PROGRESS_DELAY):
        new, predictions = predict(work, [truth.pair for truth in truths], prepared)
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
    note = (
        f"{extraction_note(prepared, extract, list(summary.values())[-1])}, at most {max_gap} images apart or as "
        f"listed; thresholds at a longer side of {REFERENCE_SIDE}, correct: at most {CORRECT:g} px from the epipolar "
        f"line in both images; relative pose by {version('poselib')}, {robust_note(robust)}; error: larger of "
        f"rotation and translation direction, whose sign is ignored\n{TIME_NOTE}"
    )
    rows = csv_rows(scores)
    return Result(
        "pose", summary, rows, "pairs", tables(summary), note, settings, made, len(rows) - made, prepared.missing
    )


def summarise(scores: Mapping[str, Sequence[PairScore]]) -> dict[str, dict[str, dict[str, Any]]]:
    """Per scene (and "all" of them, if several) and method: means over pairs, AUC in [0, 1], median seconds."""
    scenes = list(dict.fromkeys(s.scene for pairs in scores.values() for s in pairs))
    summary: dict[str, dict[str, dict[str, Any]]] = {}
    for scene in scenes if len(scenes) == 1 else [*scenes, "all"]:
        for method, all_pairs in scores.items():
            summary.setdefault(scene, {})[method] = _mean([s for s in all_pairs if scene in ("all", s.scene)])
    return summary


def _mean(pairs: Sequence[PairScore]) -> dict[str, Any]:
    return {
        "pairs": len(pairs),
        "keypoints": float(np.mean([s.keypoints for s in pairs])),
        "matches": float(np.mean([s.matches for s in pairs])),
        "correct": float(np.mean([s.correct for s in pairs])),
        "precision": float(np.mean([s.precision for s in pairs])),
        "auc": dict(zip(map(str, AUC_THRESHOLDS), auc([s.error for s in pairs], AUC_THRESHOLDS), strict=True)),
        "seconds": float(np.median([s.seconds for s in pairs])),
    }


def tables(summary: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> list[Table]:
    """Matches, epipolar precision and pose AUC; in percent where not counts."""
    timed = all("mnn" in methods for methods in summary.values())
    rows = []
    for scene, methods in summary.items():
        base = methods["mnn"]["seconds"] if timed else None
        for method, values in methods.items():
            rows.append(
                (
                    scene,
                    method,
                    f"{values['matches']:.0f}",
                    f"{values['correct']:.0f}",
                    percent(values["precision"]),
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
        *(f"AUC@{t}°" for t in AUC_THRESHOLDS),
        "time/mnn" if timed else "ms",
    )
    return [Table(header, tuple(rows), labels=2)]


def csv_rows(scores: Mapping[str, Sequence[PairScore]]) -> list[dict[str, Any]]:
    """One row per method and pair."""
    return [
        {
            **pair_columns(method, s),
            "scene": s.scene,
            "precision": round(s.precision, 6),
            "rotation_error": s.rotation_error,
            "translation_error": s.translation_error,
        }
        for method, pairs in scores.items()
        for s in pairs
    ]
