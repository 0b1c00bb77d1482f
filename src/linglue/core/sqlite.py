"""An open SQLite file whose errors are one line."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

from linglue.errors import LinGlueError

PATIENCE = 60.0  # seconds to wait for another process that is writing


class SqliteConnection:
    """A connection that commits every statement by itself, unless a transaction is begun; closes with its block."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._connection = sqlite3.connect(path, timeout=PATIENCE, isolation_level=None)

    def close(self) -> None:
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise self._complaint(error) from error

    def _complaint(self, error: sqlite3.Error) -> LinGlueError:
        return LinGlueError(f"{self.path}: {error}; what was finished is kept, the same command goes on from there")
