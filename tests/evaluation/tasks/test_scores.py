"""How honest scores are: bins, calibration error and separation against hand-computed cases."""

from pathlib import Path

import cv2
import numpy as np
import pytest
from skimage import data as images

from linglue.errors import LinGlueError
from linglue.evaluation.methods import prepare
from linglue.evaluation.pose_scenes import PosePair
from linglue.evaluation.store import Pair
from linglue.evaluation.tasks import scores
from linglue.evaluation.tasks.scores import (
    ByDefault,
    FoundMatches,
    draw_unrelated,
    evaluate,
    match_unrelated,
    scored_front_ends,
    tables,
)
from linglue.geometry.camera import Camera, View
from linglue.geometry.pose import Pose
from linglue.network.linglue import LinGlue
from linglue.network.weights import LinGlueConfig, packaged_weights
from linglue.sfm.extract import ExtractConfig
from linglue.types import ImageSize


def found(scores, right, related=(0.9,), unrelated=(0.1,), by_default=(0,)) -> FoundMatches:
    first, second, third, fourth = (np.array(values) for values in (scores, right, related, unrelated))
    return FoundMatches(first, second, third, fourth, counted(by_default))


def counted(by_default) -> ByDefault:
    return ByDefault(np.array(by_default), tuple((f"a/{k}", f"b/{k}") for k in range(len(by_default))))


def test_scores_that_are_the_share_of_right_matches_have_no_error():
    result = found([0.25] * 4 + [1.0] * 2, [True, False, False, False, True, True])
    assert result.calibration_error == pytest.approx(0)
    assert [len(scores) for scores, _ in result.bins()] == [0, 0, 4, 0, 0, 0, 0, 0, 0, 2]


def test_the_error_is_weighted_by_the_matches_of_a_bin():
    result = found([0.9, 0.9, 0.9, 0.1], [True, False, False, False])
    assert result.calibration_error == pytest.approx((3 * 0.9 - 1 + 0.1) / 4)


def test_separation_counts_ties_half():
    assert found([], [], related=(0.9, 0.5), unrelated=(0.5, 0.1)).separation == pytest.approx(3.5 / 4)


def test_tables_have_a_row_for_each():
    reliability, unrelated = tables({"one": found([0.05, 0.95], [False, True], by_default=(0, 4, 40))})
    assert reliability.rows[0] == ("one", "0", *[""] * 8, "100", "0.050")
    assert unrelated.rows[0][:2] == ("one", "4") and unrelated.rows[0][3:6] == ("1", "40", "a/2 b/2")


def test_peers_are_shown_without_a_pair_score_and_nothing_found_has_no_names():
    rows = tables({"one": found([], [])}, {"other": counted((0, 0))})[1].rows
    assert rows[1] == ("other", "0", "0", "0", "0", "", "")


def truths(folder: Path) -> list[PosePair]:
    view = View(Camera(ImageSize(64, 64), np.eye(3)), Pose(np.eye(3), np.zeros(3)))
    pairs = [(scene, folder / scene / "0.png", folder / scene / "1.png") for scene in "abc"]
    return [PosePair(Pair(*pair), view, view) for pair in pairs]


def test_unrelated_pairs_are_of_different_scenes_and_the_same_every_time():
    drawn = draw_unrelated(truths(Path("scenes")), 50)
    assert len(drawn) == 50 and drawn == draw_unrelated(truths(Path("scenes")), 50)
    assert all(image0.parent != image1.parent for image0, image1 in drawn)
    assert {image.parent.name for pair in drawn for image in pair} == {"a", "b", "c"}


def test_a_look_alike_is_named(tmp_path):
    """Two scenes with the same image, one with another: mutual neighbours find most between the same ones."""
    same, other = images.camera()[::2, ::2], images.coins()[:256, :256]
    drawn = []
    for scene, image in zip("abc", (same, same, other), strict=True):
        (tmp_path / scene / "images").mkdir(parents=True)
        cv2.imwrite(str(tmp_path / scene / "images" / "0.png"), image)
        drawn.append(tmp_path / scene / "images" / "0.png")
    method = prepare(["sift:mnn"], ExtractConfig("sift", max_keypoints=200)).ready["sift:mnn"]
    row = match_unrelated([(drawn[0], drawn[2]), (drawn[0], drawn[1])], method).row()
    assert row["unrelated_most_of"] == "a/0.png b/0.png" and row["unrelated_most"] >= 150


def test_one_scene_has_no_unrelated_images(tmp_path):
    (tmp_path / "a").mkdir()
    with pytest.raises(LinGlueError, match="the only scene, expected at least two"):
        evaluate([tmp_path / "a"])


def test_front_ends_with_scores_are_those_with_a_learned_consensus(tmp_path, monkeypatch):
    assert {"linpoint", "sift", "disk"} <= set(scored_front_ends())
    without = tmp_path / "without.safetensors"
    LinGlue(LinGlueConfig.preset("raw", 64)).save(without, "disk", "raw", "MIT", "none")
    monkeypatch.setattr(scores, "packaged_weights", lambda name: without if name == "disk" else packaged_weights(name))
    assert "linpoint" in scored_front_ends() and "disk" not in scored_front_ends()
