"""Blocked nearest neighbours against all distances."""

from __future__ import annotations

import itertools

import pytest
import torch

from linglue.matching import nearest as module
from linglue.matching.baselines import mutual_matches
from linglue.matching.nearest import mutual, nearest_both_ways, nearest_k

from .scene import brute_force

SHAPES = [*itertools.product((1, 2, 3, 31, 32, 33), (1, 2, 65)), (100, 257), (257, 100), (130, 130)]


def assert_exact(x0, x1):
    for found, wanted in zip(nearest_both_ways(x0, x1), (brute_force(x0, x1), brute_force(x1, x0)), strict=True):
        torch.testing.assert_close(found.distance, wanted.distance, atol=1e-5, rtol=1e-4)
        assert torch.equal(found.index, wanted.index)
        torch.testing.assert_close(found.ratio, wanted.ratio, atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize("blocks", [(512, 2048, 8), (64, 96, 4), (16, 8, 2), (128, 64, 8)])
@pytest.mark.parametrize("shape", SHAPES)
def test_equals_all_distances(shape, blocks, monkeypatch):
    for name, value in zip(("BLOCK_ROWS", "BLOCK_COLUMNS", "GROUP"), blocks, strict=True):
        monkeypatch.setattr(module, name, value)
    random = torch.Generator().manual_seed(sum(shape))
    assert_exact(torch.randn(shape[0], 8, generator=random), torch.randn(shape[1], 8, generator=random))


def test_one_entry_per_block(monkeypatch):
    for name in ("BLOCK_ROWS", "BLOCK_COLUMNS", "GROUP"):
        monkeypatch.setattr(module, name, 1)
    random = torch.Generator().manual_seed(0)
    assert_exact(torch.randn(9, 8, generator=random), torch.randn(12, 8, generator=random))


def test_more_than_one_block_of_the_real_size():
    random = torch.Generator().manual_seed(0)
    assert_exact(torch.randn(1500, 16, generator=random), torch.randn(4300, 16, generator=random))


def test_length_matters_not_only_direction():
    """Nearest by Euclidean distance, not by inner product."""
    x0 = torch.tensor([[1.0, 0.0]])
    x1 = torch.tensor([[100.0, 0.0], [0.8, 0.1]])
    assert nearest_both_ways(x0, x1)[0].index.tolist() == [1]


@pytest.mark.parametrize("shape", [(0, 5), (5, 0), (0, 0)])
def test_empty_sets(shape):
    x0, x1 = torch.randn(shape[0], 4), torch.randn(shape[1], 4)
    nearest0, nearest1 = nearest_both_ways(x0, x1)
    assert nearest0.index.tolist() == [-1] * shape[0]
    assert nearest1.index.tolist() == [-1] * shape[1]
    assert (nearest0.ratio == 1).all()
    assert not mutual(nearest0, nearest1).any()
    pairs, scores = mutual_matches(nearest0, nearest1)
    assert pairs.shape == (0, 2)
    assert scores.shape == (0,)


def test_a_single_neighbour_is_not_distinctive():
    nearest0, nearest1 = nearest_both_ways(torch.randn(3, 4), torch.randn(1, 4))
    assert (nearest0.ratio == 1).all()
    assert (nearest1.ratio >= 1).all()


@pytest.mark.parametrize("blocks", [(1024, 2048), (64, 64), (64, 128)])
def test_duplicates_are_finite_and_not_distinctive(blocks, monkeypatch):
    monkeypatch.setattr(module, "BLOCK_ROWS", blocks[0])
    monkeypatch.setattr(module, "BLOCK_COLUMNS", blocks[1])
    x = torch.nn.functional.normalize(torch.randn(20, 8, generator=torch.Generator().manual_seed(0)), dim=1)
    nearest0, nearest1 = nearest_both_ways(x, torch.cat([x, x]))
    assert torch.equal(nearest0.index % 20, torch.arange(20))
    assert torch.equal(nearest1.index, torch.arange(40) % 20)
    assert (nearest0.distance < 1e-6).all()
    assert torch.equal(nearest0.ratio, torch.ones(20)), "both copies are equally near"
    assert torch.isfinite(nearest1.ratio).all()
    assert (nearest1.ratio > 1000).all(), "an exact match is very distinctive"


def test_all_descriptors_equal():
    nearest0, nearest1 = nearest_both_ways(torch.ones(70, 8), torch.ones(50, 8))
    assert ((nearest0.index >= 0) & (nearest0.index < 50)).all()
    assert ((nearest1.index >= 0) & (nearest1.index < 70)).all()
    assert (nearest0.ratio == 1).all()


def test_mutual_equals_its_definition():
    random = torch.Generator().manual_seed(1)
    nearest0, nearest1 = nearest_both_ways(torch.randn(60, 4, generator=random), torch.randn(40, 4, generator=random))
    expected = [nearest1.index[nearest0.index[i]].item() == i for i in range(60)]
    assert mutual(nearest0, nearest1).tolist() == expected
    pairs, scores = mutual_matches(nearest0, nearest1)
    assert sorted(pairs[:, 0].tolist()) == [i for i in range(60) if expected[i]]
    assert torch.equal(scores, scores.sort(descending=True).values)
    assert ((scores >= 0) & (scores <= 1)).all()


def test_half_precision_input():
    random = torch.Generator().manual_seed(2)
    x0, x1 = torch.randn(50, 16, generator=random).half(), torch.randn(60, 16, generator=random).half()
    assert_exact(x0.float(), x1.float())
    assert torch.equal(nearest_both_ways(x0, x1)[0].index, brute_force(x0.float(), x1.float()).index)


@pytest.mark.parametrize("blocks", [(1024, 2048, 8), (64, 96, 4), (12, 4, 2)])
@pytest.mark.parametrize("shape", [(1, 1), (3, 2), (2, 70), (100, 257)])
@pytest.mark.parametrize("k", [1, 3, 4])
def test_k_nearest_equal_all_distances(k, shape, blocks, monkeypatch):
    for name, value in zip(("BLOCK_ROWS", "BLOCK_COLUMNS", "GROUP"), blocks, strict=True):
        monkeypatch.setattr(module, name, value)
    random = torch.Generator().manual_seed(sum(shape) + k)
    x0, x1 = (torch.nn.functional.normalize(torch.randn(n, 16, generator=random), dim=1) for n in shape)
    for found, x, y in zip(nearest_k(x0, x1, k), (x0, x1), (x1, x0), strict=True):
        distance, index = torch.cdist(x.double(), y.double()).sort(dim=1)
        k_here = min(k, len(y))
        assert torch.equal(found.index, index[:, :k_here])
        torch.testing.assert_close(found.distance, distance[:, :k_here].float())
        torch.testing.assert_close(found.similarity, (x @ y.T).gather(1, found.index))


def test_k_nearest_of_nothing():
    there, back = nearest_k(torch.randn(3, 4), torch.randn(0, 4), 4)
    assert there.index.shape == there.distance.shape == (3, 0)
    assert back.index.shape == back.similarity.shape == (0, 3)


def test_k_nearest_at_the_real_block_size():
    """More keypoints than one block has, most of them near to each other: the list improves in many blocks."""
    random = torch.Generator().manual_seed(3)
    x0 = torch.randn(50, 8, generator=random).repeat(50, 1) + 0.01 * torch.randn(2500, 8, generator=random)
    x1 = torch.randn(4500, 8, generator=random)
    for found, x, y in zip(nearest_k(x0, x1, 4), (x0, x1), (x1, x0), strict=True):
        wanted = torch.cdist(x.double(), y.double()).sort(dim=1)
        torch.testing.assert_close(found.distance, wanted.values[:, :4].float())
        assert (found.index == wanted.indices[:, :4]).float().mean() > 0.9999  # float32 may swap two equally far


@pytest.mark.parametrize("crowded", [2, 64])
def test_many_equal_descriptors_take_bounded_memory(crowded, monkeypatch):
    """Everything is as near as the k-th nearest: only some are remembered, and sorted out from time to time."""
    for name, value in (("BLOCK_ROWS", 64), ("BLOCK_COLUMNS", 64), ("CROWDED", crowded)):
        monkeypatch.setattr(module, name, value)
    random = torch.Generator().manual_seed(4)
    x0, x1 = torch.ones(700, 8), torch.ones(900, 8)
    x0[:50], x1[:50] = torch.randn(2, 50, 8, generator=random)
    for found, x, y in zip(nearest_k(x0, x1, 5), (x0, x1), (x1, x0), strict=True):
        wanted = torch.cdist(x.double(), y.double()).sort(dim=1).values[:, :5]
        torch.testing.assert_close(found.distance, wanted.float(), atol=1e-5, rtol=1e-4)
        assert all(len(set(row)) == 5 for row in found.index.tolist())


@pytest.mark.parametrize("rows", [1, 4])
def test_of_equally_near_ones_every_number_of_threads_finds_the_same(rows, monkeypatch):
    """Every descriptor is there twice, so that one of two equally near ones is the last of five."""
    monkeypatch.setattr(module, "BLOCK_ROWS", 128)
    monkeypatch.setattr(module, "BLOCK_COLUMNS", 256)
    monkeypatch.setattr(module, "SORTED", rows)
    random = torch.Generator().manual_seed(5)
    x0, x1 = (torch.randn(450, 16, generator=random).repeat(2, 1) for _ in range(2))
    threads, found = torch.get_num_threads(), []
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            found.append([side.index for side in nearest_k(x0, x1, 5)])
    finally:
        torch.set_num_threads(threads)
    assert all(torch.equal(*both) for other in found[1:] for both in zip(found[0], other, strict=True))
