"""The filter on synthetic matches whose truth is known."""

from __future__ import annotations

import math

import pytest
import torch

from linglue.matching import local_affine as module
from linglue.matching import neighborhood
from linglue.matching.local_affine import (
    FilterConfig,
    Shape,
    filter_matches,
    filtered_matches,
    fit_linear_maps,
    one_to_one,
    sample_pairs,
    stretch_limits,
)
from linglue.matching.nearest import Nearest, nearest_both_ways
from linglue.matching.neighborhood import Keypoints, select

from .scene import AFFINE, SIZE, Scene, affine, bent, make_scene, sorted_pairs

CONFIG = FilterConfig(expansion=2.0, min_confidence=200.0)  # AdaLAM's constants


def run(scene: Scene, config: FilterConfig = CONFIG):
    return filtered_matches(*scene.views, *nearest_both_ways(scene.x0, scene.x1), config)


@pytest.mark.parametrize("config", [CONFIG, FilterConfig()])
@pytest.mark.parametrize("bare", [False, True])
@pytest.mark.parametrize("warp", [affine, bent])
def test_precision_and_recall(warp, bare, config):
    scene = make_scene(600, 600, warp)
    found = run(scene.bare() if bare else scene, config)
    precision, recall = scene.precision_recall(found.pairs)
    assert precision > 0.97
    assert recall > 0.95


def test_few_inliers_among_many_outliers():
    scene = make_scene(300, 1500)
    precision, recall = scene.precision_recall(run(scene).pairs)
    assert precision > 0.9
    assert recall > 0.9


def test_local_maps_are_the_true_one():
    scene = make_scene(300, 100, noise=0.1)
    maps = run(scene).maps
    assert (maps - AFFINE).abs().amax((1, 2)).median() < 0.01


def test_output_is_one_to_one_ordered_and_in_range():
    scene = make_scene(300, 300)
    found = run(scene)
    assert len(set(found.pairs[:, 0].tolist())) == len(set(found.pairs[:, 1].tolist())) == len(found.pairs)
    assert torch.equal(found.confidence, found.confidence.sort(descending=True).values)
    assert (found.confidence >= 0.5 - 1e-6).all()
    assert (found.confidence <= 1).all()


def test_many_to_one_candidates_become_one_to_one():
    """Keypoints that all have the same nearest neighbour: only one of them may keep it."""
    scene = make_scene(300, 0)
    twins = torch.arange(100)
    view0 = Keypoints(torch.cat([scene.view0.points, scene.view0.points[twins] + 0.01]), SIZE)
    x0 = torch.cat([scene.x0, scene.x0[twins]])
    found = filtered_matches(view0, Keypoints(scene.view1.points, SIZE), *nearest_both_ways(x0, scene.x1), CONFIG)
    assert len(set(found.pairs[:, 1].tolist())) == len(found.pairs) >= 290


@pytest.mark.parametrize("bare", [False, True])
def test_identical_images_keep_nearly_all(bare):
    scene = make_scene(600, 0)
    scene = Scene(scene.view0, scene.view0, scene.x0, scene.x0, torch.arange(600))
    found = run(scene.bare() if bare else scene)
    assert (found.pairs[:, 0] == found.pairs[:, 1]).all()
    assert len(found.pairs) >= 595
    assert (found.confidence > 0.99).all()


def test_identical_images_with_several_keypoints_at_one_place():
    """SIFT gives a keypoint per dominant orientation: same place, other descriptor."""
    scene = make_scene(600, 0)
    random = torch.Generator().manual_seed(3)
    again = torch.randint(0, 600, (100,), generator=random)
    index = torch.cat([torch.arange(600), again])
    assert scene.view0.oris is not None and scene.view0.scales is not None
    oris = torch.cat([scene.view0.oris, scene.view0.oris[again] + 2])
    view = Keypoints(scene.view0.points[index], SIZE, scene.view0.scales[index], oris)
    x = torch.cat([scene.x0, torch.nn.functional.normalize(torch.randn(100, 32, generator=random), dim=1)])
    found = filtered_matches(view, view, *nearest_both_ways(x, x), CONFIG)
    assert (found.pairs[:, 0] == found.pairs[:, 1]).all()
    assert len(found.pairs) >= 690


