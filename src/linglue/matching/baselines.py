"""What most people start with: mutual nearest neighbours of the raw descriptors, with or without Lowe's ratio test."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from linglue.core.fingerprint import code_sha256
from linglue.matching.nearest import Nearest, mutual, nearest_both_ways
from linglue.types import Features, Matches

LOWE_RATIO = 0.8  # nearest / second nearest distance, above which Lowe's test drops a match

_CODE = ("matching/baselines.py", "matching/nearest.py")


@torch.no_grad()
def mutual_matches(nearest0: Nearest, nearest1: Nearest) -> tuple[Tensor, Tensor]:
    """Mutual nearest neighbours (K, 2), scored by distinctiveness 1 − nearest/second nearest, best first.

    Args:
        nearest0: of every keypoint of image 0, in image 1.
        nearest1: the other way round.
    """
    source = mutual(nearest0, nearest1).nonzero()[:, 0]
    score = 1 - 1 / nearest0.ratio[source]
    order = torch.argsort(score, descending=True, stable=True)
    return torch.stack([source, nearest0.index[source]], dim=1)[order], score[order]


@torch.no_grad()
def ratio_matches(
    nearest0: Nearest, nearest1: Nearest, ratio: float = LOWE_RATIO, one_way: bool = False
) -> tuple[Tensor, Tensor]:
    """Nearest neighbours (K, 2) that pass Lowe's ratio test from image 0, and their scores, best first.

    Args:
        nearest0: of every keypoint of image 0, in image 1.
        nearest1: the other way round.
        ratio: nearest over second nearest distance, above which a match is dropped.
        one_way: as Lowe did it; else they must also be mutual.
    """
    quotient = 1 / nearest0.ratio  # (N,) nearest / second nearest
    # Without a second neighbour the test says nothing; then the match stays.
    distinct = ((quotient <= ratio) | (len(nearest1.index) == 1)) & (nearest0.index >= 0)
    source = (distinct if one_way else distinct & mutual(nearest0, nearest1)).nonzero()[:, 0]
    source = source[torch.argsort(quotient[source], stable=True)]
    return torch.stack([source, nearest0.index[source]], dim=1), 1 - quotient[source]


class MutualNearest:
    """Matcher `mnn`: mutual nearest neighbours of the raw descriptors.

    Args:
        device: where to compare the descriptors.
    """

    def __init__(self, device: str = "cpu") -> None:
        self.device = device

    @property
    def settings(self) -> Mapping[str, Any]:
        """All that decides its matches, as JSON."""
        return {"code": code_sha256(*_CODE)}

    def match(self, features0: Features, features1: Features) -> Matches:
        """Matches between the features of two images, most distinctive first."""
        return Matches.of(features0, features1, *mutual_matches(*self._nearest(features0, features1)))

    def _nearest(self, features0: Features, features1: Features) -> tuple[Nearest, Nearest]:
        x0, x1 = (torch.as_tensor(f.descriptors, device=self.device) for f in (features0, features1))
        return nearest_both_ways(x0, x1)


class RatioTest(MutualNearest):
    """Matcher `ratio`: mutual nearest neighbours that pass Lowe's ratio test; `ratio-oneway`: they need not be mutual.

    Args:
        device: where to compare the descriptors.
        one_way: without the mutual check, so that several keypoints of image 0 may have one partner.
    """

    def __init__(self, device: str = "cpu", one_way: bool = False) -> None:
        super().__init__(device)
        self.one_way = one_way

    @property
    def settings(self) -> Mapping[str, Any]:
        """All that decides its matches, as JSON."""
        return {"ratio": LOWE_RATIO, "one_way": self.one_way, **super().settings}

    def match(self, features0: Features, features1: Features) -> Matches:
        """Matches between the features of two images, most distinctive first."""
        nearest = self._nearest(features0, features1)
        return Matches.of(features0, features1, *ratio_matches(*nearest, one_way=self.one_way))
