"""`linglue match` of folders and lists of pairs, without a work folder; geometry and its inliers."""

import json
from pathlib import Path

import cv2
import numpy as np
import pytest

from linglue.io.npz import load_matches

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