@pytest.mark.parametrize("config", [CONFIG, FilterConfig()])
@pytest.mark.parametrize("bare", [False, True])
def test_noise_gives_almost_nothing(bare, config):
    scene = make_scene(0, 1500)
    found = run(scene.bare() if bare else scene, config)
    assert len(found.pairs) <= 15


@pytest.mark.parametrize(("name", "change"), [("oris", lambda v: v + 2), ("scales", lambda v: v * 3)])
def test_orientation_and_scale_are_used(name, change):
    """Positions fit, but some keypoints turn or grow as they should not: too few to support each other."""
    scene = make_scene(600, 0)
    wrong = scene.truth[torch.arange(0, 600, 20)]
    values = getattr(scene.view1, name).clone()
    values[wrong] = change(values[wrong])
    fields = {n: getattr(scene.view1, n) for n in ("points", "size", "scales", "oris")}
    view1 = Keypoints(**{**fields, name: values})
    found = filtered_matches(scene.view0, view1, *nearest_both_ways(scene.x0, scene.x1), CONFIG)
    assert not set(found.pairs[:, 1].tolist()) & set(wrong.tolist())
    assert len(found.pairs) > 540


def test_turned_matches_do_not_support_each_other():
    """Orientations that differ from match to match by more than 30° leave no neighborhood."""
    scene = make_scene(300, 0)
    random = torch.Generator().manual_seed(0)
    view1 = Keypoints(scene.view1.points, SIZE, None, torch.rand(300, generator=random) * 2 * math.pi)
    found = filtered_matches(scene.view0, view1, *nearest_both_ways(scene.x0, scene.x1), CONFIG)
    assert len(run(scene).pairs) > 270
    assert len(found.pairs) < 10


def test_orientation_differences_wrap_around():
    scene = make_scene(200, 0)
    random = torch.Generator().manual_seed(0)
    turns = 2 * math.pi * torch.randint(-3, 4, (200,), generator=random)
    assert scene.view1.oris is not None
    view1 = Keypoints(scene.view1.points, SIZE, scene.view1.scales, scene.view1.oris + turns)
    found = filtered_matches(scene.view0, view1, *nearest_both_ways(scene.x0, scene.x1), CONFIG)
    assert sorted_pairs(found.pairs) == sorted_pairs(run(scene).pairs)


def test_result_does_not_depend_on_the_global_seed():
    scene = make_scene(200, 400)
    torch.manual_seed(1)
    first = run(scene)
    state = torch.get_rng_state()
    torch.manual_seed(2)
    second = run(scene)
    assert torch.equal(first.pairs, second.pairs)
    assert torch.equal(first.confidence, second.confidence)
    torch.manual_seed(1)
    assert torch.equal(state, torch.get_rng_state()), "nor does it change it"


def test_permuted_keypoints_give_the_permuted_result():
    scene = make_scene(250, 250)
    order0 = torch.randperm(500, generator=torch.Generator().manual_seed(8))
    order1 = torch.randperm(500, generator=torch.Generator().manual_seed(9))
    found, moved = run(scene), run(scene.permuted(order0, order1))
    back = torch.stack([order0[moved.pairs[:, 0]], order1[moved.pairs[:, 1]]], dim=1)
    assert sorted_pairs(back) == sorted_pairs(found.pairs)


def test_swapping_the_images_swaps_the_result():
    scene = make_scene(250, 250)
    nearest0, nearest1 = nearest_both_ways(scene.x0, scene.x1)
    found = filtered_matches(scene.view0, scene.view1, nearest0, nearest1, CONFIG)
    swapped = filtered_matches(scene.view1, scene.view0, nearest1, nearest0, CONFIG)
    assert sorted_pairs(found.pairs) == sorted_pairs(swapped.pairs.flip(1))
    torch.testing.assert_close(found.confidence, swapped.confidence)
    here, there = found.pairs[:, 0].argsort(), swapped.pairs[:, 1].argsort()
    product = found.maps[here] @ swapped.maps[there]
    assert (product - torch.eye(2)).abs().amax((1, 2)).quantile(0.9) < 1e-4, "the local maps are each other's inverse"


