"""What two cameras say about matches: a point lies on the epipolar line of its partner."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from linglue.geometry.camera import View
from linglue.geometry.pose import Pose

Array = NDArray[np.float64]


def essential_matrix(one_from_zero: Pose) -> Array:
    """(3, 3) E = [t]× R with r1ᵀ E r0 = 0 for rays of two cameras."""
    x, y, z = one_from_zero.translation
    return np.array([[0, -z, y], [z, 0, -x], [-y, x, 0]]) @ one_from_zero.rotation


def fundamental_matrix(view0: View, view1: View) -> Array:
    """(3, 3) F with x1ᵀ F x0 = 0 for pixels of two views.

    Args:
        view0: camera and pose of image 0.
        view1: camera and pose of image 1.
    """
    inverse0, inverse1 = (np.linalg.inv(view.camera.matrix) for view in (view0, view1))
    return np.asarray(inverse1.T @ essential_matrix(view1.from_view(view0)) @ inverse0)


def epipolar_distances(fundamental: ArrayLike, points0: ArrayLike, points1: ArrayLike) -> tuple[Array, Array]:
    """(K,) distance of each point from the epipolar line of its partner: in image 0, and in image 1.

    Args:
        fundamental: (3, 3), for points in pixels; an essential matrix for rays (x, y) at depth 1.
        points0: (K, 2) in image 0.
        points1: (K, 2) their partners in image 1.
    """
    f = np.asarray(fundamental, dtype=np.float64)
    homogeneous0, homogeneous1 = (
        np.column_stack([np.asarray(p, dtype=np.float64).reshape(-1, 2), np.ones(len(np.asarray(p)))])
        for p in (points0, points1)
    )  # (K, 3)
    lines1, lines0 = homogeneous0 @ f.T, homogeneous1 @ f  # (K, 3)
    residual = np.abs((homogeneous1 * lines1).sum(axis=1))  # (K,)
    tiny = np.finfo(np.float64).tiny
    distance0 = residual / np.maximum(np.linalg.norm(lines0[:, :2], axis=1), tiny)
    distance1 = residual / np.maximum(np.linalg.norm(lines1[:, :2], axis=1), tiny)
    return distance0, distance1
