"""Cameras and views: projected points come back, resizing keeps what is seen."""

import numpy as np
from scipy.spatial.transform import Rotation

from linglue.geometry.camera import BEHIND, Camera, View
from linglue.geometry.colmap import matrix_from_colmap
from linglue.geometry.pixels import resize_points, unit_from_pixel
from linglue.geometry.pose import Pose
from linglue.types import ImageSize

VIEW = View(
    Camera(ImageSize(320, 240), np.array([[300.0, 2, 150], [0, 310, 130], [0, 0, 1]])),
    Pose(Rotation.from_euler("yxz", [0.3, -0.1, 0.2]).as_matrix(), np.array([0.5, -0.2, 4.0])),
)


def test_projected_points_are_lifted_back() -> None:
    points = np.random.default_rng(0).uniform(-1, 1, (50, 3))
    pixels, depths = VIEW.project(points)
    local = points @ VIEW.cam_from_world.rotation.T + VIEW.cam_from_world.translation
    np.testing.assert_allclose(depths, local[:, 2])
    np.testing.assert_allclose(VIEW.depth(points), depths)
    np.testing.assert_allclose(pixels, (local @ VIEW.camera.matrix.T)[:, :2] / local[:, 2:])
    np.testing.assert_allclose(VIEW.lift(pixels, depths), points, atol=1e-12)


def test_points_behind_the_camera_are_out_of_frame() -> None:
    point = VIEW.lift(np.array([[10.0, 10.0]]), np.array([-2.0]))
    pixels, depths = VIEW.project(point)
    assert (pixels == BEHIND).all() and depths[0] < 0 and not VIEW.camera.framed(pixels).any()


def test_frame_is_between_the_centres_of_border_pixels() -> None:
    pixels = np.array([[0.0, 0.0], [319.0, 239.0], [-0.1, 0.0], [0.0, 240.0]])
    assert VIEW.camera.framed(pixels).tolist() == [True, True, False, False]
    assert VIEW.camera.framed(pixels, margin=1).all()


def test_relative_pose() -> None:
    other = View(VIEW.camera, Pose(np.eye(3), np.array([1.0, 0, 0])))
    pose, point = VIEW.from_view(other), np.array([0.3, 0.4, 0.5])
    in_other = other.cam_from_world.rotation @ point + other.cam_from_world.translation
    in_view = VIEW.cam_from_world.rotation @ point + VIEW.cam_from_world.translation
    np.testing.assert_allclose(pose.rotation @ in_other + pose.translation, in_view)


def test_resizing_moves_the_principal_point_with_its_pixel() -> None:
    k = matrix_from_colmap(np.array([[500.0, 0, 160], [0, 500, 120], [0, 0, 1]]))
    np.testing.assert_allclose(k[:2, 2], [159.5, 119.5])
    half = Camera(ImageSize(320, 240), k).resized(ImageSize(160, 120))
    np.testing.assert_allclose(half.matrix, [[250, 0, 79.5], [0, 250, 59.5], [0, 0, 1]])
    small = View(VIEW.camera.resized(ImageSize(80, 80)), VIEW.cam_from_world)
    points = np.random.default_rng(1).uniform(-1, 1, (9, 3))
    expected = resize_points(VIEW.project(points)[0], np.array([1 / 4, 1 / 3]))
    np.testing.assert_allclose(small.project(points)[0], expected)


def test_grid_samples_are_counted_from_edge_to_edge() -> None:
    np.testing.assert_allclose(unit_from_pixel(np.array([-0.5, 0.0, 1.5, 3.5]), 4), [-1, -0.75, 0, 1])
