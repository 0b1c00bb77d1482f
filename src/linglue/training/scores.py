"""How good ranked matches are: what they find of the true ones, and how many of them are true."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from linglue.training.sources.ground_truth import IGNORE

PRECISION = 0.9  # at which recall is reported


@dataclass(frozen=True)
class MatchScores:
    """Means over pairs, each in [0, 1]."""

    recall: float  # true matches that are found
    precision: float  # found matches that are true, ignored keypoints left out
    average_precision: float  # area under precision over recall of the ranking
    recall_at_precision: float  # largest recall of that ranking with precision ≥ 0.9


def score_pair(pairs: Tensor, truth0: Tensor, truth1: Tensor) -> NDArray[np.float64] | None:
    """(4,) the scores of one pair of images; None without true matches.

    Args:
        pairs: (K, 2) matches, best first.
        truth0: (N,) the partner of each keypoint of image 0, −1 for none, −2 for keypoints that are left out.
        truth1: (M,) the same for image 1.
    """
    total = int((truth0 >= 0).sum())
    if total == 0:
        return None
    known = (truth0[pairs[:, 0]] != IGNORE) & (truth1[pairs[:, 1]] != IGNORE)
    correct = (truth0[pairs[:, 0]] == pairs[:, 1])[known].double()  # (K,)
    if len(correct) == 0:
        return np.zeros(4)
    found = correct.cumsum(0)
    precision, recall = found / torch.arange(1, len(found) + 1), found / total
    sure = recall[precision >= PRECISION]
    return np.array(
        [
            float(recall[-1]),
            float(precision[-1]),
            float((precision * correct).sum() / total),
            float(sure.max()) if len(sure) else 0.0,
        ]
    )


def mean_scores(scores: list[NDArray[np.float64] | None]) -> MatchScores:
    """Means over the pairs that have true matches."""
    known = [s for s in scores if s is not None]
    return MatchScores(*(float(v) for v in (np.mean(known, axis=0) if known else np.zeros(4))))
