"""The pairs each method chooses, and what it refuses."""

from itertools import pairwise

import numpy as np
import pytest

from linglue.errors import LinGlueError
from linglue.sfm.pairs import PairsConfig, choose_pairs, exhaustive, sequential, with_loops
from linglue.sfm.retrieval import Retrieval
from linglue.types import Features


def look(place: float) -> Features:
    """Features of an image taken at a place on a circle of 1: nearby places share descriptors."""
    things = np.random.default_rng(0).normal(size=(200, 12))
    seen = [i for i in range(200) if abs((i / 200 - place + 0.5) % 1 - 0.5) < 0.1]
    return Features(keypoints=np.zeros((len(seen), 2)), descriptors=things[seen], image_size=(64, 48), kind="sift")


def unused(name: str) -> Features:
    raise AssertionError(f"features of {name} are not needed")


def test_exhaustive():
    assert exhaustive(["c d", "a", "b/ü", "a"]) == [("a", "b/ü"), ("a", "c d"), ("b/ü", "c d")]
    assert exhaustive(["a"]) == exhaustive([]) == []


def test_sequences_are_counted_as_people_do():
    names = [f"img{i}.jpg" for i in range(1, 13)]
    pairs = sequential(sorted(names), overlap=1)
    assert set(pairs) == {tuple(sorted(pair)) for pair in pairwise(names)}
    assert pairs == sorted(pairs)


def test_names_that_count_alike_or_mix_text_and_numbers():
    assert len(sequential(["1.jpg", "01.jpg", "a.jpg", "a1b2.jpg", "10", "_.jpg", "²"], overlap=1)) == 6


def test_each_folder_is_a_sequence():
    names = [f"{folder}/{i}.jpg" for folder in ("left", "right", "left/up") for i in range(3)]
    pairs = sequential(names, overlap=1)
    assert len(pairs) == 6
    assert all(name0.rpartition("/")[0] == name1.rpartition("/")[0] for name0, name1 in pairs)


def test_powers_of_two_bridge_gaps():
    names = [f"{i:03}" for i in range(100)]
    assert {int(b) for a, b in sequential(names, overlap=6) if a == "000"} == {1, 2, 3, 4, 5, 6, 8, 16, 32}


@pytest.mark.parametrize("names", [[], ["a"]])
def test_sequences_without_neighbours(names):
    assert sequential(names) == []


def test_the_loop_is_closed_at_every_nth_image():
    names = [f"{i}.jpg" for i in range(60)]  # once around the circle
    views = {name: look(i / 60) for i, name in enumerate(names)}
    along = sequential(names, overlap=3)
    pairs = with_loops(along, names, Retrieval.build(names, views.__getitem__), every=10, top=4)
    added = set(pairs) - set(along)
    assert pairs == sorted(set(pairs))
    assert set(along) < set(pairs)
    assert ("0.jpg", "59.jpg") in added
    assert all(any(name in names[::10] for name in pair) for pair in added)
    for name in names[::10]:
        assert sum(name in pair for pair in added) >= 4


def test_loops_join_folders():
    names = [f"{folder}/{i}.jpg" for folder in "ab" for i in range(8)]
    views = {name: look(int(name[2]) / 40) for name in names}
    pairs = choose_pairs(PairsConfig("sequential", overlap=3, top=3), names, views.__getitem__)
    assert any(name0[0] != name1[0] for name0, name1 in pairs)
    separate = choose_pairs(PairsConfig("sequential", overlap=3, loop_every=0), names, unused)
    assert separate == sequential(names, 3)


def test_auto_takes_all_pairs_of_few_images_and_look_alikes_of_many():
    few, many = [f"{i}" for i in range(60)], [f"{i}" for i in range(61)]
    assert choose_pairs(PairsConfig(), few, unused) == exhaustive(few)
    views = {name: look(int(name) / 61) for name in many}
    pairs = choose_pairs(PairsConfig(top=2), many, views.__getitem__)
    assert pairs == Retrieval.build(many, views.__getitem__).pairs(2)
    assert {PairsConfig().method_for(n) for n in (0, 60)} == {"exhaustive"}
    assert PairsConfig().method_for(61) == "retrieval"


