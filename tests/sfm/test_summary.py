import json
from dataclasses import replace

import pytest

from linglue import LinGlueError
from linglue.sfm.sparse_model import ModelStatistics
from linglue.sfm.summary import Summary, read_summary, write_summary

SUMMARY = Summary(
    model=ModelStatistics(12, 10, 5027, 25646, 5.1017, 2564.6, 0.3915),
    matched_pairs=66,
    verified_pairs=45,
    unregistered=("black.jpg", "ä b.jpg"),
    smaller_models=(),
    seconds={"extract": 15.59, "model": 3.0},
    settings={"max_keypoints": 4096},
    problems=("notes.txt: not an image",),
    notes=("tall.jpg: turned upright",),
)


def test_what_was_written_is_read(tmp_path):
    write_summary(tmp_path / "summary.json", SUMMARY)
    assert read_summary(tmp_path / "summary.json") == SUMMARY
    content = json.loads((tmp_path / "summary.json").read_text(encoding="utf-8"))
    assert content["model"]["registered"] == 10 and content["unregistered"][1] == "ä b.jpg"
    assert [path.name for path in tmp_path.iterdir()] == ["summary.json"]


def test_lines():
    assert SUMMARY.lines() == [
        "10 of 12 images registered, 5027 points",
        "track length 5.10, reprojection error 0.392 px, 2565 observations per image",
        "45 of 66 matched pairs verified",
        "without a pose: black.jpg, ä b.jpg",
        "seconds: extract 15.6, model 3.0",
        "note: tall.jpg: turned upright",
        "problem: notes.txt: not an image",
    ]


def test_many_images_without_a_pose_and_other_models():
    many = replace(SUMMARY, unregistered=tuple(f"{k}.jpg" for k in range(8)), smaller_models=(4, 3))
    assert "without a pose: 0.jpg, 1.jpg, 2.jpg, 3.jpg, 4.jpg and 3 more" in many.lines()
    assert "2 smaller models left out (4, 3 images)" in many.lines()


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"model": {"images": 1}}'])
def test_damaged_summaries(tmp_path, text):
    path = tmp_path / "summary.json"
    path.write_text(text)
    with pytest.raises(LinGlueError, match="damaged"):
        read_summary(path)


def test_no_summary(tmp_path):
    with pytest.raises(LinGlueError, match="no such summary"):
        read_summary(tmp_path / "summary.json")
