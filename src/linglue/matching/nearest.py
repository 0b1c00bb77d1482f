"""Exact nearest neighbours between two descriptor sets, both directions in one blocked pass."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

BLOCK_ROWS, BLOCK_COLUMNS = 1024, 2048  # 8 MB of similarities at a time, whatever the number of keypoints
GROUP = 8  # entries per group in the search for maxima; divides both
EPSILON = 1e-6  # keeps the distance ratio finite where two descriptors are equal


@dataclass(frozen=True)
class Nearest:
    """For every query: its nearest neighbour in the other set and how distinctive that choice is."""

    index: Tensor  # (N,) int64, −1 if the other set is empty
    distance: Tensor  # (N,) Euclidean
    ratio: Tensor  # (N,) ≥ 1: distance to the second nearest / distance to the nearest; 1 if there is no second


@dataclass(frozen=True)
class Neighbours:
    """For every query: its k nearest neighbours in the other set, nearest first."""

    index: Tensor  # (N, k) int64
    distance: Tensor  # (N, k) Euclidean

    @property
    def similarity(self) -> Tensor:
        """(N, k) inner product, for descriptors of unit length."""
        return 1 - 0.5 * self.distance.square()


class _Best:
    """The k largest entries of every query, over blocks of similarities that arrive one after the other.

    Reductions that return indices are an order of magnitude slower on a CPU than plain maxima. So: maxima of strided
    groups first, of m groups the first has the entries 0, m, 2m, … Only queries with a maximum above their k-th best so
    far continue, ever fewer of them; what improves them is in the k groups of largest maximum, and only those are read.
    """

    def __init__(self, queries: int, k: int, like: Tensor) -> None:
        self.value = like.new_full((queries, k), -torch.inf)  # (queries, k)
        self.index = torch.full((queries, k), -1, device=like.device)  # (queries, k)

    def update(self, block: Tensor, maxima: Tensor, start: int, entry: int) -> None:
        """Merge a block (n, m·GROUP) whose queries begin at `start` and whose entries at `entry`; maxima (n, m)."""
        value, index = self.value[start : start + len(block)], self.index[start : start + len(block)]  # (n, k)
        k, groups = value.shape[1], maxima.shape[1]
        improved = (maxima.amax(1) > value[:, -1]).nonzero()[:, 0]  # (r,)
        if len(improved) == 0:
            return
        best = maxima.index_select(0, improved).topk(min(k, groups), dim=1, sorted=False).indices  # (r, k)
        members = torch.arange(0, groups * GROUP, groups, device=block.device)  # (GROUP,)
        found = (best[:, :, None] + members).flatten(1)  # (r, k·GROUP)
        new = torch.cat([value.index_select(0, improved), block[improved[:, None], found]], dim=1)  # (r, k + k·GROUP)
        number = torch.cat([index.index_select(0, improved), found.add_(entry)], dim=1)
        top, order = new.topk(k, dim=1)  # (r, k)
        value.index_copy_(0, improved, top)
        index.index_copy_(0, improved, number.gather(1, order))


def _by_distance(x: Tensor, y: Tensor, index: Tensor) -> Neighbours:
    """Neighbours y[index] of x, index (N, k), in the order of distances taken from the descriptors themselves: the
    product of matrices cancels digits near zero."""
    columns = [(x - y.index_select(0, column)).square_().sum(1) for column in index.unbind(1)]  # (N,) each
    if not columns:
        return Neighbours(index, x.new_zeros(index.shape))
    square, order = torch.stack(columns, dim=1).sort(dim=1, stable=True)  # (N, k)
    return Neighbours(index.gather(1, order), square.sqrt_())


@torch.no_grad()
def nearest_k(x0: Tensor, x1: Tensor, k: int) -> tuple[Neighbours, Neighbours]:
    """The k nearest neighbours of x0 (N, D) in x1 (M, D) and of x1 in x0, exact. No N × M array exists at any time.

    Args:
        x0: descriptors of image 0.
        x1: descriptors of image 1.
        k: how many; small, as the work per descriptor grows with it.

    Returns:
        for every descriptor of image 0 its min(k, M) nearest in image 1, and the other way round.

    Example:
        >>> there, back = nearest_k(torch.eye(3), torch.eye(3)[:2], k=1)
        >>> there.index[:2, 0].tolist(), back.similarity.tolist()
        ([0, 1], [[1.0], [1.0]])
    """
    x0, x1 = x0.float(), x1.float()
    # One product gives −½ squared distance: [x0, −½|x0|², 1] · [x1, 1, −½|x1|²].
    half0, half1 = -0.5 * x0.square().sum(1, keepdim=True), -0.5 * x1.square().sum(1, keepdim=True)
    # Filled up to whole groups by descriptors that are infinitely far from all.
    half0, half1 = (F.pad(h, (0, 0, 0, -len(h) % GROUP), value=-torch.inf) for h in (half0, half1))
    full0, full1 = (F.pad(x, (0, 0, 0, -len(x) % GROUP)) for x in (x0, x1))
    rows = torch.cat([full0, half0, torch.ones_like(half0)], dim=1)  # (N', D+2)
    columns = torch.cat([full1, torch.ones_like(half1), half1], dim=1)  # (M', D+2)
    best0, best1 = _Best(len(rows), min(k, len(x1)), x0), _Best(len(columns), min(k, len(x0)), x0)
    # All blocks go to the same memory: it stays in the cache, and no page is asked for twice.
    memory = x0.new_empty(min(len(rows), BLOCK_ROWS) * min(len(columns), BLOCK_COLUMNS))
    for i in range(0, len(x0), BLOCK_ROWS):
        for j in range(0, len(x1), BLOCK_COLUMNS):
            left, right = rows[i : i + BLOCK_ROWS], columns[j : j + BLOCK_COLUMNS]
            block = memory[: len(left) * len(right)].view(len(left), len(right))  # (b, c)
            torch.mm(left, right.T, out=block)
            best0.update(block, block.unflatten(1, (GROUP, -1)).amax(1), i, j)
            best1.update(block.T, block.unflatten(0, (GROUP, -1)).amax(0).T, j, i)
    return _by_distance(x0, x1, best0.index[: len(x0)]), _by_distance(x1, x0, best1.index[: len(x1)])


def nearest_both_ways(x0: Tensor, x1: Tensor) -> tuple[Nearest, Nearest]:
    """Nearest neighbours of x0 (N, D) in x1 (M, D) and of x1 in x0, and how distinctive they are.

    Args:
        x0: descriptors of image 0.
        x1: descriptors of image 1.

    Returns:
        for every descriptor of image 0 its nearest in image 1, and the other way round.
    """
    there, back = nearest_k(x0, x1, k=2)
    return _distinctive(there), _distinctive(back)


def _distinctive(found: Neighbours) -> Nearest:
    """The first of up to two neighbours, compared with the second."""
    queries, k = found.index.shape
    one = found.distance[:, 0] if k else found.distance.new_full((queries,), torch.inf)  # (N,)
    index = found.index[:, 0] if k else found.index.new_full((queries,), -1)
    ratio = (found.distance[:, 1] + EPSILON) / (one + EPSILON) if k > 1 else torch.ones_like(one)
    return Nearest(index.contiguous(), one.contiguous(), ratio)


def mutual(nearest0: Nearest, nearest1: Nearest) -> Tensor:
    """(N,) bool: i's nearest neighbour has i as its own nearest neighbour."""
    if len(nearest1.index) == 0:
        return torch.zeros_like(nearest0.index, dtype=torch.bool)
    return nearest1.index[nearest0.index] == torch.arange(len(nearest0.index), device=nearest0.index.device)
