"""`linglue match` of folders and lists of pairs, without a work folder; geometry and its inliers."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import cv2
import numpy as np
import pytest

from linglue.io.npz import load_matches
from linglue.sfm.pair_folder import RECORD

FEW = ("--max-keypoints", 400)


@pytest.fixture
def folder(images, tmp_path) -> Path:
    """Two images that match, one in a subfolder, and one file that is no image."""
    (tmp_path / "images" / "sub").mkdir(parents=True)
    for source, name in zip(images, ("a.png", "sub/b.png"), strict=True):
        (tmp_path / "images" / name).write_bytes(source.read_bytes())
    (tmp_path / "images" / "c.png").write_text("no image")
    return tmp_path


def test_all_pairs_of_a_folder(run, folder):
    outcome = run("match", folder / "images", "-o", folder / "out", "--draw", folder / "drawn", *FEW, "--json")
    assert outcome.code == 0, outcome.err
    facts = json.loads(outcome.out)
    assert [pair["images"] for pair in facts["pairs"]] == [["a.png", "sub/b.png"]]
    assert len(facts["problems"]) == 1 and facts["problems"][0].startswith("c.png: left out")
    assert len(load_matches(folder / "out/a.png/sub/b.png.npz")) == facts["pairs"][0]["matches"] > 50
    assert cv2.imread(str(folder / "drawn/a.png/sub/b.png.jpg")) is not None


@pytest.fixture
def three(folder) -> Path:
    """Three images that can be matched, and what a run that nobody disturbed makes of them."""
    cv2.imwrite(str(folder / "images/c.png"), np.asarray(cv2.imread(str(folder / "images/a.png")))[::-1])
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    """All files but the record, whose order tells of the runs."""
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file() and p.name != RECORD}


@pytest.mark.slow
def test_a_killed_run_resumes(run, three):
    command = ("match", three / "images", "-o", three / "out", "--draw", three / "drawn", *FEW)
    started = [sys.executable, "-m", "linglue", *map(str, command)]
    process = subprocess.Popen(started, env={**os.environ, "OMP_NUM_THREADS": "1"}, stdout=subprocess.DEVNULL)
    record = three / "out" / RECORD
    drawn = three / "drawn" / RECORD
    while not drawn.is_file() or '"facts"' not in drawn.read_text():
        assert process.poll() is None
        time.sleep(0.01)
    process.kill()
    process.wait()
    with record.open("a") as file:
        file.write('{"file": "half a li')
    (three / "out/a.png" / f".linglue-{'0' * 32}.part.npz").touch()
    facts = json.loads(run(*command, "--json").out)
    assert facts["kept"] >= 1 and [pair["images"] for pair in facts["pairs"]] == [
        ["a.png", "c.png"],
        ["a.png", "sub/b.png"],
        ["c.png", "sub/b.png"],
    ]
    fresh = json.loads(run("match", three / "images", "-o", three / "fresh", *FEW, "--json").out)
    assert fresh["pairs"] == facts["pairs"] and contents(three / "fresh") == contents(three / "out")
    assert json.loads(run(*command, "--json").out)["kept"] == 3


def test_only_changed_images_are_matched_again(run, three):
    command = ("match", three / "images", "-o", three / "out", *FEW, "--min-score", 0, "--json")
    first = json.loads(run(*command).out)
    image = np.asarray(cv2.imread(str(three / "images/c.png")))
    cv2.imwrite(str(three / "images/c.png"), np.ascontiguousarray(image[:-30]))
    again = json.loads(run(*command).out)
    assert first["kept"] == 0 and again["kept"] == 1
    assert again["pairs"][1] == first["pairs"][1] and again["pairs"][0] != first["pairs"][0]
    (three / "images/c.png").unlink()
    assert json.loads(run(*command).out)["problems"] == [
        f"{three / 'out'}: holds 2 files of other pairs, as a.png/c.png.npz"
    ]


def test_a_folder_of_other_settings_or_of_the_user_stays_as_it_is(run, folder):
    command = ("match", folder / "images", "-o", folder / "out")
    assert run(*command, *FEW).code == 0
    before = contents(folder / "out")
    outcome = run(*command, "--max-keypoints", 300)
    assert outcome.code == 1 and "made with other settings" in outcome.err and outcome.err.count("\n") == 1
    (folder / "out" / RECORD).unlink()
    outcome = run(*command, *FEW)
    assert outcome.code == 1 and "exists already" in outcome.err
    assert contents(folder / "out") == before


def test_a_file_of_the_user_in_the_folder_is_never_replaced(run, folder):
    command = ("match", folder / "images", "-o", folder / "out", *FEW)
    assert run(*command).code == 0
    record = (folder / "out" / RECORD).read_text().splitlines(keepends=True)
    (folder / "out" / RECORD).write_text(record[0])
    before = contents(folder / "out")
    outcome = run(*command)
    assert outcome.code == 1 and "was not made by LinGlue" in outcome.err
    assert contents(folder / "out") == before


def test_an_unreadable_subfolder_and_links_in_a_circle_are_a_line_each(run, folder):
    (folder / "images/circle").symlink_to(folder / "images", target_is_directory=True)
    facts = json.loads(run("match", folder / "images", *FEW, "--json").out)
    assert facts["problems"][0] == "circle: a link to a folder that is there already, left out"
    assert len(facts["pairs"]) == 1


def test_nothing_matched_leaves_nothing(run, tmp_path):
    (tmp_path / "images").mkdir()
    for name in "ab":
        (tmp_path / f"images/{name}.png").write_text("no image")
    outcome = run("match", tmp_path / "images", "-o", tmp_path / "out", "--quiet")
    assert outcome.code == 1 and "none of its pairs could be matched" in outcome.err
    assert not (tmp_path / "out").exists()


def test_a_list_of_pairs_lies_beside_its_images(run, folder):
    (folder / "images/list.tsv").write_text("a.png\tsub/b.png\n")
    beside = json.loads(run("match", folder / "images/list.tsv", *FEW, "--json").out)
    (folder / "list.tsv").write_text("sub/b.png\ta.png\n")
    given = json.loads(run("match", folder / "list.tsv", "--images", folder / "images", *FEW, "--json").out)
    assert beside["pairs"] == given["pairs"] and len(given["pairs"]) == 1


@pytest.mark.parametrize("kind", ["fundamental", "homography", "essential"])
def test_geometry_keeps_inliers(run, images, pair, tmp_path, kind):
    pytest.importorskip("poselib")
    outcome = run("match", *images, "--geometry", kind, "-o", tmp_path / "m.npz", *FEW, "--json")
    facts = json.loads(outcome.out)
    found = load_matches(tmp_path / "m.npz")
    assert 50 < facts["inliers"] == len(found) <= facts["matches"]
    with np.load(tmp_path / "m.npz") as file:
        assert file[kind].tolist() == facts["geometry"]["matrix"]
        if kind == "homography":
            estimated = file[kind] / file[kind][2, 2]
            assert np.abs(estimated - pair.image1_from_image0).max() < 1
            assert np.median(pair.errors(found.points0, found.points1)) < 1


def test_too_few_matches_have_no_geometry(run, images, tmp_path):
    pytest.importorskip("poselib")
    noise = np.random.default_rng(0).integers(0, 255, (200, 200, 3), np.uint8)
    cv2.imwrite(str(tmp_path / "noise.png"), noise)
    facts = json.loads(run("match", images[0], tmp_path / "noise.png", "--geometry", "homography", *FEW, "--json").out)
    assert facts["inliers"] == 0 and facts["geometry"]["matrix"] is None
