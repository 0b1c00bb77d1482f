"""Exact nearest and second nearest neighbours between two descriptor sets, both directions in one blocked pass."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

BLOCK_ROWS, BLOCK_COLUMNS = 512, 2048  # 4 MB of similarities at a time, whatever the number of keypoints
GROUP = 16  # entries per group in the search for maxima; divides both
NO_GROUP = 1 << 40  # beyond all entries
RESOLVED = 128  # queries at a time that look into their best groups
EPSILON = 1e-6  # keeps the distance ratio finite where two descriptors are equal


@dataclass(frozen=True)
class Nearest:
    """For every query: its nearest neighbour in the other set and how distinctive that choice is."""

    index: Tensor  # (N,) int64, −1 if the other set is empty
    distance: Tensor  # (N,) Euclidean
    ratio: Tensor  # (N,) ≥ 1: distance to the second nearest / distance to the nearest; 1 if there is no second


class _BestGroups:
    """The two groups of largest maximum for every query, over blocks of similarities that arrive one after the other.

    Reductions that return indices are an order of magnitude slower on a CPU than plain maxima, so a block is only asked
    for the maxima of groups. The two nearest neighbours are in the two best groups, which are searched at the end. The
    groups of a block are strided: of m groups the first has the entries 0, m, 2m, …
    """

    def __init__(self, queries: int, like: Tensor) -> None:
        self.value = like.new_full((queries, 2), -torch.inf)  # (queries, 2)
        self.first = torch.full((queries, 2), NO_GROUP, device=like.device)  # first entries of the groups

    def update(self, maxima: Tensor, start: int, entry: int) -> None:
        """Merge maxima (n, m) of the groups of a block whose queries begin at `start` and whose entries at `entry`."""
        value = self.value[start : start + len(maxima)]
        improved = (maxima.amax(1) > value[:, 1]).nonzero()[:, 0]  # (r,), ever fewer of them
        new, group = maxima.index_select(0, improved).topk(min(2, maxima.shape[1]), dim=1)  # (r, 2)
        improved = improved + start
        both = torch.cat([self.value.index_select(0, improved), new], dim=1)  # (r, 4)
        first = torch.cat([self.first.index_select(0, improved), entry + group], dim=1)
        self.value[improved], order = both.topk(2, dim=1)
        self.first[improved] = first.gather(1, order)


def _nearest(x: Tensor, y: Tensor, best: _BestGroups, block: int) -> Nearest:
    """The two nearest of x (N, D) among the entries y (M, D) of its best groups, which come from blocks of `block`.

    Distances are taken from the descriptors themselves: the product of matrices cancels digits near zero.
    """
    if len(y) == 0:
        return Nearest(best.first.new_full((len(x),), -1), x.new_full((len(x),), torch.inf), x.new_ones(len(x)))
    whole = len(y) - len(y) % block  # entries in blocks of full size
    last = -(-(len(y) - whole) // GROUP)  # groups in the last block
    member = torch.arange(GROUP, device=x.device)
    index, distance = [], []
    for queries, first in zip(x.split(RESOLVED), best.first[: len(x)].split(RESOLVED), strict=True):
        stride = torch.where(first < whole, block // GROUP, last)  # (n, 2)
        entry = (first[..., None] + stride[..., None] * member).flatten(1)  # (n, 2·GROUP)
        there = y.index_select(0, entry.clamp(max=len(y) - 1).flatten()).unflatten(0, entry.shape)  # (n, 2·GROUP, D)
        square = there.sub_(queries[:, None]).square_().sum(-1).masked_fill_(entry >= len(y), torch.inf)
        nearest, order = square.topk(min(2, square.shape[1]), dim=1, largest=False)  # (n, 2)
        index.append(entry.gather(1, order[:, :1])[:, 0])
        distance.append(nearest.sqrt_())
    found = torch.cat(distance)  # (N, 2)
    one, two = found[:, 0].contiguous(), found[:, 1]
    ratio = torch.ones_like(one) if len(y) == 1 else ((two + EPSILON) / (one + EPSILON)).clamp(min=1)
    return Nearest(torch.cat(index), one, ratio)


@torch.no_grad()
def nearest_both_ways(x0: Tensor, x1: Tensor) -> tuple[Nearest, Nearest]:
    """Nearest neighbours of x0 (N, D) in x1 (M, D) and of x1 in x0. No N × M array exists at any time.

    Args:
        x0: descriptors of image 0.
        x1: descriptors of image 1.

    Returns:
        for every descriptor of image 0 its nearest in image 1, and the other way round.
    """
    x0, x1 = x0.float(), x1.float()
    # One product gives −½ squared distance: [x0, −½|x0|², 1] · [x1, 1, −½|x1|²].
    half0, half1 = -0.5 * x0.square().sum(1, keepdim=True), -0.5 * x1.square().sum(1, keepdim=True)
    # Filled up to whole groups by descriptors that are infinitely far from all.
    half0, half1 = (F.pad(h, (0, 0, 0, -len(h) % GROUP), value=-torch.inf) for h in (half0, half1))
    full0, full1 = (F.pad(x, (0, 0, 0, -len(x) % GROUP)) for x in (x0, x1))
    rows = torch.cat([full0, half0, torch.ones_like(half0)], dim=1)  # (N', D+2)
    columns = torch.cat([full1, torch.ones_like(half1), half1], dim=1).T.contiguous()  # (D+2, M')
    best0, best1 = _BestGroups(len(full0), x0), _BestGroups(len(full1), x0)
    for i, left in zip(range(0, len(x0), BLOCK_ROWS), rows.split(BLOCK_ROWS), strict=False):
        for j, right in zip(range(0, len(x1), BLOCK_COLUMNS), columns.split(BLOCK_COLUMNS, dim=1), strict=False):
            block = left @ right  # (b, c)
            best0.update(block.unflatten(1, (GROUP, -1)).amax(1), i, j)
            best1.update(block.unflatten(0, (GROUP, -1)).amax(0).T, j, i)
    return _nearest(x0, x1, best0, BLOCK_COLUMNS), _nearest(x1, x0, best1, BLOCK_ROWS)


def mutual(nearest0: Nearest, nearest1: Nearest) -> Tensor:
    """(N,) bool: i's nearest neighbour has i as its own nearest neighbour."""
    if len(nearest1.index) == 0:
        return torch.zeros_like(nearest0.index, dtype=torch.bool)
    return nearest1.index[nearest0.index] == torch.arange(len(nearest0.index), device=nearest0.index.device)
