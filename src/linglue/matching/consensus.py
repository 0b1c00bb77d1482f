"""Consensus: clusters of matches that contradict the rest of the image are dropped.

The local filter cannot tell the right window of a facade from its neighbour: either is a perfect local fit. But a wrong
window breaks the order of things: seen from the matches further away it is where something else should be. Every
accepted match predicts, by its local map, where far-away keypoints are. The prediction is rough, and may be off by
most of the distance itself (perspective, relief, parallax); what is still further off contradicts. Matches that are
contradicted by most of the others go.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from linglue.matching.local_affine import LocalMatches
from linglue.matching.neighborhood import Keypoints, seed_radius

BLOCK_ENTRIES = 1 << 16  # matches × voters compared at a time: they stay in the cache


@dataclass(frozen=True)
class ConsensusConfig:
    """Constants of the vote."""

    tolerance: float = 0.7  # a prediction may be off by this share of the predicted way
    far: float = 2.0  # voters are this many seed radii away in one of the images: a cluster does not vote for itself
    max_contradiction: float = 0.5  # share of the votes
    rounds: int = 3  # in later rounds contradicted voters count less
    voters: int = 512  # spread over the accepted matches; enough for a majority, and linear in time
    min_voters: float = 5.0  # summed weight below which nobody is judged


def _judge(judged: Tensor, voters: Tensor, reach0: Tensor, reach1: Tensor, tolerance: float) -> tuple[Tensor, Tensor]:
    """(K, V) bool each: voter v is far enough from match k to judge it, and contradicts it in both directions.

    judged (4, K): x0, y0, x1, y1 of the matches; voters (12, V): the same, their maps by rows, and the inverse maps.
    All by coordinate and squared: a last axis of length 2 and roots are slow.
    """
    x0, y0, x1, y1 = (judged[i][:, None] - voters[i] for i in range(4))  # (K, V) the way from the voter to the match
    off1 = _off(x0, y0, x1, y1, voters[4:8], tolerance)
    off0 = _off(x1, y1, x0, y0, voters[8:], tolerance)
    far = _square(x0, y0) > reach0.square()
    far |= _square(x1, y1) > reach1.square()
    return far, off0.logical_and_(off1).logical_and_(far)


def _off(x: Tensor, y: Tensor, there_x: Tensor, there_y: Tensor, maps: Tensor, tolerance: float) -> Tensor:
    """Whether the way (x, y), mapped to the other image, is further from the way there than its own length allows."""
    a, b, c, d = maps  # (V,) each
    expected_x, expected_y = (x * a).addcmul_(y, b), (x * c).addcmul_(y, d)  # (K, V)
    allowed = _square(expected_x, expected_y).mul_(tolerance**2)
    return _square(expected_x.sub_(there_x), expected_y.sub_(there_y)) > allowed


def _square(x: Tensor, y: Tensor) -> Tensor:
    return (x * x).addcmul_(y, y)


@torch.no_grad()
def drop_contradicted(
    view0: Keypoints, view1: Keypoints, accepted: LocalMatches, config: ConsensusConfig
) -> LocalMatches:
    """The accepted matches without those that most of the others contradict.

    Args:
        view0: where the keypoints of image 0 are.
        view1: the same for image 1.
        accepted: matches of the filter.
        config: constants.
    """
    if len(accepted.pairs) == 0:
        return accepted
    points = (view0.points[accepted.pairs[:, 0]].float(), view1.points[accepted.pairs[:, 1]].float())
    maps = (accepted.maps.flatten(1), torch.linalg.inv(accepted.maps).flatten(1))
    placed = torch.cat([*points, *maps], dim=1).T.contiguous()  # (12, K): both points, the map there and back
    reach0, reach1 = config.far * seed_radius(view0.size), config.far * seed_radius(view1.size)
    keep = torch.ones(len(accepted.pairs), dtype=torch.bool, device=accepted.pairs.device)  # (K,)
    weight = torch.ones(len(keep), device=keep.device)  # (K,)
    for _ in range(config.rounds):
        standing = keep.nonzero()[:, 0]
        if len(standing) == 0:
            break
        spread = torch.linspace(0, len(standing) - 1, min(config.voters, len(standing)), device=keep.device)
        voters = standing[spread.long()]  # (V,)
        total, against = [], []
        for block in placed[:4].split(max(1, BLOCK_ENTRIES // len(voters)), dim=1):
            far, contradicts = _judge(block, placed[:, voters], reach0, reach1, config.tolerance)  # (b, V)
            total.append(far.float() @ weight[voters])
            against.append(contradicts.float() @ weight[voters])
        votes = torch.cat(total)  # (K,)
        share = torch.cat(against) / votes.clamp(min=1e-6)  # (K,)
        keep = (share <= config.max_contradiction) | (votes < config.min_voters)
        weight = (1 - share).square()
    return LocalMatches(accepted.pairs[keep], accepted.confidence[keep], accepted.maps[keep])
