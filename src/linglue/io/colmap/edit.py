"""Changing the matches in a user's COLMAP database: all or nothing, and resumed after a crash at any moment."""

from __future__ import annotations

import hashlib
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self

import numpy as np
from numpy.typing import NDArray

from linglue.core.atomic import atomic_path
from linglue.core.fingerprint import settings_hash
from linglue.errors import LinGlueError
from linglue.geometry.colmap import quiet_pycolmap
from linglue.io.colmap.database import JOURNALS, read_only
from linglue.types import IndexArray

if TYPE_CHECKING:
    import pycolmap

IdPair = tuple[int, int]  # COLMAP's image ids, the smaller first


@dataclass
class Edit:
    """A copy of a database that is being changed."""

    path: Path
    keep: bool = False  # after an error too, as it holds work that the next run can use


@contextmanager
def edit_database(path: str | Path) -> Iterator[Edit]:
    """A copy of a database to change; it takes the database's place when the block ends without an error.

    COLMAP's own transactions are committed even after an error, so the database itself is not touched before all is
    done. The copy lies beside it. That of a process that was killed is used again while the database is as it was.
    """
    path = Path(path).resolve()  # a link stays a link
    state = _state(path)
    edit = Edit(path.with_name(f"{_prefix(path)}{state}.db"))
    for file in path.parent.iterdir():  # copies of what the database was before
        if file.name.startswith(_prefix(path)) and not file.name.startswith(edit.path.name):
            file.unlink(missing_ok=True)
    if not edit.path.exists():
        _copy(path, edit.path)
    try:
        yield edit
        with closing(sqlite3.connect(edit.path)) as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        if _state(path) != state:
            edit.keep = False
            raise LinGlueError(f"{path}: another program changed it meanwhile, expected nobody else; left as it is now")
        _remove(path, JOURNALS)  # SQLite would apply them to the new file
        edit.path.replace(path)
    except Exception as error:
        if not edit.keep:
            _remove(edit.path, ("", *JOURNALS))
        if isinstance(error, OSError):
            raise LinGlueError(f"{path}: cannot be replaced ({error.strerror}), expected a writable folder") from error
        raise


class MatchReplacer:
    """Replaces matches pair by pair; a table of our own, which COLMAP ignores, holds what they were made from."""

    def __init__(self, path: Path, database: pycolmap.Database) -> None:
        """`database`: the open one at `path`."""
        self.path, self._database = path, database
        self._pycolmap = quiet_pycolmap("a COLMAP database")
        self._connection = sqlite3.connect(path, timeout=60.0, isolation_level=None)
        self._execute(
            "CREATE TABLE IF NOT EXISTS linglue_matches "
            "(pair_id INTEGER PRIMARY KEY NOT NULL, made_from TEXT NOT NULL, data_sha256 TEXT NOT NULL)"
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def pairs(self) -> list[IdPair]:
        """All pairs that were matched, also those without a match, which pycolmap does not list."""
        rows = self._execute("SELECT pair_id FROM matches")
        return [self._pycolmap.pair_id_to_image_pair(pair_id) for (pair_id,) in rows]

    def made_from(self) -> dict[IdPair, str]:
        """What the matches of our pairs were made from; not of those that another program has changed since."""
        known = {}
        for pair_id, made_from, sha256 in self._execute("SELECT * FROM linglue_matches"):
            pair = self._pycolmap.pair_id_to_image_pair(pair_id)
            if self._database.exists_matches(*pair) and _sha256(self._database.read_matches(*pair)) == sha256:
                known[pair] = made_from
        return known

    def put(self, pair: IdPair, made_from: str, indices: IndexArray) -> None:
        """Replace the matches of a pair; its two-view geometry is removed, as it came from the old.

        Args:
            pair: ids of the images.
            made_from: fingerprint of features and matcher.
            indices: (K, 2) into the keypoints of the two images.
        """
        pair_id = self._pycolmap.image_pair_to_pair_id(*pair)
        matches = indices.astype("<u4")
        self._execute("DELETE FROM linglue_matches WHERE pair_id = ?", (pair_id,))  # nothing is believed until the end
        with self._pycolmap.DatabaseTransaction(self._database):
            self._database.delete_matches(*pair)
            self._database.delete_two_view_geometry(*pair)
            self._database.write_matches(*pair, matches)
        self._execute("INSERT INTO linglue_matches VALUES (?, ?, ?)", (pair_id, made_from, _sha256(matches)))

    def _execute(self, query: str, values: tuple[object, ...] = ()) -> list[tuple]:
        try:
            return self._connection.execute(query, values).fetchall()
        except sqlite3.Error as error:
            raise LinGlueError(f"{self.path}: {error}, expected a COLMAP database that can be written") from error


def _prefix(path: Path) -> str:
    return f".linglue-{path.name}-"


def _state(path: Path) -> str:
    """Changes with every write to the database."""
    files = [path, *(path.with_name(path.name + suffix) for suffix in JOURNALS[:1])]
    stats = [file.stat() for file in files if file.exists() and file.stat().st_size]
    return settings_hash({"files": [[stat.st_size, stat.st_mtime_ns] for stat in stats]})


def _copy(path: Path, target: Path) -> None:
    """A whole copy, with what is still in the journal."""
    with atomic_path(target) as temporary:
        try:
            with closing(read_only(path)) as source, closing(sqlite3.connect(temporary)) as copy:
                source.backup(copy)
        except sqlite3.Error as error:
            raise LinGlueError(f"{path}: cannot be copied ({error}), expected room for a copy beside it") from error
        shutil.copymode(path, temporary)


def _remove(path: Path, suffixes: tuple[str, ...]) -> None:
    for suffix in suffixes:
        path.with_name(path.name + suffix).unlink(missing_ok=True)


def _sha256(matches: NDArray[np.integer]) -> str:
    return hashlib.sha256(matches.astype("<u4").tobytes()).hexdigest()
