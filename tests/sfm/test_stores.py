"""Features and matches on disk: exact, whatever the names, and whole after a kill."""

import os
import signal
import sqlite3
import subprocess
import sys
import time

import numpy as np
import pytest

from linglue.core.sqlite import LAYOUT, MARK
from linglue.errors import LinGlueError
from linglue.sfm.store import FeatureStore, MatchStore
from linglue.types import Features

NAMES = [
    "a.jpg",
    "a.png",
    "with space.jpg",
    "sub/ü-中.jpg",
    "sub-x/y-z.jpg",
    "x/y.jpg",
    "x-y.jpg",
    "x_y.jpg",
    "'; --.jpg",
]


def make_features(seed, count=20, shaped=True):
    rng = np.random.default_rng(seed)
    return Features(
        keypoints=rng.uniform(0, 4000, (count, 2)),
        descriptors=rng.normal(size=(count, 8)).astype(np.float16),
        image_size=(5000, 4000),
        scores=rng.uniform(size=count),
        scales=rng.uniform(1, 9, count) if shaped else None,
        oris=rng.uniform(-3, 3, count) if shaped else None,
        kind="sift",
    )


@pytest.mark.parametrize("shaped", [True, False])
@pytest.mark.parametrize("count", [0, 1, 20])
def test_features_come_back_exactly(tmp_path, count, shaped):
    features = make_features(0, count, shaped)
    with FeatureStore(tmp_path / "f.db") as store:
        store.put("a.jpg", "x", features)
    with FeatureStore(tmp_path / "f.db") as store:
        found = store.get("a.jpg")
        assert store.sizes() == {"a.jpg": (5000, 4000)}
        assert store.counts() == {"a.jpg": count}
    for name in ("keypoints", "descriptors", "scores", "scales", "oris"):
        want, have = getattr(features, name), getattr(found, name)
        assert (want is None) == (have is None)
        if want is not None:
            assert have.dtype == np.float32
            np.testing.assert_array_equal(want, have)
    assert (found.kind, found.image_size) == (features.kind, features.image_size)


def test_any_name_is_a_name_of_its_own(tmp_path):
    with FeatureStore(tmp_path / "f.db") as features, MatchStore(tmp_path / "m.db") as matches:
        for i, name in enumerate(NAMES):
            features.put(name, str(i), make_features(i))
        for i, name in enumerate(NAMES):
            np.testing.assert_array_equal(features.get(name).keypoints, make_features(i).keypoints)
        assert features.names() == sorted(NAMES)
        pairs = [(a, b) for a in NAMES for b in NAMES if a < b]
        for i, pair in enumerate(pairs):
            matches.put(pair, ("x", "x"), "m", np.full((1, 2), i), np.ones(1), 0.1)
        assert all(matches.get(*pair)[0][0, 0] == i for i, pair in enumerate(pairs))


def test_matches_in_either_order_and_beyond_16_bits(tmp_path):
    indices = np.array([[0, 70_000], [3_000_000_000, 5]])
    scores = np.array([0.9, 0.25], np.float32)
    with MatchStore(tmp_path / "m.db") as store:
        store.put(("a", "b"), ("x", "y"), "m", indices, scores, 1.5)
        np.testing.assert_array_equal(store.get("a", "b")[0], indices)
        np.testing.assert_array_equal(store.get("b", "a")[0], indices[:, ::-1])
        np.testing.assert_array_equal(store.get("b", "a")[1], scores)
        assert store.counts() == {("a", "b"): 2}
        assert store.seconds() == {("a", "b"): 1.5}
        with pytest.raises(LinGlueError, match="no matches of 'a' and 'c'"):
            store.get("a", "c")


def test_the_last_one_put_counts(tmp_path):
    with FeatureStore(tmp_path / "f.db") as store:
        store.put("a", "old", make_features(0))
        store.put("a", "new", make_features(1, 5))
        assert store.made_from() == {"a": "new"}
        assert len(store.get("a")) == 5


def test_a_damaged_file_is_put_aside_and_work_begins_again(tmp_path, caplog):
    path = tmp_path / "f.db"
    path.write_bytes(b"SQLite format 3\0" + b"cut and overwritten" * 100)
    with pytest.raises(LinGlueError, match=r"f\.db: damaged or another program's"):
        FeatureStore(path)
    with FeatureStore(path, repair=True) as store:
        assert store.names() == []
        store.put("a", "x", make_features(0))
    assert (tmp_path / "f.db.damaged-1").is_file()
    assert "kept as f.db.damaged-1" in caplog.text


def test_another_programs_file_is_not_even_put_aside(tmp_path):
    path = tmp_path / "f.db"
    path.write_bytes(b"this is no database at all" * 100)
    with pytest.raises(LinGlueError, match=r"f\.db: damaged or another program's"):
        FeatureStore(path, repair=True)
    assert [file.name for file in tmp_path.iterdir()] == ["f.db"]


