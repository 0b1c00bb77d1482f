"""Better matches for an existing COLMAP database: resumed, redone when needed, ready for the mapper."""

import multiprocessing
import os
import signal
import sqlite3
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from colmap_scene import COUNT, NAMES, all_pairs, camera, scene, write_scene
from linglue.core.lock import locked
from linglue.errors import LinGlueError
from linglue.io.colmap.database import open_database, read_images, read_matches, write_database
from linglue.io.pair_list import write_pairs
from linglue.sfm.match_database import match_database
from linglue.types import Matches

pycolmap = pytest.importorskip("pycolmap")


@dataclass(frozen=True)
class Nearest:
    """Mutual nearest neighbours: fast, and right in the scene. Kills its process at the given call."""

    name: str = "nearest"
    killed_at: int = 0
    weights: None = None

    def build(self):
        return NearestMatcher(self)


@dataclass
class NearestMatcher:
    config: Nearest
    calls: int = 0

    @property
    def settings(self):
        return {"name": self.config.name}

    def match(self, features0, features1):
        self.calls += 1
        if self.calls == self.config.killed_at:
            os.kill(os.getpid(), signal.SIGKILL)
        similar = features0.descriptors @ features1.descriptors.T
        index0, index1 = np.arange(len(similar)), similar.argmax(1)
        mutual = similar.argmax(0)[index1] == index0
        indices = np.column_stack([index0, index1])[mutual]
        return Matches.of(features0, features1, indices, np.ones(len(indices), np.float32))


def content(path: Path) -> list[list[tuple]]:
    with sqlite3.connect(path) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        rows = [
            connection.execute(f"SELECT * FROM {table} ORDER BY pair_id").fetchall()
            for table in ("matches", "two_view_geometries")
        ]
    connection.close()
    return rows


def test_the_mapper_can_start(tmp_path):
    path = tmp_path / "data base.db"
    write_scene(path, [])
    done = match_database(path, "exhaustive", Nearest())
    assert (done.pairs, done.made, done.kept, done.verified) == (6, 6, 0, 6)
    assert done.inliers is not None and done.inliers >= 0.95 * done.matches >= 0.9 * 6 * COUNT
    options = pycolmap.IncrementalPipelineOptions()
    options.num_threads, options.random_seed, options.extract_colors = 1, 0, False
    model = pycolmap.incremental_mapping(path, tmp_path, tmp_path / "model", options)[0]
    assert model.num_reg_images() == 4 and model.compute_mean_reprojection_error() < 0.01


def test_only_what_changed_is_done_again(tmp_path):
    path = tmp_path / "database.db"
    write_scene(path, [])
    first = match_database(path, "exhaustive", Nearest())
    before = content(path)
    again = match_database(path, "existing", Nearest())
    assert (again.made, again.kept, again.matches, again.inliers) == (0, 6, first.matches, first.inliers)
    assert content(path) == before
    with open_database(path) as database:
        changed = read_images(database)["c.jpg"].image_id
        database.update_keypoints(changed, database.read_keypoints(changed) + np.float32(1))
    assert match_database(path, "existing", Nearest()).made == 3
    assert match_database(path, "existing", Nearest("other settings")).made == 6


def test_pairs_that_are_not_asked_for_stay(tmp_path):
    path, listed = tmp_path / "database.db", tmp_path / "pairs.tsv"
    write_scene(path, [(a, b, indices[:7]) for a, b, indices in all_pairs()[:2]])
    write_pairs(listed, [(NAMES[0], NAMES[1]), (NAMES[0], NAMES[3])])
    done = match_database(path, listed, Nearest(), verify=False)
    assert (done.pairs, done.made, done.verified, done.inliers) == (2, 2, None, None)
    with open_database(path) as database:
        images = [read_images(database)[name] for name in NAMES]
        counts = [len(read_matches(database, images[0], image)) for image in images[1:]]
        assert counts[0] > 100 and counts[1] == 7 and counts[2] > 100
        assert database.num_verified_image_pairs() == 0
    assert match_database(path, listed, Nearest()).verified == 2
    assert match_database(path, "existing", Nearest()).pairs == 3


@pytest.mark.parametrize("killed_at", [1, 4, 6])
def test_killed_and_run_again_gives_the_same(tmp_path, killed_at):
    whole, killed = tmp_path / "whole.db", tmp_path / "killed.db"
    for path in (whole, killed):
        write_scene(path, all_pairs())
    before = content(killed)
    match_database(whole, "existing", Nearest())
    process = multiprocessing.get_context("fork").Process(
        target=match_database, args=(killed, "existing", Nearest(killed_at=killed_at))
    )
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    assert content(killed) == before  # not touched
    assert match_database(killed, "existing", Nearest()).kept == killed_at - 1
    assert content(killed) == content(whole)
    assert not list(tmp_path.glob(".linglue-killed.db-*"))


