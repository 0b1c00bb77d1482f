"""A file is there whole, or the old one still is."""

from __future__ import annotations

import pytest

from linglue.core.atomic import atomic_path
from linglue.errors import LinGlueError


def test_writes_a_new_file_and_replaces_an_old_one(tmp_path):
    path = tmp_path / "a.txt"
    for text in ("one", "two"):
        with atomic_path(path) as temporary:
            assert temporary.parent == path.parent, "renaming across file systems is not atomic"
            assert temporary.suffix == ".txt", "writers choose their format by it"
            assert temporary != path
            temporary.write_text(text)
        assert path.read_text() == text
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("error", [ValueError("writer broke"), KeyboardInterrupt()])
def test_a_failing_writer_leaves_the_old_file(tmp_path, error):
    path = tmp_path / "a.txt"
    path.write_text("old")
    with pytest.raises(type(error)), atomic_path(str(path)) as temporary:
        temporary.write_text("half of the n")
        raise error
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_failing_disk_is_one_line(tmp_path):
    path = tmp_path / "a.txt"
    expected = pytest.raises(LinGlueError, match=r"a\.txt: cannot be written \(No space left on device")
    with expected as caught, atomic_path(path) as temporary:
        temporary.write_text("half of the n")
        raise OSError(28, "No space left on device")
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_missing_folder(tmp_path):
    path = tmp_path / "none" / "a.txt"
    with pytest.raises(LinGlueError, match="No such file or directory") as caught, atomic_path(path) as temporary:
        temporary.write_text("x")
    assert str(path) in str(caught.value)
    assert not path.parent.exists()


def test_folder_that_is_a_file(tmp_path):
    (tmp_path / "file").write_text("old")
    with pytest.raises(LinGlueError, match="Not a directory"), atomic_path(tmp_path / "file" / "a.txt") as temporary:
        temporary.write_text("x")
    assert (tmp_path / "file").read_text() == "old"


def test_a_writer_that_writes_nothing(tmp_path):
    with pytest.raises(LinGlueError, match="cannot be written"), atomic_path(tmp_path / "a.txt"):
        pass
    assert list(tmp_path.iterdir()) == []


def test_target_that_is_a_folder(tmp_path):
    (tmp_path / "a.txt").mkdir()
    with pytest.raises(LinGlueError, match="Is a directory"), atomic_path(tmp_path / "a.txt") as temporary:
        temporary.write_text("x")
    assert [p.name for p in tmp_path.iterdir()] == ["a.txt"]
