"""From descriptors to matches: nearest neighbours, seeds and candidate sets, local affine filter, one-to-one."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from linglue.matching.assignment import one_to_one
from linglue.matching.local_affine import FilterConfig, Filtered, Shape, filter_matches
from linglue.matching.nearest import Nearest, mutual
from linglue.matching.neighborhood import select


@dataclass(frozen=True)
class View:
    """Where the keypoints of one image are; one entry of the network's input without batch and padding."""

    points: Tensor  # (N, 2) pixels
    size: Tensor  # (2,) width, height
    scales: Tensor | None = None  # (N,) pixels
    oris: Tensor | None = None  # (N,) radians

    @property
    def shaped(self) -> bool:
        """Whether the features know their scale and orientation."""
        return self.scales is not None and self.oris is not None


@dataclass(frozen=True)
class LocalMatches:
    """One-to-one matches and how the image moves around each."""

    pairs: Tensor  # (K, 2) indices
    confidence: Tensor  # (K,) in [0, 1]
    maps: Tensor  # (K, 2, 2) pixels of image 1 per pixel of image 0


def _shape(view0: View, view1: View, index: Tensor) -> Shape:
    """How the matches (i, index[i]) turn and scale."""
    turn = log_scale = None
    if view0.oris is not None and view1.oris is not None:
        turn = view1.oris[index] - view0.oris
    if view0.scales is not None and view1.scales is not None:
        log_scale = (view1.scales[index] / view0.scales).log()
    return Shape(turn, log_scale)


def _one_way(view0: View, view1: View, nearest0: Nearest, nearest1: Nearest, config: FilterConfig) -> Filtered:
    """The filter's word on the nearest-neighbour matches from image 0 to image 1."""
    selection = select(view0.points, view1.points, nearest0, nearest1, view0.size, view1.size, config.expansion)
    return filter_matches(selection, nearest0.ratio, _shape(view0, view1, nearest0.index), config)


@torch.no_grad()
def filtered_matches(
    view0: View, view1: View, nearest0: Nearest, nearest1: Nearest, config: FilterConfig
) -> LocalMatches:
    """One-to-one pairs that the local affine filter accepts, best first.

    The filter runs from image 0 to image 1 and back, so the result does not depend on which image comes first, and a
    keypoint whose nearest neighbour is wrong may still be found from the other side.
    """
    if len(view0.points) == 0 or len(view1.points) == 0:
        empty = view0.points.new_zeros(0)
        return LocalMatches(torch.zeros(0, 2, dtype=torch.int64, device=empty.device), empty, empty.reshape(0, 2, 2))
    forward = _one_way(view0, view1, nearest0, nearest1, config)
    backward = _one_way(view1, view0, nearest1, nearest0, config)
    source, target = forward.confidence.nonzero()[:, 0], backward.confidence.nonzero()[:, 0]
    pairs = torch.cat(
        [
            torch.stack([source, nearest0.index[source]], dim=1),
            torch.stack([nearest1.index[target], target], dim=1),
        ]
    )
    confidence = torch.cat([forward.confidence[source], backward.confidence[target]])
    maps = torch.cat([forward.maps[source], torch.linalg.inv(backward.maps[target])])
    chosen = one_to_one(pairs, confidence)
    return LocalMatches(pairs[chosen], confidence[chosen], maps[chosen])


@torch.no_grad()
def mutual_matches(nearest0: Nearest, nearest1: Nearest) -> tuple[Tensor, Tensor]:
    """Mutual nearest neighbours (K, 2), scored by distinctiveness 1 − nearest/second nearest, best first."""
    source = mutual(nearest0, nearest1).nonzero()[:, 0]
    score = 1 - 1 / nearest0.ratio[source]
    order = torch.argsort(score, descending=True, stable=True)
    return torch.stack([source, nearest0.index[source]], dim=1)[order], score[order]
