"""Attention in linear time, over all keypoints and within matching neighborhoods.

    V'_i = φ(Q_i)ᵀ (Σ_j φ(K_j) V_jᵀ) / φ(Q_i)ᵀ (Σ_j φ(K_j)),    φ(u) = elu(u) + 1

The two sums over j do not depend on i: they are computed once, whatever the number of queries.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from linglue.matching.neighborhood import Neighborhoods, Selection, pad_groups, split_by_size

EPSILON = 1e-6  # denominator of a query that attends to nothing
PADDED_TOKENS = 1 << 16  # gathered at a time in pairwise attention


class _Positive(torch.autograd.Function):
    """exp(min(x, 0)) + max(x, 0), whose derivative is its own value cut off at 1: nothing else need be remembered."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        y = x.clamp(max=0).exp_().add_(x.clamp(min=0))
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        (y,) = ctx.saved_tensors
        return gradients[0] * y.clamp(max=1)


def positive(x: Tensor) -> Tensor:
    """φ(x) = elu(x) + 1, the feature map that replaces softmax attention's exponential; faster than torch's elu."""
    return cast(Tensor, _Positive.apply(x))


def linear_attention(query: Tensor, key: Tensor, value: Tensor, key_mask: Tensor | None = None) -> Tensor:
    """query (B, N, H, d), key and value (B, M, H, d), key_mask (B, M) bool → (B, N, H, d).

    Sums over tens of thousands of keys leave float16's range, so the products run in float32 under autocast, too.
    """
    with torch.autocast(query.device.type, enabled=False):
        query, key, value = positive(query.float()), positive(key.float()), value.float()
        if key_mask is not None:
            key = key * key_mask[:, :, None, None]  # a masked key has no weight
        memory = torch.einsum("bmhd,bmhe->bhde", key, value)  # (B, H, d, d)
        total = key.sum(1)  # (B, H, d)
        message = torch.einsum("bnhd,bhde->bnhe", query, memory)  # (B, N, H, d)
        weight = torch.einsum("bnhd,bhd->bnh", query, total)  # (B, N, H)
        return message / (weight[..., None] + EPSILON)


@dataclass(frozen=True)
class PaddedGroups:
    """Some neighborhoods as index tables: what attends (source) to what (target), per seed."""

    source: Tensor  # (S, n) keypoints of the image that is updated
    source_mask: Tensor  # (S, n)
    target: Tensor  # (S, m) keypoints of the other image, each once
    target_mask: Tensor  # (S, m)


def pad_neighborhoods(block: Neighborhoods, targets: int) -> Iterator[PaddedGroups]:
    """Index tables of a block of neighborhoods, cut so that none exceeds PADDED_TOKENS; `targets`: keypoints there."""
    count = torch.bincount(block.seed, minlength=len(block.seeds))  # (S,)
    pair = torch.unique(block.seed * targets + block.target)  # an index set: shared targets count once
    pair_seed, pair_target = pair // targets, pair % targets
    for start, stop in split_by_size(count, PADDED_TOKENS):
        source = (block.seed >= start) & (block.seed < stop)
        target = (pair_seed >= start) & (pair_seed < stop)
        yield PaddedGroups(
            *pad_groups(block.seed[source] - start, block.source[source], stop - start),
            *pad_groups(pair_seed[target] - start, pair_target[target], stop - start),
        )


def pairwise_attention(query: Tensor, key: Tensor, value: Tensor, selection: Selection) -> Tensor:
    """Linear attention inside each neighborhood, summed over seeds: query (N, H, d), key, value (M, H, d) → (N, H, d).

    Keypoints that no neighborhood contains receive zero.
    """
    message = query.new_zeros(query.shape, dtype=torch.float32)
    for block in selection.neighborhoods():
        for groups in pad_neighborhoods(block, len(key)):
            local = linear_attention(query[groups.source], key[groups.target], value[groups.target], groups.target_mask)
            local = local * groups.source_mask[:, :, None, None]  # (S, n, H, d)
            message = message.index_add(0, groups.source.flatten(), local.flatten(0, 1))
    return message
