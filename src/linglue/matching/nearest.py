"""Exact nearest neighbours of descriptors, both ways in one blocked pass."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from linglue.matching.together import hands, slices, team, together

BLOCK_ROWS, BLOCK_COLUMNS = 512, 2048  # 4 MB of similarities at a time, whatever the number of keypoints
GROUP = 8  # entries per group in the search for minima; its square divides both
CROWDED = 32  # entries per query that are remembered at most, before they are sorted out
SORTED = 4  # blocks of rows whose neighbours are sorted out together
FAR = 0x7F7FFFFF  # the bits of the largest number; only infinity, which is padding, is larger
ROWS = 512  # of products by oneDNN, or a multiple: a new shape costs 0.2 ms, once, and these come again
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
    """The k nearest entries of every query, over blocks of halved squared distances that arrive one after the other.

    Reductions that return indices are an order of magnitude slower on a CPU than plain minima. So: minima of strided
    groups first, of m groups the first has the entries 0, m, 2m, …, and minima of groups of those. The groups fall into
    k sets, and the largest of the k minima of these sets is at least the k-th smallest entry so far. Only groups that
    reach it are read, about k·(1 + 1/2 + … + 1/k) per query for all blocks together, and the best are sorted out once,
    at the end. Numbers that are not negative have the order of their bits: integers are compared faster.
    """

    def __init__(self, queries: int, k: int, device: torch.device) -> None:
        self.k, self.queries, self.count = k, queries, 0
        self.tops = torch.full((k, queries), FAR, dtype=torch.int32, device=device)  # minima of k disjoint sets
        nothing = torch.empty(0, dtype=torch.int32, device=device)
        self.found = [(nothing, nothing, nothing)]  # queries, entries and values, of each block

    def update(self, block: Tensor, axis: int, start: int, entry: int) -> None:
        """Read a block, contiguous, with entries from `entry` on along `axis`, queries from `start` on the other."""
        groups = _minima(block, axis)
        sets = _minima(groups, axis)
        tops = self.tops[:, start : start + block.shape[1 - axis]]
        for top, part in zip(tops, sets.tensor_split(self.k, axis), strict=True):
            if part.shape[axis]:
                torch.minimum(top, part.amin(axis), out=top)
        limit = tops.amax(0)  # (queries,)
        place = _true((sets <= limit.unsqueeze(axis)).view(-1))
        place, _ = _members(groups, sets, axis, place, limit)
        if len(place) > CROWDED * len(limit):  # many are equal: any k of them will do
            place = _smallest(groups, axis, self.k)
        place, value = _members(block, groups, axis, place, limit)
        row, column = _places(place, block.shape[1])  # (g,) int32
        query, number = (row, column) if axis else (column, row)
        self.found.append((query + start, number + entry, value))
        self.count += len(value)
        if self.count > CROWDED * self.queries:
            self._compact()

    @classmethod
    def joined(cls, parts: list[_Best]) -> _Best:
        """What several have found of the same queries in different entries."""
        first, *others = parts
        for other in others:
            torch.minimum(first.tops, other.tops, out=first.tops)
            first.found += other.found
        return first

    def _compact(self) -> None:
        """Forget what is no longer among the nearest."""
        query, entry, value = self._near()
        if len(value) > CROWDED // 2 * self.queries:  # many are equal
            query, entry, value, rank = _ranked(query, entry, value, self.queries)
            query, entry, value = (part[rank < self.k] for part in (query, entry, value))
        self.found, self.count = [(query, entry, value)], len(value)

    def _near(self) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, entries and values that may still be among the nearest."""
        query, entry, value = (torch.cat(parts) for parts in zip(*self.found, strict=True))
        near = _true(value <= self.tops.amax(0).index_select(0, query)) if self.k else query.long()
        return query.index_select(0, near), entry.index_select(0, near), value.index_select(0, near)

    def result(self, queries: int) -> Tensor:
        """(queries, k) indices of the nearest entries of the first queries, nearest first."""
        query, entry, _, rank = _ranked(*self._near(), self.queries)
        return entry[(rank < self.k) & (query < queries)].view(queries, self.k).long()


