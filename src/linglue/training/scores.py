"""How good descriptors are, measured without any filter: what mutual nearest neighbours find of the true matches."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from linglue.matching.baselines import mutual_matches
from linglue.matching.nearest import nearest_both_ways
from linglue.training.sources.ground_truth import IGNORE

PRECISION = 0.9  # at which recall is reported


@dataclass(frozen=True)
class MatchScores:
    """Means over pairs, each in [0, 1]."""

    recall: float  # true matches that are mutual nearest neighbours
    precision: float  # mutual nearest neighbours that are true, ignored keypoints left out
    average_precision: float  # area under precision over recall when matches are ranked by distinctiveness
    recall_at_precision: float  # largest recall of that ranking with precision ≥ 0.9


def score_pair(x0: Tensor, x1: Tensor, truth0: Tensor, truth1: Tensor) -> NDArray[np.float64] | None:
    """(4,) the scores of one pair of descriptors (N, C), (M, C); None without true matches.

    Args:
        x0: (N, C) descriptors of image 0.
        x1: (M, C) of image 1.
        truth0: (N,) partner in image 1, negative if none.
        truth1: (M,) likewise.
    """
    total = int((truth0 >= 0).sum())
    if total == 0:
        return None
    pairs, _ = mutual_matches(*nearest_both_ways(x0, x1))  # (K, 2), most distinctive first
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
