"""Where a camera stands and looks, and angles between poses."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.spatial.transform import Rotation

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Pose:
    """A rigid motion x_a = rotation · x_b + translation; of a camera: cam_from_world.

    Example:
        >>> Pose(np.eye(3), np.array([0.0, 0.0, 2.0])).centre + 0.0
        array([ 0.,  0., -2.])
    """

    rotation: Array  # (3, 3)
    translation: Array  # (3,)

    @classmethod
    def from_matrix(cls, matrix: ArrayLike) -> Pose:
        """Of a (3, 4) or (4, 4) matrix."""
        values = np.asarray(matrix, dtype=np.float64)
        return cls(values[:3, :3].copy(), values[:3, 3].copy())

    @classmethod
    def from_numbers(cls, numbers: ArrayLike) -> Pose:
        """Of the seven numbers qw qx qy qz tx ty tz."""
        values = np.asarray(numbers, dtype=np.float64)
        return cls(Rotation.from_quat(np.roll(values[:4], -1)).as_matrix(), values[4:].copy())

    @classmethod
    def at(cls, rotation: Array, centre: Array) -> Pose:
        """Of a camera whose position in the world is `centre`."""
        pose = cls(rotation, -rotation @ centre)
        pose.__dict__["centre"] = centre  # as given: computed back, it would be rounded
        return pose

    @property
    def matrix(self) -> Array:
        """(3, 4)."""
        return np.column_stack([self.rotation, self.translation])

    @property
    def numbers(self) -> Array:
        """(7,) qw qx qy qz tx ty tz, with qw ≥ 0."""
        quaternion = np.roll(Rotation.from_matrix(np.array(self.rotation)).as_quat(canonical=True), 1)
        return np.concatenate([quaternion, self.translation])

    @cached_property
    def centre(self) -> Array:
        """(3,) the camera's position in the world."""
        return -self.rotation.T @ self.translation

    @property
    def inverse(self) -> Pose:
        """b_from_a of a_from_b."""
        return Pose(self.rotation.T, self.centre)

    def __matmul__(self, other: Pose) -> Pose:
        """a_from_c = a_from_b @ b_from_c."""
        return Pose(self.rotation @ other.rotation, self.rotation @ other.translation + self.translation)


def rotation_error(estimated: ArrayLike, true: ArrayLike) -> float:
    """Degrees of the rotation between two rotation matrices (3, 3).

    Args:
        estimated: (3, 3).
        true: (3, 3).

    Example:
        >>> round(rotation_error(np.eye(3), np.diag([-1.0, -1.0, 1.0])))
        180
    """
    difference = np.asarray(estimated, dtype=np.float64).T @ np.asarray(true, dtype=np.float64)
    # From sine and cosine: the arc cosine alone loses half the digits of small angles.
    axis = np.array(
        [
            difference[2, 1] - difference[1, 2],
            difference[0, 2] - difference[2, 0],
            difference[1, 0] - difference[0, 1],
        ]
    )
    return float(np.degrees(np.arctan2(np.linalg.norm(axis), np.trace(difference) - 1)))


def direction_error(estimated: ArrayLike, true: ArrayLike) -> float:
    """Degrees between the lines of two vectors (3,), 0 to 90: the sign is ignored, as SuperGlue's measure does.

    Args:
        estimated: (3,) of any length.
        true: (3,) of any length.

    Example:
        >>> round(direction_error(np.array([1.0, 0, 0]), np.array([0, 2.0, 0])))
        90
    """
    a, b = np.asarray(estimated, dtype=np.float64), np.asarray(true, dtype=np.float64)
    return float(np.degrees(np.arctan2(np.linalg.norm(np.cross(a, b)), abs(a @ b))))
