"""Keypoints at one place, as SIFT has them with several orientations, are one observation of one point in space."""

from __future__ import annotations

import numpy as np

from linglue.types import FloatArray, IndexArray


def first_at_place(keypoints: FloatArray) -> IndexArray:
    """(N,) for each of the keypoints (N, 2) the first one at the very same place, mostly itself."""
    _, first, place = np.unique(keypoints, axis=0, return_index=True, return_inverse=True)
    return np.asarray(first[place.reshape(-1)], dtype=np.int64)


def merge_places(indices: IndexArray, first0: IndexArray, first1: IndexArray) -> IndexArray:
    """Matches (K, 2), best first, between the first keypoints of their places; each place of an image is matched once.

    Otherwise the tracks of one point would split by orientations.
    """
    merged = np.column_stack([first0[indices[:, 0]], first1[indices[:, 1]]])
    for side in (0, 1):
        _, best = np.unique(merged[:, side], return_index=True)
        merged = merged[np.sort(best)]
    return merged
