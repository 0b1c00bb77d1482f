import numpy as np
import pytest
import torch

from linglue.training.scores import mean_scores, score_pair


def test_perfect_descriptors_score_one():
    x = torch.nn.functional.normalize(torch.randn(20, 8, generator=torch.Generator().manual_seed(0)), dim=1)
    truth = torch.arange(20)
    np.testing.assert_allclose(score_pair(x, x, truth, truth), 1.0)


def test_known_mistakes_are_counted():
    x0 = torch.eye(4)
    x1 = torch.eye(4)[[0, 1, 3, 2]]  # the last two find each other's partner
    truth = torch.arange(4)
    recall, precision, _, _ = score_pair(x0, x1, truth, truth)
    assert recall == pytest.approx(0.5) and precision == pytest.approx(0.5)


def test_ignored_keypoints_do_not_count_as_wrong():
    x0, x1 = torch.eye(4), torch.eye(4)[[0, 1, 3, 2]]
    truth0, truth1 = torch.tensor([0, 1, -2, -2]), torch.tensor([0, 1, -2, -2])
    recall, precision, average, sure = score_pair(x0, x1, truth0, truth1)
    assert (recall, precision, average, sure) == (1, 1, 1, 1)


def test_pairs_without_truth_are_left_out_of_the_mean():
    x, truth = torch.eye(3), torch.arange(3)
    nothing = torch.full((3,), -1)
    assert score_pair(x, x, nothing, nothing) is None
    assert mean_scores([score_pair(x, x, truth, truth), None]).recall == 1
    assert mean_scores([None]).recall == 0
