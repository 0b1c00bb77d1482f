"""Features and matches of many images in two SQLite files, each row with a fingerprint of what it was made from.

Readers see current rows only: features that the last extraction (or import) stands for, matches of such features. Rows
of deleted images or other settings stay as a cache until `linglue clean`, but nobody reads them.
"""

from __future__ import annotations

import json
import logging
import os
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from linglue.core.sqlite import SqliteConnection
from linglue.errors import LinGlueError
from linglue.io.pair_list import Pair

if TYPE_CHECKING:
    from linglue.types import Features, FloatArray, ImageSize, IndexArray

LAYOUT = 2  # of the tables; kept in the file as its user_version
MARK = 0x4C47_4C55  # "LGLU", kept in the file as its application_id: this file is ours

_log = logging.getLogger(__name__)


class Store(SqliteConnection):
    """One SQLite file that survives: kill −9 and full disks leave it as it was after the last finished entry.

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


class FeatureStore(Store):
    """Coordinates, scales and angles in float32; descriptors in float16, which halves the file and loses nothing."""

    SCHEMA = """
        CREATE TABLE IF NOT EXISTS features (
            name TEXT PRIMARY KEY,
            current INTEGER NOT NULL,
            imported INTEGER NOT NULL,
            made_from TEXT NOT NULL,
            path TEXT,
            kind TEXT NOT NULL,
            width INTEGER NOT NULL,
            height INTEGER NOT NULL,
            count INTEGER NOT NULL,
            dim INTEGER NOT NULL,
            keypoints BLOB NOT NULL,
            scores BLOB NOT NULL,
            scales BLOB,
            oris BLOB,
            descriptors BLOB NOT NULL
        );
        CREATE TABLE IF NOT EXISTS files (
            path TEXT PRIMARY KEY,
            bytes INTEGER NOT NULL,
            modified_ns INTEGER NOT NULL,
            sha256 TEXT NOT NULL
        );
        CREATE TABLE IF NOT EXISTS headers (sha256 TEXT PRIMARY KEY, header TEXT NOT NULL);
    """

    def names(self) -> list[str]:
        """All images, sorted."""
        return [name for (name,) in self._read("SELECT name FROM features WHERE current ORDER BY name")]

    def stale(self) -> list[str]:
        """Images whose features nobody reads any more, sorted: deleted, changed, or of other settings."""
        return [name for (name,) in self._read("SELECT name FROM features WHERE NOT current ORDER BY name")]

    def kind(self) -> str:
        """The front-end all features are of."""
        kinds = [kind for (kind,) in self._read("SELECT DISTINCT kind FROM features WHERE current ORDER BY kind")]
        if len(kinds) != 1:
            held = " and ".join(kinds) or "no image"
            raise LinGlueError(f"{self.path}: holds features of {held}, expected one kind")
        return kinds[0]

    def imported(self) -> bool:
        """Whether the features come from another program's file: such are used as they are."""
        return next(self._read("SELECT 1 FROM features WHERE current AND imported"), None) is not None

    def made_from(self) -> dict[str, str]:
        """The fingerprint of every image's features, by name."""
        return dict(self._read("SELECT name, made_from FROM features WHERE current"))

    def counts(self) -> dict[str, int]:
        """The number of keypoints of every image, by name."""
        return dict(self._read("SELECT name, count FROM features WHERE current"))

    def sizes(self) -> dict[str, ImageSize]:
        """(width, height) of every image, by name."""
        from linglue.types import ImageSize

        rows = self._read("SELECT name, width, height FROM features WHERE current")
        return {name: ImageSize(width, height) for name, width, height in rows}

    def paths(self) -> dict[str, Path]:
        """Where every extracted image was found, by name."""
        rows = self._read("SELECT name, path FROM features WHERE current AND path IS NOT NULL")
        return {name: Path(path) for name, path in rows}

    def expect(self, wanted: Mapping[str, str]) -> set[str]:
        """From now on only these images are current, and only with these fingerprints.

        Args:
            wanted: fingerprint by name.

        Returns:
            the names whose features are there already.
        """
        with self._transaction() as connection:
            rows = dict(connection.execute("SELECT name, made_from FROM features").fetchall())
            there = {name for name, made_from in rows.items() if wanted.get(name) == made_from}
            connection.executemany(
                "UPDATE features SET current = ? WHERE name = ? AND current != ?",
                [(name in there, name, name in there) for name in rows],
            )
        return there

    def put(
        self, name: str, made_from: str, features: Features, path: Path | None = None, imported: bool = False
    ) -> None:
        """Add or replace the features of one image, which are current then."""
        self._write(
            "REPLACE INTO features VALUES (?, 1, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                name,
                imported,
                made_from,
                None if path is None else str(path.absolute()),
                features.kind,
                *features.image_size,
                len(features),
                features.dim,
                _blob(features.keypoints),
                _blob(features.scores),
                _blob(features.scales),
                _blob(features.oris),
                _blob(features.descriptors.astype(np.float16)),
            ),
        )

    def get(self, name: str) -> Features:
        """The features of one image."""
        return self._features(name, descriptors=True)

    def keypoints(self, name: str) -> Features:
        """The features of one image without reading their descriptors, which have length 0."""
        return self._features(name, descriptors=False)

    def _features(self, name: str, descriptors: bool) -> Features:
        from linglue.types import Features, ImageSize

        columns = "kind, width, height, count, dim, keypoints, scores, scales, oris"
        query = f"SELECT {columns}{', descriptors' if descriptors else ''} FROM features WHERE current AND name = ?"
        row = next(self._read(query, (name,)), None)
        if row is None:
            raise LinGlueError(f"{self.path}: no features of {name!r}, they must be extracted first")
        kind, width, height, count, dim, keypoints, scores, scales, oris, *rest = row
        return Features(
            keypoints=_array(keypoints).reshape(count, 2),
            descriptors=_array(rest[0], np.float16).reshape(count, dim) if rest else np.zeros((count, 0), np.float32),
            image_size=ImageSize(width, height),
            scores=_array(scores),
            scales=None if scales is None else _array(scales),
            oris=None if oris is None else _array(oris),
            kind=kind,
        )

    def known_sha256(self, path: Path) -> str | None:
        """The file's SHA-256 if it was taken before and neither size nor time of change are different now."""
        state = path.stat()
        query = "SELECT sha256 FROM files WHERE path = ? AND bytes = ? AND modified_ns = ?"
        row = next(self._read(query, (str(path.absolute()), state.st_size, state.st_mtime_ns)), None)
        return None if row is None else row[0]

    def remember_sha256(self, path: Path, sha256: str) -> None:
        """Keep a file's SHA-256, so that unchanged images need not be read again."""
        state = path.stat()
        values = (str(path.absolute()), state.st_size, state.st_mtime_ns, sha256)
        self._write("REPLACE INTO files VALUES (?, ?, ?, ?)", values)

    def header(self, sha256: str) -> dict[str, Any]:
        """What `remember_header` kept about files of this content."""
        row = next(self._read("SELECT header FROM headers WHERE sha256 = ?", (sha256,)), None)
        return {} if row is None else json.loads(row[0])

    def remember_header(self, sha256: str, **values: Any) -> None:
        """Keep what was read from the header of an image file (JSON values), so that it is not opened again."""
        text = json.dumps({**self.header(sha256), **values})
        self._write("REPLACE INTO headers VALUES (?, ?)", (sha256, text))

    def prune(self) -> int:
        """Remove the rows nobody reads and give their space back; returns their number."""
        removed = len(self.stale())
        self._write("DELETE FROM features WHERE NOT current")
        self._write("VACUUM")
        return removed


