"""Features and matches of many images in two SQLite files, each row with a fingerprint of what it was made from.

Readers see current rows only: features that the last extraction (or import) stands for, matches of such features. Rows
of deleted images or other settings stay as a cache until `linglue clean`, but nobody reads them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from linglue.core.fingerprint import arrays_sha256, fingerprint
from linglue.core.sqlite import SqliteFile
from linglue.errors import LinGlueError
from linglue.io.pair_list import Pair

if TYPE_CHECKING:
    from linglue.types import Features, FloatArray, ImageSize, IndexArray


class FeatureStore(SqliteFile):
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

    def changed(self) -> list[str]:
        """Images whose files are gone or, by size and time of change, not as they were when they were extracted."""
        return [name for name, path in self.paths().items() if not path.is_file() or self.known_sha256(path) is None]

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

    def locate(self, paths: Mapping[str, Path]) -> None:
        """Note where images lie now, whose features are there already.

        Args:
            paths: image files by name.
        """
        with self._transaction() as connection:
            connection.executemany(
                "UPDATE features SET path = ? WHERE name = ? AND path IS NOT ?",
                [(str(path.absolute()), name, str(path.absolute())) for name, path in paths.items()],
            )

    def put(
        self, name: str, made_from: str, features: Features, path: Path | None = None, imported: bool = False
    ) -> None:
        """Add or replace the features of one image, which are current then.

        Args:
            name: of the image.
            made_from: fingerprint of all that decides its features.
            features: with descriptors; they are kept in half precision.
            path: the image file, if it is known.
            imported: they come from another program: `extract` must not replace them.
        """
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
        """Keep a file's SHA-256, so that unchanged images need not be read again.

        Args:
            path: the file; its size and time of change are kept, too.
            sha256: of its content.
        """
        state = path.stat()
        values = (str(path.absolute()), state.st_size, state.st_mtime_ns, sha256)
        self._write("REPLACE INTO files VALUES (?, ?, ?, ?)", values)

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


class MatchStore(SqliteFile):
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
        """Add or replace the matches of one pair.

        Args:
            pair: names, the smaller first.
            features: fingerprints of the features of the two images.
            matcher: fingerprint of the matcher and its settings.
            indices: (K, 2) into the two feature sets.
            scores: (K,).
            seconds: that matching took.
        """
        blobs = (indices.astype(np.uint32).tobytes(), scores.astype(np.float32).tobytes())
        self._write(
            "REPLACE INTO matches VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (*pair, *features, matcher, len(indices), seconds, *blobs),
        )

    def get(self, name0: str, name1: str) -> tuple[IndexArray, FloatArray]:
        """The matches of one pair.

        Args:
            name0: of an image.
            name1: of the other; either may come first.

        Returns:
            Indices (K, 2) into the features of name0 and name1, in this order, and scores (K,).
        """
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


def features_sha256(features: Features) -> str:
    """Fingerprint of features by their content, where nothing is known about what made them."""
    arrays = {name: getattr(features, name) for name in ("keypoints", "descriptors", "scores", "scales", "oris")}
    size = np.array(features.image_size)
    return fingerprint(kind=features.kind, arrays=arrays_sha256({**arrays, "image_size": size}))


def _blob(array: NDArray[Any] | None) -> bytes | None:
    return None if array is None else array.tobytes()


def _array(blob: bytes, dtype: type = np.float32) -> NDArray[Any]:
    """A copy, as torch wants arrays that may be written to."""
    return np.frombuffer(blob, dtype).astype(np.float32)
