"""Guided completion on a smooth warp where part of the descriptors mislead."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from linglue.matching.completion import CompletionConfig, complete
from linglue.matching.local_affine import FilterConfig, LocalMatches, filtered_matches
from linglue.matching.nearest import nearest_both_ways
from linglue.matching.neighborhood import Keypoints

from .scene import AFFINE, Scene, affine, bent, make_scene, sorted_pairs


def misled_scene(spoiled: int = 200, seed: int = 0) -> Scene:
    """600 true matches; both ends of the first `spoiled` have a lookalike elsewhere that is closer in descriptor."""
    scene = make_scene(600, 400, bent, seed=seed)
    random = torch.Generator().manual_seed(seed + 1)
    victims = spoiled_keypoints(scene, spoiled)
    free0 = (scene.truth < 0).nonzero()[:spoiled, 0]
    free1 = (
        torch.ones(1000, dtype=torch.bool).index_fill(0, scene.truth[scene.truth >= 0], False).nonzero()[:spoiled, 0]
    )

    def lookalike(x: torch.Tensor) -> torch.Tensor:
        return F.normalize(x + 0.1 * torch.randn(x.shape, generator=random) / x.shape[1] ** 0.5, dim=1)

    x0 = scene.x0.index_copy(0, free0, lookalike(scene.x1[scene.truth[victims]]))
    x1 = scene.x1.index_copy(0, free1, lookalike(scene.x0[victims]))
    return Scene(scene.view0, scene.view1, x0, x1, scene.truth)


def spoiled_keypoints(scene: Scene, spoiled: int = 200) -> torch.Tensor:
    return (scene.truth >= 0).nonzero()[:spoiled, 0]


def run(scene: Scene):
    accepted = filtered_matches(
        *scene.views, *nearest_both_ways(scene.x0, scene.x1), FilterConfig(expansion=2.0, min_confidence=200.0)
    )
    return accepted, *complete(*scene.views, scene.x0, scene.x1, accepted, CompletionConfig())


@pytest.mark.parametrize("bare", [False, True])
def test_recovers_what_descriptors_missed(bare):
    scene = misled_scene()
    accepted, pairs, scores = run(scene.bare() if bare else scene)
    before, after = scene.precision_recall(accepted.pairs), scene.precision_recall(pairs)
    assert before[1] < 0.68
    assert after[0] > 0.97
    assert after[1] > 0.8
    known = set(sorted_pairs(accepted.pairs))
    new = torch.tensor([tuple(p) not in known for p in pairs.tolist()])
    assert new.sum() > 100
    assert scene.precision_recall(pairs[new])[0] > 0.95
    assert (~new).sum() >= 0.98 * len(known), "accepted matches stay"
    confidence = dict(zip(map(tuple, accepted.pairs.tolist()), accepted.confidence.tolist(), strict=True))
    assert scores[~new].tolist() == [confidence[tuple(p)] for p in pairs[~new].tolist()]
    assert (scores[new] <= 0.5).all()
    assert (scores >= 0).all()
    assert torch.equal(scores, scores.sort(descending=True).values), "best first"


def test_accepted_outliers_are_dropped():
    """A match 30 px off among good neighbours goes; far from all others nobody can tell."""
    scene = make_scene(400, 0, affine, noise=0.1)
    index = (scene.view0.points[:, 0] < 400).nonzero()[:, 0]
    lonely = scene.view0.points[:, 0].argmax()
    index = torch.cat([index, lonely[None]])
    points1 = scene.view1.points.clone()
    outliers = [int(index[0]), int(index[50])]
    points1[scene.truth[[*outliers, int(lonely)]]] += 30
    view1 = Keypoints(points1, scene.view1.size)
    accepted = LocalMatches(
        torch.stack([index, scene.truth[index]], dim=1), torch.full((len(index),), 0.9), AFFINE.expand(len(index), 2, 2)
    )
    pairs, _ = complete(
        Keypoints(scene.view0.points, scene.view0.size), view1, scene.x0, scene.x1, accepted, CompletionConfig()
    )
    assert not {(i, int(scene.truth[i])) for i in outliers} & set(sorted_pairs(pairs))
    assert set(sorted_pairs(accepted.pairs)) - set(sorted_pairs(pairs)) == {(i, int(scene.truth[i])) for i in outliers}


def test_output_is_one_to_one():
    _, pairs, _ = run(misled_scene())
    assert len(set(pairs[:, 0].tolist())) == len(set(pairs[:, 1].tolist())) == len(pairs)


def test_swapping_the_images_swaps_the_result():
    scene = misled_scene()
    accepted, pairs, scores = run(scene)
    flipped = LocalMatches(accepted.pairs.flip(1), accepted.confidence, torch.linalg.inv(accepted.maps))
    swapped, swapped_scores = complete(scene.view1, scene.view0, scene.x1, scene.x0, flipped, CompletionConfig())
    assert sorted_pairs(swapped.flip(1)) == sorted_pairs(pairs)
    torch.testing.assert_close(swapped_scores, scores, atol=1e-4, rtol=1e-4)


def test_permuted_keypoints_give_the_permuted_result():
    scene = misled_scene()
    order0 = torch.randperm(1000, generator=torch.Generator().manual_seed(8))
    order1 = torch.randperm(1000, generator=torch.Generator().manual_seed(9))
    pairs, moved = run(scene)[1], run(scene.permuted(order0, order1))[1]
    back = torch.stack([order0[moved[:, 0]], order1[moved[:, 1]]], dim=1)
    assert sorted_pairs(back) == sorted_pairs(pairs)


def test_far_descriptors_are_not_matched():
    """A keypoint at the right place that looks entirely different is another keypoint."""
    scene = make_scene(400, 0, bent)
    random = torch.Generator().manual_seed(4)
    x1 = scene.x1.clone()
    strange = scene.truth[:100]
    x1[strange] = F.normalize(torch.randn(100, x1.shape[1], generator=random), dim=1)
    pairs = run(Scene(scene.view0, scene.view1, scene.x0, x1, scene.truth))[1]
    found = set(pairs[:, 1].tolist())
    assert len(found & set(strange.tolist())) <= 5


def test_orientations_and_scales_must_agree():
    scene = misled_scene()
    victims = scene.truth[spoiled_keypoints(scene)]
    plain = len(run(scene)[1])
    for name, change in (("oris", lambda v: v + 2.0), ("scales", lambda v: v * 4)):
        values = getattr(scene.view1, name).clone()
        values[victims] = change(values[victims])
        fields = {n: getattr(scene.view1, n) for n in ("points", "size", "scales", "oris")}
        changed = Scene(scene.view0, Keypoints(**{**fields, name: values}), scene.x0, scene.x1, scene.truth)
        pairs = run(changed)[1]
        assert not set(pairs[:, 1].tolist()) & set(victims.tolist())
        assert len(pairs) < plain - 100


@pytest.mark.parametrize("count", [0, 1, 5])
def test_few_accepted_matches_predict_nothing(count):
    scene = make_scene(50, 0)
    index = torch.arange(count)
    accepted = LocalMatches(
        torch.stack([index, scene.truth[:count]], dim=1), torch.full((count,), 0.9), torch.eye(2).expand(count, 2, 2)
    )
    pairs, scores = complete(*scene.views, scene.x0, scene.x1, accepted, CompletionConfig())
    assert torch.equal(pairs, accepted.pairs)
    assert torch.equal(scores, accepted.confidence)


@pytest.mark.parametrize("count", [6, 7, 9, 20])
def test_barely_enough_accepted_matches(count):
    scene = make_scene(400, 0)
    order = (scene.view0.points - scene.view0.points.mean(0)).norm(dim=1).argsort()[:count]
    accepted = LocalMatches(
        torch.stack([order, scene.truth[order]], dim=1),
        torch.full((count,), 0.9),
        AFFINE.expand(count, 2, 2),
    )
    pairs, _ = complete(*scene.views, scene.x0, scene.x1, accepted, CompletionConfig())
    assert set(sorted_pairs(accepted.pairs)) <= set(sorted_pairs(pairs))
    assert scene.precision_recall(pairs)[0] > 0.95


def test_nothing_left_to_find():
    scene = make_scene(600, 0)
    accepted, pairs, _ = run(Scene(scene.view0, scene.view0, scene.x0, scene.x0, torch.arange(600)))
    assert len(accepted.pairs) >= 595
    assert (pairs[:, 0] == pairs[:, 1]).all()


def test_reach_limits_how_far_predictions_go():
    """Accepted matches in the left half say nothing about the far right."""
    scene = make_scene(600, 0, bent)
    left = (scene.view0.points[:, 0] < 200).nonzero()[:, 0]
    maps = torch.eye(2).expand(len(left), 2, 2) * 0.9
    accepted = LocalMatches(torch.stack([left, scene.truth[left]], dim=1), torch.full((len(left),), 0.9), maps)
    pairs, _ = complete(*scene.views, scene.x0, scene.x1, accepted, CompletionConfig())
    radius = (640 * 480 / (100 * torch.pi)) ** 0.5
    assert (scene.view0.points[pairs[:, 0], 0] <= 200 + 2 * radius).all()
