"""The one interface of all training data: two images, and functions that map points of one into the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.spatial import cKDTree

from linglue.io.images import Image
from linglue.types import IndexArray

Points = NDArray[np.floating[Any]]  # (N, 2) x, y in pixels, centre of the top-left pixel is (0, 0)
Flags = NDArray[np.bool_]  # (N,)

# (N, 2) points → ((N, 2) float64 points in the other image, (N,) bool visible there). A point that is not visible keeps
# its coordinates when that is certain (out of frame, occluded); they are NaN when it cannot be told (depth unknown).
Mapper = Callable[[Points], tuple[Points, Flags]]

UNMATCHABLE = -1  # certainly without a partner
IGNORE = -2  # neither a positive nor a negative example


@dataclass(frozen=True, eq=False)
class ImagePair:
    """Two images with the correspondences between them."""

    image0: Image
    image1: Image
    one_from_zero: Mapper
    zero_from_one: Mapper
    shows: frozenset[str] = frozenset()  # names of the real scenes in it; not said of photographs used as textures


class PairGenerator(Protocol):
    """Makes pairs out of photographs, or has its own material; all randomness comes from `rng`."""

    def sample(self, photos: Sequence[Image], rng: np.random.Generator) -> ImagePair:
        """One new pair."""
        ...


def inside(points: Points, image: Image) -> Flags:
    """(N,) which of the (N, 2) points lie between the centres of the image's border pixels; NaN does not."""
    limit = np.array([image.shape[1] - 1, image.shape[0] - 1])
    return np.asarray(((points >= 0) & (points <= limit)).all(axis=1))


def shared(pair: ImagePair, grid: int = 24) -> tuple[float, float]:
    """Share of image 0 that is visible in image 1, and of image 1 in image 0, measured on grid² points."""

    def share(image: Image, mapper: Mapper) -> float:
        return float(mapper(grid_points(image.shape[1], image.shape[0], grid))[1].mean())

    return share(pair.image0, pair.one_from_zero), share(pair.image1, pair.zero_from_one)


@lru_cache(maxsize=64)
def grid_points(width: int, height: int, count: int) -> NDArray[np.float64]:
    """(count², 2) points spread evenly over an image of the given size; shared, so read-only."""
    x, y = np.meshgrid(np.linspace(0, width - 1, count), np.linspace(0, height - 1, count))
    points = np.stack([x.ravel(), y.ravel()], axis=1)
    points.flags.writeable = False
    return points


def ground_truth(
    keypoints0: Points, keypoints1: Points, pair: ImagePair, threshold: float = 3.0, ignore: float = 5.0
) -> IndexArray:
    """(N0,) the partner of every keypoint of image 0, UNMATCHABLE or IGNORE; see `ground_truth_both`."""
    return ground_truth_both(keypoints0, keypoints1, pair, threshold, ignore)[0]


def ground_truth_both(
    keypoints0: Points,
    keypoints1: Points,
    pair: ImagePair,
    threshold: float = 3.0,
    ignore: float = 5.0,
    oris0: NDArray[np.floating[Any]] | None = None,
    oris1: NDArray[np.floating[Any]] | None = None,
) -> tuple[IndexArray, IndexArray]:
    """Partners of (N0, 2) and (N1, 2) keypoints: matches0 (N0,) and matches1 (N1,), int64.

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
        cost = error + 0.1 * _turn(keypoints0[i], oris0[i], oris1[j], pair.one_from_zero)
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


def _turn(points: Points, oris0: Points, oris1: Points, mapper: Mapper) -> NDArray[np.float64]:
    """(N,) radians between orientations of image 0, carried over by the mapper, and orientations of image 1."""
    step = 0.25 * np.stack([np.cos(oris0), np.sin(oris0)], axis=1)  # short: some mappers know a few pixels only
    ahead, _ = mapper(points + step)
    behind, _ = mapper(points - step)
    direction = np.nan_to_num(ahead - behind)
    difference = np.arctan2(direction[:, 1], direction[:, 0]) - oris1
    return np.abs((difference + np.pi) % (2 * np.pi) - np.pi)
