"""`linglue match` from end to end: two files in, the right matches out, in every form."""

import json
import subprocess
import sys
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from skimage import data

from linglue.io.hloc import save_hloc_features
from linglue.io.npz import load_matches, save_features
from linglue.network.linglue import LinGlue
from linglue.network.weights import LinGlueConfig

FEW = ("--max-keypoints", 800)


def test_images_in_correct_matches_out(run, images, pair, tmp_path):
    outcome = run("match", *images, "-o", tmp_path / "m.npz", *FEW)
    assert outcome.code == 0 and outcome.err == ""
    matches = load_matches(tmp_path / "m.npz")
    errors = pair.errors(matches.points0, matches.points1)
    assert len(matches) > 200
    assert (errors < 3).mean() > 0.95
    assert matches.pair_score > 0.9
    assert matches.features0.image_size == (600, 400) and matches.features1.image_size == (560, 420)


def test_one_line_per_stage(run, images):
    lines = run("match", *images, *FEW).out.splitlines()
    assert lines[0].startswith(f"{images[0]}: 800 linpoint keypoints, ")
    assert lines[1].startswith(f"{images[1]}: ")
    assert [line.split(":")[0] for line in lines[2:-1]] == ["first pass"]
    lines = run("match", *images, "--effort", "full", *FEW).out.splitlines()
    assert [line.split(":")[0] for line in lines[2:-1]] == ["network", "consensus"]
    assert "matches, pair score" in lines[-1]


def test_json_is_one_object_and_nothing_else_on_standard_output(run, images, tmp_path):
    outcome = run("match", *images, "--json", "-o", tmp_path / "m.json", "--draw", tmp_path / "m.png", *FEW)
    facts = json.loads(outcome.out)
    assert outcome.code == 0
    assert facts["matches"] == len(load_matches(tmp_path / "m.json")) > 200
    assert facts["keypoints0"] == 800 and facts["features"] == "linpoint"
    assert facts["pair_score"] > 0.9
    assert {"extract0", "extract1", "first pass"} <= facts["seconds"].keys()
    assert facts["output"] == str(tmp_path / "m.json") and facts["drawing"] == str(tmp_path / "m.png")
    assert "matches, pair score" in outcome.err


def test_json_file_holds_the_same_as_npz(run, images, tmp_path):
    for name in ("m.npz", "m.json"):
        assert run("match", *images, "-o", tmp_path / name, *FEW).code == 0
    npz, json_ = load_matches(tmp_path / "m.npz"), load_matches(tmp_path / "m.json")
    np.testing.assert_array_equal(npz.indices, json_.indices)
    np.testing.assert_array_equal(npz.points1, json_.points1)


def test_drawing_shows_both_images_side_by_side(run, images, tmp_path):
    assert run("match", *images, "--draw", tmp_path / "m.jpg", *FEW).code == 0
    height, width = cv2.imread(str(tmp_path / "m.jpg")).shape[:2]
    assert width > 1.5 * height


def test_mask_keeps_keypoints_out_of_its_black_part(run, images, pair, tmp_path):
    mask = np.zeros(pair.image0.shape[:2], np.uint8)
    mask[:, 300:] = 255
    cv2.imwrite(str(tmp_path / "mask.png"), mask)
    assert run("match", *images, "--mask0", tmp_path / "mask.png", "-o", tmp_path / "m.npz", *FEW).code == 0
    matches = load_matches(tmp_path / "m.npz")
    assert len(matches) > 50
    assert matches.features0.keypoints[:, 0].min() >= 299.5
    assert matches.features1.keypoints[:, 0].min() < 100


def test_tiles_find_the_same_places(run, images, pair, tmp_path):
    assert run("match", *images, "--tile", 320, "-o", tmp_path / "m.npz", *FEW).code == 0
    matches = load_matches(tmp_path / "m.npz")
    assert len(matches) > 200
    assert (pair.errors(matches.points0, matches.points1) < 3).mean() > 0.95


def test_resize_still_reports_original_pixels(run, images, pair, tmp_path):
    assert run("match", *images, "--resize", 400, "-o", tmp_path / "m.npz", *FEW).code == 0
    matches = load_matches(tmp_path / "m.npz")
    assert matches.features0.image_size == (600, 400)
    assert (pair.errors(matches.points0, matches.points1) < 3).mean() > 0.9


@pytest.fixture(scope="module")
def feature_files(matcher, pair, tmp_path_factory) -> Path:
    """The pair's features as .npz files and in one hloc .h5 file."""
    folder = tmp_path_factory.mktemp("features")
    features = {"a.jpg": matcher.extract(pair.image0, 800), "db/b.jpg": matcher.extract(pair.image1, 800)}
    for name, found in features.items():
        save_features(folder / f"{name[-5]}.npz", found)
    save_hloc_features(folder / "features.h5", features.items())
    return folder


def test_feature_files_match_as_their_images_do(run, images, feature_files, tmp_path):
    hloc = [f"{feature_files / 'features.h5'}::{name}" for name in ("a.jpg", "db/b.jpg")]
    sources = {"image": images, "npz": (feature_files / "a.npz", feature_files / "b.npz"), "hloc": hloc}
    sources["mixed"] = (images[0], hloc[1])
    for name, two in sources.items():
        assert run("match", *two, "-o", tmp_path / f"{name}.npz", *FEW).code == 0
    expected = load_matches(tmp_path / "image.npz")
    for name in sources:
        np.testing.assert_array_equal(load_matches(tmp_path / f"{name}.npz").indices, expected.indices)


def test_another_matcher_and_a_minimum_score(run, images, tmp_path):
    def matches(*options):
        assert run("match", *images, "-o", tmp_path / "m.npz", *FEW, *options).code == 0
        return load_matches(tmp_path / "m.npz")

    assert len(matches("--matcher", "mnn")) > len(matches("--matcher", "ratio")) > 100
    assert matches("--min-score", 0.8).scores.min() >= 0.8 > matches().scores.min()
    for option, value in (("--matcher", "best"), ("--min-score", 2)):
        outcome = run("match", *images, option, value)
        assert outcome.code == 1 and "expected" in outcome.err and len(outcome.err.splitlines()) == 1


def test_bring_your_own_features_and_network(run, matcher, pair, tmp_path):
    """Ready features need no front-end: any kind goes with a network made for it."""
    from dataclasses import replace

    network = LinGlue(LinGlueConfig.preset("pair", input_dim=64))
    network.initialise_identity(torch.eye(64))
    network.save(tmp_path / "own.safetensors", "mine", "pair", "MIT", "by hand")
    for name, image in (("a.npz", pair.image0), ("b.npz", pair.image1)):
        save_features(tmp_path / name, replace(matcher.extract(image, 800), kind="mine"))
    outcome = run("match", tmp_path / "a.npz", tmp_path / "b.npz", "--weights", tmp_path / "own.safetensors", "--json")
    assert outcome.code == 0
    assert json.loads(outcome.out)["features"] == "mine" and json.loads(outcome.out)["matches"] > 200


def test_unrelated_images_have_few_matches_and_a_low_score(run, images, tmp_path):
    cv2.imwrite(str(tmp_path / "other.png"), data.chelsea()[..., ::-1])
    outcome = run("match", images[0], tmp_path / "other.png", "--json")
    facts = json.loads(outcome.out)
    assert outcome.code == 0
    assert facts["matches"] < 20 and facts["pair_score"] < 0.4


def test_runs_as_a_module(images):
    command = [sys.executable, "-m", "linglue", "match", *map(str, images), "--json", "--max-keypoints", "300"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["keypoints0"] == 300
