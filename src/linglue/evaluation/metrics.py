"""Curves over errors of points, homographies and poses (`linglue.geometry`). Plain numpy, no files."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike


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
