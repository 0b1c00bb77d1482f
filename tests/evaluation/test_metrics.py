"""The measures against naive or numeric computation, and against cases whose result is known."""

import numpy as np
import pytest
from scipy.spatial.transform import Rotation

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


def test_reprojection_errors_are_the_injected_ones_whatever_the_scale_and_sign() -> None:
    rng = np.random.default_rng(0)
    homography = np.array([[0.9, 0.1, 20], [-0.05, 1.1, -8], [1e-4, -5e-5, 1]])
    points0 = rng.uniform(0, 500, (50, 2))
    wanted = rng.uniform(0, 10, 50)
    angle = rng.uniform(0, 2 * np.pi, 50)
    points1 = metrics.project(homography, points0) + wanted[:, None] * np.stack([np.cos(angle), np.sin(angle)], 1)
    for factor in (1, -0.58, 300):
        np.testing.assert_allclose(metrics.reprojection_errors(factor * homography, points0, points1), wanted)
        assert metrics.corner_error(factor * homography, homography, (500, 400)) == pytest.approx(0, abs=1e-9)


def test_corner_error_of_a_shift_and_of_a_failure() -> None:
    shift = np.array([[1, 0, 3], [0, 1, 4], [0, 0, 1]])
    assert metrics.corner_error(shift, np.eye(3), (640, 480)) == pytest.approx(5)
    assert metrics.corner_error(None, np.eye(3), (640, 480)) == np.inf
    assert metrics.corner_error(np.full((3, 3), np.nan), np.eye(3), (640, 480)) == np.inf


def test_epipolar_distances_equal_the_naive_ones() -> None:
    rng = np.random.default_rng(1)
    fundamental = rng.normal(size=(3, 3))
    points0, points1 = rng.uniform(0, 100, (2, 20, 2))
    distance0, distance1 = metrics.epipolar_distances(fundamental, points0, points1)
    for k in range(20):
        a, b = np.append(points0[k], 1), np.append(points1[k], 1)
        line1, line0 = fundamental @ a, fundamental.T @ b
        assert distance1[k] == pytest.approx(abs(line1 @ b) / np.hypot(line1[0], line1[1]))
        assert distance0[k] == pytest.approx(abs(line0 @ a) / np.hypot(line0[0], line0[1]))


@pytest.mark.parametrize("degrees", [0, 1e-6, 0.5, 90, 179.5])
def test_rotation_error(degrees: float) -> None:
    base = Rotation.random(rng=np.random.default_rng(2))
    turned = Rotation.from_rotvec(np.radians(degrees) * np.array([0.6, 0, 0.8])) * base
    assert metrics.rotation_error(turned.as_matrix(), base.as_matrix()) == pytest.approx(degrees, abs=1e-9)


def test_direction_error_ignores_length_and_sign() -> None:
    assert metrics.direction_error([0, 0, 2], [0, 0, 5]) == 0
    assert metrics.direction_error([0, 1, 1], [0, 0, -3]) == pytest.approx(45)
    assert metrics.direction_error([1, 0, 0], [0, 0, 1]) == pytest.approx(90)
