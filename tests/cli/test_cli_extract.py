"""`linglue extract`: features of folders into a work folder, restartable; or of one image into a file."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from linglue.io.npz import load_features
from linglue.sfm.workspace import Workspace

FEW = ("--max-keypoints", 100, "--workers", 1)


@pytest.fixture
def folder(images, tmp_path) -> Path:
    folder = tmp_path / "images"
    (folder / "deep er").mkdir(parents=True)
    shutil.copy(images[0], folder / "a.png")
    shutil.copy(images[1], folder / "deep er" / "b.png")
    return folder


def test_folder_in_store_out(run, folder, matcher, tmp_path):
    outcome = run("extract", folder, "-o", tmp_path / "work", "--json", *FEW)
    assert outcome.code == 0
    assert json.loads(outcome.out) == {"made": 2, "kept": 0, "images": 2, "keypoints": 200, "problems": []}
    with Workspace(tmp_path / "work").features() as store:
        features = store.get("deep er/b.png")
    expected = matcher.extract(folder / "deep er" / "b.png", 100)
    np.testing.assert_array_equal(features.keypoints, expected.keypoints)
    np.testing.assert_allclose(features.descriptors, expected.descriptors, atol=3e-4)
    assert features.kind == "linpoint" and features.image_size == (560, 420)


def test_second_run_keeps_what_is_there(run, folder, tmp_path):
    run("extract", folder, "-o", tmp_path / "work", *FEW)
    shutil.copy(folder / "a.png", folder / "deep er" / "b.png")  # the same as the other now
    shutil.copy(folder / "a.png", folder / "c.png")
    found = json.loads(run("extract", folder, "-o", tmp_path / "work", "--json", *FEW).out)
    assert (found["made"], found["kept"], found["images"], len(found["problems"])) == (0, 1, 1, 2)


def test_other_settings_do_all_again(run, folder, tmp_path):
    run("extract", folder, "-o", tmp_path / "work", *FEW)
    outcome = run("extract", folder, "-o", tmp_path / "work", "--json", "--max-keypoints", 50, "--workers", 2)
    assert json.loads(outcome.out)["made"] == 2


def test_one_image_into_a_file_that_can_be_matched(run, images, tmp_path):
    files = [tmp_path / "a.npz", tmp_path / "b.npz"]
    for image, file in zip(images, files, strict=True):
        assert run("extract", image, "-o", file, "--max-keypoints", 600).code == 0
    assert len(load_features(files[0])) == 600
    outcome = run("match", *files, "--json")
    assert outcome.code == 0 and json.loads(outcome.out)["matches"] > 100


def test_good_images_are_done_when_one_is_bad(run, folder, tmp_path):
    (folder / "bad.jpg").write_text("no picture")
    outcome = run("extract", folder, "-o", tmp_path / "work", *FEW)
    assert outcome.code == 0
    assert "bad.jpg: left out (not an image" in outcome.out
    with Workspace(tmp_path / "work").features() as store:
        assert store.names() == ["a.png", "deep er/b.png"]


@pytest.mark.parametrize(
    "case", ["missing", "no image inside", "only bad", "output is a file", "masks for one", "no workers", "weights"]
)
def test_refused_in_one_line(run, folder, tmp_path, case):
    (tmp_path / "nothing").mkdir()
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "bad.jpg").write_text("no picture")
    work = ("-o", tmp_path / "work", *FEW)
    arguments, wanted = {
        "missing": ((tmp_path / "missing", *work), "missing: no such folder"),
        "no image inside": ((tmp_path / "nothing", *work), ".jpg"),
        "only bad": ((tmp_path / "bad", *work), "none of its images could be used"),
        "output is a file": ((folder, "-o", tmp_path / "bad" / "bad.jpg"), "bad.jpg"),
        "masks for one": ((folder / "a.png", "-o", tmp_path / "a.npz", "--masks", tmp_path), "--masks is"),
        "no workers": ((folder, "-o", tmp_path / "work", "--workers", 0), "--workers is 0, expected at least 1"),
        "weights": ((folder, "--features", "superpoint", *work), "needs a weights file"),
    }[case]
    outcome = run("extract", *arguments)
    assert outcome.code == 1
    assert outcome.err.count("\n") == 1 and wanted in outcome.err
    assert not (tmp_path / "work").exists()
