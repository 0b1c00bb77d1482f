"""The curves against numeric integration and cases whose result is known."""

import numpy as np
import pytest

from linglue.evaluation import metrics


@pytest.mark.parametrize("count", [1, 2, 7, 100])
def test_auc_equals_numeric_integration(count: int) -> None:
    rng = np.random.default_rng(count)
    errors = rng.gamma(1.5, 5, count)
    errors[rng.random(count) < 0.1] = np.inf
    thresholds = (5, 10, 20)
    ordered = np.sort(errors)
    finite = ordered[np.isfinite(ordered)]
    for threshold, area in zip(thresholds, metrics.auc(errors, thresholds), strict=True):
        inside = finite[finite < threshold]
        x = np.concatenate([[0], inside, [threshold]])
        y = np.concatenate([[0], np.arange(1, len(inside) + 1) / count, [len(inside) / count]])
        grid = (np.arange(400_000) + 0.5) * threshold / 400_000
        assert area == pytest.approx(np.interp(grid, x, y).mean(), abs=1e-5)


def test_auc_of_perfect_failed_and_no_estimates() -> None:
    assert metrics.auc(np.zeros(4), (5, 10)) == [1, 1]
    assert metrics.auc(np.full(4, np.inf), (5,)) == [0]
    assert metrics.auc([], (5, 10)) == [0, 0]


def test_share_within_is_inclusive_and_zero_without_matches() -> None:
    assert metrics.share_within([0.5, 1.0, 2.0, 3.001], (1, 2, 3)) == [0.5, 0.75, 0.75]
    assert metrics.share_within([], (1, 2)) == [0, 0]
