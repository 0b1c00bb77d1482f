"""A SQLite file of our own that survives: kill −9 and full disks leave it as it was after the last finished entry."""

from __future__ import annotations

import logging
import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from linglue.core.sqlite import SqliteConnection
from linglue.errors import LinGlueError

LAYOUT = 2  # of the tables; kept in the file as its user_version
MARK = 0x4C47_4C55  # "LGLU", kept in the file as its application_id: this file is ours

_log = logging.getLogger(__name__)


class SqliteFile(SqliteConnection):
    """An open file with the tables of `SCHEMA`; every `_write` is a transaction of its own.

    A file that is not ours is refused and never changed. One in a folder that cannot be written is only read.
    """

    SCHEMA: str

    def __init__(self, path: Path) -> None:
        if path.is_file() and not (os.access(path.parent, os.W_OK) and os.access(path, os.W_OK)):
            self._open_read_only(path)
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        super().__init__(path)
        try:
            self._prepare()
        except sqlite3.OperationalError as error:  # locked, no permission, full: the file itself is fine
            self.close()
            raise self._complaint(error) from error
        except sqlite3.DatabaseError as error:
            # Nobody should have to find and delete a file by hand: keep the damaged one aside and begin again.
            self.close()
            aside = _free_name(path)
            path.replace(aside)
            for side_file in ("-wal", "-shm"):  # SQLite's own, of the damaged file
                path.with_name(path.name + side_file).unlink(missing_ok=True)
            _log.warning("%s: damaged (%s), kept as %s; its work is done again", path, error, aside.name)
            super().__init__(path)
            self._prepare()

    def _open_read_only(self, path: Path) -> None:
        # Without write permission SQLite can read a file in WAL mode only if nobody can change it.
        unfinished = path.with_name(path.name + "-wal").exists()
        mode = "mode=ro" if unfinished else "immutable=1"
        self.path = path
        self._connection = sqlite3.connect(f"{path.absolute().as_uri()}?{mode}", uri=True, isolation_level=None)
        with self._translated():
            self._check_ours()

    def _prepare(self) -> None:
        ours = self._check_ours()
        # Readers and a writer do not wait for each other; what a killed writer leaves is cleared by the next.
        self._connection.execute("PRAGMA journal_mode = WAL")
        if not ours:
            self._connection.executescript(
                f"BEGIN IMMEDIATE; {self.SCHEMA}PRAGMA application_id = {MARK}; PRAGMA user_version = {LAYOUT}; COMMIT;"
            )
        self._connection.execute("PRAGMA synchronous = NORMAL")

    def _check_ours(self) -> bool:
        """Whether the file has our tables; False for an empty one, an error for another's."""
        (mark,) = self._connection.execute("PRAGMA application_id").fetchone()
        (layout,) = self._connection.execute("PRAGMA user_version").fetchone()
        (tables,) = self._connection.execute("SELECT COUNT(*) FROM sqlite_master").fetchone()
        if mark == MARK and layout == LAYOUT:
            return True
        if (mark, layout, tables) == (0, 0, 0):
            return False
        self.close()
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


def _free_name(path: Path) -> Path:
    number = 1
    while (aside := path.with_name(f"{path.name}.damaged-{number}")).exists():
        number += 1
    return aside
