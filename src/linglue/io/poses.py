"""Camera poses as text, as visuallocalization.net wants them: `name qw qx qy qz tx ty tz`, one image per line."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from linglue.core.atomic import atomic_path
from linglue.errors import LinGlueError
from linglue.geometry.pose import Pose

_LAYOUT = "name qw qx qy qz tx ty tz"
_NUMBERS = 7
_UNIT_TOLERANCE = 1e-2  # of a quaternion's length; files with few digits are normalised


def write_poses(path: str | Path, poses: Mapping[str, Pose]) -> None:
    """Write the poses in the order given, with all digits.

    Args:
        path: the file; it appears whole.
        poses: camera from world by image name, which may contain spaces.

    Example:
        >>> write_poses("p.txt", {"a.jpg": Pose.from_numbers(np.array([1, 0, 0, 0, 0, 0, 2]))})
    """
    lines = []
    for name, pose in poses.items():
        if not name.strip() or name != name.strip() or len(name.splitlines()) != 1:
            raise LinGlueError(f"{path}: image name {name!r} cannot be written, expected names on one line")
        lines.append(" ".join([name, *(repr(float(value)) for value in pose.numbers)]) + "\n")
    with atomic_path(path) as temporary:
        temporary.write_bytes("".join(lines).encode("utf-8", errors="surrogateescape"))


def read_poses(path: str | Path) -> dict[str, Pose]:
    """Poses by image name, which may contain spaces. Blank lines and those that begin with # are skipped.

    Args:
        path: the file.

    Returns:
        Camera from world by image name.

    Example:
        >>> write_poses("p.txt", {"a.jpg": Pose.from_numbers(np.array([1, 0, 0, 0, 0, 0, 2]))})
        >>> read_poses("p.txt")["a.jpg"].translation.tolist()
        [0.0, 0.0, 2.0]
    """
    path = Path(path)
    try:
        # Names of files need not be UTF-8; the escape keeps their bytes, as Python does in paths.
        text = path.read_bytes().decode("utf-8", errors="surrogateescape")
    except OSError as error:
        raise LinGlueError(f"{path}: cannot be read ({error.strerror}), expected lines `{_LAYOUT}`") from error
    poses: dict[str, Pose] = {}
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip() or line.startswith("#"):
            continue
        name, *fields = line.strip().rsplit(maxsplit=_NUMBERS)
        try:
            values = np.array(fields, dtype=np.float64)
        except ValueError:
            values = np.zeros(0)
        if len(values) != _NUMBERS or not np.isfinite(values).all():
            raise LinGlueError(f"{path}: line {number} is {line.strip()!r}, expected `{_LAYOUT}`")
        if abs(np.linalg.norm(values[:4]) - 1) > _UNIT_TOLERANCE:
            raise LinGlueError(f"{path}: line {number}: quaternion is {values[:4].tolist()}, expected length 1")
        if name in poses:
            raise LinGlueError(f"{path}: line {number}: {name!r} is given twice, expected one pose per image")
        poses[name] = Pose.from_numbers(values)
    return poses