@pytest.mark.parametrize("residuals", [1 << 21, 1 << 14, 1])
@pytest.mark.parametrize("block_entries", [1 << 22, 3000])
def test_block_sizes_do_not_matter(residuals, block_entries, monkeypatch):
    scene = make_scene(150, 150)
    expected = run(scene)
    monkeypatch.setattr(module, "RESIDUALS", residuals)
    monkeypatch.setattr(neighborhood, "BLOCK_ENTRIES", block_entries)
    found = run(scene)
    assert sorted_pairs(found.pairs) == sorted_pairs(expected.pairs)


@pytest.mark.parametrize("counts", [(0, 0), (0, 9), (9, 0), (1, 1), (2, 9), (7, 7)])
def test_too_few_keypoints(counts):
    random = torch.Generator().manual_seed(0)
    x0, x1 = (torch.randn(n, 4, generator=random) for n in counts)
    view0, view1 = (Keypoints(torch.rand(n, 2, generator=random) * SIZE, SIZE) for n in counts)
    found = filtered_matches(view0, view1, *nearest_both_ways(x0, x1), CONFIG)
    assert found.pairs.shape == (0, 2)
    assert found.confidence.shape == (0,)
    assert found.maps.shape == (0, 2, 2)


def test_all_keypoints_at_one_place():
    view = Keypoints(torch.full((50, 2), 9.0), SIZE)
    x = torch.randn(50, 8, generator=torch.Generator().manual_seed(0))
    found = filtered_matches(view, view, *nearest_both_ways(x, x), CONFIG)
    assert torch.isfinite(found.confidence).all()
    assert torch.isfinite(found.maps).all()


def test_keypoints_in_a_row():
    """Collinear keypoints determine no linear map: whatever comes out is finite."""
    points = torch.stack([torch.linspace(0, 200, 60), torch.full((60,), 50.0)], dim=1)
    view = Keypoints(points, SIZE)
    x = torch.randn(60, 8, generator=torch.Generator().manual_seed(0))
    found = filtered_matches(view, view, *nearest_both_ways(x, x), CONFIG)
    assert torch.isfinite(found.maps).all()
    assert (found.pairs[:, 0] == found.pairs[:, 1]).all()


@pytest.mark.parametrize(("zoom", "accepted"), [(0.12, False), (0.3, True), (4.0, True), (8.0, False)])
def test_huge_stretch_is_rejected(zoom, accepted):
    scene = make_scene(300, 0, warp=lambda points: points * zoom, noise=0.02).bare()
    view1 = Keypoints(scene.view1.points, SIZE * zoom)
    found = filtered_matches(scene.view0, view1, *nearest_both_ways(scene.x0, scene.x1), CONFIG)
    assert len(found.pairs) > 280 if accepted else len(found.pairs) == 0


@pytest.mark.parametrize("count", [0, 1, 2, 3, 10, 127, 128, 500])
def test_samples_come_best_first(count):
    expected = [(a, b) for b in range(1, 60) for a in range(b)][:count]
    assert sorted_pairs(sample_pairs(count, torch.device("cpu"))) == sorted(expected)
    assert [tuple(p) for p in sample_pairs(count, torch.device("cpu")).tolist()] == expected


