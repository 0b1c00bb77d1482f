import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from linglue.matching.candidates import Candidates
from linglue.matching.voting import Scored
from linglue.training.losses import (
    PAIR_WEIGHT,
    Distances,
    contrastive_loss,
    distances,
    hinge_loss,
    ranking_loss,
    transport_loss,
    voting_loss,
)


def literal_ranking_loss(
    d: Distances, coarse0: Tensor, coarse1: Tensor, positive_margin: float = 0.2, negative_margin: float = 1.0
) -> Tensor:
    """The paper's equation as it stands: Σ s_c R_c / |M+| with s_c = f̂ᵀf̂ free, so s_c → −∞ lowers it."""
    confidence = (coarse0[d.source] * coarse1[d.target]).sum(-1)  # (K,)
    hardest = torch.minimum(d.negative0, d.negative1)
    ranking = F.relu(d.positive - positive_margin) + F.relu(negative_margin - hardest)
    return (confidence * ranking).sum() / max(1, len(ranking))


@pytest.fixture
def pair() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Unit descriptors of 7 and 9 keypoints, four true pairs, one ignored keypoint per side."""
    generator = torch.Generator().manual_seed(0)
    x0 = F.normalize(torch.randn(7, 8, generator=generator), dim=1)
    x1 = F.normalize(torch.randn(9, 8, generator=generator), dim=1)
    truth0 = torch.tensor([3, -1, 0, -2, 5, -1, 8])
    truth1 = torch.full((9,), -1)
    truth1[truth0[truth0 >= 0]] = (truth0 >= 0).nonzero()[:, 0]
    truth1[1] = -2
    return x0, x1, truth0, truth1


def naive_distances(x0, x1, truth0, truth1):
    rows = []
    for i, j in enumerate(truth0.tolist()):
        if j >= 0:
            positive = (x0[i] - x1[j]).square().sum()
            seen0 = min((x0[i] - x1[k]).square().sum() for k in range(len(x1)) if k != j and truth1[k] != -2)
            seen1 = min((x0[k] - x1[j]).square().sum() for k in range(len(x0)) if k != i and truth0[k] != -2)
            rows.append(torch.stack([positive, seen0, seen1]))
    return torch.stack(rows)


def test_hardest_negatives_are_those_of_the_definition(pair):
    found = distances(*pair)
    expected = naive_distances(*pair)
    torch.testing.assert_close(found.positive, expected[:, 0])
    torch.testing.assert_close(found.negative0, expected[:, 1])
    torch.testing.assert_close(found.negative1, expected[:, 2])


def test_literal_ranking_loss_is_the_equation(pair):
    positive, seen0, seen1 = naive_distances(*pair).T
    generator = torch.Generator().manual_seed(1)
    coarse0, coarse1 = torch.randn(7, 8, generator=generator), torch.randn(9, 8, generator=generator)
    expected = torch.zeros(())
    for c, i in enumerate((pair[2] >= 0).nonzero()[:, 0].tolist()):
        confidence = coarse0[i] @ coarse1[pair[2][i]]
        expected += confidence * (F.relu(positive[c] - 0.2) + F.relu(1.0 - min(seen0[c], seen1[c])))
    torch.testing.assert_close(literal_ranking_loss(distances(*pair), coarse0, coarse1), expected / len(positive))


def test_literal_loss_is_degenerate_and_the_stabilised_one_is_not(pair):
    found = distances(*pair)
    generator = torch.Generator().manual_seed(1)
    coarse0, coarse1 = torch.randn(7, 8, generator=generator), torch.randn(9, 8, generator=generator)
    coarse1[pair[2][pair[2] >= 0]] = -coarse0[pair[2] >= 0]  # s_c → −∞
    assert literal_ranking_loss(found, 100 * coarse0, 100 * coarse1) < -1000
    assert literal_ranking_loss(found, 200 * coarse0, 200 * coarse1) < -4000
    unit0, unit1 = F.normalize(coarse0, dim=1), F.normalize(coarse1, dim=1)
    assert ranking_loss(found, unit0, unit1) >= 0


def test_hinge_is_zero_once_partners_are_clearly_nearest():
    x = torch.eye(6)
    truth = torch.arange(6)
    assert hinge_loss(distances(x, x, truth, truth), margin=0.3) == 0
    shifted = x.roll(1, 0)
    assert hinge_loss(distances(x, shifted, truth, truth), margin=0.3) > 2


def test_contrastive_loss_matches_log_softmax_by_hand(pair):
    x0, x1, truth0, truth1 = pair
    logits = x0 @ x1.T / 0.1
    lost = []
    for i, j in enumerate(truth0.tolist()):
        if j >= 0:
            row = logits[i][truth1 != -2].logsumexp(0) - logits[i, j]
            column = logits[:, j][truth0 != -2].logsumexp(0) - logits[i, j]
            lost.append((row + column) / 2)
    found = contrastive_loss(x0, x1, truth0, truth1, torch.tensor(0.1))
    torch.testing.assert_close(found, torch.stack(lost).mean())


def test_transport_loss_falls_when_descriptors_say_the_truth():
    truth = torch.tensor([0, 1, 2, -1])
    x = 6 * torch.eye(4)
    right = transport_loss(x, x * torch.tensor([1.0, 1, 1, 0])[:, None], truth, truth, torch.tensor(1.0))
    wrong = transport_loss(x, x.roll(1, 0), truth, truth, torch.tensor(1.0))
    assert right < wrong / 2


@pytest.mark.parametrize("loss", ["hinge", "ranking", "contrastive"])
def test_gradients_pull_partners_together(pair, loss):
    x0, x1, truth0, truth1 = pair
    x0 = x0.clone().requires_grad_()
    found = distances(x0, x1, truth0, truth1)
    value = {
        "hinge": lambda: hinge_loss(found),
        "ranking": lambda: ranking_loss(found, x0.detach(), x1),
        "contrastive": lambda: contrastive_loss(x0, x1, truth0, truth1, torch.tensor(0.1)),
    }[loss]()
    value.backward()
    closer = F.normalize(x0.detach() - 0.01 * x0.grad, dim=1)
    after = distances(closer, x1, truth0, truth1)
    gap = lambda d: (d.positive - torch.minimum(d.negative0, d.negative1)).mean()  # noqa: E731
    assert gap(after) < gap(found)


def scored(pairs: list[list[int]], logits: list[float], counts: tuple[int, int]) -> Scored:
    """Candidates with given logits, after a single round."""
    listed = torch.tensor(pairs)
    nothing = torch.zeros(len(listed))
    candidates = Candidates(listed, nothing, (nothing[:, None], nothing[:, None]), nothing.bool(), counts)
    return Scored([torch.tensor(logits, requires_grad=True)], candidates, torch.nn.Linear(3, 1))


def voting_by_hand(scored: Scored, truths: tuple[list[int], list[int]], wrong: set[tuple[int, int]]) -> float:
    """−log of the probability of what is known, keypoint by keypoint."""
    pairs = [tuple(pair) for pair in scored.candidates.pairs.tolist()]
    total = 0.0
    for side, truth in enumerate(truths):
        losses = []
        for keypoint, partner in enumerate(truth):
            mine = [(p, float(e.exp())) for p, e in zip(pairs, scored.logits[0].detach(), strict=True)]
            mine = [(p, e) for p, e in mine if p[side] == keypoint]
            whole = 1 + sum(e for _, e in mine)
            right = [e for p, e in mine if p[1 - side] == partner]
            possible = right[0] if right else 1.0
            if partner == -2:
                possible = 1 + sum(e for p, e in mine if p not in wrong)
                if not any(p in wrong for p, _ in mine):
                    continue
            losses.append(-torch.tensor(possible / whole).log())
        total += float(torch.stack(losses).mean()) / 2
    return total


@pytest.mark.parametrize("wrong", [set(), {(1, 1), (1, 2), (2, 0)}], ids=["nothing excluded", "off the line"])
def test_voting_loss_says_what_is_known(wrong):
    pairs = [[0, 0], [0, 1], [1, 1], [1, 2], [1, 0], [2, 0], [3, 2]]
    found = scored(pairs, [2.0, -1.0, 0.5, 1.0, -0.3, 0.7, -2.0], (4, 3))
    truth0, truth1 = [0, -2, -1, -2], [0, -2, -1]
    loss = voting_loss(
        [found],
        torch.tensor(truth0),
        torch.tensor(truth1),
        lambda listed: torch.tensor([tuple(pair) in wrong for pair in listed.tolist()]),
    )
    related = F.binary_cross_entropy_with_logits(found.related, torch.tensor(1.0)) * PAIR_WEIGHT
    assert float((loss - related).detach()) == pytest.approx(voting_by_hand(found, (truth0, truth1), wrong), abs=1e-5)
    loss.backward()
    assert torch.isfinite(found.logits[0].grad).all()


def test_candidates_off_the_line_lose():
    """A keypoint whose partner nobody knows: what geometry excludes becomes less likely, what it allows does not."""
    found = scored([[0, 0], [0, 1]], [1.0, 1.0], (1, 2))
    voting_loss([found], torch.tensor([-2]), torch.tensor([-2, -2]), lambda listed: listed[:, 1] == 1).backward()
    slope = found.logits[0].grad
    assert slope is not None and slope[1] > 0 >= slope[0]
