"""Where something about an image may be written: its name stays below its folder."""

from __future__ import annotations

import os
from pathlib import Path, PureWindowsPath

from linglue.errors import LinGlueError


def check_name(name: str, where: str | Path) -> str:
    """The name of an image, refused where it could leave the folder it is meant to be below.

    Args:
        name: Parts with / between them, as in `room/a.jpg`.
        where: What holds the name, for the complaint.

    Example:
        >>> check_name("room/a b.jpg", "features.h5")
        'room/a b.jpg'
        >>> check_name("../a.jpg", "features.h5")
        Traceback (most recent call last):
        linglue.errors.LinGlueError: features.h5: image name is '../a.jpg', expected a plain path below a folder
    """
    parts = name.replace("\\", "/").split("/")  # a path of Windows, too: the folder may be opened there
    odd = any(c in "\t\n\r\0" for c in name) or (os.name == "nt" and bool(PureWindowsPath(name).drive))
    if odd or name.startswith("/") or ".." in parts or set(parts) <= {"", "."}:
        raise LinGlueError(f"{where}: image name is {name!r}, expected a plain path below a folder")
    return name


def path_below(folder: Path, name: str, suffix: str = "") -> Path:
    """Where something about an image is written: `folder/name` and a suffix, checked.

    Args:
        folder: that it stays below.
        name: of the image.
        suffix: appended, as ".npz".
    """
    return folder / f"{check_name(name, folder)}{suffix}"
