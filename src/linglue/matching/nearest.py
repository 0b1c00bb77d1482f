"""Which keypoints may be partners: exact nearest neighbours, both ways in one blocked pass, and their candidates."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from scipy.spatial import cKDTree
from torch import Tensor

BLOCK_ROWS, BLOCK_COLUMNS = 512, 2048  # 4 MB of similarities at a time, whatever the number of keypoints
GROUP = 8  # entries per group in the search for maxima; divides both
CROWDED = 64  # entries per query that are remembered at most, before they are sorted out
SIDE = 5  # numbers that say how distinctive a candidate is, seen from one image
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
    groups first; of m groups the first has the entries 0, m, 2m, … The groups fall into k sets, and the smallest of the
    k maxima of these sets is at most the k-th largest entry so far. Only groups that reach it are read, about
    k·(1 + 1/2 + … + 1/k) per query for all blocks together, and the best are sorted out once, at the end.
    """

    def __init__(self, queries: int, k: int, like: Tensor) -> None:
        self.k, self.queries = k, queries
        self.tops = like.new_full((k, queries), -torch.inf)  # maxima of k disjoint sets of entries
        number = torch.empty(0, dtype=torch.long, device=like.device)
        self.found = [(number, number, like.new_empty(0))]  # queries, entries and values, of each block

    def update(self, block: Tensor, axis: int, start: int, entry: int) -> None:
        """Read a block, contiguous, with entries from `entry` on along `axis`, queries from `start` on the other."""
        groups, columns = block.shape[axis] // GROUP, block.shape[1]
        maxima = block.unflatten(axis, (GROUP, groups)).amax(axis)  # (queries, groups), or transposed
        tops = self.tops[:, start : start + block.shape[1 - axis]]
        for top, part in zip(tops, maxima.tensor_split(self.k, axis), strict=True):
            if part.shape[axis]:
                torch.maximum(top, part.amax(axis), out=top)
        least = tops.amin(0).clamp_(min=torch.finfo(block.dtype).min)  # (queries,) not −inf, which is padding
        row, column = _places(self._promising(maxima, least, axis), maxima.shape[1])  # (h,)
        query = row if axis else column
        step = groups * (1 if axis else columns)
        members = torch.arange(0, GROUP * step, step, device=block.device)
        at = ((row * columns + column) + members[:, None]).flatten()  # (GROUP·h,) all entries of these groups
        value = block.view(-1).index_select(0, at)
        good = (value.view(GROUP, -1) >= least.index_select(0, query)).view(-1).nonzero()[:, 0]  # (g,)
        row, column = _places(at.index_select(0, good), columns)
        query, number = (row, column) if axis else (column, row)
        self.found.append((query + start, number + entry, value.index_select(0, good)))
        if sum(len(values) for *_, values in self.found) > CROWDED * self.queries:
            self._compact()

    def _promising(self, maxima: Tensor, least: Tensor, axis: int) -> Tensor:
        """(h,) groups that may hold one of the k largest, as places in the flat `maxima`."""
        hit = (maxima >= least.unsqueeze(axis)).view(-1).nonzero()[:, 0]
        if len(hit) <= CROWDED // 2 * len(least):
            return hit
        best = maxima.topk(min(self.k, maxima.shape[axis]), dim=axis).indices  # many are equal: any k of them will do
        line = torch.arange(len(least), device=best.device).unsqueeze(axis)
        return (line * maxima.shape[1] + best if axis else best * maxima.shape[1] + line).flatten()

    def _compact(self) -> None:
        """Keep the k largest entries of each query."""
        index, value = self.result()  # (queries, k)
        known = index >= 0
        self.found = [(known.nonzero()[:, 0], index[known], value[known])]

    def result(self) -> tuple[Tensor, Tensor]:
        """(queries, k) indices and values of the largest entries; −1 and −inf where there are fewer."""
        query, entry, value = (torch.cat(parts) for parts in zip(*self.found, strict=True))
        if self.k and len(self.found) > 1:
            keep = (value >= self.tops.amin(0).index_select(0, query)).nonzero()[:, 0]
            query, entry, value = (part.index_select(0, keep) for part in (query, entry, value))
        query, order = query.sort(stable=True)
        count = torch.bincount(query, minlength=self.queries)  # (queries,)
        rank = torch.arange(len(query), device=query.device) - (count.cumsum(0) - count).index_select(0, query)
        width = max(int(count.max()) if self.queries else 0, self.k)
        at = query * width + rank
        values = value.new_full((self.queries * width,), -torch.inf).index_copy_(0, at, value.index_select(0, order))
        entries = entry.new_full((self.queries * width,), -1).index_copy_(0, at, entry.index_select(0, order))
        best, order = values.view(self.queries, width).topk(self.k, dim=1)
        return entries.view(self.queries, width).gather(1, order), best


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
    there, best1 = [rows.new_empty((0, min(k, len(x1))), dtype=torch.long)], _Best(len(columns), min(k, len(x0)), x0)
    # All blocks go to the same memory: it stays in the cache, and no page is asked for twice.
    memory = x0.new_empty(min(len(rows), BLOCK_ROWS) * min(len(columns), BLOCK_COLUMNS))
    for i in range(0, len(x0), BLOCK_ROWS):
        left = rows[i : i + BLOCK_ROWS]
        best0 = _Best(len(left), min(k, len(x1)), x0)
        for j in range(0, len(x1), BLOCK_COLUMNS):
            right = columns[j : j + BLOCK_COLUMNS]
            block = memory[: len(left) * len(right)].view(len(left), len(right))  # (b, c)
            torch.mm(left, right.T, out=block)
            best0.update(block, 1, 0, j)
            best1.update(block, 0, j, i)
        there.append(best0.result()[0])
    index0, index1 = torch.cat(there)[: len(x0)], best1.result()[0][: len(x1)]
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
def propose(predicted: Tensor, points: Tensor, mine: Tensor, theirs: Tensor, around: int) -> Tensor:
    """(N, 2) every keypoint with the most similar of the `around` points (M, 2) next to its predicted one (N, 2).

    Args:
        predicted: (N, 2) where the keypoints of this image should be in the other.
        points: (M, 2) keypoints of the other image.
        mine: (N, C) descriptors of this image.
        theirs: (M, C) descriptors of the other.
        around: how many points are compared.
    """
    ranks, workers = list(range(1, min(around, len(points)) + 1)), torch.get_num_threads()
    near = cKDTree(points.cpu().numpy()).query(predicted.cpu().numpy(), k=ranks, workers=workers)[1]  # (N, count)
    index = torch.from_numpy(near).to(predicted.device)
    similar = torch.stack([similarities(mine, theirs.index_select(0, one)) for one in index.unbind(1)], 1)  # (N, count)
    chosen = index.gather(1, similar.argmax(1, keepdim=True))  # (N, 1)
    return torch.cat([torch.arange(len(mine), device=mine.device)[:, None], chosen], dim=1)


def similarities(x: Tensor, y: Tensor) -> Tensor:
    """(N,) inner products of rows (N, C)."""
    return (x * y).sum(1)


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
