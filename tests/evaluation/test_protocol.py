"""Details of the field's protocols on which published numbers depend, each on a case computed by hand."""

from pathlib import Path

import numpy as np
import pytest

from linglue.evaluation.estimators import RobustSettings
from linglue.evaluation.metrics import auc, repeatability
from linglue.evaluation.store import Pair, Prediction
from linglue.evaluation.tasks import homography, pose
from linglue.geometry.camera import Camera, View
from linglue.geometry.pose import Pose
from linglue.types import ImageSize

SIZE = ImageSize(100, 100)


def score(truth: np.ndarray, points0: list[tuple[float, float]], points1: list[tuple[float, float]]):
    pair = homography.HomographyPair(Pair("v_x", Path("1.png"), Path("2.png")), "viewpoint", truth)
    zero, one = (np.array(p, np.float32).reshape(-1, 2) for p in (points0, points1))
    prediction = Prediction(zero, one, np.ones(len(points0), np.float32), SIZE, SIZE, (9, 9), 0.1)
    return homography.score_pair(pair, prediction, [], RobustSettings(3))


def test_matching_accuracy_includes_its_threshold() -> None:
    found = score(np.eye(3), [(0, 0), (0, 0)], [(3, 0), (0, 4)])
    assert found.correct == 1  # 3 px off is correct at 3 px
    assert found.accuracy == (0, 0, 0.5, 1, 1, 1, 1, 1, 1, 1)


def test_homography_error_is_one_way_in_image_1() -> None:
    found = score(np.diag([2.0, 2.0, 1.0]), [(10, 0)], [(24, 0)])
    assert found.accuracy[:4] == (0, 0, 0, 1)  # 4 px in image 1; it would be 2 px in image 0


def test_a_pair_without_matches_counts_as_zero() -> None:
    pairs = [score(np.eye(3), [], []), score(np.eye(3), [(5, 5)], [(5, 5)])]
    values = homography.summarise({"mnn": pairs})["overall"]["mnn"]
    assert values["mma"]["1"] == 0.5  # mean over pairs
    assert values["inlier_ratio"] == 1  # over all matches of all pairs


def test_area_under_the_curve_is_the_exact_trapezoid() -> None:
    # (0, 0), (1, 1/2), (3, 1), then flat: 1/4 + 3/2 + 1 up to 4
    assert auc([3.0, 1.0], (4,)) == [pytest.approx(2.75 / 4)]
    # an error at the threshold is not reached: (0, 0), (1, 1/2), flat to 3
    assert auc([3.0, 1.0], (3,)) == [pytest.approx(1.25 / 3)]
    # a failed estimate counts among the pairs
    assert auc([1.0, float("inf")], (2,)) == [pytest.approx(0.75 / 2)]


@pytest.mark.parametrize(("rotation", "translation", "error"), [(1.0, 4.0, 4.0), (6.0, 2.0, 6.0)])
def test_pose_error_is_the_larger_of_both_angles(rotation: float, translation: float, error: float) -> None:
    found = pose.PoseScore("a-b", "scene", (9, 9), 10, 5, rotation, translation, 0.1, (0, 0, 0))
    assert found.error == error
    assert pose.summarise({"mnn": [found]})["scene"]["mnn"]["auc"]["10"] == pytest.approx((10 - error / 2) / 10)


def test_epipolar_precision_adds_the_squared_distances_at_depth_1() -> None:
    camera = Camera(SIZE, np.array([[100.0, 0, 50], [0, 100, 50], [0, 0, 1]]))
    views = [View(camera, Pose(np.eye(3), np.array([x, 0.0, 0.0]))) for x in (0, -1)]  # lines are rows of pixels
    truth = pose.PosePair(Pair("a", Path("0.png"), Path("1.png")), *views)
    points0 = np.full((4, 2), 50.0, np.float32)
    points1 = points0 + np.array([[0, 0], [9, 0.5], [0, 1], [0, 2]], np.float32)
    # d px off a line are (d / 100)² twice: 0, 5e-5, 2e-4, 8e-4
    found = pose.epipolar_precision(truth, points0, points1)
    assert found == (0.5, 0.75, 1) and pose.EPIPOLAR == ("1e-4", "5e-4", "1e-3")
    assert pose.PoseScore("a-b", "s", (6, 9), 4, 4, 1, 1, 0.1, found).matching_score == pytest.approx(3 / 6)
    assert pose.epipolar_precision(truth, points0[:0], points1[:0]) == (0, 0, 0)


def test_repeatability_counts_what_both_images_see_both_ways() -> None:
    shift = np.array([[1.0, 0, 10], [0, 1, 0], [0, 0, 1]])
    keypoints0 = [(0, 0), (50, 50), (95, 50)]  # → (10, 0), (60, 50), outside
    keypoints1 = [(63, 50), (5, 5)]  # → (53, 50), outside
    # (10, 0) has nothing near, (60, 50) and (53, 50) a keypoint at exactly 3 px
    assert repeatability(shift, keypoints0, keypoints1, SIZE, SIZE, 3) == pytest.approx(2 / 3)
    assert repeatability(shift, keypoints0, keypoints1, SIZE, SIZE, 2.9) == 0
    assert repeatability(shift, [], [], SIZE, SIZE, 3) == 0
