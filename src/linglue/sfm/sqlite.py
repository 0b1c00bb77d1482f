"""One SQLite file that survives: kill −9 and full disks leave it as it was after the last finished entry."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from linglue.core.sqlite import SqliteConnection
from linglue.errors import LinGlueError

LAYOUT = 1  # of the tables; kept in the file as its user_version

_log = logging.getLogger(__name__)


class SqliteFile(SqliteConnection):
    """An open file with the tables of `SCHEMA`; every `_write` is a transaction of its own."""

    SCHEMA: str

    def __init__(self, path: Path) -> None:
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

    def _prepare(self) -> None:
        # Readers and a writer do not wait for each other; what a killed writer leaves is cleared by the next.
        self._connection.execute("PRAGMA journal_mode = WAL")
        self._connection.execute("PRAGMA synchronous = NORMAL")
        (layout,) = self._connection.execute("PRAGMA user_version").fetchone()
        if layout == 0:
            self._connection.executescript(f"BEGIN IMMEDIATE; {self.SCHEMA} PRAGMA user_version = {LAYOUT}; COMMIT;")
        elif layout != LAYOUT:
            self.close()
            raise LinGlueError(f"{self.path}: has layout {layout}, expected {LAYOUT}: made by another LinGlue")

    def _read(self, query: str, values: tuple[Any, ...] = ()) -> Iterator[Any]:
        """Rows of a query, one at a time."""
        with self._translated():
            yield from self._connection.execute(query, values)

    def _write(self, statement: str, values: tuple[Any, ...]) -> None:
        """Change the file; when this returns, the change outlives the process."""
        with self._translated():
            self._connection.execute(statement, values)


def _free_name(path: Path) -> Path:
    number = 1
    while (aside := path.with_name(f"{path.name}.damaged-{number}")).exists():
        number += 1
    return aside
