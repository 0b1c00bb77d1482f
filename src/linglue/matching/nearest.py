"""Which keypoints may be partners: exact nearest neighbours, both ways in one blocked pass, and their candidates."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from scipy.spatial import cKDTree
from torch import Tensor

BLOCK_ROWS, BLOCK_COLUMNS = 1024, 2048  # 8 MB of similarities at a time, whatever the number of keypoints
GROUP = 8  # entries per group in the search for maxima; divides both
EPSILON = 1e-6  # keeps the distance ratio finite where two descriptors are equal
SIDE = 5  # numbers that say how distinctive a candidate is, seen from one image


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
    """Pairs that are among the nearest neighbours (N, k), (M, k) seen from either image.

    Args:
        there: nearest neighbours of image 0's keypoints in image 1.
        back: the other way round.
    """
    index0, index1 = there.index, back.index
    source = torch.arange(len(index0), device=index0.device)[:, None].expand_as(index0)
    listed = (index1[index0] == source[..., None]).any(2) if index0.numel() else index0.bool()  # (N, k)
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
        near = found.similarity[owner]  # (E, k)
        best, second, last = near[:, 0], near[:, min(1, near.shape[1] - 1)], near[:, -1]
        chosen = found.index[owner, 0] == other
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
    count = min(around, len(points))
    near = cKDTree(points.cpu().numpy()).query(predicted.cpu().numpy(), k=list(range(1, count + 1)))[1]  # (N, count)
    index = torch.from_numpy(near).to(predicted.device)
    similar = (theirs[index.flatten()].unflatten(0, index.shape) @ mine[:, :, None])[..., 0]  # (N, count)
    chosen = index.gather(1, similar.argmax(1, keepdim=True))  # (N, 1)
    return torch.cat([torch.arange(len(mine), device=mine.device)[:, None], chosen], dim=1)


def among_best(owner: Tensor, scores: Tensor, count: int) -> Tensor:
    """(E,) bool: among the `count` best candidates of its owner; equal scores in their order."""
    order = scores.argsort(descending=True, stable=True)
    order = order[owner[order].argsort(stable=True)]  # by owner, best first
    sorted_owner = owner[order]
    start = torch.searchsorted(sorted_owner, sorted_owner)  # (E,) where the owner begins
    rank = torch.arange(len(order), device=order.device) - start
    found = torch.zeros_like(scores, dtype=torch.bool)
    found[order] = rank < count
    return found
