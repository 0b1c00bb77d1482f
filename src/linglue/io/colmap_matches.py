"""Replacing the matches in a COLMAP database pair by pair, so that it is sound after a crash at any moment."""

from __future__ import annotations

import hashlib
from pathlib import Path

from linglue.core.sqlite import SqliteConnection
from linglue.geometry.colmap import quiet_pycolmap
from linglue.types import IndexArray

IdPair = tuple[int, int]  # COLMAP's image ids, the smaller first


class MatchReplacer(SqliteConnection):
    """An open database and, in a table of our own that COLMAP ignores, what each pair's matches were made from.

    The database must have the layout of the installed pycolmap: open it with `open_database` before.
    """

    def __init__(self, path: str | Path) -> None:
        super().__init__(Path(path))
        self._pycolmap = quiet_pycolmap("a COLMAP database")
        with self._translated():
            self._connection.execute(
                "CREATE TABLE IF NOT EXISTS linglue_matches "
                "(pair_id INTEGER PRIMARY KEY NOT NULL, made_from TEXT NOT NULL, data_sha256 TEXT NOT NULL)"
            )

    def pairs(self) -> list[IdPair]:
        """All pairs that were matched, also those without a match."""
        return self._pairs("SELECT pair_id FROM matches")

    def verified(self) -> list[IdPair]:
        """All pairs that have a two-view geometry."""
        return self._pairs("SELECT pair_id FROM two_view_geometries")

    def made_from(self) -> dict[IdPair, str]:
        """What the matches of our pairs were made from; not of those that another program has changed since."""
        query = "SELECT pair_id, made_from, data_sha256, data FROM linglue_matches JOIN matches USING (pair_id)"
        with self._translated():
            return {
                self._pycolmap.pair_id_to_image_pair(pair_id): made_from
                for pair_id, made_from, sha256, data in self._connection.execute(query)
                if _sha256(data or b"") == sha256
            }

    def put(self, image_id0: int, image_id1: int, made_from: str, indices: IndexArray) -> None:
        """Replace the matches of a pair, (K, 2) indices; its two-view geometry is removed, as it came from the old."""
        pair_id = self._pycolmap.image_pair_to_pair_id(image_id0, image_id1)
        swapped = self._pycolmap.should_swap_image_pair(image_id0, image_id1)
        data = (indices[:, ::-1] if swapped else indices).astype("<u4").tobytes()
        with self._translated(), self._connection:  # one transaction, undone if any of it fails
            self._connection.execute("BEGIN IMMEDIATE")
            self._connection.execute(
                "REPLACE INTO matches (pair_id, rows, cols, data) VALUES (?, ?, 2, ?)", (pair_id, len(indices), data)
            )
            self._connection.execute("DELETE FROM two_view_geometries WHERE pair_id = ?", (pair_id,))
            self._connection.execute(
                "REPLACE INTO linglue_matches VALUES (?, ?, ?)", (pair_id, made_from, _sha256(data))
            )

    def _pairs(self, query: str) -> list[IdPair]:
        with self._translated():
            rows = self._connection.execute(query).fetchall()
        return [self._pycolmap.pair_id_to_image_pair(pair_id) for (pair_id,) in rows]


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
