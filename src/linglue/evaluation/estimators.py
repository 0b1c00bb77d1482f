"""Robust estimators of homographies and relative poses: exchangeable, with a fixed seed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from linglue.core.optional import need
from linglue.errors import LinGlueError
from linglue.geometry.camera import Camera
from linglue.geometry.pose import Pose
from linglue.types import FloatArray

Array = NDArray[np.float64]

CONFIDENCE = 0.9999
MAX_ITERATIONS = 10_000


@dataclass(frozen=True)
class RobustSettings:
    """What decides the result of an estimator, apart from the matches."""

    threshold: float  # pixels at which a match counts as an inlier
    seed: int = 0


HomographyEstimator = Callable[[FloatArray, FloatArray, RobustSettings], "Array | None"]


def _poselib_options(name: str, settings: RobustSettings, scale: float = 1.0) -> dict[str, Any]:
    return {
        name: settings.threshold * scale,
        "seed": settings.seed,
        "success_prob": CONFIDENCE,
        "max_iterations": MAX_ITERATIONS,
    }


def _homography_poselib(points0: FloatArray, points1: FloatArray, settings: RobustSettings) -> Array | None:
    poselib = need("poselib", "the estimator poselib")
    if len(points0) < 4:  # PoseLib returns uninitialised memory
        return None
    options = _poselib_options("max_reproj_error", settings)
    homography, info = poselib.estimate_homography(
        points0.astype(np.float64), points1.astype(np.float64), options, {"loss_type": "CAUCHY"}
    )
    return np.asarray(homography) if info["num_inliers"] >= 4 else None


def _homography_opencv(method: int) -> HomographyEstimator:
    def estimate(points0: FloatArray, points1: FloatArray, settings: RobustSettings) -> Array | None:
        if len(points0) < 4:
            return None
        cv2.setRNGSeed(settings.seed)
        try:
            homography, _ = cv2.findHomography(
                points0, points1, method, settings.threshold, maxIters=MAX_ITERATIONS, confidence=CONFIDENCE
            )
        except cv2.error:  # degenerate input, such as all points equal
            return None
        return None if homography is None else np.asarray(homography, dtype=np.float64)

    return estimate


HOMOGRAPHY_ESTIMATORS: dict[str, HomographyEstimator] = {
    "poselib": _homography_poselib,
    "opencv-ransac": _homography_opencv(cv2.RANSAC),
    "opencv-magsac": _homography_opencv(cv2.USAC_MAGSAC),
}


def check_estimators(names: list[str]) -> None:
    """Refuse unknown or not installed estimators before any work is done.

    Args:
        names: of HOMOGRAPHY_ESTIMATORS.
    """
    for name in names:
        if name not in HOMOGRAPHY_ESTIMATORS:
            raise LinGlueError(f"estimator is {name!r}, expected {', '.join(HOMOGRAPHY_ESTIMATORS)}")
    if "poselib" in names:
        need("poselib", "the estimator poselib")


def version(estimator: str) -> str:
    """The package and version behind an estimator, e.g. "PoseLib 2.0.5".

    Args:
        estimator: its name.
    """
    if estimator == "poselib":
        return f"PoseLib {need('poselib', 'the estimator poselib').__version__}"
    return f"OpenCV {cv2.__version__}"


def _without_skew(points: FloatArray, camera: Camera) -> Array:
    """Pixels (K, 2) of a camera as one without skew sees them: PoseLib's pinhole has none."""
    k = camera.matrix
    return np.asarray(camera.rays(points.astype(np.float64))[:, :2] * [k[0, 0], k[1, 1]] + k[:2, 2])


def relative_pose(
    points0: FloatArray,
    points1: FloatArray,
    camera0: Camera,
    camera1: Camera,
    settings: RobustSettings,
    scale: float = 1.0,
) -> Pose | None:
    """Pose 1_from_0 by PoseLib (five points, LO-RANSAC, refined) from matches (K, 2) in pixels; None if it fails.

    The translation is known up to its length. `scale` multiplies the threshold, for points that are given at another
    resolution than the threshold.

    Args:
        points0: (K, 2) pixels of image 0.
        points1: (K, 2) their matches in image 1.
        camera0: of image 0.
        camera1: of image 1.
        settings: threshold and seed.
        scale: multiplies the threshold, for points at another resolution than it is meant at.
    """
    poselib = need("poselib", "relative pose")
    if len(points0) < 5:
        return None
    cameras = [
        {"model": "PINHOLE", "width": size[0], "height": size[1], "params": [k[0, 0], k[1, 1], k[0, 2], k[1, 2]]}
        for size, k in ((camera.size, camera.matrix) for camera in (camera0, camera1))
    ]
    options = _poselib_options("max_epipolar_error", settings, scale)
    pose, info = poselib.estimate_relative_pose(
        _without_skew(points0, camera0), _without_skew(points1, camera1), *cameras, options, {}
    )
    if info["num_inliers"] < 5:
        return None
    return Pose(np.asarray(pose.R), np.asarray(pose.t))
