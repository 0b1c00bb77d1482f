"""One SQLite file that survives: kill −9 and full disks leave it as it was after the last finished entry."""

from __future__ import annotations

import logging
import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

from linglue.errors import LinGlueError

LAYOUT = 2  # of the tables; kept in the file as its user_version
MARK = 0x4C47_4C55  # "LGLU", kept in the file as its application_id: this file is ours
PATIENCE = 60.0  # seconds to wait for another process that is writing

_log = logging.getLogger(__name__)


class SqliteFile:
    """An open file with the tables of `SCHEMA`; every `_write` is a transaction of its own. Closes with its block.

    A file that is no database is put aside, never overwritten; one that is not ours is refused and never changed. A
    file in a folder that cannot be written is only read.
    """

    SCHEMA: str  # CREATE TABLE IF NOT EXISTS name …

    def __init__(self, path: Path) -> None:
        self.path = path
        if path.is_file() and not (os.access(path.parent, os.W_OK) and os.access(path, os.W_OK)):
            self._open_read_only()
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            self._open()
        except sqlite3.OperationalError as error:  # locked, no permission, full: the file itself is fine
            raise self._complaint(error) from error
        except sqlite3.DatabaseError as error:
            # Nobody should have to find and delete a file by hand: keep the damaged one aside and begin again.
            aside = _free_name(path)
            path.replace(aside)
            for side_file in ("-wal", "-shm"):  # SQLite's own, of the damaged file
                path.with_name(path.name + side_file).unlink(missing_ok=True)
            _log.warning("%s: damaged (%s), kept as %s; its work is done again", path, error, aside.name)
            self._open()

    def close(self) -> None:
        """Nothing can be read or written afterwards; leaving the block does the same."""
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _open(self) -> None:
        # Every statement commits by itself.
        self._connection = sqlite3.connect(self.path, timeout=PATIENCE, isolation_level=None)
        try:
            self._prepare()
        except BaseException:
            self.close()
            raise

    def _open_read_only(self) -> None:
        # Without write permission SQLite reads a file in WAL mode only if it is told that nobody can change it.
        mode = "mode=ro" if self.path.with_name(f"{self.path.name}-wal").exists() else "immutable=1"
        self._connection = sqlite3.connect(f"{self.path.absolute().as_uri()}?{mode}", uri=True, isolation_level=None)
        try:
            with self._translated():
                self._is_ours()
        except BaseException:
            self.close()
            raise

    def _prepare(self) -> None:
        ours = self._is_ours()
        # Readers and a writer do not wait for each other; what a killed writer leaves is cleared by the next.
        self._connection.execute("PRAGMA journal_mode = WAL")
        self._connection.execute("PRAGMA synchronous = NORMAL")
        if not ours:
            self._connection.executescript(
                f"BEGIN IMMEDIATE; {self.SCHEMA}PRAGMA application_id = {MARK}; PRAGMA user_version = {LAYOUT}; COMMIT;"
            )

    def _is_ours(self) -> bool:
        """Whether the file has our tables; False for an empty one, an error for another's."""
        (mark,) = self._connection.execute("PRAGMA application_id").fetchone()
        (layout,) = self._connection.execute("PRAGMA user_version").fetchone()
        (tables,) = self._connection.execute("SELECT COUNT(*) FROM sqlite_master").fetchone()
        if (mark, layout) == (MARK, LAYOUT):
            return True
        if (mark, layout, tables) == (0, 0, 0):
            return False
        if mark == MARK:
            raise LinGlueError(f"{self.path}: has layout {layout}, expected {LAYOUT}: made by another LinGlue")
        raise LinGlueError(f"{self.path}: is another program's SQLite file, expected one that LinGlue made")

    def _read(self, query: str, values: tuple[Any, ...] = ()) -> Iterator[Any]:
        """Rows of a query, one at a time."""
        with self._translated():
            yield from self._connection.execute(query, values)

    def _write(self, statement: str, values: tuple[Any, ...] = ()) -> None:
        """Change the file; when this returns, the change outlives the process."""
        with self._translated():
            self._connection.execute(statement, values)

    @contextmanager
    def all_or_nothing(self) -> Iterator[None]:
        """What is put in the block is there after it, all of it, or nothing if it fails."""
        with self._transaction():
            yield

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """All of the block or nothing."""
        if self._connection.in_transaction:  # of a block around this one
            yield self._connection
            return
        with self._translated(), self._connection:
            self._connection.execute("BEGIN IMMEDIATE")
            yield self._connection

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise self._complaint(error) from error

    def _complaint(self, error: sqlite3.Error) -> LinGlueError:
        return LinGlueError(f"{self.path}: {error}; what was finished is kept, the same command goes on from there")


def _free_name(path: Path) -> Path:
    number = 1
    while (aside := path.with_name(f"{path.name}.damaged-{number}")).exists():
        number += 1
    return aside
