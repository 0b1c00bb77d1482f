"""What commands write: never an input, never another output, never outside the folder that was given."""

import os
import shutil
from pathlib import Path

import h5py
import numpy as np
import pytest

from linglue.cli.common import check_outputs
from linglue.errors import LinGlueError
from linglue.io.npz import save_features
from linglue.sfm.workspace import Workspace
from linglue.types import Features


def some_features(count=5):
    rng = np.random.default_rng(0)
    return Features(
        keypoints=rng.uniform(0, 90, (count, 2)),
        descriptors=rng.normal(size=(count, 128)),
        image_size=(100, 100),
        scales=np.ones(count),
        oris=np.zeros(count),
        kind="sift",
    )


@pytest.fixture
def here(tmp_path, images, monkeypatch) -> Path:
    """A folder with images, feature files, a list of queries and a work folder."""
    for image in images:
        shutil.copy(image, tmp_path)
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "link.png").symlink_to(tmp_path / "a.png")
    for name in ("f.npz", "g.npz"):
        save_features(tmp_path / name, some_features())
    (tmp_path / "queries.txt").write_text("a.png PINHOLE 600 400 500 500 300 200\n")
    with Workspace(tmp_path / "work").features() as store:
        store.put("a.png", "test", some_features())
    with Workspace(tmp_path / "work").matches():
        pass
    monkeypatch.chdir(tmp_path)
    return tmp_path


def content(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    "arguments",
    [
        ("match", "a.png", "b.png", "--draw", "a.png"),
        ("match", "a.png", "b.png", "--draw", "sub/link.png"),
        ("match", "a.png", "b.png", "--mask1", "sub/link.png", "--draw", "sub/../a.png"),
        ("match", "f.npz", "g.npz", "-o", "f.npz"),
        ("localize", "queries.txt", "--map", "work", "--images", ".", "-o", "queries.txt"),
        ("export", "work", "--hloc-features", "same.h5", "--hloc-matches", "sub/../same.h5"),
        ("export", "work", "--npz", "work"),
    ],
)
def test_outputs_that_are_inputs_or_each_other(run, here, arguments):
    before = content(here)
    outcome = run(*arguments)
    assert outcome.code == 1 and "is the same file as" in outcome.err
    assert len(outcome.err.strip().splitlines()) == 1
    assert content(here) == before


@pytest.mark.parametrize(
    "arguments",
    [
        ("match", ".", "--draw", "sub/drawn"),
        ("eval", "homography", ".", "--plot", "b.png"),
        ("eval", "pose", ".", "sub", "--plot", "sub/curve.pdf"),
    ],
)
def test_no_picture_is_written_among_the_images_that_are_read(run, here, arguments):
    before = content(here)
    outcome = run(*arguments)
    assert outcome.code == 1 and "lies in the input folder" in outcome.err
    assert content(here) == before


def test_features_are_exported_to_a_new_folder_only(run, here):
    assert run("export", "work", "--npz", "new").code == 0
    before = content(here)
    outcome = run("export", "work", "--npz", "new")
    assert outcome.code == 1 and "new: exists already, expected a new folder" in outcome.err
    assert content(here) == before


def test_names_do_not_leave_the_folder_they_are_exported_to(run, here):
    with Workspace(here / "work").features() as store:
        store.put("../../escaped", "test", some_features())
    outcome = run("export", "work", "--npz", here / "out")
    assert outcome.code == 1 and "image name is '../../escaped', expected a plain path below" in outcome.err
    assert not list(here.parent.rglob("escaped*")) and not (here / "out").exists()


def test_names_do_not_enter_with_a_file(run, here):
    with h5py.File(here / "evil.h5", "w") as file:
        group = file.create_group("..").create_group("escaped")
        group["keypoints"], group["descriptors"] = np.zeros((1, 2)), np.zeros((128, 1))
        group["image_size"] = np.array([10, 10])
    outcome = run("import-hloc", "evil.h5", "--features", "sift", "-o", "new")
    assert outcome.code == 1 and "evil.h5: image name is '../escaped'" in outcome.err
    assert not (here / "new").exists()


def test_outputs_that_are_inputs_by_any_path(tmp_path, monkeypatch):
    source = tmp_path / "a.jpg"
    source.write_text("x")
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "link.jpg").symlink_to(source)
    os.link(source, tmp_path / "hard.jpg")
    monkeypatch.chdir(tmp_path)
    for output in (source, "a.jpg", "./sub/../a.jpg", "sub/link.jpg", "hard.jpg"):
        with pytest.raises(LinGlueError, match="output is the same file as the input") as caught:
            check_outputs([None, "b.jpg", source], [None, output])
        assert str(caught.value).startswith(str(output))
    check_outputs([source, None], ["new.jpg", "sub/a.jpg", None])


def test_outputs_that_are_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "linked").symlink_to(tmp_path)
    (tmp_path / "dangling.h5").symlink_to("same.h5")
    for other in ("same.h5", tmp_path / "same.h5", "linked/same.h5", "dangling.h5"):
        with pytest.raises(LinGlueError, match="output is the same file as the output same"):
            check_outputs([], ["same.h5", other])
    check_outputs([], ["same.h5", "other.h5", "none/same.h5"])


def test_folders_count_too(tmp_path):
    with pytest.raises(LinGlueError, match="output is the same file as the input"):
        check_outputs([tmp_path], [tmp_path / "x" / ".."])
