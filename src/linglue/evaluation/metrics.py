"""What is measured: errors of points, homographies and poses, and the curves over them. Plain numpy, no files."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.spatial import cKDTree

Array = NDArray[np.float64]


def auc(errors: ArrayLike, thresholds: Sequence[float]) -> list[float]:
    """Area under the recall curve up to each threshold, divided by the threshold; in [0, 1].

    The curve of SuperGlue's pose_auc: straight lines from (0, 0) through (error, rank / number) of the sorted errors
    (N,), flat from the last error to the threshold, integrated exactly. A failure is an infinite error.
    """
    sorted_errors = np.sort(np.asarray(errors, dtype=np.float64))
    if len(sorted_errors) == 0:
        return [0.0] * len(thresholds)
    recall = np.arange(1, len(sorted_errors) + 1) / len(sorted_errors)
    areas = []
    for threshold in thresholds:
        count = int(np.searchsorted(sorted_errors, threshold))
        reached = recall[count - 1] if count else 0.0
        x = np.concatenate([[0.0], sorted_errors[:count], [threshold]])
        y = np.concatenate([[0.0], recall[:count], [reached]])
        areas.append(float(np.trapezoid(y, x) / threshold))
    return areas


def share_within(errors: ArrayLike, thresholds: Sequence[float]) -> list[float]:
    """Share of the errors (K,) that are at most each threshold; 0 where there are no errors."""
    values = np.asarray(errors, dtype=np.float64)
    return [float((values <= threshold).mean()) if len(values) else 0.0 for threshold in thresholds]


def project(homography: ArrayLike, points: ArrayLike) -> Array:
    """Points (N, 2) under a homography (3, 3) of any scale and sign; infinite where it sends them to the horizon.

    The sign of the depth means nothing: estimators return either, and so do files of truth (Oxford's leuven 1-5).
    """
    points = np.asarray(points, dtype=np.float64).reshape(-1, 2)
    mapped = np.column_stack([points, np.ones(len(points))]) @ np.asarray(homography, dtype=np.float64).T  # (N, 3)
    depth = mapped[:, 2:]
    return np.where(depth != 0, mapped[:, :2] / np.where(depth != 0, depth, 1), np.inf)


def reprojection_errors(homography_1_from_0: ArrayLike, points0: ArrayLike, points1: ArrayLike) -> Array:
    """(K,) pixels in image 1 between where points0 (K, 2) truly are and where they were matched to."""
    target = np.asarray(points1, dtype=np.float64).reshape(-1, 2)
    return np.asarray(np.linalg.norm(project(homography_1_from_0, points0) - target, axis=1))


def corner_error(estimated: ArrayLike | None, true: ArrayLike, size0: tuple[int, int]) -> float:
    """Mean distance in pixels of image 1 between the corners of image 0 (width, height) under both homographies.

    Infinite without an estimate.
    """
    if estimated is None or not np.isfinite(estimated).all():
        return float("inf")
    right, bottom = size0[0] - 1, size0[1] - 1  # centres of the corner pixels
    corners = np.array([[0, 0], [right, 0], [right, bottom], [0, bottom]])
    mapped, wanted = project(estimated, corners), project(true, corners)
    if not (np.isfinite(mapped).all() and np.isfinite(wanted).all()):
        return float("inf")
    return float(np.linalg.norm(mapped - wanted, axis=1).mean())


def repeatability(
    homography_1_from_0: ArrayLike,
    keypoints0: ArrayLike,
    keypoints1: ArrayLike,
    size0: tuple[int, int],
    size1: tuple[int, int],
    threshold: float,
) -> float:
    """Share of the keypoints seen in both images that have a keypoint of the other image at their place.

    SuperPoint's definition: keypoints of either image whose true place lies inside the other one are counted, and of
    those the ones with a keypoint at most `threshold` pixels away there; both ways added up.

    Args:
        homography_1_from_0: (3, 3).
        keypoints0: (N, 2) pixels of image 0.
        keypoints1: (M, 2) pixels of image 1.
        size0: (width, height) of image 0.
        size1: (width, height) of image 1.
        threshold: pixels, inclusive.

    Returns:
        In [0, 1]; 0 where no keypoint is seen in both.
    """
    forth = np.asarray(homography_1_from_0, dtype=np.float64)
    points0, points1 = (np.asarray(p, dtype=np.float64).reshape(-1, 2) for p in (keypoints0, keypoints1))
    seen = repeated = 0
    for homography, points, others, size in (
        (forth, points0, points1, size1),
        (np.linalg.inv(forth), points1, points0, size0),
    ):
        places = project(homography, points)
        places = places[((places >= 0) & (places <= np.array(size) - 1)).all(axis=1)]
        seen += len(places)
        if len(places) and len(others):
            distance, _ = cKDTree(others).query(places)  # (K,)
            repeated += int((distance <= threshold).sum())
    return repeated / max(1, seen)


def cross_matrix(vector: ArrayLike) -> Array:
    """(3, 3) with cross_matrix(a) @ b = a × b."""
    x, y, z = np.asarray(vector, dtype=np.float64)
    return np.array([[0, -z, y], [z, 0, -x], [-y, x, 0]])


def fundamental_matrix(k0: ArrayLike, k1: ArrayLike, rotation: ArrayLike, translation: ArrayLike) -> Array:
    """(3, 3) F with x1ᵀ F x0 = 0 for pixels of cameras k0, k1 (3, 3) and the pose 1_from_0."""
    essential = cross_matrix(translation) @ np.asarray(rotation, dtype=np.float64)
    return np.asarray(np.linalg.inv(np.asarray(k1)).T @ essential @ np.linalg.inv(np.asarray(k0)))


def epipolar_distances(fundamental: ArrayLike, points0: ArrayLike, points1: ArrayLike) -> tuple[Array, Array]:
    """(K,) pixels of each point from the epipolar line of its partner: in image 0, and in image 1."""
    f = np.asarray(fundamental, dtype=np.float64)
    homogeneous0, homogeneous1 = (
        np.column_stack([np.asarray(p, dtype=np.float64).reshape(-1, 2), np.ones(len(np.asarray(p)))])
        for p in (points0, points1)
    )  # (K, 3)
    lines1, lines0 = homogeneous0 @ f.T, homogeneous1 @ f  # (K, 3)
    residual = np.abs((homogeneous1 * lines1).sum(axis=1))  # (K,)
    tiny = np.finfo(np.float64).tiny
    distance0 = residual / np.maximum(np.linalg.norm(lines0[:, :2], axis=1), tiny)
    distance1 = residual / np.maximum(np.linalg.norm(lines1[:, :2], axis=1), tiny)
    return distance0, distance1


def rotation_error(estimated: ArrayLike, true: ArrayLike) -> float:
    """Degrees of the rotation between two rotation matrices (3, 3)."""
    difference = np.asarray(estimated, dtype=np.float64).T @ np.asarray(true, dtype=np.float64)
    # From sine and cosine: the arc cosine alone loses half the digits of small angles.
    axis = np.array(
        [
            difference[2, 1] - difference[1, 2],
            difference[0, 2] - difference[2, 0],
            difference[1, 0] - difference[0, 1],
        ]
    )
    return float(np.degrees(np.arctan2(np.linalg.norm(axis), np.trace(difference) - 1)))


def direction_error(estimated: ArrayLike, true: ArrayLike) -> float:
    """Degrees between the lines of two vectors (3,), 0 to 90: the sign is ignored, as SuperGlue's measure does."""
    a, b = np.asarray(estimated, dtype=np.float64), np.asarray(true, dtype=np.float64)
    return float(np.degrees(np.arctan2(np.linalg.norm(np.cross(a, b)), abs(a @ b))))
