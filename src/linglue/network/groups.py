"""Matching neighborhoods as index tables, made once per pair and used by every layer of pairwise attention."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from linglue.matching.neighborhood import Neighborhoods, Selection, pad_groups, split_by_size

PADDED_TOKENS = 1 << 16  # in the tables of one `Groups` …
SPREAD = 1.4  # … whose neighborhoods differ in size by no more than this factor, so that little is padding

Table = tuple[Tensor, Tensor, Tensor]  # tokens (S, n) that read, tokens (S, m) they read, (S, m, 1) False for padding


@dataclass(frozen=True)
class Groups:
    """Some neighborhoods as index tables: which tokens attend to which, per seed, and where the messages go."""

    tables: Sequence[Table]
    slots: Tensor  # (E,) which of all S·n messages are real, ordered by the token they go to
    starts: Tensor  # (T,) where in `slots` those of a token begin

    @classmethod
    def of(cls, tables: Sequence[Table], readers: Sequence[Tensor], tokens: int) -> Groups:
        """readers: for every table (S, n) the token of each message, −1 for padding."""
        token = torch.cat([r.flatten() for r in readers])  # (M,)
        slots = (token >= 0).nonzero()[:, 0]
        count = torch.bincount(token[slots], minlength=tokens)  # (T,)
        return cls(tables, slots[torch.argsort(token[slots], stable=True)], count.cumsum(0) - count)


def all_groups(selections: Sequence[Selection], images: Sequence[slice], other: Sequence[int]) -> Iterator[Groups]:
    """The neighborhoods of all images; images: the tokens of each, other: which image each reads."""
    for i, selection in enumerate(selections):
        source, target = images[i], images[other[i]]
        for block in selection.neighborhoods():
            yield from _group(block, source, target, images[-1].stop)


def _group(block: Neighborhoods, source_image: slice, target_image: slice, tokens: int) -> Iterator[Groups]:
    """The neighborhoods of a block, similar sizes together."""
    targets = target_image.stop - target_image.start
    count, order = torch.bincount(block.seed, minlength=len(block.seeds)).sort(stable=True)  # (S,) ascending
    rank = torch.empty_like(order).scatter_(0, order, torch.arange(len(order), device=order.device))  # (S,)
    edges = torch.argsort(rank[block.seed], stable=True)  # (E,)
    seed, source = rank[block.seed][edges], block.source[edges] + source_image.start  # (E,) ascending, (E,)
    read = torch.zeros(len(order) * targets, dtype=torch.bool, device=seed.device)
    read[seed * targets + block.target[edges]] = True  # an index set: shared targets count once
    pair = read.nonzero()[:, 0]  # (P,) ascending
    pair_seed, target = pair // max(1, targets), pair % max(1, targets) + target_image.start
    tables: list[Table] = []
    readers: list[Tensor] = []
    for start, stop in split_by_size(count, PADDED_TOKENS, SPREAD):
        bounds = torch.tensor([start, stop], device=seed.device)
        own, its = (slice(*torch.searchsorted(s, bounds).tolist()) for s in (seed, pair_seed))
        sources, real = pad_groups(seed[own] - start, source[own], stop - start)  # (s, n)
        table, mask = pad_groups(pair_seed[its] - start, target[its], stop - start)  # (s, m)
        tables.append((sources, table, mask[..., None]))
        readers.append(sources.masked_fill(~real, -1))
        if stop == len(count) or sum(r.numel() for r in readers) > PADDED_TOKENS:
            yield Groups.of(tables, readers, tokens)
            tables, readers = [], []
