"""Scores become probabilities: on numbers that are known, and for whoever knows what of a match."""

import numpy as np
import pytest
import torch

from linglue.matching.neighborhood import Keypoints
from linglue.training.calibration import FEWEST, fit_calibration, known_matches

SIZE = torch.tensor([1024.0, 768.0])


def test_scores_that_are_too_modest_are_raised():
    rng = np.random.default_rng(0)
    truth = rng.uniform(0.02, 0.98, 50_000)
    logit = np.log(truth / (1 - truth))
    modest = 1 / (1 + np.exp(-(2 * logit - 1)))  # so logit = (of the score + 1) / 2
    slope, offset = fit_calibration(modest, rng.random(50_000) < truth)
    assert slope == pytest.approx(0.5, abs=0.03) and offset == pytest.approx(0.5, abs=0.05)


@pytest.mark.parametrize("right", [0, FEWEST - 1, 5000])
def test_few_matches_of_a_kind_tell_nothing(right):
    assert fit_calibration(np.full(5000, 0.3), np.arange(5000) < right) == (1.0, 0.0)


def test_the_order_of_scores_stays():
    rng = np.random.default_rng(1)
    scores = rng.uniform(0.01, 0.99, 5000)
    slope, _ = fit_calibration(scores, rng.random(5000) > scores)  # the wrong way round
    assert slope > 0


def test_with_known_geometry_a_match_is_right_near_its_line():
    shift = torch.tensor([[0.0, 0, 0], [0, 0, -1], [0, 1, 0]], dtype=torch.float64)  # lines are the rows of the image
    points = torch.tensor([[10.0, 10], [20, 20], [30, 30]])
    views = Keypoints(points, SIZE), Keypoints(points + torch.tensor([[40.0, 0], [0, 4], [0, 9]]), SIZE)
    pairs = torch.arange(3)[:, None].expand(3, 2)
    unknown = torch.full((3,), -2)
    right, known = known_matches(pairs, (unknown, unknown), shift, views)
    assert right.tolist() == [True, True, False] and known.all()  # to first order: 4 px off is 4 / √2 from both lines


def test_without_it_the_labels_decide():
    view = Keypoints(torch.rand(4, 2) * 99, SIZE)
    pairs = torch.tensor([[0, 0], [1, 2], [2, 1], [3, 3]])
    truth0, truth1 = torch.tensor([0, 1, -2, -1]), torch.tensor([0, 1, -1, -2])
    right, known = known_matches(pairs, (truth0, truth1), torch.zeros(3, 3), (view, view))
    assert right.tolist()[:2] == [True, False] and known.tolist() == [True, True, False, False]
