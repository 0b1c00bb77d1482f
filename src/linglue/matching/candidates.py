"""Which keypoints may be partners: candidates by their descriptors and by predicted places, and the best of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from scipy.spatial import cKDTree
from torch import Tensor

from linglue.matching.nearest import Neighbours
from linglue.matching.together import together

SIDE = 5  # numbers that say how distinctive a candidate is, seen from one image
LEAD = 1  # the one of them that says by how much it is more similar than the best of the others
LEAST = 2.0  # more than similarities of unit descriptors can differ
ROWS = 512  # keypoints whose surroundings are compared at a time
PAIRS = 2048  # pairs whose descriptors are


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

    def compare(way: tuple[Tensor, Neighbours]) -> tuple[Tensor, Tensor]:
        (owner, other), found = way[0].unbind(1), way[1]
        if not len(owner):
            return similarity.new_zeros(0, SIDE), similarity.bool()
        near = found.similarity  # (N, k)
        ranks = (0, min(1, near.shape[1] - 1), -1)
        best, second, last = (near[:, rank].index_select(0, owner) for rank in ranks)  # (E,)
        chosen = found.index[:, 0].index_select(0, owner) == other
        rival = torch.where(chosen, second, best)  # the best of the others
        numbers = [similarity - best, similarity - rival, best - second, best - last, chosen.float()]
        return torch.stack(numbers, dim=1), chosen

    (side0, first0), (side1, first1) = together(compare, ((pairs, there), (pairs.flip(1), back)))
    counts = (len(there.index), len(back.index))
    return Candidates(pairs, similarity, (side0, side1), first0 & first1, counts)


def tree_of(points: Tensor) -> cKDTree:
    """For the points (N, 2) nearest to others."""
    return cKDTree(points.cpu().numpy())


@torch.no_grad()
def propose(
    predicted: Tensor,
    tree: cKDTree,
    mine: Tensor,
    theirs: Tensor,
    around: int,
    wrong: Callable[[Tensor, Tensor], Tensor],
) -> Tensor:
    """(N, 2) every keypoint with the most similar of the `around` points next to its predicted one (N, 2).

    Args:
        predicted: (N, 2) where the keypoints of this image should be in the other.
        tree: of the M keypoints of the other image.
        mine: (N, C) descriptors of this image.
        theirs: (M, C) descriptors of the other.
        around: how many points are compared.
        wrong: keypoints (n, 1) of this image, some (n, count) of the other → (n, count) bool: proposed only where there
            is nothing else.
    """
    ranks = list(range(1, min(around, len(theirs)) + 1))
    index = torch.from_numpy(tree.query(predicted.cpu().numpy(), k=ranks)[1]).to(predicted.device)  # (N, count)
    number = torch.arange(len(mine), device=mine.device)[:, None]  # (N, 1)
    found = [number.new_empty(0, 1)]
    for rows, near, own in zip(number.split(ROWS), index.split(ROWS), mine.split(ROWS), strict=True):  # (n, ·) each
        others = theirs.index_select(0, near.flatten()).unflatten(0, near.shape)  # (n, count, C)
        similar = torch.bmm(own[:, None], others.mT)[:, 0]  # (n, count)
        similar -= LEAST * wrong(rows, near)
        found.append(near.gather(1, similar.argmax(1, keepdim=True)))  # (n, 1)
    return torch.cat([number, torch.cat(found)], dim=1)


def similarities(x0: Tensor, x1: Tensor, pairs: Tensor) -> Tensor:
    """(E,) inner products of the rows (N, C) and (M, C) of pairs (E, 2), some at a time."""

    def similar(part: Tensor) -> Tensor:
        return (x0.index_select(0, part[:, 0]) * x1.index_select(0, part[:, 1])).sum(1)

    return torch.cat(together(similar, pairs.split(PAIRS)))  # at least one part


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
