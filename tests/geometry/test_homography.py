"""Homographies against injected errors and cases whose result is known."""

import numpy as np
import pytest

from linglue.geometry.homography import apply, corner_error, reprojection_errors


def test_reprojection_errors_are_the_injected_ones_whatever_the_scale_and_sign() -> None:
    rng = np.random.default_rng(0)
    homography = np.array([[0.9, 0.1, 20], [-0.05, 1.1, -8], [1e-4, -5e-5, 1]])
    points0 = rng.uniform(0, 500, (50, 2))
    wanted = rng.uniform(0, 10, 50)
    angle = rng.uniform(0, 2 * np.pi, 50)
    points1 = apply(homography, points0) + wanted[:, None] * np.stack([np.cos(angle), np.sin(angle)], 1)
    for factor in (1, -0.58, 300):
        np.testing.assert_allclose(reprojection_errors(factor * homography, points0, points1), wanted)
        assert corner_error(factor * homography, homography, (500, 400)) == pytest.approx(0, abs=1e-9)


def test_corner_error_of_a_shift_and_of_a_failure() -> None:
    shift = np.array([[1, 0, 3], [0, 1, 4], [0, 0, 1]])
    assert corner_error(shift, np.eye(3), (640, 480)) == pytest.approx(5)
    assert corner_error(None, np.eye(3), (640, 480)) == np.inf
    assert corner_error(np.full((3, 3), np.nan), np.eye(3), (640, 480)) == np.inf


def test_points_on_the_horizon_and_behind_the_camera() -> None:
    homography = np.array([[1, 0, 0], [0, 1, 0], [1, 0, 0]])  # the third coordinate is x
    points = np.array([[2.0, 4.0], [0.0, 4.0], [-2.0, 4.0]])
    np.testing.assert_array_equal(apply(homography, points), [[1, 2], [np.inf, np.inf], [1, -2]])
    np.testing.assert_array_equal(apply(homography, points, front_only=True)[0], [1, 2])
    assert np.isnan(apply(homography, points, front_only=True)[1:]).all()
