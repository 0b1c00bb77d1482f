"""Optimal transport with a dustbin: the matching head of the `linear-sinkhorn` comparison. Quadratic by nature."""

from __future__ import annotations

import math

import torch
from torch import Tensor

ITERATIONS = 100
MIN_SCORE = 0.2  # below this probability a keypoint counts as unmatched, as in SuperGlue


def log_optimal_transport(similarity: Tensor, dustbin: Tensor, iterations: int = ITERATIONS) -> Tensor:
    """similarity (N, M), dustbin () → (N+1, M+1) log of the transport plan.

    Every keypoint has mass 1, so the row of a keypoint sums to 1; a dustbin can take all keypoints of the other image.
    """
    n, m = similarity.shape
    scores = torch.cat([similarity, dustbin.expand(n, 1)], dim=1)  # (N, M+1)
    scores = torch.cat([scores, dustbin.expand(1, m + 1)], dim=0)  # (N+1, M+1)
    log_rows, log_columns = scores.new_zeros(n + 1), scores.new_zeros(m + 1)
    log_rows[-1], log_columns[-1] = math.log(max(m, 1)), math.log(max(n, 1))
    u, v = torch.zeros_like(log_rows), torch.zeros_like(log_columns)
    for _ in range(iterations):
        u = log_rows - torch.logsumexp(scores + v[None], dim=1)  # (N+1,)
        v = log_columns - torch.logsumexp(scores + u[:, None], dim=0)  # (M+1,)
    return scores + u[:, None] + v[None]


def transport_matches(x0: Tensor, x1: Tensor, dustbin: Tensor) -> tuple[Tensor, Tensor]:
    """Mutually best pairs (K, 2) of descriptors (N, C), (M, C) and their probabilities (K,), best first.

    Args:
        x0: (N, C) descriptors of image 0.
        x1: (M, C) descriptors of image 1.
        dustbin: () learned score of having no partner.
    """
    if len(x0) == 0 or len(x1) == 0:
        return torch.zeros(0, 2, dtype=torch.int64, device=x0.device), x0.new_zeros(0)
    plan = log_optimal_transport(x0 @ x1.T / math.sqrt(x0.shape[1]), dustbin)[:-1, :-1].exp()  # (N, M)
    score, index0 = plan.max(1)  # (N,)
    index1 = plan.argmax(0)  # (M,)
    source = torch.arange(len(x0), device=x0.device)
    keep = (index1[index0] == source) & (score > MIN_SCORE)
    pairs, score = torch.stack([source, index0], dim=1)[keep], score[keep]
    order = torch.argsort(score, descending=True, stable=True)
    return pairs[order], score[order]
