"""Keypoints in groups of neighbours, by halving the image until groups are small: few stand for many."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

AWAY = 1e9  # where padding lies, beyond all images


def leaves(points: Tensor, most: float) -> Tensor:
    """(L, s) keypoints (N, 2) in groups of neighbours of equal size, at most `most`; −1 for padding.

    Groups are halved across their longer side, all of them at once.

    Args:
        points: (N, 2), at least one.
        most: keypoints in a group.

    Example:
        >>> leaves(torch.tensor([[0.0, 0.0], [9.0, 0.0], [1.0, 0.0], [8.0, 0.0]]), 2).tolist()
        [[0, 2], [3, 1]]
    """
    depth = max(0, math.ceil(math.log2(len(points) / most)))
    size = -(-len(points) // 2**depth)
    padded = F.pad(points, (0, 0, 0, size * 2**depth - len(points)), value=AWAY)
    index = torch.arange(len(padded), device=points.device)[None]  # (1, 2^depth·s)
    for _ in range(depth):
        places = padded[index]  # (G, n, 2)
        far = places.masked_fill(places >= AWAY, -AWAY).amax(1)  # (G, 2)
        axis = (far - places.amin(1)).argmax(1)  # (G,)
        along = places.gather(2, axis[:, None, None].expand(-1, places.shape[1], 1))[..., 0]  # (G, n)
        index = index.gather(1, along.argsort(dim=1, stable=True)).view(2 * len(index), -1)  # (2G, n/2)
    return index.masked_fill(index >= len(points), -1)


@dataclass(frozen=True, eq=False)
class NeighborGroups:
    """The keypoints of an image in groups of neighbours."""

    order: Tensor  # (N,) the keypoints, group by group
    starts: Tensor  # (G,) where each group begins
    landmarks: Tensor  # (G,) of each group the keypoint nearest to its centre

    def mean(self, rows: Tensor) -> Tensor:
        """(G, X) means over the groups, of rows (N, X)."""
        return F.embedding_bag(self.order, rows.float(), self.starts, mode="mean").to(rows)


def group(points: Tensor, count: int) -> NeighborGroups:
    """Keypoints (N, 2) in at most `count` groups of neighbours; each alone where there are no more.

    Args:
        points: (N, 2).
        count: of groups.

    Example:
        >>> found = group(torch.tensor([[0.0, 0.0], [9.0, 0.0], [1.0, 0.0], [8.0, 0.0]]), 2)
        >>> found.order.tolist(), found.starts.tolist(), found.landmarks.tolist()
        ([0, 2, 3, 1], [0, 2], [0, 3])
    """
    if len(points) <= count:
        every = torch.arange(len(points), device=points.device)
        return NeighborGroups(every, every, every)
    table = leaves(points, -(-len(points) // 2 ** math.floor(math.log2(count))))  # (L, s)
    there = table >= 0
    table, there = table[there.any(1)], there[there.any(1)]  # (G, s)
    sizes, places = there.sum(1), points[table.clamp(min=0)]  # (G,), (G, s, 2)
    centre = (places * there[..., None]).sum(1) / sizes[:, None]  # (G, 2)
    off = (places - centre[:, None]).square().sum(-1).masked_fill(~there, torch.inf)  # (G, s)
    return NeighborGroups(table[there], sizes.cumsum(0) - sizes, table.gather(1, off.argmin(1, keepdim=True))[:, 0])


def turned(points: Tensor) -> Tensor:
    """The same points (N, 2) in an image that is turned by 45°: other groups of neighbours."""
    x, y = points.unbind(1)
    return torch.stack([x - y, x + y], dim=1) * math.sqrt(0.5)
