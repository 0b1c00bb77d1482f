"""Replacing matches in a COLMAP database, one transaction per pair."""

import sqlite3

import numpy as np
import pytest

from colmap_scene import all_pairs, write_scene
from linglue.errors import LinGlueError
from linglue.io.colmap_database import open_database
from linglue.io.colmap_matches import MatchReplacer

pycolmap = pytest.importorskip("pycolmap")

SOME = np.array([[3, 100], [70, 5]])


@pytest.fixture
def path(tmp_path):
    """Ids are 1 to 4; the pairs of image 1 have matches and geometries."""
    write_scene(tmp_path / "database.db", all_pairs()[:3])
    pycolmap.geometric_verification(tmp_path / "database.db")
    return tmp_path / "database.db"


@pytest.mark.parametrize("indices", [SOME, np.zeros((0, 2), np.int64)])
@pytest.mark.parametrize("pair", [(1, 2), (2, 1), (4, 3)])
def test_a_pair_is_replaced_in_either_order(path, pair, indices):
    with MatchReplacer(path) as replacer:
        assert sorted(replacer.pairs()) == sorted(replacer.verified()) == [(1, 2), (1, 3), (1, 4)]
        replacer.put(pair[0], pair[1], "this", indices)
        sorted_pair = (min(pair), max(pair))
        assert replacer.made_from() == {sorted_pair: "this"}
        assert sorted_pair in replacer.pairs() and sorted_pair not in replacer.verified()
        assert (1, 3) in replacer.verified()
    with open_database(path) as database:
        assert database.read_matches(*pair).tolist() == indices.tolist()
        assert len(database.read_matches(1, 3)) == 150


def test_what_another_program_changes_is_no_longer_ours(path):
    with MatchReplacer(path) as replacer:
        for other in (2, 3, 4):
            replacer.put(1, other, "this", SOME)
        with open_database(path) as database:
            for other in (2, 3):
                database.delete_matches(1, other)
            database.write_matches(1, 3, SOME[:1])
        assert replacer.made_from() == {(1, 4): "this"}


def test_a_failing_write_changes_nothing(path):
    with MatchReplacer(path) as replacer:
        replacer.put(1, 2, "this", SOME)
    with sqlite3.connect(path) as connection:
        connection.execute(
            "CREATE TRIGGER full BEFORE INSERT ON linglue_matches BEGIN SELECT RAISE(ABORT, 'full'); END"
        )
    connection.close()
    with MatchReplacer(path) as replacer:
        with pytest.raises(LinGlueError, match=r"database\.db: full; what was finished is kept"):
            replacer.put(1, 3, "that", SOME)
        assert replacer.made_from() == {(1, 2): "this"}
        assert (1, 3) in replacer.verified()
    with open_database(path) as database:
        assert len(database.read_matches(1, 3)) == 150
