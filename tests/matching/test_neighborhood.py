"""Seeds and neighborhoods against their definitions, written as loops."""

from __future__ import annotations

import math

import pytest
import torch

from linglue.matching import neighborhood as module
from linglue.matching.nearest import nearest_both_ways
from linglue.matching.neighborhood import Keypoints, pad_groups, seed_radius, select, select_seeds, split_by_size

from .scene import SIZE, make_scene


def naive_seeds(points, ratio, eligible, radius):
    """The eligible matches that no better eligible one is near to; of equals the first is better."""
    seeds = []
    for i in range(len(points)):
        beaten = False
        for j in range(len(points)):
            near = ((points[i] - points[j]) ** 2).sum() <= radius**2
            better = ratio[j] > ratio[i] or (ratio[j] == ratio[i] and j < i)
            beaten |= bool(eligible[j] and near and better)
        if eligible[i] and not beaten:
            seeds.append(i)
    return seeds


@pytest.mark.parametrize("block_entries", [1 << 22, 1000, 1])
@pytest.mark.parametrize("radius", [3.0, 36.0, 2000.0])
@pytest.mark.parametrize("levels", [None, 4, 1])
def test_seeds_equal_definition(levels, radius, block_entries, monkeypatch):
    monkeypatch.setattr(module, "BLOCK_ENTRIES", block_entries)
    random = torch.Generator().manual_seed(0)
    points = torch.rand(130, 2, generator=random) * SIZE - 20  # some are negative
    ratio = 1 + torch.rand(130, generator=random)
    if levels:  # ties
        ratio = (ratio * levels).floor()
    eligible = torch.rand(130, generator=random) < 0.7
    found = select_seeds(points, ratio, eligible, torch.tensor(radius))
    assert sorted(found.tolist()) == naive_seeds(points.numpy(), ratio.numpy(), eligible.numpy(), radius)


def test_keypoints_at_one_place_give_one_seed():
    points = torch.full((5, 2), 7.0)
    assert select_seeds(points, torch.ones(5), torch.ones(5, dtype=torch.bool), torch.tensor(1.0)).tolist() == [0]


def test_no_eligible_match_no_seed():
    found = select_seeds(torch.rand(5, 2), torch.ones(5), torch.zeros(5, dtype=torch.bool), torch.tensor(1.0))
    assert found.shape == (0,)


def edges(selection):
    """All neighborhoods as a set of (seed, source, target)."""
    return {
        (block.seeds[s].item(), i, j)
        for block in selection.neighborhoods()
        for s, i, j in zip(block.seed.tolist(), block.source.tolist(), block.target.tolist(), strict=True)
    }


@pytest.mark.parametrize("block_entries", [1 << 22, 500, 1])
@pytest.mark.parametrize("separation", [True, False])
@pytest.mark.parametrize("expansion", [2.0, 3.0])
def test_neighborhoods_equal_definition(expansion, separation, block_entries, monkeypatch):
    monkeypatch.setattr(module, "BLOCK_ENTRIES", block_entries)
    scene = make_scene(50, 20)
    size0, size1 = torch.tensor([640.0, 480.0]), torch.tensor([700.0, 500.0])
    points0, points1 = scene.view0.points, scene.view1.points
    nearest0, nearest1 = nearest_both_ways(scene.x0, scene.x1)
    selection = select(Keypoints(points0, size0), Keypoints(points1, size1), nearest0, nearest1, expansion, separation)
    radius0, radius1 = math.sqrt(640 * 480 / (100 * math.pi)), math.sqrt(700 * 500 / (100 * math.pi))
    mutual = [nearest1.index[j] == i for i, j in enumerate(nearest0.index.tolist())]
    if separation:
        seeds = naive_seeds(points0.numpy(), nearest0.ratio.numpy(), mutual, radius0)
    else:
        seeds = [i for i, is_mutual in enumerate(mutual) if is_mutual]
    assert sorted(selection.seeds.tolist()) == seeds
    expected = set()
    for p in seeds:
        for i, j in enumerate(nearest0.index.tolist()):
            near0 = (points0[i] - points0[p]).norm() <= expansion * radius0
            near1 = (points1[j] - points1[nearest0.index[p]]).norm() <= expansion * radius1
            if near0 and near1:
                expected.add((p, i, j))
    assert edges(selection) == expected
    assert all((p, p, int(nearest0.index[p])) in expected for p in seeds), "a seed belongs to its own neighborhood"


def test_seeds_are_apart_and_do_not_depend_on_order():
    scene = make_scene(300, 100)
    selection = select(*scene.views, *nearest_both_ways(scene.x0, scene.x1), 2.0)
    distance = torch.cdist(scene.view0.points[selection.seeds], scene.view0.points[selection.seeds])
    assert (distance + 1e9 * torch.eye(len(distance)) > seed_radius(SIZE)).all()
    order0 = torch.randperm(400, generator=torch.Generator().manual_seed(5))
    order1 = torch.randperm(400, generator=torch.Generator().manual_seed(6))
    moved = scene.permuted(order0, order1)
    again = select(*moved.views, *nearest_both_ways(moved.x0, moved.x1), 2.0)
    assert sorted(order0[again.seeds].tolist()) == sorted(selection.seeds.tolist())


@pytest.mark.parametrize("counts", [(0, 0), (0, 4), (4, 0), (1, 1)])
def test_few_keypoints(counts):
    x0, x1 = torch.randn(counts[0], 4), torch.randn(counts[1], 4)
    points0, points1 = torch.rand(counts[0], 2), torch.rand(counts[1], 2)
    selection = select(Keypoints(points0, SIZE), Keypoints(points1, SIZE), *nearest_both_ways(x0, x1), 2.0)
    assert len(selection.seeds) == min(counts)
    assert edges(selection) == ({(0, 0, 0)} if counts == (1, 1) else set())


def test_radius_of_the_paper():
    assert seed_radius(torch.tensor([[640, 480], [100, 100]])).tolist() == pytest.approx(
        [math.sqrt(640 * 480 / (100 * math.pi)), math.sqrt(100 / math.pi)]
    )


def test_pad_groups_and_split_by_size():
    group, value = torch.tensor([0, 0, 0, 2, 2, 3]), torch.tensor([5, 6, 7, 8, 9, 4])
    padded, mask = pad_groups(group, value, 5)
    assert padded.tolist() == [[5, 6, 7], [0, 0, 0], [8, 9, 0], [4, 0, 0], [0, 0, 0]]
    assert mask.sum(1).tolist() == [3, 0, 2, 1, 0]
    count = torch.tensor([3, 1, 50, 2, 2, 2, 7])
    ranges = list(split_by_size(count, 10))
    assert [i for start, stop in ranges for i in range(start, stop)] == list(range(7)), "every group once, in order"
    for start, stop in ranges:
        assert stop - start == 1 or (stop - start) * int(count[start:stop].max()) <= 10
    assert list(split_by_size(torch.zeros(0, dtype=torch.int64), 10)) == []