def test_stretch_limits_are_singular_values():
    maps = torch.randn(200, 2, 2, generator=torch.Generator().manual_seed(0))
    maps = torch.cat([maps, torch.eye(2)[None], torch.zeros(1, 2, 2), torch.tensor([[[1.0, 2.0], [2.0, 4.0]]])])
    smallest, largest = stretch_limits(maps)
    expected = torch.linalg.svdvals(maps)
    torch.testing.assert_close(largest, expected[:, 0], atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(smallest, expected[:, 1], atol=1e-5, rtol=1e-4)


def test_maps_fit_their_sample():
    random = torch.Generator().manual_seed(0)
    x, y = torch.randn(4, 6, 2, generator=random), torch.randn(4, 6, 2, generator=random)
    pairs = sample_pairs(15, x.device)
    maps = fit_linear_maps(x, y, pairs)
    assert maps.shape == (4, 15, 2, 2)
    for s in range(4):
        for t, (a, b) in enumerate(pairs.tolist()):
            for i in (a, b):
                torch.testing.assert_close(maps[s, t] @ x[s, i], y[s, i], atol=1e-2, rtol=1e-2)


def naive_filter(points0, points1, nearest, seeds, config):
    """Best confidence of every match over all seeds, straight from the definition (no shape, one image size)."""
    reach = config.expansion * math.sqrt(640 * 480 / (100 * math.pi))
    matched = points1[nearest.index]
    confidence = [0.0] * len(points0)
    for p in seeds.tolist():
        x, y = (points0 - points0[p]) / reach, (matched - matched[p]) / reach
        members = [i for i in range(len(x)) if i != p and x[i].norm() <= 1 and y[i].norm() <= 1]
        members.sort(key=lambda i: -nearest.ratio[i])
        if len(members) < config.min_inliers + 2:
            continue
        samples = [(a, b) for b in range(1, len(members)) for a in range(b)][: config.hypotheses]
        most, inliers, limit = 0, [], 0.0
        for a, b in samples:
            ends = [members[a], members[b]]
            linear = torch.linalg.solve(x[ends], y[ends]).T
            stretch = torch.linalg.svdvals(linear)
            if stretch[0] > config.max_stretch or stretch[1] < 1 / config.max_stretch:
                continue
            residual = ((x[members] @ linear.T - y[members]) ** 2).sum(1)
            ordered = residual.sort().values
            for k in range(1, len(members) - 1):  # k inliers beside the sample of two
                if k > most and ordered[k + 1] * config.min_confidence * len(members) <= k:
                    most, limit = k, ordered[k + 1].item()
                    inliers = [i for i, r in zip(members, residual, strict=True) if r <= limit]
        if most < config.min_inliers:
            continue
        linear = torch.linalg.lstsq(x[inliers], y[inliers]).solution.T  # of all inliers
        residual = ((x[inliers] @ linear.T - y[inliers]) ** 2).sum(1).clamp(max=limit)
        rate = most / len(members)
        own = rate / (rate + residual * config.min_confidence)
        for i, value in zip([*inliers, p], [*own.tolist(), own.max().item()], strict=True):
            confidence[i] = max(confidence[i], value)
    return torch.tensor(confidence)


def test_filter_equals_its_definition():
    scene = make_scene(80, 40, noise=1.0)
    points0, points1 = scene.view0.points.double(), scene.view1.points.double()
    nearest0, nearest1 = nearest_both_ways(scene.x0, scene.x1)
    config = FilterConfig(expansion=3.0, hypotheses=20, min_confidence=200.0)
    selection = select(*scene.views, nearest0, nearest1, config.expansion)
    found = filter_matches(selection, nearest0.ratio, Shape(None, None), config)
    expected = naive_filter(points0, points1, nearest0, selection.seeds, config)
    assert (expected > 0).sum() > 40
    torch.testing.assert_close(found.confidence, expected, atol=1e-3, rtol=1e-3)


def test_one_to_one_is_greedy_by_score():
    pairs = torch.tensor([[0, 0], [0, 1], [1, 1], [2, 1], [3, 3]])
    scores = torch.tensor([0.5, 0.9, 0.8, 0.95, 0.1])
    assert one_to_one(pairs, scores).tolist() == [3, 0, 4]
    assert one_to_one(torch.zeros(0, 2, dtype=torch.int64), torch.zeros(0)).shape == (0,)
    tied = one_to_one(torch.tensor([[5, 0], [5, 1], [0, 1]]), torch.ones(3))
    assert tied.tolist() == [2, 0], "of equals the pair of smaller indices"


def test_nearest_need_not_come_from_descriptors():
    """The filter takes any candidate matches, e.g. someone else's."""
    scene = make_scene(600, 0)
    back = torch.empty(600, dtype=torch.int64)
    back[scene.truth] = torch.arange(600)
    ones = torch.ones(600)
    found = filtered_matches(*scene.views, Nearest(scene.truth, ones, ones), Nearest(back, ones, ones), CONFIG)
    assert scene.precision_recall(found.pairs)[1] > 0.95
