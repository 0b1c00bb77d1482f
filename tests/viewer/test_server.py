"""The viewer on a rendered room: what it reads, what it shows, and a browser that looks at it."""

import json
import re
import shutil
import time
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from chromium import Browser
from linglue.errors import LinGlueError
from linglue.geometry.pose import Pose
from linglue.io.poses import write_poses
from linglue.viewer.contents import WorkContents
from rendered import render

pytest.importorskip("viser")

from linglue.viewer.server import EVERY, Viewer, describe, plain


@pytest.fixture(scope="module")
def contents(reconstruction) -> WorkContents:
    return WorkContents(reconstruction)


@pytest.fixture
def viewer(contents) -> Iterator[Viewer]:
    shown = Viewer(contents, port=0)
    yield shown
    shown.close()


def names():
    return tuple(view.name for view in render(4))


def test_cameras_and_points_are_those_of_the_model(contents):
    read = contents.read()
    assert read.scene.names == names() and set(read.paths) >= set(names())
    assert len(read.scene.points) == len(read.scene.tracks) > 100 and read.scene.tracks.min() >= 2
    assert len(read.matched) == 6 and read.without_pose == {"night.png": "no keypoints"}


def test_frusta_look_at_the_points(contents):
    scene = contents.read().scene
    apex, corners = np.split(scene.frusta(1.0), [1], axis=1)
    forward = corners.mean(axis=1) - apex[:, 0]
    towards = np.median(scene.points, axis=0) - apex[:, 0]
    cosine = (forward * towards).sum(1) / np.linalg.norm(forward, axis=1) / np.linalg.norm(towards, axis=1)
    assert cosine.min() > 0.9
    assert scene.up @ scene.rotations[0, 1] < -0.9  # down in the image is down in the room


def test_keypoints_of_the_model_are_marked(contents):
    points, in_model = contents.keypoints(names()[0])
    assert len(points) == len(in_model) and 20 < in_model.sum() < len(points)


def test_a_folder_without_a_model_yet(reconstruction, tmp_path):
    for name in ("features.db", "matches.db"):
        shutil.copy(reconstruction / name, tmp_path)
    early = WorkContents(tmp_path)
    read, before = early.read(), early.version()
    assert read.scene.names == ()
    assert read.without_pose == {**dict.fromkeys(names(), "no model yet"), "night.png": "no keypoints"}
    assert len(read.matched) == 6 and not early.keypoints(names()[0])[1].any()
    shutil.copytree(reconstruction / "model", tmp_path / "model")
    assert early.version() != before and early.read().scene.names == names()


def test_reasons_and_localized_queries_are_told(reconstruction, tmp_path):
    shutil.copytree(reconstruction, tmp_path / "work")
    write_poses(tmp_path / "poses.txt", {"new.jpg": Pose(np.eye(3), np.zeros(3))})
    (tmp_path / "work" / "summary.json").write_text(json.dumps({"reasons": {"night.png": "too dark"}}))
    read = WorkContents(tmp_path / "work", tmp_path / "poses.txt").read()
    assert list(read.queries) == ["new.jpg"] and "1 localized" in describe(read)
    assert "- night\\.png: too dark" in describe(read)


def test_a_file_of_queries_that_is_not_there_is_one_line(reconstruction, tmp_path):
    with pytest.raises(LinGlueError, match=r"poses\.txt: no such file, expected poses of `linglue localize`"):
        WorkContents(reconstruction, tmp_path / "poses.txt")


def test_what_stays_as_it_is_is_not_read_again(reconstruction, tmp_path):
    shutil.copytree(reconstruction, tmp_path / "work")
    write_poses(tmp_path / "poses.txt", {"new.jpg": Pose(np.eye(3), np.zeros(3))})
    contents = WorkContents(tmp_path / "work", tmp_path / "poses.txt")
    before = contents.read()
    assert contents.read().scene is before.scene and contents.read().queries is before.queries
    (tmp_path / "work" / "model" / "points3D.bin").touch()
    write_poses(tmp_path / "poses.txt", {"other.jpg": Pose(np.eye(3), np.zeros(3))})
    assert contents.read().scene is not before.scene and list(contents.read().queries) == ["other.jpg"]


def test_names_are_shown_as_they_are(viewer):
    nasty = "<img src=x onerror=f()> {g()} ![i](/etc/passwd) *b* `c` a_b\\.png"
    shown = describe(replace(viewer.contents, without_pose={nasty: "too {dark}"}))
    line = shown.splitlines()[-1].removeprefix("- ")
    assert re.sub(r"\\(.)", r"\1", line) == f"{nasty}: too {{dark}}"  # what Markdown makes of it
    assert not re.search(r"(?<!\\)[<{*`_\[!]", line)


