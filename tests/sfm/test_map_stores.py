"""Keypoints with several orientations count once."""

import numpy as np

from linglue.sfm.map_stores import first_at_point, merge_points

POINTS0 = np.array([[1, 1], [5, 5], [1, 1], [9, 9]], np.float32)
POINTS1 = np.array([[2, 2], [2, 2], [7, 7]], np.float32)


def test_the_first_keypoint_stands_for_its_place():
    assert first_at_point(POINTS0).tolist() == [0, 1, 0, 3]
    assert first_at_point(np.zeros((0, 2), np.float32)).tolist() == []


def test_a_place_is_matched_once_by_its_best_match():
    first = first_at_point(POINTS0), first_at_point(POINTS1)
    best_first = np.array([[2, 1], [0, 0], [1, 2], [3, 1]])  # the second says the same, the last takes a taken place
    assert merge_points(best_first, *first).tolist() == [[0, 0], [1, 2]]
    assert merge_points(np.zeros((0, 2), np.int64), *first).shape == (0, 2)