def write_positions(path, positions):
    rows = ["name\tx\ty\tz", *("\t".join([name, *map(str, xyz)]) for name, xyz in positions.items())]
    path.write_text("\n".join(rows))


def test_images_without_position_or_alone_get_look_alikes(tmp_path):
    names = [f"{i:02}" for i in range(30)]
    views = {name: look(i / 60) for i, name in enumerate(names)}
    positions = {name: np.array([float(i), 0, 0]) for i, name in enumerate(names)}
    config = PairsConfig("positions", top=2, radius=5.0, positions=tmp_path / "positions.tsv")
    write_positions(config.positions, {**positions, "not of these": np.zeros(3)})
    assert choose_pairs(config, names, unused) == [*sorted(set(pairwise(names)) | {("00", "02"), ("27", "29")})]
    del positions["10"]
    positions["20"] = np.array([1e6, 0, 0])
    write_positions(config.positions, positions)
    pairs = choose_pairs(config, names, views.__getitem__)
    for lost in ("10", "20"):
        partners = {int(name) for pair in pairs if lost in pair for name in pair} - {int(lost)}
        assert len(partners) >= 2
        assert all(abs(partner - int(lost)) <= 4 for partner in partners)


@pytest.mark.parametrize("positions", [None, {}, {"elsewhere": np.zeros(3)}])
def test_no_position_at_all_is_an_error(positions, tmp_path):
    table = None if positions is None else tmp_path / "positions.tsv"
    if table is not None:
        write_positions(table, positions)
    with pytest.raises(LinGlueError, match="none of the 2 images has a position"):
        choose_pairs(PairsConfig("positions", positions=table), ["a", "b"], unused)


def by_first_letter(request):
    """A pair source of another package."""
    return [(a, b) for a in request.names for b in request.names if a < b and a[0] == b[0]]


def test_a_pair_source_of_another_package():
    config = PairsConfig(f"{__name__}:by_first_letter")
    assert choose_pairs(config, ["a1", "b1", "a2"], unused) == [("a1", "a2")]
    with pytest.raises(LinGlueError, match="cannot be loaded"):
        PairsConfig("nowhere:source")


def test_a_list_is_checked_against_the_images(tmp_path):
    path = tmp_path / "pairs.tsv"
    path.write_text("b c\ta\nd\ta\n")
    assert choose_pairs(PairsConfig("list", pair_list=path), ["a", "b c", "d", "e"], unused) == [
        ("a", "b c"),
        ("a", "d"),
    ]
    with pytest.raises(LinGlueError, match=r"pairs\.tsv: no image is called 'd', .* the 2 images"):
        choose_pairs(PairsConfig("list", pair_list=path), ["a", "b c"], unused)
    with pytest.raises(LinGlueError, match="no list is given"):
        choose_pairs(PairsConfig("list"), ["a"], unused)


@pytest.mark.parametrize("method", ["auto", "exhaustive", "sequential", "retrieval", "positions"])
@pytest.mark.parametrize("names", [[], ["a"]])
def test_fewer_than_two_images_have_no_pairs(method, names):
    assert choose_pairs(PairsConfig(method), names, unused) == []


@pytest.mark.parametrize(
    ("setting", "complaint"),
    [
        ({"method": "magic"}, "'magic', expected auto, exhaustive"),
        ({"top": 0}, "top is 0, expected at least 1"),
        ({"overlap": 0}, "overlap is 0"),
        ({"loop_every": -1}, "loop_every is -1, expected at least 0"),
        ({"radius": 0.0}, "radius is 0.0"),
        ({"radius": float("nan")}, "radius is nan"),
    ],
)
def test_settings_are_checked(setting, complaint):
    with pytest.raises(LinGlueError, match=complaint):
        PairsConfig(**setting)
