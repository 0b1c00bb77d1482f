"""Curves over errors of points, homographies and poses (`linglue.geometry`). Plain numpy, no files."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike
from scipy.spatial import cKDTree

from linglue.geometry.homography import apply


def auc(errors: ArrayLike, thresholds: Sequence[float]) -> list[float]:
    """Area under the recall curve up to each threshold, divided by the threshold; in [0, 1].

    The curve of SuperGlue's pose_auc: straight lines from (0, 0) through (error, rank / number) of the sorted errors
    (N,), flat from the last error to the threshold, integrated exactly. A failure is an infinite error.

    Args:
        errors: (N,), infinite for a failure.
        thresholds: in the unit of the errors.
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
    """Share of the errors (K,) that are at most each threshold; 0 where there are no errors.

    Args:
        errors: (K,).
        thresholds: inclusive.
    """
    values = np.asarray(errors, dtype=np.float64)
    return [float((values <= threshold).mean()) if len(values) else 0.0 for threshold in thresholds]


def repeatability(
    homography_1_from_0: ArrayLike,
    keypoints0: ArrayLike,
    keypoints1: ArrayLike,
    size0: tuple[int, int],
    size1: tuple[int, int],
    threshold: float,
) -> float:
    """Share of the keypoints seen in both images that have a keypoint of the other image at their position.

    SuperPoint's definition: keypoints of either image whose true position lies inside the other one are counted, and of
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
        positions = apply(homography, points)
        positions = positions[((positions >= 0) & (positions <= np.array(size) - 1)).all(axis=1)]
        seen += len(positions)
        if len(positions) and len(others):
            distance, _ = cKDTree(others).query(positions)  # (K,)
            repeated += int((distance <= threshold).sum())
    return repeated / max(1, seen)
