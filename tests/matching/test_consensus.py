"""A cluster of matches on the wrong window of a facade goes, right matches stay."""

from __future__ import annotations

import pytest
import torch

from linglue.matching import consensus as module
from linglue.matching.consensus import ConsensusConfig, drop_contradicted
from linglue.matching.local_affine import LocalMatches
from linglue.matching.neighborhood import Keypoints

from .scene import AFFINE, SIZE, affine, bent


def consistent(view0, view1, accepted):
    return drop_contradicted(view0, view1, accepted, ConsensusConfig())


def matches(warp, count: int = 400, wrong: int = 0):
    """Right matches everywhere, and `wrong` ones in one place, moved together to the opposite corner."""
    random = torch.Generator().manual_seed(0)
    points0 = torch.rand(count, 2, generator=random) * SIZE
    points0[:wrong] = torch.tensor([100.0, 100.0]) + 30 * torch.rand(wrong, 2, generator=random)
    points1 = warp(points0)
    points1[:wrong] += torch.tensor([400.0, 250.0])
    step = torch.eye(2) * 0.5
    maps = torch.stack([(warp(points0 + s) - warp(points0 - s)) for s in step], dim=2)
    index = torch.arange(count)
    accepted = LocalMatches(torch.stack([index, index], dim=1), torch.linspace(1, 0.5, count), maps)
    return Keypoints(points0, SIZE), Keypoints(points1, SIZE), accepted


@pytest.mark.parametrize("warp", [affine, bent])
@pytest.mark.parametrize("wrong", [0, 40])
def test_drops_the_contradicting_cluster_and_nothing_else(warp, wrong):
    kept = consistent(*matches(warp, wrong=wrong)).pairs[:, 0].tolist()
    assert min(kept) >= wrong
    assert len(kept) >= 0.97 * (400 - wrong)
    assert kept == sorted(kept), "the rest keeps its order"


def test_swapping_the_images_changes_nothing():
    view0, view1, accepted = matches(bent, wrong=40)
    flipped = LocalMatches(accepted.pairs.flip(1), accepted.confidence, torch.linalg.inv(accepted.maps))
    assert torch.equal(consistent(view1, view0, flipped).pairs.flip(1), consistent(view0, view1, accepted).pairs)


def test_block_size_does_not_matter(monkeypatch):
    expected = consistent(*matches(bent, wrong=40)).pairs
    monkeypatch.setattr(module, "BLOCK_ENTRIES", 700)
    assert torch.equal(consistent(*matches(bent, wrong=40)).pairs, expected)


@pytest.mark.parametrize("count", [0, 1, 4])
def test_few_matches_are_not_judged(count):
    view0, view1, accepted = matches(affine, count=count)
    assert torch.equal(consistent(view0, view1, accepted).pairs, accepted.pairs)


def test_a_mirrored_map_is_no_problem():
    """Pictures may be mirrored; all matches agree on it."""
    view0, _, accepted = matches(affine)
    mirror = torch.diag(torch.tensor([-1.0, 1.0])) @ AFFINE
    view1 = Keypoints(view0.points @ mirror.T + torch.tensor([640.0, 0.0]), SIZE)
    mirrored = LocalMatches(accepted.pairs, accepted.confidence, mirror.expand(400, 2, 2))
    assert len(consistent(view0, view1, mirrored).pairs) == 400
