"""Which keypoints may be partners: exact nearest neighbours, both ways in one blocked pass, and their candidates."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from scipy.spatial import cKDTree
from torch import Tensor

BLOCK_ROWS, BLOCK_COLUMNS = 512, 2048  # 4 MB of similarities at a time, whatever the number of keypoints
GROUP = 8  # entries per group in the search for minima; its square divides both
CROWDED = 32  # entries per query that are remembered at most, before they are sorted out
FAR = 0x7F7FFFFF  # the bits of the largest number; only infinity, which is padding, is larger
SIDE = 5  # numbers that say how distinctive a candidate is, seen from one image
LEAD = 1  # the one of them that says by how much it is more similar than the best of the others
ROWS = 512  # of products by oneDNN, or a multiple: a new shape costs 0.2 ms, once, and these come again
LEAST = 2.0  # more than similarities of unit descriptors can differ
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
        row, column = _places(place, block.shape[1])
        query, number = (row, column) if axis else (column, row)
        self.found.append(((query + start).int(), (number + entry).int(), value))
        self.count += len(value)
        if self.count > CROWDED * self.queries:
            self._compact()

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
    row, column = _places(place, minima.shape[1])  # (h,)
    step = minima.shape[1] if axis else minima.numel()
    members = torch.arange(0, GROUP * step, step, device=table.device)
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
    """Sorted by query and by value, with the rank of each among those of its query."""
    order = ((query.long() << 32) | value).sort().indices  # both in one number
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
    columns = [(x - y.index_select(0, column)).square_().sum(1) for column in index.unbind(1)]  # (N,) each
    if not columns:
        return Neighbours(index, x.new_zeros(index.shape))
    square, order = torch.stack(columns, dim=1).sort(dim=1, stable=True)  # (N, k)
    return Neighbours(index.gather(1, order), square.sqrt_())


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
    x0, x1 = x0.float(), x1.float()
    # One product gives ½ squared distance: [−x0, ½|x0|², 1] · [x1, 1, ½|x1|²].
    half0, half1 = 0.5 * x0.square().sum(1, keepdim=True), 0.5 * x1.square().sum(1, keepdim=True)
    # Filled up to whole groups by descriptors that are infinitely far from all.
    half0, half1 = (F.pad(h, (0, 0, 0, -len(h) % GROUP**2), value=torch.inf) for h in (half0, half1))
    full0, full1 = (F.pad(x, (0, 0, 0, -len(x) % GROUP**2)) for x in (x0, x1))
    rows = torch.cat([-full0, half0, torch.ones_like(half0)], dim=1)  # (N', D+2)
    columns = torch.cat([full1, torch.ones_like(half1), half1], dim=1)  # (M', D+2)
    there = [rows.new_empty((0, min(k, len(x1))), dtype=torch.long)]
    best1 = _Best(len(columns), min(k, len(x0)), x0.device)
    for i in range(0, len(x0), BLOCK_ROWS):
        left = rows[i : i + BLOCK_ROWS]
        best0 = _Best(len(left), min(k, len(x1)), x0.device)
        for j in range(0, len(x1), BLOCK_COLUMNS):
            block = linear(left, columns[j : j + BLOCK_COLUMNS], relu=True).view(torch.int32)  # (b, c)
            best0.update(block, 1, 0, j)
            best1.update(block, 0, j, i)
        there.append(best0.result(min(BLOCK_ROWS, len(x0) - i)))
    index0, index1 = torch.cat(there), best1.result(len(x1))
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


@dataclass(frozen=True, eq=False)
class Candidates:
    """Possible matches of one pair of images."""

    pairs: Tensor  # (E, 2) keypoints of image 0 and image 1, each pair once
    similarity: Tensor  # (E,) of their descriptors
    sides: tuple[Tensor, Tensor]  # (E, SIDE) each: how distinctive the candidate is seen from image 0 and from image 1
    mutual: Tensor  # (E,) bool: nearest neighbours of each other
    counts: tuple[int, int]  # keypoints of the two images


@torch.no_grad()
def find_candidates(there: Neighbours, back: Neighbours) -> Candidates:
    """Pairs that are among the nearest neighbours (N, k), (M, k) seen from both images.

    Args:
        there: nearest neighbours of image 0's keypoints in image 1.
        back: the other way round.
    """
    index0, index1 = there.index, back.index
    source = torch.arange(len(index0), device=index0.device)[:, None].expand_as(index0)
    if index0.numel():
        listed = (index1.index_select(0, index0.flatten()) == source.reshape(-1, 1)).any(1).view_as(index0)  # (N, k)
    else:
        listed = index0.bool()
    pairs = torch.stack([source[listed], index0[listed]], dim=1)  # (E, 2)
    return describe_candidates(pairs, there.similarity[listed], there, back)


@torch.no_grad()
def describe_candidates(pairs: Tensor, similarity: Tensor, there: Neighbours, back: Neighbours) -> Candidates:
    """Pairs (E, 2) of the given similarity (E,), compared with the nearest neighbours of their keypoints.

    Args:
        pairs: (E, 2) keypoints of image 0 and image 1.
        similarity: (E,) of their descriptors.
        there: nearest neighbours of image 0's keypoints in image 1.
        back: the other way round.
    """
    sides, first = [], []
    for side, found in enumerate((there, back)):
        owner, other = pairs[:, side], pairs[:, 1 - side]
        if not len(pairs):
            sides.append(similarity.new_zeros(0, SIDE))
            first.append(similarity.bool())
            continue
        near = found.similarity  # (N, k)
        ranks = (0, min(1, near.shape[1] - 1), -1)
        best, second, last = (near[:, rank].index_select(0, owner) for rank in ranks)  # (E,)
        chosen = found.index[:, 0].index_select(0, owner) == other
        rival = torch.where(chosen, second, best)  # the best of the others
        sides.append(
            torch.stack([similarity - best, similarity - rival, best - second, best - last, chosen.float()], dim=1)
        )
        first.append(chosen)
    counts = (len(there.index), len(back.index))
    return Candidates(pairs, similarity, (sides[0], sides[1]), first[0] & first[1], counts)


@torch.no_grad()
def propose(
    predicted: Tensor, points: Tensor, mine: Tensor, theirs: Tensor, around: int, wrong: Callable[[Tensor], Tensor]
) -> Tensor:
    """(N, 2) every keypoint with the most similar of the `around` points (M, 2) next to its predicted one (N, 2).

    Args:
        predicted: (N, 2) where the keypoints of this image should be in the other.
        points: (M, 2) keypoints of the other image.
        mine: (N, C) descriptors of this image.
        theirs: (M, C) descriptors of the other.
        around: how many points are compared.
        wrong: pairs (E, 2) → (E,) bool: proposed only where there is nothing else.
    """
    ranks, workers = list(range(1, min(around, len(points)) + 1)), torch.get_num_threads()
    around_it = cKDTree(points.cpu().numpy()).query(predicted.cpu().numpy(), k=ranks, workers=workers)[1]
    index = torch.from_numpy(around_it).to(predicted.device)  # (N, count)
    number = torch.arange(len(mine), device=mine.device)[:, None]  # (N, 1)
    found = [number.new_empty(0, 1)]
    for rows, near, own in zip(number.split(ROWS), index.split(ROWS), mine.split(ROWS), strict=True):  # (n, ·) each
        similar = torch.stack([(own * theirs.index_select(0, one)).sum(1) for one in near.unbind(1)], 1)  # (n, count)
        pairs = torch.stack([rows.expand_as(near), near], dim=2).flatten(0, 1)  # (n·count, 2)
        similar -= LEAST * wrong(pairs).view_as(similar)
        found.append(near.gather(1, similar.argmax(1, keepdim=True)))  # (n, 1)
    return torch.cat([number, torch.cat(found)], dim=1)


def similarities(x0: Tensor, x1: Tensor, pairs: Tensor) -> Tensor:
    """(E,) inner products of the rows (N, C) and (M, C) of pairs (E, 2), some at a time."""
    parts = pairs.split(BLOCK_COLUMNS)  # at least one
    return torch.cat([(x0.index_select(0, i) * x1.index_select(0, j)).sum(1) for i, j in (p.unbind(1) for p in parts)])


def among_best(owner: Tensor, scores: Tensor, count: int, owners: int) -> Tensor:
    """(E,) bool: among the `count` best candidates of its owner; equal scores in their order.

    Args:
        owner: (E,) whose candidate it is, in 0..owners−1.
        scores: (E,) at least 0.
        count: how many of an owner; small, each takes a pass.
        owners: how many there may be.

    Example:
        >>> among_best(torch.tensor([0, 0, 0, 1]), torch.tensor([0.1, 0.4, 0.4, 0.2]), count=1, owners=2).tolist()
        [False, True, False, True]
    """
    found = torch.zeros_like(scores, dtype=torch.bool)
    number = torch.arange(len(scores), device=scores.device)
    for _ in range(count):
        left = scores.masked_fill(found, -1.0)  # (E,)
        top = left.new_zeros(owners).scatter_reduce(0, owner, left, "amax")  # (owners,)
        # Of equally good ones the first; one that was found before is no longer as good as the best.
        place = torch.where(left == top.index_select(0, owner), number, len(scores))  # (E,)
        first = place.new_full((owners,), len(scores)).scatter_reduce(0, owner, place, "amin")  # (owners,)
        found[first[first < len(scores)]] = True
    return found
