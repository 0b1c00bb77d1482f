"""Fewer keypoints than were stored: the strongest stay, and labels stay true."""

from __future__ import annotations

import numpy as np

from linglue.training.cache.subset import cut
from linglue.training.sources.ground_truth import IGNORE, UNMATCHABLE


def image(points: list[list[float]], scores: list[float], size: int) -> dict[str, np.ndarray]:
    """An image padded to `size` keypoints; descriptors tell the keypoints apart."""
    count = len(points)
    padded = np.zeros((size, 2), np.float32)
    padded[:count] = points
    return {
        "keypoints": padded,
        "descriptors": np.arange(size, dtype=np.float16)[:, None],
        "scores": np.array([*scores, *[0.0] * (size - count)], np.float32),
        "image_size": np.array([640, 480], np.float32),
        "mask": np.arange(size) < count,
    }


def test_the_strongest_stay_and_partners_follow():
    zero = image([[0, 0], [10, 0], [20, 0], [30, 0]], [0.1, 0.9, 0.5, 0.8], 5)
    one = image([[110, 0], [130, 0], [120, 0], [100, 0], [300, 0]], [0.7, 0.2, 0.9, 0.3, 0.8], 5)
    pair = {
        "source": 2,
        "image0": zero,
        "image1": one,
        "matches0": np.array([3, 0, 2, 1, IGNORE], np.int16),
        "matches1": np.array([1, 3, 2, 0, UNMATCHABLE], np.int16),
    }
    small = cut(pair, 3)
    assert small["source"] == 2
    assert small["image0"]["descriptors"][:, 0].tolist() == [1, 2, 3]
    assert small["image1"]["descriptors"][:, 0].tolist() == [0, 2, 4]
    assert small["image0"]["mask"].all() and small["image1"]["image_size"].tolist() == [640, 480]
    assert small["matches0"].tolist() == [0, 1, UNMATCHABLE]  # the partner of the last is gone
    assert small["matches1"].tolist() == [0, 1, UNMATCHABLE]


def test_a_keypoint_beside_the_lost_partner_leaves_it_open():
    zero = image([[0, 0], [50, 0]], [1.0, 0.9], 3)
    one = image([[100, 0], [103, 0], [200, 0]], [0.1, 0.9, 0.8], 3)  # the second lies beside the first
    pair = {
        "source": 0,
        "image0": zero,
        "image1": one,
        "matches0": np.array([0, UNMATCHABLE, IGNORE], np.int16),
        "matches1": np.array([0, IGNORE, UNMATCHABLE], np.int16),
    }
    small = cut(pair, 2)
    assert small["matches0"].tolist() == [IGNORE, UNMATCHABLE]
    assert small["matches1"].tolist() == [IGNORE, UNMATCHABLE]


def test_images_with_few_keypoints_keep_their_padding():
    zero, one = image([[0, 0]], [1.0], 6), image([[0, 0], [9, 9]], [0.5, 1.0], 6)
    pair = {
        "source": 0,
        "image0": zero,
        "image1": one,
        "matches0": np.array([0, *[IGNORE] * 5], np.int16),
        "matches1": np.array([0, UNMATCHABLE, *[IGNORE] * 4], np.int16),
    }
    small = cut(pair, 4)
    assert small["image0"]["mask"].tolist() == [True, False, False, False]
    assert small["matches0"].tolist() == [0, IGNORE, IGNORE, IGNORE]
    assert small["matches1"].tolist() == [0, UNMATCHABLE, IGNORE, IGNORE]
