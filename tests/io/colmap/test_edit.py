"""Changing a COLMAP database: all or nothing."""

import sqlite3
from pathlib import Path

import numpy as np
import pytest

from colmap_scene import all_pairs, write_scene
from linglue.errors import LinGlueError
from linglue.io.colmap.database import open_database
from linglue.io.colmap.edit import MatchReplacer, edit_database

pycolmap = pytest.importorskip("pycolmap")

SOME = np.array([[3, 100], [70, 5]])


@pytest.fixture
def path(tmp_path) -> Path:
    """Ids are 1 to 4; the pairs of image 1 have matches and geometries."""
    write_scene(tmp_path / "database.db", all_pairs()[:3])
    pycolmap.geometric_verification(tmp_path / "database.db")
    return tmp_path / "database.db"


@pytest.mark.parametrize("indices", [SOME, np.zeros((0, 2), np.int64)])
@pytest.mark.parametrize("pair", [(1, 2), (3, 4)])
def test_a_pair_is_replaced(path, pair, indices):
    with open_database(path) as database, MatchReplacer(path, database) as replacer:
        assert sorted(replacer.pairs()) == [(1, 2), (1, 3), (1, 4)]
        replacer.put(pair, "this", indices)
        assert replacer.made_from() == {pair: "this"}
        assert pair in replacer.pairs() and not database.exists_two_view_geometry(*pair)
        assert database.exists_two_view_geometry(1, 3)
        assert database.read_matches(*pair).tolist() == indices.tolist()
        assert len(database.read_matches(1, 3)) == 150


def test_what_another_program_changes_is_no_longer_ours(path):
    with open_database(path) as database, MatchReplacer(path, database) as replacer:
        for other in (2, 3, 4):
            replacer.put((1, other), "this", SOME)
        for other in (2, 3):
            database.delete_matches(1, other)
        database.write_matches(1, 3, SOME[:1])
        assert replacer.made_from() == {(1, 4): "this"}


def test_a_failing_write_is_not_believed(path):
    with open_database(path) as database, MatchReplacer(path, database) as replacer:
        replacer.put((1, 2), "this", SOME)
        with sqlite3.connect(path) as connection:
            connection.execute(
                "CREATE TRIGGER full BEFORE INSERT ON linglue_matches BEGIN SELECT RAISE(ABORT, 'full'); END"
            )
        connection.close()
        with pytest.raises(LinGlueError, match=r"database\.db: full"):
            replacer.put((1, 2), "that", SOME)
        assert replacer.made_from() == {}


def change(path) -> None:
    with open_database(path) as database:
        database.delete_matches(1, 2)


def test_a_copy_takes_the_place_of_the_database(path):
    link = path.with_name("link.db")
    link.symlink_to(path)
    path.chmod(0o640)
    with edit_database(link) as edit:
        change(edit.path)
    with open_database(path) as database:
        assert not database.exists_matches(1, 2) and database.exists_matches(1, 3)
    assert link.is_symlink() and path.stat().st_mode & 0o777 == 0o640
    assert sorted(file.name for file in path.parent.iterdir()) == ["database.db", "link.db"]


def test_an_error_leaves_the_database_to_the_bit(path):
    before = path.read_bytes()
    with pytest.raises(KeyError), edit_database(path) as edit:
        change(edit.path)
        raise KeyError
    assert path.read_bytes() == before
    assert [file.name for file in path.parent.iterdir()] == ["database.db"]


def test_work_worth_keeping_is_found_again_until_the_database_changes(path):
    with pytest.raises(KeyError), edit_database(path) as edit:
        change(edit.path)
        edit.keep = True
        raise KeyError
    with pytest.raises(KeyError), edit_database(path) as again:
        assert again.path == edit.path
        with open_database(again.path) as database:
            assert not database.exists_matches(1, 2)
        again.keep = True
        raise KeyError
    with open_database(path) as database:
        database.delete_matches(1, 4)
    with edit_database(path) as fresh, open_database(fresh.path) as database:
        assert database.exists_matches(1, 2) and not database.exists_matches(1, 4)
    assert [file.name for file in path.parent.iterdir()] == ["database.db"]


def test_what_another_program_writes_meanwhile_is_not_lost(path):
    with pytest.raises(LinGlueError, match="another program changed it meanwhile"), edit_database(path) as edit:
        change(edit.path)
        with open_database(path) as database:
            database.delete_matches(1, 4)
    with open_database(path) as database:
        assert database.exists_matches(1, 2) and not database.exists_matches(1, 4)
    assert [file.name for file in path.parent.iterdir()] == ["database.db"]
