"""COLMAP's conventions: where its origin lies, its cameras, the shape of a keypoint and its SIFT descriptors.

COLMAP's (0, 0) is the corner of the top-left pixel, ours its centre: the half pixel between them is added and removed
here and nowhere else.
"""

from __future__ import annotations

from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from linglue.core.optional import need
from linglue.errors import LinGlueError
from linglue.geometry.camera import Camera
from linglue.geometry.pixels import corner_from_pixel, pixel_from_corner
from linglue.types import Features, FloatArray, ImageSize

if TYPE_CHECKING:
    import pycolmap

Points = TypeVar("Points", bound=NDArray[np.floating[Any]])

DIAMETER_PER_SCALE = 2.0  # COLMAP's scale is the sigma of the blob, OpenCV's size and our scale its diameter
DESCRIPTOR_UNIT = 512.0  # COLMAP stores a RootSIFT vector of unit length as bytes, this many to one
SIFT_DIM = 128


def quiet_pycolmap(purpose: str) -> ModuleType:
    """pycolmap, silent: its errors are exceptions, too. `purpose` begins the complaint when it is not installed."""
    pycolmap = need("pycolmap", purpose)
    pycolmap.logging.minloglevel = pycolmap.logging.FATAL.value
    return pycolmap


def colmap_from_pixel(points: Points) -> Points:
    """(…, 2) our points as COLMAP counts them; principal points too."""
    return corner_from_pixel(points)


def pixel_from_colmap(points: Points) -> Points:
    """(…, 2) COLMAP's points as we count them."""
    return pixel_from_corner(points)


def matrix_from_colmap(matrix: NDArray[np.floating[Any]]) -> NDArray[np.float64]:
    """(3, 3) K for our pixels from K for COLMAP's."""
    moved = np.array(matrix, dtype=np.float64)
    moved[:2, 2] = pixel_from_colmap(moved[:2, 2])
    return moved


def camera_from_colmap(camera: pycolmap.Camera) -> Camera:
    """COLMAP's camera as ours; distortion is left out, which undistorted images do not have."""
    return Camera(ImageSize(camera.width, camera.height), matrix_from_colmap(camera.calibration_matrix()))


def colmap_from_camera(camera: Camera) -> pycolmap.Camera:
    """COLMAP's PINHOLE of a camera; its focal length counts as known."""
    k = camera.matrix
    if k[0, 1] != 0:
        raise LinGlueError(f"skew of K is {k[0, 1]}, expected 0, as COLMAP's cameras have none")
    module = quiet_pycolmap("a COLMAP camera")
    made = module.Camera.create_from_model_name(module.INVALID_CAMERA_ID, "PINHOLE", 1.0, *camera.size)
    made.params = [k[0, 0], k[1, 1], *colmap_from_pixel(k[:2, 2])]
    made.has_prior_focal_length = True
    return made


def keypoint_rows(features: Features) -> FloatArray:
    """What COLMAP stores of the keypoints: (N, 4) x, y, scale, orientation, or (N, 2) where scale or angle is unknown.

    COLMAP's angles are radians from +x towards +y, as ours.
    """
    points = colmap_from_pixel(features.keypoints)
    if features.scales is None or features.oris is None:
        return points
    return np.column_stack([points, features.scales / np.float32(DIAMETER_PER_SCALE), features.oris])


def keypoint_shapes(rows: FloatArray) -> tuple[FloatArray, FloatArray | None, FloatArray | None]:
    """Our points (N, 2), scales (N,) and angles (N,) from COLMAP's rows.

    They have 2 columns (no shape), 4 (scale, orientation) or 6 (a11, a12, a21, a22: the ellipse's axes in image axes).
    """
    points, columns = pixel_from_colmap(rows[:, :2]), rows.shape[1]
    if columns == 2:
        return points, None, None
    if columns == 4:
        return points, rows[:, 2] * np.float32(DIAMETER_PER_SCALE), rows[:, 3]
    if columns != 6:
        raise LinGlueError(f"keypoints have {columns} columns, expected 2, 4 and 6")
    axes = rows[:, 2:].reshape(-1, 2, 2)
    scales = np.linalg.norm(axes, axis=1).mean(axis=1)  # mean length of the two axes, as COLMAP computes it
    return points, scales * np.float32(DIAMETER_PER_SCALE), np.arctan2(axes[:, 1, 0], axes[:, 0, 0])


def root_sift_from_bytes(stored: NDArray[np.uint8]) -> FloatArray:
    """(N, 128) COLMAP's SIFT descriptors as unit vectors; their entries are ordered as OpenCV's."""
    values = stored.astype(np.float32)
    return values / np.maximum(np.linalg.norm(values, axis=1, keepdims=True), 1)  # rounding changed their length


def bytes_from_root_sift(descriptors: FloatArray) -> NDArray[np.uint8]:
    """(N, 128) RootSIFT as COLMAP stores it: rounded, and cut off at 255."""
    return np.clip(np.rint(descriptors * DESCRIPTOR_UNIT), 0, 255).astype(np.uint8)
