"""Files appear whole or not at all."""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Iterator
from pathlib import Path

from linglue.errors import LinGlueError


@contextlib.contextmanager
def atomic_path(path: str | Path) -> Iterator[Path]:
    """A temporary path beside `path` to write to; it takes the name of `path` when the block ends without an error.

    The suffix is kept, as many writers choose their format by it. The folder must exist.
    """
    path = Path(path)
    temporary = path.with_name(f".{path.stem}.{uuid.uuid4().hex[:8]}.part{path.suffix}")
    try:
        yield temporary
        with temporary.open("rb") as file:
            os.fsync(file.fileno())  # else a power cut may leave the new name on an empty file
        temporary.replace(path)
    except OSError as error:
        raise LinGlueError(
            f"{path}: cannot be written ({error.strerror or error}; expected a file in an existing, writable folder)"
        ) from error
    finally:
        with contextlib.suppress(OSError):  # the folder itself may be missing or not one
            temporary.unlink(missing_ok=True)
