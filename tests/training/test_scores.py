import pytest
import torch

from linglue.training.scores import mean_scores, score_pair

ITSELF = torch.arange(4)[:, None].repeat(1, 2)


def test_perfect_matches_score_one():
    assert score_pair(ITSELF, torch.arange(4), torch.arange(4)).tolist() == [1, 1, 1, 1]


def test_known_mistakes_are_counted():
    pairs = torch.tensor([[0, 0], [1, 1], [2, 3], [3, 2]])  # the last two have each other's partner
    found = score_pair(pairs, torch.arange(4), torch.arange(4))
    assert found is not None
    recall, precision, average, sure = found
    assert recall == pytest.approx(0.5) and precision == pytest.approx(0.5)
    assert average == pytest.approx(0.5) and sure == pytest.approx(0.5)  # both right ones come first


def test_the_order_counts():
    pairs = torch.tensor([[2, 3], [0, 0], [1, 1]])
    found = score_pair(pairs, torch.arange(4), torch.arange(4))
    assert found is not None
    _, _, average, sure = found
    assert average == pytest.approx((1 / 2 + 2 / 3) / 4) and sure == 0


def test_ignored_keypoints_do_not_count_as_wrong():
    truth = torch.tensor([0, 1, -2, -2])
    pairs = torch.tensor([[0, 0], [1, 1], [2, 3], [3, 2]])
    assert score_pair(pairs, truth, truth).tolist() == [1, 1, 1, 1]


def test_pairs_without_truth_are_left_out_of_the_mean():
    nothing = torch.full((4,), -1)
    assert score_pair(ITSELF, nothing, nothing) is None
    assert mean_scores([score_pair(ITSELF, torch.arange(4), torch.arange(4)), None]).recall == 1
    assert mean_scores([None]).recall == 0
