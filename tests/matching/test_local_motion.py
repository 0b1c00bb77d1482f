"""Local motion: the similarity that voters follow, keypoints in blocks; the network itself: test_plain_voting."""

import math

import pytest
import torch
from torch import Tensor

from linglue.matching import local_motion as module
from linglue.matching.local_motion import LOCAL, against_motion, local_motions
from linglue.matching.motion import Side


def side_of(places: Tensor, partners: Tensor, voters: Tensor) -> Side:
    """Keypoints k that match partners k and vote as voters k; each hears the given voters (N, K)."""
    ends = torch.cat([places[voters] - places[:, None], partners[voters]], dim=2)  # (N, K, 4)
    kernel = torch.ones(voters.T.shape)
    return Side(
        torch.arange(len(places)),
        voters.int(),
        ends.permute(2, 1, 0).contiguous(),
        kernel,
        partners,
        [],
        lambda _: ends,
    )


def scene(count: int, around: int = 14) -> tuple[Side, Tensor, Tensor]:
    """Keypoints under a rotation with scale, whom voters anywhere speak for."""
    draw = torch.Generator().manual_seed(count)
    places = torch.rand(count, 2, generator=draw)
    turn = 1.5 * torch.tensor([[math.cos(0.3), math.sin(0.3)], [-math.sin(0.3), math.cos(0.3)]])
    voters = torch.randint(count, (count, around), generator=draw)
    return side_of(places, places @ turn, voters), torch.rand(count, generator=draw), torch.arange(count)


def test_voters_that_agree_predict_the_partner() -> None:
    side, belief, voters = scene(50)
    (motion,) = local_motions([side], belief, voters)
    assert torch.allclose(motion[:, :2], side.place, atol=1e-3)
    assert torch.allclose(motion[:, 5], torch.zeros(50), atol=1e-3)  # of the same scale as all others
    assert torch.allclose(motion[:, 6], torch.ones(50), atol=1e-3)  # and rotation
    assert against_motion(side.place, motion).shape == (50, LOCAL)


@pytest.mark.parametrize("count", [1, 63, 64, 65, 100, 128, 200, 331])
def test_blocks_of_keypoints_give_the_same_bits(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    side, belief, voters = scene(count)
    with torch.no_grad():
        whole = local_motions([side, side], belief, voters)
        monkeypatch.setattr(module, "KEYPOINTS", 64)
        blocks = local_motions([side, side], belief, voters)
    assert len(whole) == len(blocks) == 2
    assert all(torch.equal(*both) for both in zip(whole, blocks, strict=True))
