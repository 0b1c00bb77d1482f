"""Exact nearest and second nearest neighbours between two descriptor sets, both directions in one blocked pass."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

BLOCK_ROWS, BLOCK_COLUMNS = 1024, 4096  # 16 MB of similarities at a time, whatever the number of keypoints
GROUP = 32  # entries per group in the search for maxima
EPSILON = 1e-6  # keeps the distance ratio finite where two descriptors are equal


@dataclass(frozen=True)
class Nearest:
    """For every query: its nearest neighbour in the other set and how distinctive that choice is."""

    index: Tensor  # (N,) int64, −1 if the other set is empty
    distance: Tensor  # (N,) Euclidean
    ratio: Tensor  # (N,) ≥ 1: distance to the second nearest / distance to the nearest; 1 if there is no second


class _RunningTop2:
    """Best and second-best column of every row, over blocks of columns that arrive one after the other."""

    def __init__(self, rows: int, like: Tensor) -> None:
        self.value = like.new_full((rows, 2), -torch.inf)  # (rows, 2)
        self.index = torch.full((rows, 2), -1, dtype=torch.int64, device=like.device)  # (rows, 2)

    def update(self, start: int, value: Tensor, index: Tensor) -> None:
        """Merge the top 2 (n, 2) of a block into rows start..start+n."""
        rows = slice(start, start + len(value))
        value = torch.cat([self.value[rows], value], dim=1)  # (n, 4)
        index = torch.cat([self.index[rows], index], dim=1)  # (n, 4)
        self.value[rows], order = value.topk(2, dim=1)
        self.index[rows] = index.gather(1, order)


def _top2(block: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """Two largest entries along `dim`, as (n, 2) values and indices.

    Reductions that return indices are an order of magnitude slower on a CPU than plain maxima. So: maxima of strided
    groups first; the top 2 must lie within the two groups of largest maximum, and only those are searched.
    """
    length = block.shape[dim]
    if length % GROUP:
        padding = (0, -length % GROUP) if dim == 1 else (0, 0, 0, -length % GROUP)
        block = F.pad(block, padding, value=-torch.inf)
    maxima = block.unflatten(dim, (GROUP, -1)).amax(dim)  # group g: entries g, g + stride, g + 2·stride, …
    stride = maxima.shape[dim]
    groups = maxima.topk(min(2, stride), dim).indices.movedim(dim, 1)  # (n, 2)
    members = torch.arange(0, block.shape[dim], stride, device=block.device)  # (GROUP,)
    candidates = (groups[:, :, None] + members).flatten(1)  # (n, 2·GROUP)
    value, order = block.take_along_dim(candidates.movedim(1, dim), dim).movedim(dim, 1).topk(2, dim=1)  # (n, 2)
    return value, candidates.gather(1, order)


def _nearest(x: Tensor, y: Tensor, top: _RunningTop2) -> Nearest:
    """Distances are taken again from the descriptors themselves: the blocked product cancels digits near zero."""
    if len(y) == 0:
        return Nearest(top.index[:, 0], x.new_full((len(x),), torch.inf), x.new_ones(len(x)))
    first = (x - y[top.index[:, 0]]).norm(dim=1)  # (N,)
    if len(y) == 1:
        return Nearest(top.index[:, 0], first, torch.ones_like(first))
    second = (x - y[top.index[:, 1]]).norm(dim=1)  # (N,)
    return Nearest(top.index[:, 0], first, ((second + EPSILON) / (first + EPSILON)).clamp(min=1))


@torch.no_grad()
def nearest_both_ways(x0: Tensor, x1: Tensor) -> tuple[Nearest, Nearest]:
    """Nearest neighbours of x0 (N, D) in x1 (M, D) and of x1 in x0. No N × M array exists at any time."""
    x0, x1 = x0.float(), x1.float()
    # One product gives −½ squared distance: [x0, −½|x0|², 1] · [x1, 1, −½|x1|²].
    half0, half1 = -0.5 * x0.square().sum(1, keepdim=True), -0.5 * x1.square().sum(1, keepdim=True)
    rows = torch.cat([x0, half0, torch.ones_like(half0)], dim=1)  # (N, D+2)
    columns = torch.cat([x1, torch.ones_like(half1), half1], dim=1)  # (M, D+2)
    top0, top1 = _RunningTop2(len(x0), x0), _RunningTop2(len(x1), x1)
    for i in range(0, len(x0), BLOCK_ROWS):
        for j in range(0, len(x1), BLOCK_COLUMNS):
            block = rows[i : i + BLOCK_ROWS] @ columns[j : j + BLOCK_COLUMNS].T  # (rows, columns)
            value, index = _top2(block, dim=1)
            top0.update(i, value, index + j)
            value, index = _top2(block, dim=0)
            top1.update(j, value, index + i)
    return _nearest(x0, x1, top0), _nearest(x1, x0, top1)


def mutual(nearest0: Nearest, nearest1: Nearest) -> Tensor:
    """(N,) bool: i's nearest neighbour has i as its own nearest neighbour."""
    if len(nearest1.index) == 0:
        return torch.zeros_like(nearest0.index, dtype=torch.bool)
    return nearest1.index[nearest0.index] == torch.arange(len(nearest0.index), device=nearest0.index.device)
