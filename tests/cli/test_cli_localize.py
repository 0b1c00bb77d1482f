"""linglue localize: queries of a folder and of a list, against a map of a rendered room."""

import json
from pathlib import Path

import numpy as np
import pytest

from linglue.io.poses import read_poses
from rendered import FOCAL, render, write_images
from rendered_map import KEYPOINTS, errors, intrinsics, write_map

pycolmap = pytest.importorskip("pycolmap")

VIEWS = render(5)
QUERIES, OTHERS = VIEWS[1:4:2], VIEWS[::2]


@pytest.fixture(scope="module")
def work(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("map")
    write_map(folder, OTHERS)
    return folder


@pytest.fixture
def images(tmp_path) -> Path:
    write_images(tmp_path / "images", QUERIES)
    return tmp_path / "images"


def test_a_folder_with_a_broken_file_and_a_black_one(run, work, images, tmp_path):
    (images / "broken.jpg").write_bytes(b"no picture")
    from PIL import Image

    Image.fromarray(np.zeros((360, 480, 3), np.uint8)).save(images / "black ä.png")
    command = ("localize", images, "--map", work, "-o", tmp_path / "poses.txt", "--max-keypoints", KEYPOINTS, "--json")
    outcome = run(*command, "--intrinsics", f"{FOCAL},{FOCAL},240,180")
    assert outcome.code == 0, outcome.err
    facts = json.loads(outcome.out)
    assert (facts["queries"], facts["localized"], facts["made"], facts["kept"]) == (3, 2, 3, 0)
    assert list(facts["failed"]) == ["black ä.png"]
    assert len(facts["problems"]) == 1 and facts["problems"][0].startswith("broken.jpg: left out")
    lines = [line.rsplit(" ", 7) for line in (tmp_path / "poses.txt").read_text().splitlines()]
    assert [line[0] for line in lines] == [view.name for view in QUERIES] and all(len(line) == 8 for line in lines)
    poses = read_poses(tmp_path / "poses.txt")
    for view in QUERIES:
        metres, degrees = errors(poses[view.name], view)
        assert metres < 0.05 and degrees < 0.5
    details = [json.loads(line) for line in (tmp_path / "poses.jsonl").read_text().splitlines()]
    assert {d["name"]: d["inliers"] > 50 for d in details} == {view.name: True for view in QUERIES} | {
        "black ä.png": False
    }

    before = (tmp_path / "poses.txt").read_bytes()
    (tmp_path / "poses.txt").unlink()
    again = json.loads(run(*command, "--intrinsics", f"{FOCAL},{FOCAL},240,180").out)
    assert (again["made"], again["kept"]) == (0, 3)
    assert (tmp_path / "poses.txt").read_bytes() == before


def test_a_list_with_intrinsics(run, work, images, tmp_path):
    names = tmp_path / "queries.txt"
    names.write_text(f"{QUERIES[0].name} {intrinsics(QUERIES[0])}\nmissing.jpg {intrinsics(QUERIES[0])}\n")
    command = ("localize", names, "--images", images, "--map", work, "--max-keypoints", KEYPOINTS)
    outcome = run(*command, "-o", tmp_path / "poses.txt")
    assert outcome.code == 0, outcome.err
    assert "1 of 1 images localized" in outcome.out and "missing.jpg: left out (no such image file)" in outcome.out
    assert errors(read_poses(tmp_path / "poses.txt")[QUERIES[0].name], QUERIES[0])[0] < 0.05


def test_mistakes_are_one_line_and_nothing_is_written(run, work, images, tmp_path):
    output, before = tmp_path / "poses.txt", sorted(tmp_path.iterdir())
    for arguments in (
        (images, "--map", tmp_path, "-o", output),
        (images, "--map", work, "-o", tmp_path / "poses.csv"),
        (images, "--map", work, "-o", tmp_path / "none" / "poses.txt"),
        (images, "--map", work, "-o", output, "--features", "aliked"),
        (images, "--map", work, "-o", output, "--top", "0"),
        (images, "--map", work, "-o", output, "--images", images),
        (images, "--map", work, "-o", output, "--intrinsics", "none.txt"),
        (tmp_path / "none", "--map", work, "-o", output),
    ):
        outcome = run("localize", *arguments)
        assert outcome.code == 1 and outcome.out == "", arguments
        assert outcome.err.startswith("linglue localize: ") and outcome.err.count("\n") == 1, outcome.err
        assert "expected" in outcome.err
    assert sorted(tmp_path.iterdir()) == before


def test_one_image(run, work, images, tmp_path):
    image = images / QUERIES[0].name
    command = ("localize", image, "--map", work, "-o", tmp_path / "poses.txt", "--max-keypoints", KEYPOINTS)
    outcome = run(*command, "--intrinsics", f"{FOCAL},{FOCAL},240,180")
    assert outcome.code == 0, outcome.err
    assert errors(read_poses(tmp_path / "poses.txt")[image.name], QUERIES[0])[0] < 0.05


@pytest.mark.parametrize("content", ['{"mine": 1}\n', "not JSON\n", '{"name": "a"}\n{"name": "b"}\n'])
def test_a_file_of_others_beside_the_poses_is_not_touched(run, work, images, tmp_path, content):
    (tmp_path / "poses.jsonl").write_text(content)
    outcome = run("localize", images, "--map", work, "-o", tmp_path / "poses.txt", "--max-keypoints", KEYPOINTS)
    assert outcome.code == 1 and outcome.err.count("\n") == 1 and "poses.jsonl: is no record" in outcome.err
    assert (tmp_path / "poses.jsonl").read_text() == content and not (tmp_path / "poses.txt").exists()


def test_a_map_that_cannot_be_written(run, work, images, tmp_path, monkeypatch):
    before = {path: path.read_bytes() for path in work.rglob("*") if path.is_file()}
    for name in ("core.sqlite", "sfm.workspace"):
        monkeypatch.setattr(f"linglue.{name}.os.access", lambda path, mode: work not in (path, *Path(path).parents))
    command = ("localize", images, "--map", work, "-o", tmp_path / "poses.txt", "--max-keypoints", KEYPOINTS)
    assert run(*command, "--intrinsics", f"{FOCAL},{FOCAL},240,180").code == 0
    assert {path: path.read_bytes() for path in work.rglob("*") if path.is_file()} == before
