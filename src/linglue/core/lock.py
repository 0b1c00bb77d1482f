"""One process at a time: a lock around a folder or a file, which a killed process does not hold."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from linglue.errors import LinGlueError

LOCK = ".linglue.lock"  # in a folder

_log = logging.getLogger(__name__)


@contextmanager
def locked(path: str | Path, wait: bool = True) -> Iterator[None]:
    """Hold a folder, or a file that need not exist, alone while the block runs.

    Args:
        path: The lock file, named so that it is nobody else's, lies in the folder or beside the file while the block
            runs, and after that only if the process was killed.
        wait: For another process to finish, with a line that says so, instead of a LinGlueError.
    """
    path = Path(path)
    file = path / LOCK if path.is_dir() else path.with_name(f".linglue-{path.name}.lock")
    if not file.parent.is_dir():  # which would be made
        raise LinGlueError(f"{path}: cannot be locked, {file.parent} is no folder")
    lock = FileLock(file)
    try:
        _acquire(lock, path, wait)
    except OSError as error:
        raise LinGlueError(f"{path}: cannot be locked ({error.strerror}), expected a writable folder") from error
    try:
        yield
    finally:
        with suppress(OSError):  # Windows removes no open file
            file.unlink()  # who waits for it sees that and begins again
        lock.release()


def _acquire(lock: FileLock, path: Path, wait: bool) -> None:
    try:
        lock.acquire(timeout=0)
    except Timeout as error:
        if not wait:
            raise LinGlueError(f"{path}: another process works on it, expected one at a time") from error
        _log.warning("%s: another process works here, waiting until it has finished", path)
        lock.acquire()
