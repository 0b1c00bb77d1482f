"""Pair lists: names as they are, each pair once, errors that name the file and the line."""

import os
from pathlib import Path

import pytest

from linglue.errors import LinGlueError
from linglue.io.pair_list import make_pair, read_pairs, write_pairs


@pytest.fixture
def path(tmp_path) -> Path:
    return tmp_path / "pa irs ü.tsv"


def test_names_come_back_as_they_are(path):
    names = [
        "a b.jpg",
        " leading",
        "trailing ",
        "dir/x-y.jpg",
        "ünïcode 日本.png",
        "#hash",
        "# hash 2",
        '"quoted',
        "a\u2028b",
    ]
    pairs = sorted(make_pair(a, b) for a in names for b in names if a < b)
    write_pairs(path, pairs)
    assert read_pairs(path) == pairs


def test_a_name_that_is_not_utf8(path):
    name = os.fsdecode(b"caf\xe9.jpg")
    write_pairs(path, [make_pair("a.jpg", name)])
    assert path.read_bytes() == b"a.jpg\tcaf\xe9.jpg\n"
    assert read_pairs(path) == [("a.jpg", name)]


def test_a_pair_has_no_direction_and_occurs_once(path):
    path.write_text("b\ta\na\tb\nc\ta\nb\ta\n")
    assert read_pairs(path) == [("a", "b"), ("a", "c")]
    write_pairs(path, [("b", "a"), ("a", "b")])
    assert path.read_text() == "a\tb\n"


def test_comments_blank_lines_and_windows_line_ends(path):
    path.write_bytes(b"\xef\xbb\xbf# name0 name1\r\n\r\n  \r\na\tb\r\n#\r\n#c\td")
    assert read_pairs(path) == [("#c", "d"), ("a", "b")]


def test_lists_of_hloc(path):
    path.write_text("db/2.jpg db/1.jpg\ndb/1.jpg query/3.jpg\n")
    assert read_pairs(path) == [("db/1.jpg", "db/2.jpg"), ("db/1.jpg", "query/3.jpg")]


def test_an_empty_list(path):
    write_pairs(path, [])
    assert read_pairs(path) == []


@pytest.mark.parametrize("line", ["alone", "a b c", "a\tb\tc", "a\t", "\tb", "my a.jpg my b.jpg", "a "])
def test_a_line_that_is_no_pair_is_named(path, line):
    path.write_text(f"a\tb\n{line}\n")
    with pytest.raises(LinGlueError, match=r"pa irs ü\.tsv: line 2 is .*one tab"):
        read_pairs(path)


def test_an_image_with_itself_is_refused(path):
    path.write_text("a\ta\n")
    with pytest.raises(LinGlueError, match="line 1: 'a' is paired with itself"):
        read_pairs(path)
    with pytest.raises(LinGlueError, match="'a' is paired with itself"):
        write_pairs(path, [("a", "a")])


@pytest.mark.parametrize("name", ["a\tb", "a\nb", "a\r", ""])
def test_a_name_no_list_can_hold_is_refused_and_nothing_written(tmp_path, name):
    with pytest.raises(LinGlueError, match=r"pairs\.tsv: .* cannot be in a list"):
        write_pairs(tmp_path / "pairs.tsv", [("other", name)])
    assert list(tmp_path.iterdir()) == []


def test_a_missing_list_is_named(tmp_path):
    with pytest.raises(LinGlueError, match=r"none\.tsv: cannot be read"):
        read_pairs(tmp_path / "none.tsv")
