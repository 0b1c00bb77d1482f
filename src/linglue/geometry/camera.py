"""The pinhole camera, and a camera that stands somewhere in the world.

Cameras with distortion are pycolmap's, at the borders to COLMAP only (`linglue.geometry.colmap`).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from linglue.geometry.pixels import resize_points
from linglue.geometry.pose import Pose
from linglue.types import ImageSize

Array = NDArray[np.float64]

BEHIND = -1e6  # coordinate of a point behind the camera: certainly out of frame
NEAR = 1e-9  # depth from which on a point is in front of the camera


@dataclass(frozen=True, eq=False)
class Camera:
    """A pinhole camera: z·(x, y, 1) = matrix · X, with X in the camera's own coordinates (x right, y down, z forward).

    Example:
        >>> Camera.centred(ImageSize(640, 480), 500.0).matrix.tolist()
        [[500.0, 0.0, 319.5], [0.0, 500.0, 239.5], [0.0, 0.0, 1.0]]
    """

    size: ImageSize
    matrix: Array  # (3, 3) K, in pixels

    @classmethod
    def centred(cls, size: ImageSize, focal: float) -> Camera:
        """A camera whose principal point is the middle of its image; `focal` in pixels."""
        return cls(size, np.array([[focal, 0, (size.width - 1) / 2], [0, focal, (size.height - 1) / 2], [0, 0, 1]]))

    @property
    def focal(self) -> float:
        """Pixels, along x."""
        return float(self.matrix[0, 0])

    def resized(self, size: ImageSize) -> Camera:
        """The same camera after its images are resized."""
        scale = np.array(size) / self.size
        matrix = np.array(self.matrix, dtype=np.float64)
        matrix[:2, 2] = resize_points(matrix[:2, 2], scale)
        matrix[:2, :2] *= scale[:, None]
        return Camera(size, matrix)

    def rays(self, pixels: NDArray[np.floating]) -> Array:
        """(N, 2) pixels → (N, 3) points at depth 1 in camera coordinates."""
        return np.concatenate([pixels, np.ones((len(pixels), 1))], axis=1) @ np.linalg.inv(self.matrix).T

    def framed(self, pixels: NDArray[np.floating], margin: float = 0.0) -> NDArray[np.bool_]:
        """(N,) whether pixels lie between the centres of the border pixels, or at most `margin` pixels beyond."""
        return np.asarray(((pixels >= -margin) & (pixels <= np.array(self.size) - 1 + margin)).all(axis=1))


@dataclass(frozen=True, eq=False)
class View:
    """A camera and where it stands: z·(x, y, 1) = K (R X + t).

    Example:
        >>> view = View(Camera.centred(ImageSize(101, 101), 100), Pose(np.eye(3), np.array([0.0, 0.0, 2.0])))
        >>> view.project(np.zeros((1, 3)))[0].tolist()
        [[50.0, 50.0]]
    """

    camera: Camera
    cam_from_world: Pose

    @property
    def centre(self) -> Array:
        """(3,) the camera's position in the world."""
        return self.cam_from_world.centre

    @cached_property
    def projection(self) -> Array:
        """(3, 3) K R: world directions to z·(x, y, 1)."""
        return self.camera.matrix @ self.cam_from_world.rotation

    def depth(self, points: Array) -> Array:
        """(N, 3) world points → (N,) depths."""
        return np.asarray((points - self.centre) @ self.projection[2])

    def project(self, points: Array, near: float = NEAR) -> tuple[Array, Array]:
        """(N, 3) world points → (N, 2) pixels, BEHIND where the depth is not above `near`, and (N,) depths."""
        local = (points - self.centre) @ self.projection.T  # (N, 3)
        depth = local[:, 2]
        front = depth > near
        return np.where(front[:, None], local[:, :2] / np.where(front, depth, 1.0)[:, None], BEHIND), depth

    def lift(self, pixels: Array, depth: Array) -> Array:
        """(N, 2) pixels and (N,) depths → (N, 3) world points."""
        return np.asarray(self.centre + (self.camera.rays(pixels) * depth[:, None]) @ self.cam_from_world.rotation)

    def from_view(self, other: View) -> Pose:
        """Pose self_from_other: camera coordinates of `other` in those of this one."""
        return self.cam_from_world @ other.cam_from_world.inverse
