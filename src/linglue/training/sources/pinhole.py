"""Calibrated views of real scenes: pixels with centres at integers, K of any pinhole camera, cam_from_world poses."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from linglue.geometry.colmap import pixel_from_colmap
from linglue.types import ImageSize

Array = NDArray[np.float64]
BEHIND = -1e6  # coordinate of a point behind the camera: certainly out of frame
AREA = 0.5  # pixels: a pixel reaches this far around its centre


@dataclass(frozen=True, eq=False)
class Pinhole:
    """A view: z·(x, y, 1) = K (R X + t)."""

    size: ImageSize
    k: Array  # (3, 3)
    rotation: Array  # (3, 3) cam_from_world
    translation: Array  # (3,) cam_from_world

    def rays(self, pixels: Array) -> Array:
        """(N, 2) pixels → (N, 3) points at depth 1 in camera coordinates."""
        return np.concatenate([pixels, np.ones((len(pixels), 1))], axis=1) @ np.linalg.inv(self.k).T

    def lift(self, pixels: Array, depth: Array) -> Array:
        """(N, 2) pixels and (N,) depths → (N, 3) world points."""
        return (self.rays(pixels) * depth[:, None] - self.translation) @ self.rotation

    def depth(self, points: Array) -> Array:
        """(N, 3) world points → (N,) depths."""
        return points @ self.rotation[2] + self.translation[2]

    def project(self, points: Array) -> tuple[Array, Array]:
        """(N, 3) world points → (N, 2) pixels, BEHIND where they are behind the camera, and (N,) depths."""
        local = (points @ self.rotation.T + self.translation) @ self.k.T
        depth = local[:, 2]
        front = depth > 1e-9
        return np.where(front[:, None], local[:, :2] / np.where(front, depth, 1.0)[:, None], BEHIND), depth

    def framed(self, pixels: Array, margin: float = 0.0) -> NDArray[np.bool_]:
        """(N,) whether pixels lie between the centres of the border pixels, or at most `margin` pixels beyond."""
        return np.asarray(((pixels >= -margin) & (pixels <= np.array(self.size) - 1 + margin)).all(axis=1))


def integer_centres(k: Array) -> Array:
    """K for pixel centres at integers from COLMAP's K, whose top-left pixel has its centre at (½, ½)."""
    moved = np.array(k, dtype=np.float64)
    moved[:2, 2] = pixel_from_colmap(moved[:2, 2])
    return moved


def resized(k: Array, scale: Array) -> Array:
    """K after its image is resized by `scale` (x, y), so that x becomes (x + ½)·s − ½."""
    moved = np.array(k, dtype=np.float64)
    moved[:2, 2] = (moved[:2, 2] + AREA) * scale - AREA
    moved[:2, :2] *= np.asarray(scale)[:, None]
    return moved


def relative_pose(zero: Pinhole, one: Pinhole) -> tuple[Array, Array]:
    """R (3, 3) and t (3,) of 1_from_0, in the unit of the scene."""
    rotation = one.rotation @ zero.rotation.T
    return rotation, one.translation - rotation @ zero.translation
