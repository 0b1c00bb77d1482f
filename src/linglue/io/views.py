"""Calibrated views as text: width height, K (3x3), R (3x3) and t (3) with cam_from_world; pixel centres at integers.

Lines that begin with # are comments. One file per image, in the folder gt/ of a scene for `linglue eval`.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from linglue.core.atomic import atomic_path
from linglue.errors import LinGlueError
from linglue.geometry.camera import Camera, View
from linglue.geometry.pose import Pose
from linglue.types import ImageSize

_LAYOUT = "width height, K (3x3), R (3x3), t (3)"
_HEADER = "# width height / K (3x3, pixel centres at integers) / R_cam_from_world (3x3) / t_cam_from_world (3)"


def read_view(path: Path) -> View:
    """The camera and its pose in a file."""
    if not path.is_file():
        raise LinGlueError(f"{path}: no such file, every image needs its camera: {_LAYOUT}")
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
        values = np.array(" ".join(line for line in lines if not line.lstrip().startswith("#")).split(), np.float64)
    except (OSError, ValueError) as error:
        raise LinGlueError(f"{path}: not a text file of numbers, expected {_LAYOUT}") from error
    if values.size != 23 or not np.isfinite(values).all():
        raise LinGlueError(f"{path}: holds {values.size} numbers, expected the 23 finite ones of {_LAYOUT}")
    k, rotation = values[2:11].reshape(3, 3), values[11:20].reshape(3, 3)
    if min(k[0, 0], k[1, 1]) <= 0 or np.abs([k[1, 0], k[2, 0], k[2, 1], k[2, 2] - 1]).max() > 1e-9:
        raise LinGlueError(f"{path}: K is {k.tolist()}, expected [[fx, s, cx], [0, fy, cy], [0, 0, 1]]")
    if np.abs(rotation @ rotation.T - np.eye(3)).max() > 1e-3 or np.linalg.det(rotation) < 0:
        raise LinGlueError(f"{path}: R is {rotation.tolist()}, expected a rotation matrix")
    return View(Camera(ImageSize(int(values[0]), int(values[1])), k), Pose(rotation, values[20:]))


def write_view(path: Path, view: View) -> None:
    """Write what `read_view` reads, with ten digits.

    Args:
        path: the file.
        view: camera and pose.
    """
    pose = view.cam_from_world
    rows = [tuple(view.camera.size), *view.camera.matrix, *pose.rotation, pose.translation]
    lines = [" ".join(f"{float(value):.10g}" for value in row) for row in rows]
    with atomic_path(path) as temporary:
        temporary.write_text("\n".join([_HEADER, *lines, ""]), encoding="utf-8")
