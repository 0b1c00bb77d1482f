"""One SQLite file that survives: kill −9 and full disks leave it as it was after the last finished entry."""

from __future__ import annotations

import logging
import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

from linglue.errors import LinGlueError

LAYOUT = 2  # of the tables; kept in the file as its user_version
MARK = 0x4C47_4C55  # "LGLU", kept in the file as its application_id: this file is ours
HEADER = b"SQLite format 3\0"  # every database begins with it
PATIENCE = 60.0  # seconds to wait for another process that is writing

_log = logging.getLogger(__name__)


class SqliteFile:
    """An open file with the tables of `SCHEMA`; every `_write` is a transaction of its own. Closes with its block.

    A file that is not ours is refused and never changed. One in a folder that cannot be written is only read.

    Args:
        path: The file, made if it is not there.
        repair: A damaged database is put aside, and work begins again; else it is refused.
    """

    SCHEMA: str  # CREATE TABLE IF NOT EXISTS name …

    def __init__(self, path: Path, repair: bool = False) -> None:
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
            if not repair or not _has_header(path):
                raise LinGlueError(
                    f"{path}: damaged or another program's, expected a file that LinGlue made; what it held is made "
                    "again if you move it away"
                ) from error
            # Nobody should have to find and delete a file by hand: keep the damaged one aside and begin again.
            aside = _free_name(path)
            path.replace(aside)
            for side_file in ("-wal", "-shm"):  # SQLite's own, of the damaged file
                path.with_name(path.name + side_file).unlink(missing_ok=True)
            _log.warning("%s: damaged (%s), kept as %s; its work is done again", path, error, aside.name)
            self._open()

    @classmethod
    def check(cls, path: Path) -> None:
        """Refuse a database that is not ours; reads only."""
        if not _has_header(path):
            return  # what opens it says what is wrong
        connection = _read_only(path)
        try:
            _is_ours(path, connection)
        except sqlite3.Error:
            return
        finally:
            connection.close()

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
        self._connection = _read_only(self.path)
        try:
            with self._translated():
                _is_ours(self.path, self._connection)
        except BaseException:
            self.close()
            raise

    def _prepare(self) -> None:
        ours = _is_ours(self.path, self._connection)
        # Readers and a writer do not wait for each other; what a killed writer leaves is cleared by the next.
        self._set_wal()
        self._connection.execute("PRAGMA synchronous = NORMAL")
        if not ours:
            self._connection.executescript(
                f"BEGIN IMMEDIATE; {self.SCHEMA}PRAGMA application_id = {MARK}; PRAGMA user_version = {LAYOUT}; COMMIT;"
            )

    def _set_wal(self) -> None:
        """SQLite does not wait by itself when two processes open a new file at once."""
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                self._connection.execute("PRAGMA journal_mode = WAL")
                return
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                    raise
                time.sleep(0.02)

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
        return LinGlueError(f"{self.path}: {error}; what was finished is kept, the same command resumes from there")


def _read_only(path: Path) -> sqlite3.Connection:
    # Without write permission SQLite reads a file in WAL mode only if it is told that nobody can change it.
    mode = "mode=ro" if path.with_name(f"{path.name}-wal").exists() else "immutable=1"
    return sqlite3.connect(f"{path.absolute().as_uri()}?{mode}", uri=True, isolation_level=None)


def _is_ours(path: Path, connection: sqlite3.Connection) -> bool:
    """Whether a file has our tables; False for an empty one, an error for another's."""
    connection.execute("BEGIN")  # all three as of one moment: another process may be making the file just now
    try:
        (tables,) = connection.execute("SELECT COUNT(*) FROM sqlite_master").fetchone()
        (mark,) = connection.execute("PRAGMA application_id").fetchone()
        (layout,) = connection.execute("PRAGMA user_version").fetchone()
    finally:
        connection.rollback()
    if (mark, layout) == (MARK, LAYOUT):
        return True
    if (mark, layout, tables) == (0, 0, 0):
        return False
    if mark == MARK:
        raise LinGlueError(f"{path}: has layout {layout}, expected {LAYOUT}: made by another LinGlue")
    raise LinGlueError(f"{path}: is another program's SQLite file, expected one that LinGlue made")


def _has_header(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(len(HEADER)) == HEADER


def _free_name(path: Path) -> Path:
    number = 1
    while (aside := path.with_name(f"{path.name}.damaged-{number}")).exists():
        number += 1
    return aside
