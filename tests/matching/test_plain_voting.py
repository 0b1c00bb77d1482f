"""The fast learned consensus against its plain form: same candidates, same matches, same gradients."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from linglue.matching import motion, voting
from linglue.matching.candidates import among_best
from linglue.matching.nearest import ROWS
from linglue.matching.neighborhood import Keypoints
from linglue.matching.voting import Voting, best_matches
from linglue.network.linglue import LinGlue
from linglue.training.losses import voting_loss

from .plain_voting import PlainVoting
from .plain_voting import among_best as plain_among_best

SIZE = torch.tensor([900.0, 700.0])


def make_pair(count: int, shaped: tuple[bool, bool] = (False, False), seed: int = 0):
    """Two images that share most keypoints under a homography; a similarity would leave axes of motion undecided."""
    generator = torch.Generator().manual_seed(seed)

    def random(*shape: int) -> Tensor:
        return torch.rand(*shape, generator=generator)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    points = random(count, 2) * SIZE
    matrix = torch.tensor([[0.8, -0.25, 60.0], [0.2, 0.9, 10.0], [1.5e-4, -2e-4, 1.0]])
    moved = F.pad(points, (0, 1), value=1.0) @ matrix.T
    moved = moved[:, :2] / moved[:, 2:] + normal(count, 2)
    moved = torch.where(random(count, 1) < 0.3, random(count, 2) * SIZE, moved)
    x0 = F.normalize(normal(count, 64), dim=1)
    x1 = F.normalize(x0 + 0.2 * random(count, 1) * normal(count, 64), dim=1)
    order = torch.randperm(count, generator=generator)
    scales = [5 * random(count) + 1 if shaped[0] else None for _ in range(2)]
    oris = [6.28 * random(count) if shaped[1] else None for _ in range(2)]
    views = Keypoints(points, SIZE, scales[0], oris[0]), Keypoints(moved[order], SIZE, scales[1], oris[1])
    return *views, x0, x1[order], order.argsort(), order


def networks() -> tuple[Voting, PlainVoting]:
    """The trained network in both forms."""
    fast = LinGlue.from_pretrained().voting
    assert fast is not None
    plain = PlainVoting(fast.config).eval()
    plain.load_state_dict(fast.state_dict())
    return fast, plain


@torch.no_grad()
@pytest.mark.parametrize("shaped", [(False, False), (True, False), (False, True), (True, True)])
@pytest.mark.parametrize("count", [30, 700])
@pytest.mark.parametrize("size", [128, ROWS])  # products by torch's own, and by oneDNN
def test_same_matches_and_logits(count, shaped, size, monkeypatch):
    monkeypatch.setattr(motion, "CHUNK", size)  # more than one, and a last one that is not full
    view0, view1, x0, x1, *_ = make_pair(count, shaped)
    fast, plain = networks()
    found, wanted = fast(view0, view1, x0, x1), plain(view0, view1, x0, x1)
    assert torch.equal(found[0].candidates.pairs, wanted[0].candidates.pairs)
    for look, expected in zip(found, wanted, strict=True):
        keys, wanted_keys = (scored.candidates.pairs @ torch.tensor([count, 1]) for scored in (look, expected))
        both = torch.isin(keys, wanted_keys), torch.isin(wanted_keys, keys)
        assert both[0].float().mean() > 0.98 and both[1].float().mean() > 0.98  # places of equal rank
        for logit, right in zip(look.logits, expected.logits, strict=True):
            off = (logit[both[0]] - right[both[1]]).abs()  # rounding turns axes of motion that are as thin as others
            assert off.quantile(0.95) < 1e-2 and off.max() < 0.2
    pairs, scores = best_matches(found[-1])
    others, expected_scores = best_matches(wanted[-1])
    assert sorted(pairs.tolist()) == sorted(others.tolist())
    torch.testing.assert_close(scores, expected_scores, atol=1e-2, rtol=1e-2)


@pytest.mark.parametrize("shaped", [(False, False), (True, True)])
def test_same_gradients(shaped, monkeypatch):
    monkeypatch.setattr(motion, "CHUNK", 128)
    *pair, truth0, truth1 = make_pair(300, shaped)
    losses, gradients = [], []
    for network in networks():
        loss = voting_loss(network(*pair), truth0, truth1)
        losses.append(loss.detach())
        gradients.append(torch.autograd.grad(loss, list(network.parameters())))
    torch.testing.assert_close(*losses, atol=1e-4, rtol=1e-4)
    for found, wanted in zip(*gradients, strict=True):
        torch.testing.assert_close(found, wanted, atol=2e-2 * max(1e-3, float(wanted.abs().max())), rtol=1e-2)


def test_inference_equals_training(monkeypatch):
    """Without gradients memory is used again: that must not change a bit."""
    monkeypatch.setattr(motion, "CHUNK", 100)
    pair = make_pair(400)[:4]
    fast, _ = networks()
    with torch.no_grad():
        found = fast(*pair)
    for look, wanted in zip(found, fast(*pair), strict=True):
        assert all(torch.equal(*both) for both in zip(look.logits, wanted.logits, strict=True))


@torch.no_grad()
@pytest.mark.parametrize("kept", [0, 250])
def test_what_is_not_remembered_is_computed_again(kept, monkeypatch):
    monkeypatch.setattr(motion, "CHUNK", 100)
    pair, (fast, _) = make_pair(400)[:4], networks()
    remembered = fast(*pair)
    monkeypatch.setattr(voting, "KEPT", kept)
    for look, wanted in zip(fast(*pair), remembered, strict=True):
        assert all(torch.equal(*both) for both in zip(look.logits, wanted.logits, strict=True))


@pytest.mark.parametrize("count", [1, 2, 3])
def test_best_candidates_of_an_owner(count):
    generator = torch.Generator().manual_seed(count)
    owner = torch.randint(50, (400,), generator=generator)
    scores = torch.randint(8, (400,), generator=generator) / 8  # many are equal, some are 0
    assert torch.equal(among_best(owner, scores, count, 60), plain_among_best(owner, scores, count))
