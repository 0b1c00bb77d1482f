"""Honest scores: a match of score 0.7 should be right seven times out of ten, on images it did not learn from."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import expit, log_expit, logit
from torch import Tensor

from linglue.matching.motion import epipolar_distance
from linglue.matching.neighborhood import Keypoints
from linglue.training.sources.ground_truth import IGNORE

Array = NDArray[np.float64]

CORRECT = 3.0  # pixels from the epipolar line, at a longer side of 1024
REFERENCE_SIDE = 1024
LEAST_SLOPE = 0.05  # the order of scores stays as it is
FEWEST = 200  # matches, right and wrong ones each; fewer tell nothing


def known_matches(
    pairs: Tensor, truths: Sequence[Tensor], fundamental: Tensor, views: Sequence[Keypoints]
) -> tuple[Tensor, Tensor]:
    """(K,) bool which matches are right, and of which that is known.

    Args:
        pairs: (K, 2) matches.
        truths: (N,), (M,) the partner of each keypoint of the two images, −1 for none, −2 for unknown.
        fundamental: (3, 3); where it is not zero, a match is right near its epipolar line.
        views: where the keypoints of the two images are.
    """
    if fundamental.any():
        ends = [view.points[pairs[:, k]].double() for k, view in enumerate(views)]  # (K, 2) each
        side = max(float(view.size.max()) for view in views)
        right = epipolar_distance(fundamental, *ends) <= CORRECT * side / REFERENCE_SIDE  # (K,)
        return right, torch.ones_like(right)
    partners = [truth[pairs[:, k]] for k, truth in enumerate(truths)]  # (K,) each
    return partners[0] == pairs[:, 1], (partners[0] != IGNORE) & (partners[1] != IGNORE)


def fit_calibration(scores: Array, right: NDArray[np.bool_]) -> tuple[float, float]:
    """Slope and offset of the logit of a score that make it the probability of being right; 1 and 0 if few are known.

    Args:
        scores: (K,) in (0, 1).
        right: (K,).

    Example:
        >>> rng = np.random.default_rng(0)
        >>> scores = rng.uniform(0.05, 0.95, 20_000)
        >>> slope, offset = fit_calibration(scores, rng.random(20_000) < scores)
        >>> round(slope, 1), abs(round(offset, 1))
        (1.0, 0.0)
    """
    if min(right.sum(), (~right).sum()) < FEWEST:
        return 1.0, 0.0
    logits = logit(scores.clip(1e-6, 1 - 1e-6))  # (K,)

    def loss(numbers: Array) -> tuple[float, Array]:
        """Mean of −log of the probability of what is true, and its slope."""
        found = numbers[0] * logits + numbers[1]  # (K,)
        off = expit(found) - right  # (K,)
        cost = -np.where(right, log_expit(found), log_expit(-found))  # (K,)
        return cost.mean(), np.array([(off * logits).mean(), off.mean()])

    slope, offset = minimize(loss, [1.0, 0.0], jac=True, bounds=[(LEAST_SLOPE, None), (None, None)]).x
    return float(slope), float(offset)
