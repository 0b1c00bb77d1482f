"""A file is there whole, or the old one still is."""

from __future__ import annotations

import os
import time

import pytest

from linglue.core.atomic import atomic_folder, atomic_path, remove_leftovers
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


def content(folder):
    return {path.relative_to(folder).as_posix(): path.read_text() for path in folder.rglob("*") if path.is_file()}


def test_a_folder_appears_whole_and_replaces_an_old_one(tmp_path):
    target = tmp_path / "model"
    for text in ("one", "two"):
        with atomic_folder(target) as temporary:
            assert temporary.parent == tmp_path
            (temporary / text).write_text(text)
            (temporary / "sub").mkdir()
            (temporary / "sub" / "same").write_text(text)
        assert content(target) == {text: text, "sub/same": text}
    assert list(tmp_path.iterdir()) == [target]


@pytest.mark.parametrize("error", [ValueError("writer broke"), KeyboardInterrupt()])
def test_a_failing_writer_leaves_the_old_folder(tmp_path, error):
    target = tmp_path / "model"
    target.mkdir()
    (target / "a").write_text("old")
    with pytest.raises(type(error)), atomic_folder(target) as temporary:
        (temporary / "a").write_text("half of the n")
        raise error
    assert content(tmp_path) == {"model/a": "old"}


def test_a_folder_that_cannot_be_put_in_place_leaves_the_old_one(tmp_path, monkeypatch):
    target = tmp_path / "model"
    target.mkdir()
    (target / "a").write_text("old")
    with pytest.raises(LinGlueError, match="model: cannot be written"), atomic_folder(target) as temporary:
        temporary.rmdir()  # so that it cannot be renamed
    assert content(tmp_path) == {"model/a": "old"}


def test_only_what_carries_our_mark_is_a_leftover(tmp_path):
    users = [
        ".film.mkv.part",
        ".a.0123abcd.part.npz",
        ".linglue-notes.part",
        ".linglue.lock",
        "x.part",
        ".linglue-a.db",
    ]
    for name in users:
        (tmp_path / name).write_text("mine")
    (tmp_path / ".my.parts").mkdir()
    (tmp_path / ".my.parts" / "a").write_text("mine")
    before = content(tmp_path)
    with atomic_path(tmp_path / "a.npz") as temporary:
        (tmp_path / "outside").mkdir()
        (tmp_path / "outside" / "a").write_text("mine")
        name = temporary.name
        temporary.write_text("x")
        os.link(temporary, tmp_path / name.replace("part.npz", "part.npz-wal"))
        (tmp_path / name.replace("part.npz", "part.link")).symlink_to(tmp_path / "outside")
        remove_leftovers(tmp_path)
        assert content(tmp_path) == before | {"outside/a": "mine"}
        temporary.write_text("x")


def test_a_folder_that_lost_its_name_gets_it_back(tmp_path):
    """As if killed between two renames."""
    for name, text in ((f".linglue-{'a' * 32}.old.model", "old"), (f".linglue-{'b' * 32}.part", "new")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a").write_text(text)
    remove_leftovers(tmp_path)
    assert content(tmp_path) == {"model/a": "old"}
    (tmp_path / f".linglue-{'c' * 32}.old.model").mkdir()
    remove_leftovers(tmp_path)
    assert content(tmp_path) == {"model/a": "old"}


def test_what_others_are_writing_is_left_to_them(tmp_path):
    young, old = (tmp_path / f".linglue-{letter * 32}.part" for letter in "ab")
    for path in (young, old):
        path.mkdir()
    os.utime(old, (time.time() - 100, time.time() - 100))
    remove_leftovers(tmp_path, older_than=60)
    assert list(tmp_path.iterdir()) == [young]