@dataclass(frozen=True)
class MatchRow:
    """What is known about the matches of a pair without reading them."""

    features0: str  # fingerprints of the two feature sets
    features1: str
    matcher: str  # and of the matcher
    count: int
    seconds: float  # it took to match them


class MatchStore(Store):
    """Indices in uint32, scores in float32. The names of a pair are two columns, never joined; the smaller is first."""

    SCHEMA = """
        CREATE TABLE IF NOT EXISTS matches (
            name0 TEXT NOT NULL,
            name1 TEXT NOT NULL,
            features0 TEXT NOT NULL,
            features1 TEXT NOT NULL,
            matcher TEXT NOT NULL,
            count INTEGER NOT NULL,
            seconds REAL NOT NULL,
            indices BLOB NOT NULL,
            scores BLOB NOT NULL,
            PRIMARY KEY (name0, name1)
        );
        CREATE TABLE IF NOT EXISTS matcher (one INTEGER PRIMARY KEY CHECK (one = 1), fingerprint TEXT NOT NULL);
    """

    def expect(self, matcher: str) -> None:
        """From now on only matches of the matcher with this fingerprint are current."""
        self._write("REPLACE INTO matcher VALUES (1, ?)", (matcher,))

    def current(self, features: Mapping[str, str], pairs: Iterable[Pair] | None = None) -> dict[Pair, MatchRow]:
        """The pairs whose matches are of the last matcher and of the features as they are.

        Args:
            features: `FeatureStore.made_from()`.
            pairs: only these; None: all.
        """
        matcher = next(self._read("SELECT fingerprint FROM matcher"), (None,))[0]
        wanted = None if pairs is None else set(pairs)
        return {
            pair: row
            for pair, row in self.rows().items()
            if (wanted is None or pair in wanted)
            and row.matcher == matcher
            and (row.features0, row.features1) == (features.get(pair[0]), features.get(pair[1]))
        }

    def rows(self) -> dict[Pair, MatchRow]:
        """All pairs, also those that are not current."""
        query = "SELECT name0, name1, features0, features1, matcher, count, seconds FROM matches"
        return {(name0, name1): MatchRow(*rest) for name0, name1, *rest in self._read(query)}

    def counts(self) -> dict[Pair, int]:
        """The number of matches of every pair."""
        return {pair: row.count for pair, row in self.rows().items()}

    def seconds(self) -> dict[Pair, float]:
        """How long each pair took to match."""
        return {pair: row.seconds for pair, row in self.rows().items()}

    def put(
        self,
        pair: Pair,
        features: tuple[str, str],
        matcher: str,
        indices: IndexArray,
        scores: FloatArray,
        seconds: float,
    ) -> None:
        """Add or replace the matches of one pair: indices (K, 2), scores (K,), and fingerprints of what made them."""
        blobs = (indices.astype(np.uint32).tobytes(), scores.astype(np.float32).tobytes())
        self._write(
            "REPLACE INTO matches VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (*pair, *features, matcher, len(indices), seconds, *blobs),
        )

    def get(self, name0: str, name1: str) -> tuple[IndexArray, FloatArray]:
        """Indices (K, 2) into the features of name0 and name1, in this order, and scores (K,)."""
        pair = (name0, name1) if name0 < name1 else (name1, name0)
        row = next(self._read("SELECT indices, scores FROM matches WHERE name0 = ? AND name1 = ?", pair), None)
        if row is None:
            raise LinGlueError(f"{self.path}: no matches of {name0!r} and {name1!r}, they must be matched first")
        indices = np.frombuffer(row[0], np.uint32).reshape(-1, 2).astype(np.int64)
        return indices if name0 < name1 else indices[:, ::-1], np.frombuffer(row[1], np.float32)

    def prune(self, keep: Iterable[Pair]) -> int:
        """Remove all pairs but these and give their space back; returns the number of removed ones."""
        removed = self.rows().keys() - set(keep)
        with self._transaction() as connection:
            connection.executemany("DELETE FROM matches WHERE name0 = ? AND name1 = ?", sorted(removed))
        self._write("VACUUM")
        return len(removed)


def _blob(array: NDArray[Any] | None) -> bytes | None:
    return None if array is None else array.tobytes()


def _array(blob: bytes, dtype: type = np.float32) -> NDArray[Any]:
    """A copy, as torch wants arrays that may be written to."""
    return np.frombuffer(blob, dtype).astype(np.float32)


def _free_name(path: Path) -> Path:
    number = 1
    while (aside := path.with_name(f"{path.name}.damaged-{number}")).exists():
        number += 1
    return aside
