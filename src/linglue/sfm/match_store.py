"""Matches of many pairs in one file, each with a fingerprint of what it was made from."""

from __future__ import annotations

import numpy as np

from linglue.core.sqlite import SqliteFile
from linglue.errors import LinGlueError
from linglue.io.pair_list import Pair
from linglue.types import FloatArray, IndexArray


class MatchStore(SqliteFile):
    """Indices in uint32, scores in float32. The names of a pair are two columns, never joined; the smaller is first."""

    SCHEMA = """
        CREATE TABLE IF NOT EXISTS matches (
            name0 TEXT NOT NULL,
            name1 TEXT NOT NULL,
            made_from TEXT NOT NULL,
            count INTEGER NOT NULL,
            seconds REAL NOT NULL,
            indices BLOB NOT NULL,
            scores BLOB NOT NULL,
            PRIMARY KEY (name0, name1)
        );
    """

    def made_from(self) -> dict[Pair, str]:
        """The fingerprint of every pair's matches."""
        rows = self._read("SELECT name0, name1, made_from FROM matches")
        return {(name0, name1): made_from for name0, name1, made_from in rows}

    def counts(self) -> dict[Pair, int]:
        """The number of matches of every pair."""
        return {(name0, name1): n for name0, name1, n in self._read("SELECT name0, name1, count FROM matches")}

    def seconds(self) -> dict[Pair, float]:
        """How long each pair took to match."""
        return {(name0, name1): s for name0, name1, s in self._read("SELECT name0, name1, seconds FROM matches")}

    def put(self, pair: Pair, made_from: str, indices: IndexArray, scores: FloatArray, seconds: float) -> None:
        """Add or replace the matches of one pair: indices (K, 2), scores (K,)."""
        blobs = (indices.astype(np.uint32).tobytes(), scores.astype(np.float32).tobytes())
        self._write(
            "REPLACE INTO matches VALUES (?, ?, ?, ?, ?, ?, ?)", (*pair, made_from, len(indices), seconds, *blobs)
        )

    def get(self, name0: str, name1: str) -> tuple[IndexArray, FloatArray]:
        """Indices (K, 2) into the features of name0 and name1, in this order, and scores (K,)."""
        pair = (name0, name1) if name0 < name1 else (name1, name0)
        row = next(self._read("SELECT indices, scores FROM matches WHERE name0 = ? AND name1 = ?", pair), None)
        if row is None:
            raise LinGlueError(f"{self.path}: no matches of {name0!r} and {name1!r}, they must be matched first")
        indices = np.frombuffer(row[0], np.uint32).reshape(-1, 2).astype(np.int64)
        return indices if name0 < name1 else indices[:, ::-1], np.frombuffer(row[1], np.float32)
