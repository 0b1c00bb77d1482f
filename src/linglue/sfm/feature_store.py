"""Features of many photographs in one file, each with a fingerprint of what it was made from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from linglue.core.sqlite import SqliteFile
from linglue.errors import LinGlueError
from linglue.types import Features, ImageSize


class FeatureStore(SqliteFile):
    """Coordinates, scales and angles in float32; descriptors in float16, which halves the file and loses nothing."""

    SCHEMA = """
        CREATE TABLE IF NOT EXISTS features (
            name TEXT PRIMARY KEY,
            made_from TEXT NOT NULL,
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
        return [name for (name,) in self._read("SELECT name FROM features ORDER BY name")]

    def kind(self) -> str:
        """The front-end all features are of."""
        kinds = [kind for (kind,) in self._read("SELECT DISTINCT kind FROM features ORDER BY kind")]
        if len(kinds) != 1:
            held = " and ".join(kinds) or "no image"
            raise LinGlueError(f"{self.path}: holds features of {held}, expected one kind")
        return kinds[0]

    def made_from(self) -> dict[str, str]:
        """The fingerprint of every image's features, by name."""
        return dict(self._read("SELECT name, made_from FROM features"))

    def counts(self) -> dict[str, int]:
        """The number of keypoints of every image, by name."""
        return dict(self._read("SELECT name, count FROM features"))

    def sizes(self) -> dict[str, ImageSize]:
        """(width, height) of every image, by name."""
        rows = self._read("SELECT name, width, height FROM features")
        return {name: ImageSize(width, height) for name, width, height in rows}

    def put(self, name: str, made_from: str, features: Features) -> None:
        """Add or replace the features of one image."""
        self._write(
            "REPLACE INTO features VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                name,
                made_from,
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
        row = next(self._read("SELECT * FROM features WHERE name = ?", (name,)), None)
        if row is None:
            raise LinGlueError(f"{self.path}: no features of {name!r}, they must be extracted first")
        _, _, kind, width, height, count, dim, keypoints, scores, scales, oris, descriptors = row
        return Features(
            keypoints=_array(keypoints).reshape(count, 2),
            descriptors=_array(descriptors, np.float16).reshape(count, dim),
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
        """Keep a file's SHA-256, so that unchanged photographs need not be read again."""
        state = path.stat()
        values = (str(path.absolute()), state.st_size, state.st_mtime_ns, sha256)
        self._write("REPLACE INTO files VALUES (?, ?, ?, ?)", values)


def _blob(array: NDArray[Any] | None) -> bytes | None:
    return None if array is None else array.tobytes()


def _array(blob: bytes, dtype: type = np.float32) -> NDArray[Any]:
    """A copy, as torch wants arrays that may be written to."""
    return np.frombuffer(blob, dtype).astype(np.float32)