def test_images_without_keypoints_have_no_matches(tmp_path):
    path, features = tmp_path / "database.db", scene()
    features["c.jpg"] = features["c.jpg"].select(np.zeros(0, np.int64))
    write_database(path, dict.fromkeys(NAMES, camera()), features.__getitem__, [], with_descriptors=True)
    done = match_database(path, "exhaustive", Nearest())
    assert (done.pairs, done.verified) == (6, 3)
    assert match_database(path, "existing", Nearest()).made == 0


def test_a_database_of_an_older_colmap(tmp_path):
    path = tmp_path / "database.db"
    write_scene(path, all_pairs())
    with sqlite3.connect(path) as connection:  # as before rigs, and before descriptors had a type
        for table in ("frame_data", "frames", "rig_sensors", "rigs", "pose_priors"):
            connection.execute(f"DROP TABLE {table}")
        connection.execute("ALTER TABLE descriptors DROP COLUMN type")
        connection.execute("PRAGMA user_version = 3800")
    connection.close()
    assert match_database(path, "existing", Nearest()).verified == 6
    options = pycolmap.IncrementalPipelineOptions()
    options.num_threads, options.random_seed, options.extract_colors = 1, 0, False
    assert pycolmap.incremental_mapping(path, tmp_path, tmp_path / "model", options)[0].num_reg_images() == 4


def test_nothing_to_match_is_an_error(tmp_path):
    path, empty = tmp_path / "database.db", scene()["c.jpg"].select(np.zeros(0, np.int64))
    (tmp_path / "pairs.tsv").write_text("# none\n")
    for names, pairs, complaint in (
        (["a"], "exhaustive", "has 1 images, expected at least 2"),
        (["a", "b"], tmp_path / "pairs.tsv", r"pairs\.tsv: holds no pair"),
        (["a", "b"], "exhaustive", "its images have no keypoints"),
    ):
        write_database(path, dict.fromkeys(names, camera()), lambda _: empty, [])
        with pytest.raises(LinGlueError, match=complaint):
            match_database(path, pairs, Nearest())


def test_what_cannot_be_used_is_said_in_one_line(tmp_path):
    path = tmp_path / "database.db"
    write_scene(path, [], with_descriptors=False)
    complaints = {
        "existing": "has no matches whose pairs could be used",
        "exhaustive": "image 'left side/ä 1.jpg' has no descriptors",
        tmp_path / "pairs.tsv": "names the image 'x', which is not among the 4",
        tmp_path / "missing.tsv": r"missing\.tsv: cannot be read",
    }
    write_pairs(tmp_path / "pairs.tsv", [(NAMES[0], "x")])
    for pairs, complaint in complaints.items():
        with pytest.raises(LinGlueError, match=complaint) as caught:
            match_database(path, pairs, Nearest())
        assert "\n" not in str(caught.value)
    with locked(path), pytest.raises(LinGlueError, match="another process"):
        match_database(path, "exhaustive", Nearest())
    with pytest.raises(LinGlueError, match="no such COLMAP database"):
        match_database(tmp_path / "none.db", "exhaustive", Nearest())
    assert not list(tmp_path.glob("*none*"))


@dataclass(frozen=True)
class Failing(Nearest):
    """Fails in the middle."""

    failing: bool = True

    def build(self):
        return FailingMatcher(self)


class FailingMatcher(NearestMatcher):
    def match(self, features0, features1):
        if getattr(self.config, "failing", False) and self.calls == 3:
            raise LinGlueError("the machine is on fire")
        return super().match(features0, features1)


def test_an_error_in_the_middle_changes_nothing_and_loses_nothing(tmp_path):
    path = tmp_path / "database.db"
    write_scene(path, all_pairs())
    before = path.read_bytes()
    with pytest.raises(LinGlueError, match="on fire"):
        match_database(path, "existing", Failing())
    assert path.read_bytes() == before
    assert match_database(path, "existing", Failing(failing=False)).kept == 3


def test_a_database_that_cannot_be_matched_is_not_touched(tmp_path):
    path = tmp_path / "database.db"
    write_scene(path, [], with_descriptors=False)
    before = path.read_bytes()
    with pytest.raises(LinGlueError, match="has no descriptors"):
        match_database(path, "exhaustive", Nearest())
    assert path.read_bytes() == before
    assert {file.name for file in tmp_path.iterdir()} <= {"database.db", ".linglue-database.db.lock"}
