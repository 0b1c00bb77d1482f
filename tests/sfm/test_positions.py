"""Positions: GPS as cameras write it, tables as users write them, neighbours within a radius."""

import numpy as np
import pytest

from gps_image import gps_image
from linglue.errors import LinGlueError
from linglue.sfm.positions import (
    exif_positions,
    metric_positions,
    position_pairs,
    read_positions,
)


def test_only_images_with_gps_have_a_position(tmp_path):
    pytest.importorskip("pycolmap")
    images = {
        "x/a.jpg": gps_image(tmp_path / "a.jpg", (48, 0, 0), (2, 0, 0)),
        "x/b.jpg": gps_image(tmp_path / "b.jpg"),
        "x/c.jpg": gps_image(tmp_path / "c.jpg", (48, 0, 3.6), (2, 0, 0)),
    }
    positions = exif_positions(images)
    assert sorted(positions) == ["x/a.jpg", "x/c.jpg"]
    np.testing.assert_allclose(positions["x/c.jpg"], [0, 111.2, 0], atol=0.1)  # a thousandth of a degree north
    assert exif_positions({"b": tmp_path / "b.jpg"}) == {}


def test_degrees_become_metres_east_and_north():
    pytest.importorskip("pycolmap")
    positions = metric_positions({"a": (60.0, 10.0), "east": (60.0, 10.001), "south": (59.999, 10.0)})
    np.testing.assert_allclose(positions["a"], [0, 0, 0], atol=1e-6)
    np.testing.assert_allclose(positions["east"], [55.8, 0, 0], atol=0.1)  # half of what it is at the equator
    np.testing.assert_allclose(positions["south"], [0, -111.4, 0], atol=0.1)


def test_across_the_date_line():
    pytest.importorskip("pycolmap")
    positions = metric_positions({"a": (-17.0, 179.9999), "b": (-17.0, -179.9999)})
    assert position_pairs(positions, 5, 50.0) == [("a", "b")]


@pytest.mark.parametrize("separator", ["\t", ","])
def test_a_table_in_metres(tmp_path, separator):
    path = tmp_path / "positions.txt"
    rows = [["Name", "X", "Y", "Z"], ["dir/a b ü.jpg", "1.5", "-2", "3e2"], ["c.jpg", "0", "0", "0"]]
    path.write_text("\ufeff" + "\n".join(separator.join(row) for row in rows) + "\n\n", encoding="utf-8")
    positions = read_positions(path)
    assert {name: place.tolist() for name, place in positions.items()} == {
        "dir/a b ü.jpg": [1.5, -2, 300],
        "c.jpg": [0, 0, 0],
    }


def test_names_with_commas_and_quotes(tmp_path):
    (tmp_path / "a.csv").write_text('name,x,y,z\n"a, b.jpg",1,2,3\n')
    (tmp_path / "a.tsv").write_text('name\tx\ty\tz\n"a, b.jpg\t1\t2\t3\n')
    assert list(read_positions(tmp_path / "a.csv")) == ["a, b.jpg"]
    assert list(read_positions(tmp_path / "a.tsv")) == ['"a, b.jpg']


@pytest.mark.parametrize("altitude", [False, True])
def test_a_table_in_degrees(tmp_path, altitude):
    pytest.importorskip("pycolmap")
    path = tmp_path / "gps.tsv"
    alt = ("\talt", "\t100", "\t900") if altitude else ("", "", "")
    path.write_text(f"name\tlat\tlon{alt[0]}\na\t48\t2{alt[1]}\nb\t48.001\t2{alt[2]}\n")
    np.testing.assert_allclose(read_positions(path)["b"], [0, 111.2, 0], atol=0.1)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "first line is ''"),
        ("a\t1\t2\t3\n", "first line is .*name x y z"),
        ("name x y z\n", "tabs or commas"),
        ("name\tx\ty\tz\na\t1\t2\n", "line 2 has 3 entries, expected 4"),
        ("name\tx\ty\tz\na\t1\ttwo\t3\n", "line 2 has '1 two 3' for 'a', expected finite numbers"),
        ("name\tx\ty\tz\na\t1\tnan\t3\n", "finite numbers"),
        ("name\tlat\tlon\na\t1\t2\nb\t91\t0\n", "line 3 has '91 0'"),
        ("name\tx\ty\tz\na\t1\t2\t3\na\t1\t2\t3\n", "line 3 has 'a' a second time"),
    ],
)
def test_a_table_that_cannot_be_used_is_named(tmp_path, text, complaint):
    (tmp_path / "p.txt").write_text(text)
    with pytest.raises(LinGlueError, match=complaint) as error:
        read_positions(tmp_path / "p.txt")
    assert "p.txt: " in str(error.value)
    assert "\n" not in str(error.value)


def test_a_missing_table_is_named(tmp_path):
    with pytest.raises(LinGlueError, match=r"none\.tsv: cannot be read"):
        read_positions(tmp_path / "none.tsv")


def row_of(distances: list[float]) -> dict[str, np.ndarray]:
    return {f"{i}": np.array([x, 0.0, 0.0]) for i, x in enumerate(distances)}


def test_the_nearest_within_the_radius():
    positions = row_of([0, 1, 2.5, 4.5, 100])
    assert position_pairs(positions, 1, 50) == [("0", "1"), ("1", "2"), ("2", "3")]
    assert position_pairs(positions, 20, 2.2) == [("0", "1"), ("1", "2"), ("2", "3")]
    assert len(position_pairs(positions, 20, 1000)) == 10


def test_many_at_one_place():
    pairs = position_pairs(row_of([7.0] * 30), 3, 1.0)
    degree = {name: sum(name in pair for pair in pairs) for name in row_of([0] * 30)}
    assert min(degree.values()) >= 3


@pytest.mark.parametrize("count", [0, 1])
def test_no_pairs_of_fewer_than_two(count):
    assert position_pairs(row_of([0] * count), 5, 1) == []
