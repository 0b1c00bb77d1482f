"""Which keypoints of two images are partners, which have none, and of which it cannot be told."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.spatial import cKDTree

from linglue.training.sources.interface import Flags, ImagePair, Mapper, Points
from linglue.types import IndexArray

UNMATCHABLE = -1  # certainly without a partner
IGNORE = -2  # neither a positive nor a negative example


def ground_truth(
    keypoints0: Points,
    keypoints1: Points,
    pair: ImagePair,
    threshold: float = 3.0,
    ignore: float = 5.0,
    oris0: NDArray[np.floating[Any]] | None = None,
    oris1: NDArray[np.floating[Any]] | None = None,
) -> tuple[IndexArray, IndexArray]:
    """Partners of keypoints0 (N0, 2) and keypoints1 (N1, 2) of a pair: matches0 (N0,) and matches1 (N1,), int64.

    The error of a pair of keypoints is the larger of its two reprojection errors, in pixels. Mutual nearest keypoints
    under `threshold` match. A keypoint is IGNOREd if its visibility is unknown, or if some keypoint of the other image
    is closer than `ignore` without being its partner; every other one is UNMATCHABLE.

    SIFT puts several keypoints of different orientation on one spot, and their positions cannot tell which belongs to
    which. Given `oris0` and `oris1` (radians), a penalty of a tenth of a pixel per radian does, and decides only there.
    """
    mapped0, visible0 = pair.one_from_zero(keypoints0)
    mapped1, visible1 = pair.zero_from_one(keypoints1)
    near = _closer_than(mapped0, visible0, keypoints1, ignore)  # forwards: candidate pairs (i, j)
    i, j = near
    error = np.maximum(
        np.linalg.norm(mapped0[i] - keypoints1[j], axis=1), np.linalg.norm(mapped1[j] - keypoints0[i], axis=1)
    )
    sure = visible1[j] & (error < ignore)

    matches0 = np.full(len(keypoints0), UNMATCHABLE, dtype=np.int64)
    matches1 = np.full(len(keypoints1), UNMATCHABLE, dtype=np.int64)
    matches0[np.isnan(mapped0).any(axis=1)] = IGNORE
    matches1[np.isnan(mapped1).any(axis=1)] = IGNORE
    # Visible forwards but not backwards happens at the rims of occluders, within the tolerance of the depth.
    doubtful = sure | ~visible1[j]
    matches0[i[doubtful]] = IGNORE
    matches1[j[doubtful]] = IGNORE
    back_j, back_i = _closer_than(mapped1, visible1, keypoints0, ignore)
    doubtful = ~visible0[back_i]
    matches0[back_i[doubtful]] = IGNORE
    matches1[back_j[doubtful]] = IGNORE

    i, j, error = i[sure], j[sure], error[sure]
    cost = error
    if oris0 is not None and oris1 is not None:
        cost = error + 0.1 * _rotation_error(keypoints0[i], oris0[i], oris1[j], pair.one_from_zero)
    best0 = _cheapest(i, cost, len(keypoints0))  # index into i, j
    best1 = _cheapest(j, cost, len(keypoints1))
    rows = np.arange(len(i))
    match = (best0[i] == rows) & (best1[j] == rows) & (error < threshold)
    matches0[i[match]] = j[match]
    matches1[j[match]] = i[match]
    return matches0, matches1


def _closer_than(mapped: Points, visible: Flags, targets: Points, radius: float) -> tuple[IndexArray, IndexArray]:
    """Indices (i, j) of all visible mapped points i and targets j less than `radius` apart, sorted by i, then j."""
    index = np.flatnonzero(visible)
    if not len(index) or not len(targets):
        return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
    found = cKDTree(mapped[index]).sparse_distance_matrix(cKDTree(targets), radius, output_type="ndarray")
    found = found[found["v"] < radius]
    i, j = index[found["i"]].astype(np.int64), found["j"].astype(np.int64)
    order = np.lexsort((j, i))
    return i[order], j[order]


def _cheapest(group: IndexArray, cost: NDArray[np.floating[Any]], groups: int) -> IndexArray:
    """(groups,) the row of least cost of each group, the first of equals; -1 for a group without rows."""
    order = np.lexsort((np.arange(len(group)), cost, group))
    found, first = np.unique(group[order], return_index=True)
    best = np.full(groups, -1, dtype=np.int64)
    best[found] = order[first]
    return best


def _rotation_error(points: Points, oris0: Points, oris1: Points, mapper: Mapper) -> NDArray[np.float64]:
    """(N,) radians between orientations of image 0, carried over by the mapper, and orientations of image 1."""
    step = 0.25 * np.stack([np.cos(oris0), np.sin(oris0)], axis=1)  # short: some mappers know a few pixels only
    ahead, _ = mapper(points + step)
    behind, _ = mapper(points - step)
    direction = np.nan_to_num(ahead - behind)
    difference = np.arctan2(direction[:, 1], direction[:, 0]) - oris1
    return np.abs((difference + np.pi) % (2 * np.pi) - np.pi)
