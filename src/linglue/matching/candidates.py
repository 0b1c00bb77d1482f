"""Which pairs of keypoints may be matches: those that descriptors propose, and those that predicted places propose."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from scipy.spatial import cKDTree
from torch import Tensor

from linglue.matching.nearest import Neighbours
from linglue.matching.neighborhood import View

SIDE = 5  # numbers that say how distinctive a candidate is, seen from one image


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
    """Pairs that are among the nearest neighbours (N, k), (M, k) seen from either image."""
    index0, index1 = there.index, back.index
    source = torch.arange(len(index0), device=index0.device)[:, None].expand_as(index0)
    listed = (index1[index0] == source[..., None]).any(2) if index0.numel() else index0.bool()  # (N, k)
    pairs = torch.stack([source[listed], index0[listed]], dim=1)  # (E, 2)
    return describe_candidates(pairs, there.similarity[listed], there, back)


@torch.no_grad()
def describe_candidates(pairs: Tensor, similarity: Tensor, there: Neighbours, back: Neighbours) -> Candidates:
    """Pairs (E, 2) of the given similarity (E,), compared with the nearest neighbours of their keypoints."""
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
def propose(predicted: Tensor, other: View, mine: Tensor, theirs: Tensor, around: int) -> Tensor:
    """(N, 2) every keypoint with the most similar of the `around` keypoints next to its predicted place (N, 2)."""
    points = (other.points / other.size.max()).cpu().numpy()
    count = min(around, len(points))
    near = cKDTree(points).query(predicted.cpu().numpy(), k=list(range(1, count + 1)))[1]  # (N, count)
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