def _minima(table: Tensor, axis: int) -> Tensor:
    """Minima of strided groups of GROUP along an axis."""
    return table.unflatten(axis, (GROUP, table.shape[axis] // GROUP)).amin(axis)


def _members(table: Tensor, minima: Tensor, axis: int, place: Tensor, limit: Tensor) -> tuple[Tensor, Tensor]:
    """Flat places and values of a table's members up to their query's limit, of groups at flat places in `minima`."""
    row, column = _places(place.int(), minima.shape[1])  # (h,); half the memory of int64, which is what takes time
    step = minima.shape[1] if axis else minima.numel()
    members = torch.arange(0, GROUP * step, step, dtype=torch.int32, device=table.device)
    at = ((row * table.shape[1] + column) + members[:, None]).view(-1)  # (GROUP·h,)
    value = table.view(-1).index_select(0, at)
    good = _true((value.view(GROUP, -1) <= limit.index_select(0, row if axis else column)).view(-1))  # (g,)
    return at.index_select(0, good), value.index_select(0, good)


def _smallest(table: Tensor, axis: int, k: int) -> Tensor:
    """Flat places of the k smallest of each line along an axis."""
    best = table.topk(min(k, table.shape[axis]), dim=axis, largest=False).indices
    line = torch.arange(table.shape[1 - axis], device=table.device).unsqueeze(axis)
    return (line * table.shape[1] + best if axis else best * table.shape[1] + line).flatten()


def _ranked(query: Tensor, entry: Tensor, value: Tensor, queries: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Sorted by query and by value, with the rank of each among those of its query; of equals the first comes first."""
    order = ((query.long() << 32) | value).sort(stable=True).indices  # both in one number
    query, entry, value = (part.index_select(0, order) for part in (query, entry, value))
    count = torch.bincount(query, minlength=queries)  # (queries,)
    rank = torch.arange(len(query), device=query.device) - (count.cumsum(0) - count).index_select(0, query)
    return query, entry, value, rank


def _true(mask: Tensor) -> Tensor:
    """Where a mask (n,) is True; numpy looks at many entries at a time."""
    return torch.from_numpy(np.flatnonzero(mask.numpy())) if mask.device.type == "cpu" else mask.nonzero()[:, 0]


def _places(flat: Tensor, columns: int) -> tuple[Tensor, Tensor]:
    """Rows and columns of flat indices."""
    row = torch.div(flat, columns, rounding_mode="floor")
    return row, flat - row * columns


def _by_distance(x: Tensor, y: Tensor, index: Tensor) -> Neighbours:
    """Neighbours y[index] of x, index (N, k), in the order of distances taken from the descriptors themselves: the
    product of matrices cancels digits near zero."""

    def sort(rows: slice) -> tuple[Tensor, Tensor]:
        near, own = index[rows], x[rows]  # (n, k), (n, D)
        columns = [y.index_select(0, column).sub_(own).square_().sum(1) for column in near.unbind(1)]  # (n,) each
        square, order = torch.stack(columns, dim=1).sort(dim=1, stable=True)  # (n, k)
        return near.gather(1, order), square.sqrt_()

    if not index.numel():
        return Neighbours(index, x.new_zeros(index.shape))
    near, distance = zip(*together(sort, slices(len(x), ROWS)), strict=True)
    return Neighbours(torch.cat(near), torch.cat(distance))


def _find_onednn() -> Any:
    """oneDNN's linear layer, which torch has for its compiler; None where torch was built without."""
    return getattr(torch.ops.mkldnn, "_linear_pointwise", None) if torch.backends.mkldnn.is_available() else None


ONEDNN = _find_onednn()


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None, relu: bool = False) -> Tensor:
    """x (N, D), weight (C, D), bias (C,) → x · weightᵀ + bias (N, C), with zero for what is negative if `relu`.

    By oneDNN, which uses all of a processor, where torch's own product uses half of AMD's. With gradients, on other
    devices, for other types and for odd numbers of rows it is torch's own.

    Args:
        x: (N, D) rows.
        weight: (C, D) as of `torch.nn.Linear`.
        bias: (C,).
        relu: whether negative values become zero.

    Example:
        >>> linear(torch.eye(2), torch.tensor([[1.0, -2.0]]), relu=True).tolist()
        [[1.0], [0.0]]
    """
    usual = ONEDNN is None or len(x) % ROWS or torch.is_grad_enabled() or torch.is_autocast_enabled("cpu")
    if usual or x.device.type != "cpu" or x.dtype != torch.float32 or weight.dtype != torch.float32:
        product = F.linear(x, weight, bias)
        if not relu:
            return product
        return F.relu(product, inplace=not torch.is_grad_enabled())
    found: Tensor = ONEDNN(x, weight, bias, "relu" if relu else "none", [], "")
    return found


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
    with team(x0.device):
        return _nearest_k(x0.float(), x1.float(), k)


def _extended(x: Tensor) -> Tensor:
    """[x, ½|x|², 1] (N', D+2), filled up to whole groups by descriptors that are infinitely far from all."""
    full = x.new_zeros(len(x) + -len(x) % GROUP**2, x.shape[1] + 2)
    full[: len(x), :-2] = x
    full[: len(x), -2] = 0.5 * x.square().sum(1)
    full[len(x) :, -2] = torch.inf
    full[:, -1] = 1
    return full


def _nearest_k(x0: Tensor, x1: Tensor, k: int) -> tuple[Neighbours, Neighbours]:
    # One product gives ½ squared distance: [x0, ½|x0|², 1] · [−x1, 1, ½|x1|²].
    rows, columns = together(_extended, (x0, x1))  # (N', D+2), (M', D+2)
    columns[:, :-2].neg_()
    columns[:, -2:] = columns[:, -2:].flip(1)
    k0, k1 = min(k, len(x1)), min(k, len(x0))

    def scan(band: range) -> tuple[list[Tensor], _Best]:
        """Nearest entries of some blocks of rows, and what these blocks are to the columns."""
        there, best1 = [], _Best(len(columns), k1, x0.device)
        for part in slices(len(band), SORTED):
            some = band[part]  # blocks
            first, count = some[0], BLOCK_ROWS * len(some)
            best0 = _Best(count, k0, x0.device)
            for i in some:
                left = rows[i : i + BLOCK_ROWS]
                for j in range(0, len(x1), BLOCK_COLUMNS):
                    block = linear(left, columns[j : j + BLOCK_COLUMNS], relu=True).view(torch.int32)  # (b, c)
                    best0.update(block, 1, i - first, j)
                    best1.update(block, 0, j, i)
            there.append(best0.result(min(count, len(x0) - first)))
        return there, best1

    blocks = range(0, len(x0), BLOCK_ROWS)
    bands = [blocks[part] for part in slices(len(blocks), -(-len(blocks) // hands()) or 1)] or [blocks]
    found = together(scan, bands)
    index0 = torch.cat([rows.new_empty((0, k0), dtype=torch.long), *(part for there, _ in found for part in there)])
    index1 = _Best.joined([best1 for _, best1 in found]).result(len(x1))
    return _by_distance(x0, x1, index0), _by_distance(x1, x0, index1)


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
    """(N,) bool: i's nearest neighbour has i as its own nearest neighbour.

    Args:
        nearest0: of every keypoint of image 0, in image 1.
        nearest1: the other way round.
    """
    if len(nearest1.index) == 0:
        return torch.zeros_like(nearest0.index, dtype=torch.bool)
    return nearest1.index[nearest0.index] == torch.arange(len(nearest0.index), device=nearest0.index.device)
