"""`linglue extract`: features of folders, restartable, never mixing settings."""

import json
import shutil

import numpy as np
import pytest

from linglue.io.npz import load_features

FEW = ("--max-keypoints", 100)


@pytest.fixture
def images(photos, tmp_path):
    folder = tmp_path / "images"
    (folder / "deep er").mkdir(parents=True)
    shutil.copy(photos[0], folder / "a.png")
    shutil.copy(photos[1], folder / "deep er" / "b.png")
    return folder


def test_folder_in_one_file_per_image_out(run, images, matcher, tmp_path):
    outcome = run("extract", images, "-o", tmp_path / "work", "--json", *FEW)
    assert outcome.code == 0
    assert json.loads(outcome.out) == {"written": 2, "kept": 0, "keypoints": 200, "failed": []}
    features = load_features(tmp_path / "work" / "deep er" / "b.png.npz")
    expected = matcher.extract(images / "deep er" / "b.png", 100)
    np.testing.assert_array_equal(features.descriptors, expected.descriptors)
    assert features.kind == "sift" and features.image_size == (560, 420)


def test_second_run_keeps_what_is_there(run, images, tmp_path):
    work = tmp_path / "work"
    run("extract", images, "-o", work, *FEW)
    kept, redone = work / "a.png.npz", work / "deep er" / "b.png.npz"
    redone.unlink()
    time = kept.stat().st_mtime_ns
    outcome = run("extract", images, "-o", work, "--json", *FEW)
    assert {k: json.loads(outcome.out)[k] for k in ("written", "kept")} == {"written": 1, "kept": 1}
    assert kept.stat().st_mtime_ns == time and redone.is_file()


@pytest.mark.parametrize("other", [("--max-keypoints", 50), ("--resize", 300, *FEW), ("--tile", 256, *FEW)])
def test_other_settings_are_refused_in_the_same_folder(run, images, tmp_path, other):
    work = tmp_path / "work"
    run("extract", images / "a.png", "-o", work, *FEW)
    before = sorted(work.rglob("*"))
    outcome = run("extract", images / "deep er" / "b.png", "-o", work, *other)
    assert outcome.code == 1 and outcome.err.count("\n") == 1
    assert str(work) in outcome.err and other[0].strip("-").replace("-", "_") in outcome.err
    assert sorted(work.rglob("*")) == before


def test_features_of_unknown_settings_are_refused(run, images, tmp_path):
    work = tmp_path / "work"
    run("extract", images / "a.png", "-o", work, *FEW)
    (work / "features.json").unlink()
    outcome = run("extract", images / "a.png", "-o", work, *FEW)
    assert outcome.code == 1 and "unknown settings" in outcome.err


def test_extracted_files_can_be_matched(run, images, tmp_path):
    work = tmp_path / "work"
    run("extract", images, "-o", work, "--max-keypoints", 600)
    outcome = run("match", work / "a.png.npz", work / "deep er" / "b.png.npz", "--json")
    assert outcome.code == 0 and json.loads(outcome.out)["matches"] > 100


def test_good_images_are_done_when_one_is_bad(run, images, tmp_path):
    (images / "bad.jpg").write_text("no picture")
    outcome = run("extract", images, "-o", tmp_path / "work", *FEW)
    assert outcome.code == 1
    assert outcome.err.count("\n") == 1 and "1 of 3 images" in outcome.err and "bad.jpg" in outcome.err
    assert len(list((tmp_path / "work").rglob("*.npz"))) == 2


@pytest.mark.parametrize("case", ["missing", "no image inside", "same name twice", "only bad", "output is a file"])
def test_refused_with_nothing_written(run, images, tmp_path, case):
    (tmp_path / "nothing").mkdir()
    (tmp_path / "bad.jpg").write_text("no picture")
    output = tmp_path / "bad.jpg" if case == "output is a file" else tmp_path / "work"
    sources, wanted = {
        "missing": ([images, tmp_path / "missing"], "missing"),
        "no image inside": ([tmp_path / "nothing"], ".jpg"),
        "same name twice": ([images / "a.png", images / "a.png"], "a.png"),
        "only bad": ([tmp_path / "bad.jpg"], "bad.jpg"),
        "output is a file": ([images], "bad.jpg"),
    }[case]
    before = sorted(tmp_path.rglob("*"))
    outcome = run("extract", *sources, "-o", output, *FEW)
    assert outcome.code == 1
    assert outcome.err.count("\n") == 1 and wanted in outcome.err
    assert sorted(tmp_path.rglob("*")) == before
