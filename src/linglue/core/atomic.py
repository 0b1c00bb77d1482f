"""Files and folders appear whole or not at all.

What is being written has a temporary name beside its target, `.linglue-<32 hexadecimal digits>.part…`, and nothing
without that mark is ever taken for a leftover of ours.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

from linglue.errors import LinGlueError

_PART, _OLD = "part", "old"
_OURS = re.compile(rf"\.linglue-[0-9a-f]{{32}}\.(?:{_PART}.*|{_OLD}\.(?P<target>.+))", re.DOTALL)


@contextlib.contextmanager
def atomic_path(path: str | Path) -> Iterator[Path]:
    """A temporary path beside `path` to write to; it takes the name of `path` when the block ends without an error.

    The suffix is kept, as many writers choose their format by it. The folder must exist.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with atomic_path(Path(folder) / "a.txt") as temporary:
        ...         _ = temporary.write_text("whole")
        ...     (Path(folder) / "a.txt").read_text()
        'whole'
    """
    path = Path(path)
    temporary = path.with_name(f"{_mark()}.{_PART}{path.suffix}")
    try:
        yield temporary
        _sync(temporary)
        temporary.replace(path)
    except OSError as error:
        raise LinGlueError(
            f"{path}: cannot be written ({error.strerror or error}; expected a file in an existing, writable folder)"
        ) from error
    finally:
        with contextlib.suppress(OSError):  # the folder itself may be missing or not one
            temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def atomic_folder(path: str | Path) -> Iterator[Path]:
    """A new temporary folder beside `path` to fill; it becomes `path`, replacing what was there, when the block ends.

    A process that is killed leaves the old folder or the new one; see `remove_leftovers`. The folder above must exist.
    """
    path = Path(path).absolute()  # "." has no name
    temporary, old = (path.with_name(f"{_mark()}.{state}") for state in (_PART, f"{_OLD}.{path.name}"))
    try:
        temporary.mkdir()
        yield temporary
        for file in temporary.rglob("*"):
            if file.is_file():
                _sync(file)
        if path.exists():  # no system call replaces a folder that is not empty
            path.rename(old)
        temporary.rename(path)
    except OSError as error:
        raise LinGlueError(
            f"{path}: cannot be written ({error.strerror or error}; expected a folder in an existing, writable one)"
        ) from error
    finally:
        _restore(old, path)
        for leftover in (temporary, old):
            shutil.rmtree(leftover, ignore_errors=True)


@contextlib.contextmanager
def temporary_folder(path: str | Path) -> Iterator[Path]:
    """A new folder beside `path`, which must be in an existing one, to work in; it is gone when the block ends."""
    temporary = Path(path).with_name(f"{_mark()}.{_PART}")
    temporary.mkdir()
    try:
        yield temporary
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def remove_leftovers(folder: str | Path, older_than: float = 0.0) -> None:
    """Remove what killed processes left of temporary files and folders in a folder, and nothing else.

    Args:
        folder: Looked into, but not below.
        older_than: Seconds since the last change; more than any write takes where others may be writing now.
    """
    for leftover in Path(folder).iterdir():
        ours = _OURS.fullmatch(leftover.name)
        with contextlib.suppress(FileNotFoundError):  # another process was faster
            if ours is None or time.time() - leftover.lstat().st_mtime < older_than:
                continue
            if ours["target"] is not None:  # killed between two renames
                _restore(leftover, leftover.with_name(ours["target"]))
            if leftover.is_dir() and not leftover.is_symlink():
                shutil.rmtree(leftover)
            else:
                leftover.unlink(missing_ok=True)


def _mark() -> str:
    return f".linglue-{uuid.uuid4().hex}"


def _restore(old: Path, path: Path) -> None:
    """Give a folder its name back where nothing has taken its place."""
    with contextlib.suppress(OSError):
        if old.exists() and not path.exists():
            old.rename(path)


def _sync(file: Path) -> None:
    """Else a power cut may leave the new name on an empty file."""
    with file.open("rb") as stream:
        os.fsync(stream.fileno())
