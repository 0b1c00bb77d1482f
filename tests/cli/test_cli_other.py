"""`linglue models`, `linglue demo`, and what all commands share."""

import json
import re
from pathlib import Path

import cv2
import pytest

from linglue.cli import COMMANDS
from linglue.features import FRONT_ENDS


def test_models_lists_every_front_end_with_its_licence(run):
    text = run("models").out
    for name, front_end in FRONT_ENDS.items():
        assert name in text.splitlines() and front_end.licence in text


def test_models_says_how_the_shipped_weights_were_made(run):
    (sift,) = [model for model in json.loads(run("models", "--json").out)["models"] if model["name"] == "sift"]
    assert sift["dim"] == 128 and sift["network"] == "geo" and sift["network_licence"] == "Apache-2.0"
    assert sift["training"] in run("models").out


README = Path(__file__).parents[2] / "README.md"


def test_demo_draws_beats_plain_nearest_neighbours_and_agrees_with_the_readme(run, tmp_path):
    outcome = run("demo", "-o", tmp_path / "new" / "out", "--json")
    facts = json.loads(outcome.out)
    assert outcome.code == 0
    ours, plain = facts["linglue"], facts["mutual_nearest_neighbours"]
    assert ours["precision"] > plain["precision"] and ours["correct"] > plain["correct"]
    assert facts["seconds"]["extract"] > 0
    assert cv2.imread(facts["picture"]).shape[1] > 1000
    assert facts["picture"] == str(tmp_path / "new" / "out" / "demo.png")
    for row, measured in (("LinGlue", ours), ("mutual nearest neighbours", plain)):
        stated = re.search(rf"\| {row}[^|]*\| (\d+) \| (\d+) \| ([\d.]+) %", README.read_text(encoding="utf-8"))
        assert stated, row
        correct, judged, precision = (float(number) for number in stated.groups())
        assert measured["correct"] == pytest.approx(correct, rel=0.01)  # another processor rounds differently
        assert measured["with_truth"] == pytest.approx(judged, rel=0.01)
        assert 100 * measured["precision"] == pytest.approx(precision, abs=0.5)


def test_demo_replaces_its_own_picture_only(run, tmp_path):
    (tmp_path / "demo.png").write_text("mine")
    outcome = run("demo", "-o", tmp_path, "--max-keypoints", 200)
    assert outcome.code == 1 and "demo.png: was not made by LinGlue" in outcome.err and outcome.err.count("\n") == 1
    assert (tmp_path / "demo.png").read_text() == "mine" and len(list(tmp_path.iterdir())) == 1
    for option in (["--overwrite"], []):  # then it is its own
        assert run("demo", "-o", tmp_path, "--max-keypoints", 200, *option).code == 0
        assert cv2.imread(str(tmp_path / "demo.png")) is not None


def test_demo_refuses_a_file_as_its_folder(run, tmp_path):
    (tmp_path / "file").write_text("")
    outcome = run("demo", "-o", tmp_path / "file")
    assert outcome.code == 1 and outcome.err.count("\n") == 1 and str(tmp_path / "file") in outcome.err


def test_version(run):
    assert run("--version").out.startswith("linglue ")


@pytest.mark.parametrize("command", COMMANDS)
def test_help_shows_every_option_with_its_default(run, command):
    outcome = run(command, *(("pose",) if command == "eval" else ()), "--help")
    assert outcome.code == 0 and "--json" in outcome.out
    assert "default: None" not in outcome.out and "default: False" not in outcome.out
    if command in ("match", "extract"):
        for option in ("--features", "--extractor-weights", "--max-keypoints", "--resize", "-o", "--output"):
            assert option in outcome.out
        assert "(default: linpoint)" in " ".join(outcome.out.split())
