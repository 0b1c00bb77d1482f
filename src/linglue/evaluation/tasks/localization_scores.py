"""How far from the truth images were placed: errors, shares, tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from linglue.evaluation.result import Table, percent
from linglue.geometry.pose import Pose, rotation_error
from linglue.localization.absolute_pose import PoseEstimate

WITHIN = ((0.05, 0.5), (0.25, 2.0), (0.5, 5.0), (5.0, 10.0))  # metres, degrees; the last three are Aachen's


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


def score_image(scene: str, image: str, estimate: PoseEstimate | None, truth: Pose | None) -> ImageScore:
    """Without an estimate the image could not even be used, which counts as failure.

    Args:
        scene: its name.
        image: its name.
        estimate: the pose found.
        truth: the true pose, if it is known.
    """
    pose = None if estimate is None else estimate.cam_from_world
    position = rotation = None
    if truth is not None:
        position = float("inf") if pose is None else float(np.linalg.norm(pose.centre - truth.centre))
        rotation = float("inf") if pose is None else rotation_error(pose.rotation, truth.rotation)
    if estimate is None:
        return ImageScore(scene, image, position, rotation, 0, 0, "the image could not be used")
    return ImageScore(scene, image, position, rotation, estimate.inliers, estimate.correspondences, estimate.reason)


def within_name(metres: float, degrees: float) -> str:
    """ "0.25 m 2°".

    Args:
        metres: of position error.
        degrees: of rotation error.
    """
    return f"{metres:g} m {degrees:g}°"


def summarise(scores: Mapping[str, Sequence[ImageScore]]) -> dict[str, dict[str, dict[str, Any]]]:
    """Per scene (and "all" of them, if several) and method: shares in [0, 1] and medians over images.

    Args:
        scores: by method.
    """
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
    """Shares in percent, median errors, median inliers; dashes where the truth is not known.

    Args:
        summary: of `summarise`.
    """
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
    """One row per method and image.

    Args:
        scores: by method.
    """
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
