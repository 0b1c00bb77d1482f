"""What the network learns from: descriptors of two images and their true matches.

All losses take unit descriptors x0 (N, C), x1 (M, C) of one pair and truth0 (N,): the partner in image 1, −1 for a
keypoint without one, −2 for one that is neither a positive nor a negative example; truth1 (M,) likewise.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from linglue.matching.sinkhorn import log_optimal_transport
from linglue.matching.voting import Scored, log_partition
from linglue.training.sources.ground_truth import IGNORE, UNMATCHABLE

FAR = 1e3  # stands for "not a negative"


@dataclass(frozen=True)
class Distances:
    """Squared distances of the true pairs and of their hardest negatives."""

    source: Tensor  # (K,) keypoints of image 0 with a partner
    target: Tensor  # (K,) their partners
    positive: Tensor  # (K,)
    negative0: Tensor  # (K,) the nearest wrong keypoint of image 1, seen from the source
    negative1: Tensor  # (K,) the nearest wrong keypoint of image 0, seen from the target


def distances(x0: Tensor, x1: Tensor, truth0: Tensor, truth1: Tensor) -> Distances:
    """Positives and hardest negatives of one pair; keypoints to be ignored are no negatives.

    Args:
        x0: (N, C) unit descriptors of image 0.
        x1: (M, C) of image 1.
        truth0: (N,) partner in image 1, or one of the negative codes of `ground_truth`.
        truth1: (M,) likewise.
    """
    source = (truth0 >= 0).nonzero()[:, 0]  # (K,)
    target = truth0[source]  # (K,)
    squared = (2 - 2 * x0 @ x1.T).clamp(min=0)  # (N, M)
    positive = squared[source, target]  # (K,)
    rows = squared[source].masked_fill((truth1 == IGNORE)[None], FAR)  # (K, M)
    columns = squared[:, target].masked_fill((truth0 == IGNORE)[:, None], FAR)  # (N, K)
    order = torch.arange(len(source), device=x0.device)
    own_row, own_column = torch.zeros_like(rows), torch.zeros_like(columns)
    own_row[order, target], own_column[source, order] = FAR, FAR
    return Distances(source, target, positive, (rows + own_row).amin(1), (columns + own_column).amin(0))


def ranking_loss(
    d: Distances, coarse0: Tensor, coarse1: Tensor, positive_margin: float = 0.2, negative_margin: float = 1.0
) -> Tensor:
    """The paper's loss made sound: unit f̂, confidence mapped to (0, 1) and divided by its mean, as ASLFeat does.

    Args:
        d: of `distances`.
        coarse0: (N, C) f̂ of image 0.
        coarse1: (M, C) f̂ of image 1.
        positive_margin: squared distance up to which a partner costs nothing.
        negative_margin: squared distance from which a wrong keypoint costs nothing.
    """
    confidence = (1 + (coarse0[d.source] * coarse1[d.target]).sum(-1)) / 2  # (K,)
    confidence = confidence / confidence.mean().clamp(min=1e-6)
    hardest = torch.minimum(d.negative0, d.negative1)
    ranking = F.relu(d.positive - positive_margin) + F.relu(negative_margin - hardest)
    return (confidence * ranking).sum() / max(1, len(ranking))


def hinge_loss(d: Distances, margin: float = 0.3) -> Tensor:
    """The partner must be nearer than the nearest wrong keypoint, from both sides, by a margin.

    Args:
        d: of `distances`.
        margin: in squared distance of unit descriptors.
    """
    lost = F.relu(d.positive - d.negative0 + margin) + F.relu(d.positive - d.negative1 + margin)
    return lost.sum() / max(1, len(lost))


def contrastive_loss(x0: Tensor, x1: Tensor, truth0: Tensor, truth1: Tensor, temperature: Tensor) -> Tensor:
    """InfoNCE in both directions (dual softmax) over the true pairs; temperature () is learned.

    Args:
        x0: (N, C) unit descriptors of image 0.
        x1: (M, C) of image 1.
        truth0: (N,) partner in image 1, negative if none.
        truth1: (M,) likewise.
        temperature: of the softmax.
    """
    source = (truth0 >= 0).nonzero()[:, 0]  # (K,)
    if len(source) == 0:
        return (x0.sum() + x1.sum()) * 0
    target = truth0[source]  # (K,)
    logits = x0 @ x1.T / temperature  # (N, M)
    # Ignored keypoints are neither right nor wrong answers.
    rows = logits[source].masked_fill((truth1 == IGNORE)[None], -FAR)
    columns = logits[:, target].masked_fill((truth0 == IGNORE)[:, None], -FAR)
    return (F.cross_entropy(rows, target) + F.cross_entropy(columns.T, source)) / 2


def transport_loss(x0: Tensor, x1: Tensor, truth0: Tensor, truth1: Tensor, dustbin: Tensor) -> Tensor:
    """SuperGlue's: negative log-likelihood of true pairs and of dustbins under the optimal transport plan.

    Args:
        x0: (N, C) descriptors of image 0.
        x1: (M, C) of image 1.
        truth0: (N,) partner in image 1, negative if none.
        truth1: (M,) likewise.
        dustbin: score of having no partner.
    """
    plan = log_optimal_transport(x0 @ x1.T / x0.shape[1] ** 0.5, dustbin)  # (N+1, M+1)
    source = (truth0 >= 0).nonzero()[:, 0]
    lost = [-plan[source, truth0[source]], -plan[:-1, -1][truth0 == UNMATCHABLE], -plan[-1, :-1][truth1 == UNMATCHABLE]]
    return torch.cat(lost).mean()


PAIR_WEIGHT = 0.1  # of telling related images from unrelated ones
RARE = 6.0  # unrelated pairs count for so many: in use, most pairs are unrelated, in training few


def voting_loss(
    looks: list[Scored], truth0: Tensor, truth1: Tensor, wrong: Callable[[Tensor], Tensor] | None = None
) -> Tensor:
    """Minus the log-probability of what is known of every keypoint; mean over looks, rounds, sides.

    That is the right candidate, or "no partner" where none is listed; of keypoints whose partner is not known, that it
    is none of the candidates that are certainly wrong.

    Args:
        looks: what the network returned.
        truth0: (N,) a keypoint of the other image, −1 for none, −2 if that is not known.
        truth1: (M,) the same for image 1.
        wrong: (E, 2) pairs → (E,) bool: cannot be matches, by the geometry of the two images.
    """
    losses = []
    for scored in looks:
        pairs = scored.candidates.pairs
        excluded = torch.zeros_like(pairs[:, 0], dtype=torch.bool) if wrong is None else wrong(pairs)  # (E,)
        for logit in scored.logits:
            for side, truth in enumerate((truth0, truth1)):
                owner, other = pairs[:, side], pairs[:, 1 - side]
                partition = log_partition(logit, owner, len(truth))  # (N,)
                right = (truth[owner] == other).float()  # (E,) at most one of a keypoint
                chosen = torch.zeros_like(partition).index_add(0, owner, logit * right)  # (N,) 0: "no partner"
                left = log_partition(logit.masked_fill(excluded, -torch.inf), owner, len(truth))  # (N,)
                known = truth > -2
                counts = known | torch.zeros_like(known).index_put((owner[excluded],), excluded.new_tensor(True))
                loss = partition - torch.where(known, chosen, left)  # (N,)
                losses.append((loss * counts).sum() / counts.sum().clamp(min=1))
    related = looks[-1].related
    shows = related.new_tensor(float((truth0 >= 0).any()))
    weight = PAIR_WEIGHT if shows else PAIR_WEIGHT * RARE
    return torch.stack(losses).mean() + weight * F.binary_cross_entropy_with_logits(related, shows)
