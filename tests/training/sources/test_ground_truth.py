"""Ground truth against its definition, written as a loop."""

from __future__ import annotations

import numpy as np
import pytest

from linglue.training.sources.ground_truth import IGNORE, UNMATCHABLE, ground_truth
from linglue.training.sources.interface import ImagePair
from training.agreement import inside, shared

IMAGE = np.zeros((200, 300, 3), dtype=np.uint8)


def shift_pair(dx: float, dy: float, hidden_right_of: float = np.inf, unknown_below: float = np.inf) -> ImagePair:
    """Image 1 is image 0 moved and stretched; points of image 0 beyond some lines are hidden or unknown."""
    move, stretch = np.array([dx, dy]), 1.3

    def forwards(points):
        mapped = points * stretch + move
        visible = inside(mapped, IMAGE) & (points[:, 0] < hidden_right_of)
        mapped[points[:, 1] > unknown_below] = np.nan
        return mapped, visible & (points[:, 1] <= unknown_below)

    def backwards(points):
        mapped = (points - move) / stretch
        return mapped, inside(mapped, IMAGE) & (mapped[:, 0] < hidden_right_of)

    return ImagePair(IMAGE, IMAGE, forwards, backwards)


def naive(keypoints0, keypoints1, pair, threshold, ignore):
    mapped0, visible0 = pair.one_from_zero(keypoints0)
    mapped1, visible1 = pair.zero_from_one(keypoints1)
    error = np.full((len(keypoints0), len(keypoints1)), np.inf)
    doubtful = np.zeros_like(error, dtype=bool)
    for i in range(len(keypoints0)):
        for j in range(len(keypoints1)):
            forwards = np.linalg.norm(mapped0[i] - keypoints1[j])
            backwards = np.linalg.norm(mapped1[j] - keypoints0[i])
            if visible0[i] and visible1[j]:
                error[i, j] = max(forwards, backwards)
            elif (visible0[i] and forwards < ignore) or (visible1[j] and backwards < ignore):
                doubtful[i, j] = True
    matches = np.full(len(keypoints0), UNMATCHABLE)
    for i in range(len(keypoints0)):
        j = error[i].argmin()
        if error[i, j] < threshold and error[:, j].argmin() == i:
            matches[i] = j
        elif error[i, j] < ignore or doubtful[i].any() or np.isnan(mapped0[i]).any():
            matches[i] = IGNORE
    return matches


@pytest.mark.parametrize("seed", range(5))
def test_ground_truth_is_the_loop(seed):
    rng = np.random.default_rng(seed)
    pair = shift_pair(-20, 15, hidden_right_of=200, unknown_below=150)
    keypoints0 = rng.uniform(0, 1, (300, 2)) * [299, 199]
    partners = keypoints0[:150] * 1.3 + [-20, 15] + rng.normal(0, 2, (150, 2))
    keypoints1 = np.concatenate([partners, rng.uniform(0, 1, (120, 2)) * [299, 199]])
    matches, _ = ground_truth(keypoints0, keypoints1, pair)
    assert matches.dtype == np.int64
    np.testing.assert_array_equal(matches, naive(keypoints0, keypoints1, pair, 3.0, 5.0))
    assert {IGNORE, UNMATCHABLE} < set(matches.tolist()) and (matches >= 0).sum() > 30


def test_both_directions_agree():
    rng = np.random.default_rng(1)
    pair = shift_pair(10, -5)
    keypoints0, keypoints1 = (rng.uniform(0, 1, (400, 2)) * [299, 199] for _ in range(2))
    matches0, matches1 = ground_truth(keypoints0, keypoints1, pair)
    matched = np.flatnonzero(matches0 >= 0)
    np.testing.assert_array_equal(matches1[matches0[matched]], matched)
    assert (matches1 >= 0).sum() == len(matched) > 0


def test_one_spot_many_orientations():
    """Without orientations the first of equals wins; with them, each finds the one that points the same way."""
    pair = shift_pair(0, 0)
    keypoints0 = np.full((3, 2), 50.0)
    keypoints1 = np.full((3, 2), 65.0)
    oris0, oris1 = np.array([0.0, 1.0, 2.0]), np.array([2.0, 0.0, 1.0])
    matches, _ = ground_truth(keypoints0, keypoints1, pair)
    assert matches.tolist() == [0, IGNORE, IGNORE]
    matches, back = ground_truth(keypoints0, keypoints1, pair, oris0=oris0, oris1=oris1)
    assert matches.tolist() == [1, 2, 0] and back.tolist() == [2, 0, 1]


def test_no_keypoints():
    none, some = np.zeros((0, 2)), np.array([[10.0, 10.0]])
    assert ground_truth(none, some, shift_pair(0, 0))[0].shape == (0,)
    assert ground_truth(some, none, shift_pair(0, 0))[0].tolist() == [UNMATCHABLE]


def test_shared():
    zero, one = shared(shift_pair(0, 0), grid=100)
    assert zero == pytest.approx(1 / 1.3**2, abs=0.02) and one == 1