def test_a_full_disk_is_one_line_and_loses_nothing(tmp_path):
    path = tmp_path / "f.db"
    with FeatureStore(path) as store:
        store.put("a", "x", make_features(0))
        pages = store._connection.execute("PRAGMA page_count").fetchone()[0]
        store._connection.execute(f"PRAGMA max_page_count = {pages}")  # what SQLite says then, it says of a full disk
        with pytest.raises(LinGlueError, match="full; what was finished is kept"):
            store.put("b", "x", make_features(1, 5000))
    with FeatureStore(path) as store:
        assert store.names() == ["a"]


def test_another_layout_is_refused(tmp_path):
    connection = sqlite3.connect(tmp_path / "f.db")
    connection.execute(f"PRAGMA application_id = {MARK}")
    connection.execute("PRAGMA user_version = 99")
    connection.close()
    with pytest.raises(LinGlueError, match=f"has layout 99, expected {LAYOUT}"):
        FeatureStore(tmp_path / "f.db")


@pytest.mark.parametrize("statement", ["CREATE TABLE mine (a)", "PRAGMA user_version = 1", "CREATE TABLE features (a)"])
def test_another_programs_file_is_refused_and_unchanged(tmp_path, statement):
    connection = sqlite3.connect(tmp_path / "features.db")
    connection.execute(statement)
    connection.close()
    before = (tmp_path / "features.db").read_bytes()
    for store in (FeatureStore, MatchStore):
        with pytest.raises(LinGlueError, match="another program's SQLite file"):
            store(tmp_path / "features.db")
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [before]


def test_only_expected_rows_are_read_and_others_stay_until_pruned(tmp_path):
    with FeatureStore(tmp_path / "f.db") as store:
        for name in "abc":
            store.put(name, f"{name} 1", make_features(0))
        assert store.expect({"a": "a 1", "b": "b 2", "d": "d 1"}) == {"a"}
        assert store.names() == list(store.counts()) == list(store.made_from()) == ["a"]
        assert store.stale() == ["b", "c"]
        with pytest.raises(LinGlueError, match="no features of 'b'"):
            store.get("b")
        assert store.expect({"b": "b 1"}) == {"b"}  # back again: nothing is lost
        assert store.prune() == 2
        assert (store.names(), store.stale()) == (["b"], [])


def test_matches_of_other_features_or_matchers_are_not_current(tmp_path):
    indices, scores = np.zeros((1, 2), np.int64), np.ones(1, np.float32)
    features = {"a": "a 1", "b": "b 1", "c": "c 1"}
    with MatchStore(tmp_path / "m.db") as store:
        assert store.current(features) == {}
        store.put(("a", "b"), ("a 1", "b 1"), "m1", indices, scores, 0.1)
        store.put(("a", "c"), ("a 0", "c 1"), "m1", indices, scores, 0.1)
        store.put(("b", "c"), ("b 1", "c 1"), "m0", indices, scores, 0.1)
        store.expect("m1")
        assert set(store.current(features)) == {("a", "b")}
        assert store.current(features, [("a", "c")]) == {}
        assert store.prune([("a", "b")]) == 2
        assert set(store.rows()) == {("a", "b")}


def test_keypoints_without_descriptors(tmp_path):
    features = make_features(0)
    with FeatureStore(tmp_path / "f.db") as store:
        store.put("a", "x", features)
        found = store.keypoints("a")
    np.testing.assert_array_equal(found.keypoints, features.keypoints)
    np.testing.assert_array_equal(found.oris, features.oris)
    assert found.descriptors.shape == (20, 0)


def test_a_folder_that_cannot_be_written_can_be_read(tmp_path, monkeypatch):
    with FeatureStore(tmp_path / "f.db") as store:
        store.put("a", "x", make_features(0))
    monkeypatch.setattr("linglue.core.sqlite.os.access", lambda *_: False)
    with FeatureStore(tmp_path / "f.db") as store:
        assert store.names() == ["a"] and len(store.get("a")) == 20
        with pytest.raises(LinGlueError, match="readonly"):
            store.put("b", "x", make_features(0))
        assert [path.name for path in tmp_path.iterdir()] == ["f.db"]


WRITER = """
import sys, numpy as np
from pathlib import Path
from linglue.sfm.store import MatchStore
store = MatchStore(Path(sys.argv[1]))
for i in range(len(store.rows()), 100_000):
    store.put((f"{i:06}", "z"), ("x", "x"), "m", np.full((500, 2), i), np.ones(500), 0.1)
    print(i, flush=True)
"""


def test_what_was_put_is_there_after_a_kill(tmp_path):
    path, finished = tmp_path / "m.db", -1
    for pause in (0.05, 0.11, 0.17):
        writer = subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True)
        first = int(writer.stdout.readline())
        assert first >= finished
        time.sleep(pause)
        os.kill(writer.pid, signal.SIGKILL)
        finished = max([first, *(int(line) for line in writer.communicate()[0].splitlines())])
        with MatchStore(path) as store:
            known = sorted(int(name) for name, _ in store.rows())
            assert known[: finished + 1] == list(range(finished + 1))
            assert all((store.get(f"{i:06}", "z")[0] == i).all() for i in known[-3:])
