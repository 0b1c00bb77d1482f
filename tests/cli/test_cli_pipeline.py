"""The stages as commands, from images to a model, and what they leave for other programs."""

import json
from pathlib import Path

import numpy as np
import pytest

from linglue.io.hloc import list_hloc_images, load_hloc_features, load_hloc_matches
from linglue.io.npz import load_features
from linglue.io.pair_list import read_pairs
from linglue.sfm.sparse_model import aligned_errors, read_model
from linglue.sfm.workspace import Workspace
from rendered import FOCAL, SIZE, render, write_images

VIEWS = 5
ONE = ("--workers", 1, "--json")


@pytest.fixture(scope="module")
def scene(tmp_path_factory) -> Path:
    return write_images(tmp_path_factory.mktemp("scene"), render(VIEWS))


@pytest.fixture(scope="module")
def work(scene, tmp_path_factory) -> Path:
    """A work folder after extract, pairs and match-pairs."""
    from linglue.cli import main

    folder = tmp_path_factory.mktemp("work")
    for arguments in (
        ("extract", scene, "-o", folder, "--max-keypoints", 400, "--workers", 1),
        ("pairs", folder, "--pairs", "sequential", "--overlap", 2, "--loop-every", 0),
        ("match-pairs", folder, "--workers", 1),
    ):
        assert main([str(argument) for argument in arguments]) == 0
    return folder


def names():
    return [view.name for view in render(VIEWS)]


def test_stages_keep_what_is_there(run, work):
    assert len(read_pairs(work / "pairs.tsv")) == 7
    found = json.loads(run("match-pairs", work, *ONE).out)
    assert (found["made"], found["kept"]) == (0, 7)
    assert found["matches"] > 7 * 30


def test_pairs_by_all_methods(run, work, scene, tmp_path):
    (tmp_path / "list.tsv").write_text(f"{names()[1]}\t{names()[0]}\n")
    table = "name\tx\ty\tz\n" + "".join(f"{name}\t{i}\t0\t0\n" for i, name in enumerate(names()))
    (tmp_path / "positions.tsv").write_text(table)
    before = (work / "pairs.tsv").read_bytes()
    for arguments, pairs in (
        ((), 10),
        (("--pairs", "retrieval", "--top", 4), 10),
        (("--pairs", "positions", "--positions", tmp_path / "positions.tsv", "--radius", 1.5), 4),
        (("--pairs", "list", "--pair-list", tmp_path / "list.tsv"), 1),
    ):
        found = json.loads(run("pairs", work, *arguments, "--json").out)
        assert (found["pairs"], found["images"]) == (pairs, VIEWS)
    (work / "pairs.tsv").write_bytes(before)


def test_exported_files_hold_the_same(run, work, tmp_path):
    feature_file, match_file = tmp_path / "features.h5", tmp_path / "matches.h5"
    outcome = run(
        "export", work, "--hloc-features", feature_file, "--hloc-matches", match_file, "--npz", tmp_path / "npz"
    )
    assert outcome.code == 0
    assert list_hloc_images(feature_file) == names()
    with Workspace(work).features() as features, Workspace(work).matches() as matches:
        for name in names():
            np.testing.assert_array_equal(
                features.get(name).keypoints, load_hloc_features(feature_file, name).keypoints
            )
            npz = load_features(tmp_path / "npz" / f"{name}.npz")
            np.testing.assert_array_equal(features.get(name).descriptors, npz.descriptors)
        for pair in matches.counts():
            ours, theirs = matches.get(*pair)[0], load_hloc_matches(match_file, *pair)[0]
            assert {tuple(row) for row in ours} == {tuple(row) for row in theirs}
    refused = run("export", work, "--colmap-text", tmp_path / "matches.txt")
    assert refused.code == 1 and "white space" in refused.err and not (tmp_path / "matches.txt").exists()


def test_hloc_features_in_give_the_same_matches(run, work, tmp_path):
    run("export", work, "--hloc-features", tmp_path / "features.h5")
    other = tmp_path / "other"
    assert run("import-hloc", tmp_path / "features.h5", "-o", other, "--features", "linpoint").code == 0
    (other / "pairs.tsv").write_bytes((work / "pairs.tsv").read_bytes())
    assert run("match-pairs", other, "--workers", 1).code == 0
    with Workspace(work).matches() as ours, Workspace(other).matches() as theirs:
        assert ours.counts() == theirs.counts()
    wrong = run("import-hloc", tmp_path / "features.h5", "-o", tmp_path / "wrong", "--features", "superpoint")
    assert wrong.code == 1 and "have 64 entries, expected 256" in wrong.err


def test_reconstruct_prints_and_writes(run, scene, work, tmp_path):
    pytest.importorskip("pycolmap")
    intrinsics = f"{FOCAL},{FOCAL},{SIZE.width / 2},{SIZE.height / 2}"
    arguments = ("reconstruct", scene, "-o", tmp_path / "work", "--max-keypoints", 400, "--intrinsics", intrinsics)
    outcome = run(*arguments, *ONE)
    assert outcome.code == 0
    found = json.loads(outcome.out)
    assert found["model"]["registered"] == VIEWS and found["model"]["points"] > 100
    assert f"{VIEWS} of {VIEWS} images registered" in outcome.err
    assert found["settings"]["cameras"]["intrinsics"] == intrinsics
    positions, _ = aligned_errors(
        read_model(tmp_path / "work" / "model"), {view.name: view.cam_from_world for view in render(VIEWS)}
    )
    assert max(positions.values()) < 0.03


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        (("pairs", "NOWHERE"), "NOWHERE: holds no features.db"),
        (("match-pairs", "NOWHERE"), "NOWHERE: holds no features.db"),
        (("export", "NOWHERE", "--npz", "x"), "NOWHERE: holds no features.db"),
        (("export", "WORK"), "nothing to export"),
        (("pairs", "WORK", "--pairs", "list"), "expected --pair-list FILE with it"),
        (("pairs", "WORK", "--pair-list", "x"), "--pair-list is x, expected only with --pairs list"),
        (("pairs", "WORK", "--pairs", "positions"), "none of the 5 images has a position"),
        (("pairs", "WORK", "--top", 0), "top is 0, expected at least 1"),
        (("reconstruct", "NOWHERE", "-o", "NEW"), "NOWHERE: no such folder"),
        (("reconstruct", "SCENE", "-o", "NEW", "--camera-model", "BOX"), "'BOX' is no camera model"),
        (("reconstruct", "SCENE", "-o", "NEW", "--intrinsics", "missing.txt"), "missing.txt: no such file"),
        (("import-hloc", "NOWHERE", "-o", "NEW", "--features", "linpoint"), "NOWHERE: no such hloc file"),
    ],
)
def test_refused_in_one_line(run, work, scene, tmp_path, monkeypatch, arguments, wanted):
    monkeypatch.chdir(tmp_path)
    places = {"WORK": work, "SCENE": scene}
    outcome = run(*(places.get(argument, argument) for argument in arguments))
    assert outcome.code == 1
    assert outcome.err.count("\n") == 1 and wanted in outcome.err
    assert not list(tmp_path.iterdir())
