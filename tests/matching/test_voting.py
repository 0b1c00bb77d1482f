"""The learned consensus: both images play the same part, any number of keypoints works, and it learns."""

import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from linglue.matching.candidates import find_candidates
from linglue.matching.nearest import nearest_k
from linglue.matching.neighborhood import Keypoints
from linglue.matching.voting import PACE, Voting, best_matches, log_partition
from linglue.training.losses import voting_loss

SIZE = torch.tensor([640.0, 480.0])


def make_pair(count: int, noise: float = 0.35, seed: int = 0):
    """Keypoints under a rotation with scale, shuffled; noisy descriptors; truth in both directions."""
    generator = torch.Generator().manual_seed(seed)
    points = torch.rand(count, 2, generator=generator) * SIZE
    moved = points @ torch.tensor([[0.8, -0.3], [0.3, 0.8]]).T + 20
    order = torch.randperm(count, generator=generator)
    x0 = F.normalize(torch.randn(count, 32, generator=generator), dim=1)
    x1 = F.normalize(x0 + noise * torch.randn(count, 32, generator=generator), dim=1)
    return Keypoints(points, SIZE), Keypoints(moved[order], SIZE), x0, x1[order], order.argsort(), order


@pytest.fixture
def network() -> Voting:
    torch.manual_seed(0)
    return Voting()


def test_it_is_small(network):
    assert sum(p.numel() for p in network.parameters()) <= 150_000


def test_candidates_are_among_the_most_similar_from_both_sides():
    _, _, x0, x1, *_ = make_pair(40)
    found = {tuple(pair) for pair in find_candidates(*nearest_k(x0, x1, 3)).pairs.tolist()}
    similar = x0 @ x1.T
    expected = {(i, j) for i in range(40) for j in similar[i].topk(3).indices.tolist()}
    expected &= {(i, j) for j in range(40) for i in similar[:, j].topk(3).indices.tolist()}
    assert found == expected


def test_log_partition_against_a_loop():
    logits, owner = torch.tensor([1.0, -2.0, 3.0, 0.5]), torch.tensor([0, 0, 2, 2])
    expected = [torch.log(1 + logits[owner == k].exp().sum()) for k in range(4)]
    assert torch.allclose(log_partition(logits, owner, 4), torch.stack(expected))


@torch.no_grad()
def test_swapping_the_images_swaps_the_result(network):
    view0, view1, x0, x1, *_ = make_pair(120)
    pairs, scores = best_matches(network(view0, view1, x0, x1)[-1], 0.0)
    swapped, others = best_matches(network(view1, view0, x1, x0)[-1], 0.0)
    there = {tuple(pair): score for pair, score in zip(pairs.tolist(), scores.tolist(), strict=True)}
    back = {(i, j): score for (j, i), score in zip(swapped.tolist(), others.tolist(), strict=True)}
    assert there.keys() == back.keys() and len(there) > 60
    assert all(abs(there[pair] - back[pair]) < 1e-4 for pair in there)


@torch.no_grad()
def test_matches_are_one_to_one_and_scores_are_probabilities(network):
    view0, view1, x0, x1, *_ = make_pair(120)
    pairs, scores = best_matches(network(view0, view1, x0, x1)[-1])
    assert all(len(set(column)) == len(pairs) for column in pairs.T.tolist())
    assert (scores >= 0).all() and (scores <= 1).all() and (scores.diff() <= 0).all()


@torch.no_grad()
@pytest.mark.parametrize(("count0", "count1"), [(0, 0), (0, 5), (5, 0), (1, 1), (1, 9), (2, 3)])
def test_any_number_of_keypoints(network, count0, count1):
    view, _, x, *_ = make_pair(20)
    view0, view1 = Keypoints(view.points[:count0], SIZE), Keypoints(view.points[:count1], SIZE)
    pairs, scores = best_matches(network(view0, view1, x[:count0], x[:count1])[-1])
    assert pairs.shape == (len(scores), 2) and len(pairs) <= min(count0, count1)


def test_rotation_and_scale_of_keypoints_are_used(network):
    view0, view1, x0, x1, *_ = make_pair(60)
    plain = network(view0, view1, x0, x1)[0].logits[-1]
    shaped = [Keypoints(v.points, SIZE, torch.full((60,), 8.0), torch.full((60,), 0.3)) for v in (view0, view1)]
    assert not torch.allclose(network(*shaped, x0, x1)[0].logits[-1], plain)


def test_it_learns_what_to_believe(network):
    view0, view1, x0, x1, truth0, truth1 = make_pair(200, noise=0.5)
    optimiser = torch.optim.Adam(network.parameters(), lr=2e-3)
    losses = []
    for _ in range(30):
        loss = voting_loss(network(view0, view1, x0, x1), truth0, truth1)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0]
    with torch.no_grad():
        pairs, _ = best_matches(network(view0, view1, x0, x1)[-1], least=0.1)
    right = float((truth0[pairs[:, 0]] == pairs[:, 1]).float().mean())
    candidates = find_candidates(*nearest_k(x0, x1, 4))
    mutual = candidates.pairs[candidates.mutual]
    assert right > float((truth0[mutual[:, 0]] == mutual[:, 1]).float().mean()) and len(pairs) > 60


@torch.no_grad()
def test_unrelated_images_get_lower_scores_than_related_ones(network):
    view0, view1, x0, x1, *_ = make_pair(300, noise=0.1)
    scored = network(view0, view1, x0, x1)[-1]
    strong = replace(scored, logits=[torch.full_like(scored.logits[-1], 6.0)])  # sure of everything
    weak = replace(scored, logits=[torch.full_like(scored.logits[-1], -6.0)])
    assert strong.related > 0 > weak.related
    _, scores = best_matches(strong)
    assert torch.allclose(scores.max(), strong.scores.max() * strong.related.sigmoid(), atol=1e-6)
    assert len(best_matches(weak, least=0.01)[0]) == 0


@torch.no_grad()
def test_scores_are_lower_where_images_are_unlikely_to_be_related(network):
    view0, view1, x0, x1, *_ = make_pair(100)
    scored = network(view0, view1, x0, x1)[-1]
    found = []
    for bias in (5.0, -0.2):
        network.pair.weight.zero_()
        network.pair.bias.fill_(bias)
        scored = replace(scored)  # which knows nothing of the pair yet
        found.append(best_matches(scored, 0.0))
    assert torch.equal(found[0][0], found[1][0])
    assert torch.allclose(found[1][1], found[0][1] / (1 + math.exp(0.2 * PACE)), atol=1e-6)
    assert len(best_matches(scored, 0.9)[0]) < len(best_matches(scored, 0.0)[0])
