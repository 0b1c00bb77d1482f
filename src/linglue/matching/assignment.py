"""From scored candidate matches to one-to-one matches."""

from __future__ import annotations

import torch
from torch import Tensor


def one_to_one(pairs: Tensor, scores: Tensor) -> Tensor:
    """Indices of a one-to-one subset of candidate pairs (K, 2), chosen greedily by score, best first.

    Equal scores are decided by the pair's own indices, so neither the order of the candidates nor which image comes
    first decides.
    """
    if len(pairs) == 0:
        return torch.zeros(0, dtype=torch.int64, device=pairs.device)
    order = torch.argsort(pairs.sum(1), stable=True)
    order = order[torch.argsort(scores[order], descending=True, stable=True)]
    chosen, taken0, taken1 = [], set(), set()
    for position, (i, j) in zip(order.tolist(), pairs[order].tolist(), strict=True):
        if i not in taken0 and j not in taken1:
            chosen.append(position)
            taken0.add(i)
            taken1.add(j)
    return torch.tensor(chosen, device=pairs.device)
