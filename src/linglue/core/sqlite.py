"""One SQLite file that survives: kill −9 and full disks leave it as it was after the last finished entry."""

from __future__ import annotations

import logging
import re
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

from linglue.errors import LinGlueError

LAYOUT = 1  # of the tables; kept in the file as its user_version
PATIENCE = 60.0  # seconds to wait for another process that is writing

_log = logging.getLogger(__name__)


class SqliteFile:
    """An open file with the tables of `SCHEMA`; every `_write` is a transaction of its own. Closes with its block.

    A file that is no database is put aside, never overwritten; one with other tables than ours is refused.
    """

    SCHEMA: str  # CREATE TABLE IF NOT EXISTS name …

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
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

    def _prepare(self) -> None:
        (layout,) = self._connection.execute("PRAGMA user_version").fetchone()
        tables = {name for (name,) in self._connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        expected = set(re.findall(r"CREATE TABLE IF NOT EXISTS (\w+)", self.SCHEMA))
        if layout not in (0, LAYOUT):
            raise LinGlueError(f"{self.path}: has layout {layout}, expected {LAYOUT}: made by another LinGlue")
        if tables and not expected <= tables:
            raise LinGlueError(
                f"{self.path}: is a database of another program with tables {', '.join(sorted(tables))}, "
                f"expected LinGlue's {', '.join(sorted(expected))}"
            )
        # Readers and a writer do not wait for each other; what a killed writer leaves is cleared by the next.
        self._connection.execute("PRAGMA journal_mode = WAL")
        self._connection.execute("PRAGMA synchronous = NORMAL")
        if layout == 0:
            self._connection.executescript(f"BEGIN IMMEDIATE; {self.SCHEMA} PRAGMA user_version = {LAYOUT}; COMMIT;")

    def _read(self, query: str, values: tuple[Any, ...] = ()) -> Iterator[Any]:
        """Rows of a query, one at a time."""
        with self._translated():
            yield from self._connection.execute(query, values)

    def _write(self, statement: str, values: tuple[Any, ...]) -> None:
        """Change the file; when this returns, the change outlives the process."""
        with self._translated():
            self._connection.execute(statement, values)

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
