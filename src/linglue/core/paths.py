"""Which paths may be written: names of images stay below their folder, and outputs are no inputs."""

from __future__ import annotations

import os
from collections.abc import Iterable
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


def check_outputs(inputs: Iterable[str | Path | None], outputs: Iterable[str | Path | None]) -> None:
    """Refuse any output that is an input or another output: the same file by any path, symbolic or hard link.

    Args:
        inputs: Files and folders that are read; None is skipped.
        outputs: Files and folders that are to be written; None is skipped.
    """
    read = {_identity(Path(path)): path for path in inputs if path is not None}
    written: dict[object, str | Path] = {}
    for path in outputs:
        if path is None:
            continue
        identity = _identity(Path(path))
        if identity in read:
            raise LinGlueError(f"{path}: output is the same file as the input {read[identity]}, expected another")
        if identity in written:
            raise LinGlueError(f"{path}: output is the same file as the output {written[identity]}, expected another")
        written[identity] = path


def _identity(path: Path) -> object:
    """Equal for all paths of one file or folder; one that does not exist yet is where its folder is."""
    resolved = Path(os.path.realpath(path))
    for existing, name in ((resolved, ""), (resolved.parent, resolved.name)):
        try:
            state = existing.stat()
        except OSError:
            continue
        return state.st_dev, state.st_ino, name
    return str(resolved)
