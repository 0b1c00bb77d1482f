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
from linglue.matching.neighborhood import View, seed_radius

BLOCK_ENTRIES = 1 << 20  # matches × voters compared at a time


@dataclass(frozen=True)
class ConsensusConfig:
    """Constants of the vote."""

    tolerance: float = 0.7  # a prediction may be off by this share of the predicted way
    far: float = 2.0  # voters are this many seed radii away in one of the images: a cluster does not vote for itself
    max_contradiction: float = 0.5  # share of the votes
    rounds: int = 3  # in later rounds contradicted voters count less
    voters: int = 512  # spread over the accepted matches; enough for a majority, and linear in time
    min_voters: float = 5.0  # summed weight below which nobody is judged


@dataclass(frozen=True)
class _Placed:
    """Matches by their positions: points0, points1 (K, 2) and maps (K, 2, 2) from image 0 to image 1."""

    points0: Tensor
    points1: Tensor
    maps: Tensor

    def __getitem__(self, index: Tensor) -> _Placed:
        return _Placed(self.points0[index], self.points1[index], self.maps[index])


def _judge(judged: _Placed, voters: _Placed, reach0: Tensor, reach1: Tensor, tolerance: float) -> tuple[Tensor, Tensor]:
    """(K, V) bool each: voter v is far enough from match k to judge it, and contradicts it in both directions."""
    way0 = judged.points0[:, None] - voters.points0  # (K, V, 2) from the voter to the match
    way1 = judged.points1[:, None] - voters.points1  # (K, V, 2)
    expected1 = torch.einsum("vij,kvj->kvi", voters.maps, way0)  # (K, V, 2)
    expected0 = torch.einsum("vij,kvj->kvi", torch.linalg.inv(voters.maps), way1)  # (K, V, 2)
    off1 = (way1 - expected1).norm(dim=-1) > tolerance * expected1.norm(dim=-1)
    off0 = (way0 - expected0).norm(dim=-1) > tolerance * expected0.norm(dim=-1)
    far = (way0.norm(dim=-1) > reach0) | (way1.norm(dim=-1) > reach1)
    return far, far & off0 & off1


@torch.no_grad()
def drop_contradicted(view0: View, view1: View, accepted: LocalMatches, config: ConsensusConfig) -> LocalMatches:
    """The accepted matches without those that most of the others contradict."""
    if len(accepted.pairs) == 0:
        return accepted
    placed = _Placed(
        view0.points[accepted.pairs[:, 0]].float(), view1.points[accepted.pairs[:, 1]].float(), accepted.maps
    )
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
        for block in torch.arange(len(keep), device=keep.device).split(max(1, BLOCK_ENTRIES // len(voters))):
            far, contradicts = _judge(placed[block], placed[voters], reach0, reach1, config.tolerance)  # (b, V)
            total.append(far.float() @ weight[voters])
            against.append(contradicts.float() @ weight[voters])
        votes = torch.cat(total)  # (K,)
        share = torch.cat(against) / votes.clamp(min=1e-6)  # (K,)
        keep = (share <= config.max_contradiction) | (votes < config.min_voters)
        weight = (1 - share).square()
    return LocalMatches(accepted.pairs[keep], accepted.confidence[keep], accepted.maps[keep])
