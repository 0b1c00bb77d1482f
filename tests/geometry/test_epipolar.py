"""Epipolar geometry against naive computation and projected points."""

import numpy as np
import pytest
from scipy.spatial.transform import Rotation

from linglue.geometry.camera import Camera, View
from linglue.geometry.epipolar import epipolar_distances, essential_matrix, fundamental_matrix
from linglue.geometry.pose import Pose
from linglue.types import ImageSize


def test_epipolar_distances_equal_the_naive_ones() -> None:
    rng = np.random.default_rng(1)
    fundamental = rng.normal(size=(3, 3))
    points0, points1 = rng.uniform(0, 100, (2, 20, 2))
    distance0, distance1 = epipolar_distances(fundamental, points0, points1)
    for k in range(20):
        a, b = np.append(points0[k], 1), np.append(points1[k], 1)
        line1, line0 = fundamental @ a, fundamental.T @ b
        assert distance1[k] == pytest.approx(abs(line1 @ b) / np.hypot(line1[0], line1[1]))
        assert distance0[k] == pytest.approx(abs(line0 @ a) / np.hypot(line0[0], line0[1]))


def test_projected_points_lie_on_their_epipolar_lines() -> None:
    rng = np.random.default_rng(3)
    views = []
    for angle in (0.0, 0.2):
        matrix = np.array([[500.0, 3, 320], [0, 510, 240], [0, 0, 1]])
        pose = Pose(Rotation.from_euler("y", angle).as_matrix(), rng.normal(size=3))
        views.append(View(Camera(ImageSize(640, 480), matrix), pose))
    points = rng.uniform([-2, -2, 5], [2, 2, 9], (30, 3))
    pixels = [view.project(points)[0] for view in views]
    assert np.max(epipolar_distances(fundamental_matrix(*views), *pixels)) < 1e-9
    rays = [view.camera.rays(p)[:, :2] for view, p in zip(views, pixels, strict=True)]
    assert np.max(epipolar_distances(essential_matrix(views[1].from_view(views[0])), *rays)) < 1e-12
