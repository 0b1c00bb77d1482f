"""`linglue eval reconstruction` as users call it."""

import json
from pathlib import Path

import pytest

from epfl_scene import write_epfl
from rendered import render

pytest.importorskip("pycolmap")

FEW = ("--max-keypoints", 400, "--resize", 0, "--workers", 1)


@pytest.fixture(scope="module")
def scene(tmp_path_factory) -> Path:
    return write_epfl(tmp_path_factory.mktemp("scenes") / "room", render(4))


def test_table_and_json_of_one_scene(run, scene, tmp_path):
    work = tmp_path / "work"
    outcome = run("eval", "reconstruction", scene, *FEW, "--compare", "ratio,colmap", "-o", work)
    assert outcome.code == 0, outcome.err
    assert "3 models made, 0 were there already" in outcome.out
    header = next(line for line in outcome.out.splitlines() if line.startswith("scene"))
    for column in ("registered", "points", "observations", "track", "error px", "mean mm", "time/linglue"):
        assert column in header
    assert outcome.out.count("4/4") == 3
    assert "without our refinement" in outcome.out

    again = run("eval", "reconstruction", scene, *FEW, "--compare", "ratio,colmap", "-o", work, "--json")
    assert again.code == 0, again.err
    facts = json.loads(again.out)
    assert facts["models_made"] == 0
    assert list(facts["results"]["room"]) == ["ratio", "linglue", "colmap"]
    assert facts["results"]["room"]["linglue"]["mean_position_error"] < 0.05
    assert json.loads((work / "summary.json").read_text())["results"] == facts["results"]
    assert len((work / "cameras.csv").read_text().splitlines()) == 1 + 3 * 4

    document = run("eval", "reconstruction", scene, *FEW, "--compare", "ratio,colmap", "-o", work, "--markdown")
    assert " ".join(document.out.split()).startswith("| scene | method |")


def test_unknown_method_is_one_line(run, scene, tmp_path):
    outcome = run("eval", "reconstruction", scene, "--compare", "ratio,best", "-o", tmp_path / "work")
    assert outcome.code == 1
    assert outcome.err.count("\n") == 1
    assert "'best'" in outcome.err
    assert "colmap" in outcome.err
    assert not (tmp_path / "work").exists()


def test_no_such_scene_is_one_line(run, tmp_path):
    outcome = run("eval", "reconstruction", tmp_path / "none", "-o", tmp_path / "work")
    assert outcome.code == 1
    assert outcome.err.count("\n") == 1
    assert str(tmp_path / "none") in outcome.err
    assert not (tmp_path / "work").exists()


def test_scenes_of_one_name_are_refused(run, scene, tmp_path):
    outcome = run("eval", "reconstruction", scene, scene, "-o", tmp_path / "work")
    assert outcome.code == 1
    assert "room: two of the given scenes" in outcome.err
