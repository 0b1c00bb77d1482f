"""Exact nearest and second nearest neighbours between two descriptor sets, both directions in one blocked pass."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

BLOCK_ROWS, BLOCK_COLUMNS = 1024, 2048  # 8 MB of similarities at a time, whatever the number of keypoints
GROUP = 32  # entries per group in the search for maxima
EPSILON = 1e-6  # keeps the distance ratio finite where two descriptors are equal


@dataclass(frozen=True)
class Nearest:
    """For every query: its nearest neighbour in the other set and how distinctive that choice is."""

    index: Tensor  # (N,) int64, −1 if the other set is empty
    distance: Tensor  # (N,) Euclidean
    ratio: Tensor  # (N,) ≥ 1: distance to the second nearest / distance to the nearest; 1 if there is no second


class _RunningTop2:
    """Best and second-best column of every row, over blocks that arrive one after the other."""

    def __init__(self, rows: int, like: Tensor) -> None:
        self.value = like.new_full((rows, 2), -torch.inf)  # (rows, 2)
        self.index = torch.full((rows, 2), -1, dtype=torch.int64, device=like.device)  # (rows, 2)

    def update(self, block: Tensor, dim: int, row: int, column: int) -> None:
        """Merge a block, (n, m) for dim = 1 and (m, n) for dim = 0, that begins at (row, column) of the whole.

        Reductions that return indices are an order of magnitude slower on a CPU than plain maxima. So: maxima of
        strided groups first. Only rows with a maximum above their second best so far go on, ever fewer of them; what
        improves them must lie within the two groups of largest maximum, and only those are searched.
        """
        if block.shape[dim] % GROUP:
            padding = -block.shape[dim] % GROUP
            block = F.pad(block, (0, padding) if dim == 1 else (0, 0, 0, padding), value=-torch.inf)
        maxima = block.unflatten(dim, (GROUP, -1)).amax(dim)  # group g: columns g, g + m/GROUP, g + 2·m/GROUP, …
        block, largest, maxima = block.movedim(dim, 1), maxima.amax(dim), maxima.movedim(dim, 1)  # (n, m), (n,), …
        improved = (largest > self.value[row : row + len(block), 1]).nonzero()[:, 0]  # (r,)
        groups = maxima[improved].topk(min(2, maxima.shape[1]), dim=1).indices  # (r, 2)
        members = torch.arange(0, block.shape[1], maxima.shape[1], device=block.device)  # (GROUP,)
        candidates = (groups[:, :, None] + members).flatten(1)  # (r, 2·GROUP)
        rows = row + improved
        value = torch.cat([self.value[rows], block[improved[:, None], candidates]], dim=1)  # (r, 2 + 2·GROUP)
        index = torch.cat([self.index[rows], column + candidates], dim=1)
        self.value[rows], order = value.topk(2, dim=1)
        self.index[rows] = index.gather(1, order)


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
            top0.update(block, 1, i, j)
            top1.update(block, 0, j, i)
    return _nearest(x0, x1, top0), _nearest(x1, x0, top1)


def mutual(nearest0: Nearest, nearest1: Nearest) -> Tensor:
    """(N,) bool: i's nearest neighbour has i as its own nearest neighbour."""
    if len(nearest1.index) == 0:
        return torch.zeros_like(nearest0.index, dtype=torch.bool)
    return nearest1.index[nearest0.index] == torch.arange(len(nearest0.index), device=nearest0.index.device)