def test_points_are_filtered(viewer):
    scene = viewer.contents.scene
    assert viewer.filter_points() == len(scene.points)
    viewer._track.value = 4
    assert viewer.filter_points() == (scene.tracks >= 4).sum() < len(scene.points)


def test_a_pair_and_an_image_are_drawn(viewer):
    viewer.choose_pair(*names()[:2])
    every = viewer._pair_picture.image
    assert every.shape[1] > every.shape[0] > 100 and viewer._pair_picture.visible
    scores = viewer.source.matches(*names()[:2]).scores
    viewer._pair[0].value, viewer._pair[1].value = names()[:2]  # as a visitor would
    viewer._score.value = 0.9
    assert viewer._pair_text.content == f"{(scores >= 0.9).sum()} of {len(scores)} matches"
    assert 0 < (scores >= 0.9).sum() < len(scores) and (viewer._pair_picture.image != every).any()
    viewer.choose_pair(names()[0], names()[0])
    assert "no matches" in viewer._pair_text.content and not viewer._pair_picture.visible
    viewer.choose(names()[1])
    green = (viewer._picture.image[..., 1].astype(int) - viewer._picture.image[..., 0]) > 100
    assert green.sum() > 50


def test_only_this_machine_may_look_and_a_used_port_is_one_line(viewer, contents):
    assert viewer.address.startswith("http://127.0.0.1:")
    with pytest.raises(LinGlueError, match="expected an address of this machine and a free port"):
        Viewer(contents, port=viewer.server.get_port())


def test_new_files_are_shown(reconstruction, tmp_path):
    for name in ("features.db", "matches.db"):
        shutil.copy(reconstruction / name, tmp_path)
    shown = Viewer(WorkContents(tmp_path), port=0)
    try:
        assert not shown.refresh()
        shutil.copytree(reconstruction / "model", tmp_path / "model")
        assert shown.refresh() and shown.contents.scene.names == names()
    finally:
        shown.close()


def test_cameras_stay_while_only_matches_change(reconstruction, tmp_path):
    shutil.copytree(reconstruction, tmp_path / "work")
    shown = Viewer(WorkContents(tmp_path / "work"), port=0)
    try:
        cameras = shown._handles
        (tmp_path / "work" / "matches.db").touch()
        assert shown.refresh() and shown._handles is cameras
        (tmp_path / "work" / "model" / "images.bin").touch()
        assert shown.refresh() and shown._handles is not cameras and len(shown._handles) == 4
    finally:
        shown.close()


def test_an_image_damaged_since_has_a_camera_without_it(reconstruction, tmp_path, monkeypatch):
    contents = WorkContents(reconstruction).read()
    (tmp_path / "damaged.png").write_bytes(b"no image")
    damaged = replace(contents, paths={names()[0]: tmp_path / "damaged.png"})
    monkeypatch.setattr(WorkContents, "read", lambda _: damaged)
    shown = Viewer(WorkContents(reconstruction), port=0)
    try:
        shown.choose(names()[0])
        shown.choose_pair(*names()[:2])
        assert "images are gone" in shown._pair_text.content and len(shown._handles) == 4
    finally:
        shown.close()


def test_nothing_in_the_folder_changes(reconstruction, viewer):
    before = {path: path.read_bytes() for path in reconstruction.rglob("*") if path.is_file()}
    viewer.choose(names()[0])
    viewer.choose_pair(*names()[:2])
    assert {path: path.read_bytes() for path in reconstruction.rglob("*") if path.is_file()} == before


@pytest.mark.browser
@pytest.mark.slow
def test_a_browser_draws_the_scene_and_a_click_changes_the_view(viewer, tmp_path):
    def amber(seen):  # where cameras are drawn
        return np.abs(seen[:, :700].astype(int) - [236, 187, 60]).max(axis=2) < 45

    with Browser(tmp_path, (1100, 700)) as browser:
        browser.open(viewer.address)
        browser.wait_for_text("4 images with a pose")
        before = browser.wait_for_picture(lambda seen: amber(seen).sum() > 300)
        assert amber(before).sum() > 300
        y, x = (int(np.median(part)) for part in np.nonzero(amber(before)))
        deadline = time.monotonic() + 60
        while not viewer._chosen.content and time.monotonic() < deadline:
            for dy, dx in ((0, 0), (15, 0), (-15, 0), (0, 25), (0, -25)):  # some camera lies about here
                browser.click(x + dx, y + dy)
        assert viewer._chosen.content.strip("*") in map(plain, names())
        time.sleep(EVERY)
        assert np.abs(browser.picture()[:, :700].astype(int) - before[:, :700]).mean() > 2
