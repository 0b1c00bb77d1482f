"""Homographies, (3, 3) matrices that map (x, y, 1) up to scale: where they take points, and how far two differ."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]


def apply(homography: ArrayLike, points: ArrayLike, front_only: bool = False) -> Array:
    """(N, 2) points through a homography; infinite where it sends them to the horizon.

    The sign of the third coordinate means nothing: estimators return either, and so do files of truth (Oxford's leuven
    1-5). With `front_only` it does: NaN where it is not positive, for homographies made from cameras.

    Args:
        homography: (3, 3).
        points: (N, 2) pixels.
        front_only: whether the sign counts.

    Example:
        >>> apply([[1, 0, 3], [0, 1, 4], [0, 0, 1]], [[1, 1]])
        array([[4., 5.]])
    """
    matrix = np.asarray(homography, dtype=np.float64)
    mapped = np.asarray(points).reshape(-1, 2) @ matrix[:, :2].T + matrix[:, 2]  # (N, 3)
    depth = mapped[:, 2:]
    usable, otherwise = (depth > 0, np.nan) if front_only else (depth != 0, np.inf)
    return np.where(usable, mapped[:, :2] / np.where(usable, depth, 1), otherwise)


def reprojection_errors(homography_1_from_0: ArrayLike, points0: ArrayLike, points1: ArrayLike) -> Array:
    """(K,) pixels in image 1 between where points0 (K, 2) truly are and where they were matched to.

    Args:
        homography_1_from_0: (3, 3) the truth.
        points0: (K, 2) pixels of image 0.
        points1: (K, 2) their partners in image 1.
    """
    target = np.asarray(points1, dtype=np.float64).reshape(-1, 2)
    return np.asarray(np.linalg.norm(apply(homography_1_from_0, points0) - target, axis=1))


def corner_error(estimated: ArrayLike | None, true: ArrayLike, size0: tuple[int, int]) -> float:
    """Mean distance in pixels of image 1 between the corners of image 0 (width, height) under both homographies.

    Infinite without an estimate.

    Args:
        estimated: (3, 3) image 1 from image 0.
        true: (3, 3) the truth.
        size0: (width, height) of image 0.
    """
    if estimated is None or not np.isfinite(estimated).all():
        return float("inf")
    right, bottom = size0[0] - 1, size0[1] - 1  # centres of the corner pixels
    corners = np.array([[0, 0], [right, 0], [right, bottom], [0, bottom]])
    mapped, wanted = apply(estimated, corners), apply(true, corners)
    if not (np.isfinite(mapped).all() and np.isfinite(wanted).all()):
        return float("inf")
    return float(np.linalg.norm(mapped - wanted, axis=1).mean())
