"""Synthetic cameras and points: the measures must give what was put in."""

import argparse
import json
from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np
import pytest
from scipy.spatial.transform import Rotation
from skimage import data as images

from linglue.cli import eval as command
from linglue.errors import LinGlueError
from linglue.evaluation.estimators import RobustSettings
from linglue.evaluation.store import Pair, Prediction
from linglue.evaluation.tasks import pose
from linglue.evaluation.tasks.pose import PosePair, load_scene, score_pair
from linglue.geometry.camera import Camera, View
from linglue.geometry.epipolar import epipolar_distances, fundamental_matrix
from linglue.geometry.pose import Pose
from linglue.io.views import write_view
from linglue.types import ImageSize

SIZE = ImageSize(2048, 1536)  # twice the reference size
K = np.array([[1800.0, 0, 1000], [0, 1810, 770], [0, 0, 1]])


def _pair() -> PosePair:
    motion = Pose(Rotation.from_euler("yxz", [12, -3, 5], degrees=True).as_matrix(), np.array([-1.0, 0.1, 0.2]))
    first = Pose(Rotation.from_euler("y", 30, degrees=True).as_matrix(), np.array([0.3, -0.2, 1.0]))
    camera = Camera(SIZE, K)
    return PosePair(Pair("scene", Path("0.jpg"), Path("1.jpg")), View(camera, first), View(camera, motion @ first))


def _points(pair: PosePair, count: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Matches (count, 2) of points in front of both cameras."""
    in_first = np.column_stack([rng.uniform(-2, 2, (count, 2)), rng.uniform(4, 8, count)])
    pose = pair.view0.cam_from_world
    world = (in_first - pose.translation) @ pose.rotation
    return pair.view0.project(world)[0], pair.view1.project(world)[0]


def _prediction(points0: np.ndarray, points1: np.ndarray) -> Prediction:
    scores = np.ones(len(points0), np.float32)
    return Prediction(points0.astype(np.float32), points1.astype(np.float32), scores, SIZE, SIZE, (500, 500), 0.01)


def test_exact_matches_give_the_pose() -> None:
    pytest.importorskip("poselib")
    pair = _pair()
    score = score_pair(pair, _prediction(*_points(pair, 200, np.random.default_rng(0))), RobustSettings(1))
    assert score.matches == score.correct == 200
    assert score.precision == 1
    assert score.error < 0.01


def test_precision_with_outliers_of_known_distance() -> None:
    """Points of image 1 moved off their epipolar line by d; the true share is counted by the naive distances."""
    pytest.importorskip("poselib")
    pair, rng = _pair(), np.random.default_rng(1)
    points0, points1 = _points(pair, 300, rng)
    fundamental = fundamental_matrix(pair.view0, pair.view1)
    lines = np.column_stack([points0, np.ones(300)]) @ fundamental.T
    normals = lines[:, :2] / np.linalg.norm(lines[:, :2], axis=1, keepdims=True)
    offsets = np.repeat([0.0, 40.0], [180, 120])
    moved = points1 + offsets[:, None] * normals
    np.testing.assert_allclose(epipolar_distances(fundamental, points0, moved)[1], offsets, atol=1e-6)
    score = score_pair(pair, _prediction(points0, moved), RobustSettings(1))
    assert score.correct == 180 and score.precision == pytest.approx(0.6)
    assert score.error < 0.1


def test_thresholds_grow_with_the_image() -> None:
    """3 px at 1024 are 6 px at 2048, for the larger of the two distances."""
    pytest.importorskip("poselib")
    pair = _pair()
    points0, points1 = _points(pair, 100, np.random.default_rng(2))
    fundamental = fundamental_matrix(pair.view0, pair.view1)
    noisy = points1 + np.random.default_rng(3).normal(0, 6, (100, 2))
    distances = np.maximum(*epipolar_distances(fundamental, points0.astype(np.float32), noisy.astype(np.float32)))
    score = score_pair(pair, _prediction(points0, noisy), RobustSettings(1))
    assert score.correct == (distances <= 6).sum()
    assert (distances <= 3).sum() < score.correct < 100


def test_skew_is_undone() -> None:
    pytest.importorskip("poselib")
    pair = _pair()
    skewed = Camera(SIZE, K + np.array([[0, 60, 0], [0, 0, 0], [0, 0, 0]]))
    pair = PosePair(pair.pair, View(skewed, pair.view0.cam_from_world), pair.view1)
    score = score_pair(pair, _prediction(*_points(pair, 100, np.random.default_rng(0))), RobustSettings(1))
    assert score.error < 0.01 and score.correct == 100


@pytest.mark.parametrize("count", [0, 1, 4])
def test_too_few_matches_are_a_failure(count: int) -> None:
    pytest.importorskip("poselib")
    pair = _pair()
    score = score_pair(pair, _prediction(*_points(pair, count, np.random.default_rng(0))), RobustSettings(1))
    assert score.error == np.inf
    values = pose.summarise({"mnn": [score]})["scene"]["mnn"]
    assert values["auc"] == {"5": 0, "10": 0, "20": 0}
    assert values["precision"] == (1 if count else 0)


@pytest.fixture
def scene(tmp_path: Path) -> Path:
    """The motorcycle stereo pair as a scene of two rectified views."""
    root = tmp_path / "motorcycle"
    (root / "images").mkdir(parents=True)
    (root / "gt").mkdir()
    left, right, _ = images.stereo_motorcycle()
    # Middlebury's calibration at the size of scikit-image's copy; the offset of the principal points is in K.
    focal, centre, shift, baseline = 994.978, (311.193, 254.877), 31.086, 0.193001
    for number, image in enumerate((left, right)):
        size = ImageSize(image.shape[1], image.shape[0])
        k = np.array([[focal, 0, centre[0] + number * shift], [0, focal, centre[1]], [0, 0, 1]])
        view = View(Camera(size, k), Pose(np.eye(3), np.array([-number * baseline, 0, 0])))
        name = f"view {number}.png"
        cv2.imwrite(str(root / "images" / name), image[..., ::-1])
        write_view(root / "gt" / f"{name}.txt", view)
    return root


def _options(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    return parser.parse_args(["pose", *arguments])


def test_end_to_end(scene: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("poselib")
    pytest.importorskip("matplotlib")
    work, plot = tmp_path / "work", tmp_path / "pose.png"
    arguments = [str(scene), "--compare", "mnn", "-o", str(work), "--plot", str(plot), "--max-keypoints", "1000"]
    command.run(_options(*arguments, "--json"))
    values = json.loads(capsys.readouterr().out)["results"]["motorcycle"]
    assert list(values) == ["mnn", "linglue"]
    assert values["linglue"]["pairs"] == 1
    assert values["linglue"]["precision"] > 0.9 and values["linglue"]["correct"] > values["mnn"]["correct"]
    assert values["linglue"]["auc"]["5"] > 0.5
    assert cv2.imread(str(plot)) is not None
    command.run(_options(*arguments))
    printed = capsys.readouterr().out
    assert "0 predictions made, 2 were there already" in printed
    assert "PoseLib" in printed and "seed 0" in printed and "threshold 1 px" in printed


def test_listed_pairs_take_the_place_of_the_gap(scene: Path) -> None:
    (scene / "pairs.txt").write_text("view 0.png\tview 1.png\n")
    assert [p.pair.image1.name for p in load_scene(scene)] == ["view 1.png"]
    for text, message in (("", "holds no pair"), ("view 0.png\tview 9.png\n", "'view 9.png' is no image of the scene")):
        (scene / "pairs.txt").write_text(text)
        with pytest.raises(LinGlueError, match=message):
            load_scene(scene)


def test_pairs_up_to_the_gap(scene: Path) -> None:
    for number in (2, 3):
        for kind, suffix in (("images", ""), ("gt", ".txt")):
            source = scene / kind / f"view 1.png{suffix}"
            (scene / kind / f"view {number}.png{suffix}").write_bytes(source.read_bytes())
        gt = scene / "gt" / f"view {number}.png.txt"
        gt.write_text(gt.read_text().replace("-0.193001", f"-{number}"))
    names = [(p.pair.image0.stem[-1], p.pair.image1.stem[-1]) for p in load_scene(scene, 2)]
    assert names == [("0", "1"), ("0", "2"), ("1", "2"), ("1", "3"), ("2", "3")]


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda s: (s / "gt" / "view 1.png.txt").unlink(), "no such file, every image needs its camera"),
        (lambda s: (s / "gt" / "view 1.png.txt").write_text("640 480 1"), "holds 3 numbers"),
        (lambda s: (s / "gt" / "view 1.png.txt").write_text("x"), "not a text file of numbers"),
        (lambda s: (s / "gt" / "view 1.png.txt").write_text("9 9 " + "1 " * 21), "expected \\[\\[fx, s, cx\\]"),
        (
            lambda s: (s / "gt" / "view 1.png.txt").write_text("9 9 5 0 1 0 5 1 0 0 1 " + "1 " * 12),
            "expected a rotation matrix",
        ),
        (
            lambda s: (s / "gt" / "view 1.png.txt").write_bytes((s / "gt" / "view 0.png.txt").read_bytes()),
            "taken from one position",
        ),
        (lambda s: (s / "images" / "view 1.png").unlink(), "holds 1 images"),
        (
            lambda s: cv2.imwrite(str(s / "images" / "view 1.png"), images.astronaut()),
            "its camera was calibrated for",
        ),
    ],
)
def test_spoilt_scene_is_one_clear_line(
    scene: Path, tmp_path: Path, spoil: Callable[[Path], object], message: str
) -> None:
    pytest.importorskip("poselib")
    spoil(scene)
    with pytest.raises(LinGlueError, match=message) as error:
        command.run(_options(str(scene), "--compare", "mnn", "-o", str(tmp_path / "w"), "--max-keypoints", "200"))
    assert "\n" not in str(error.value) and str(scene) in str(error.value)


def test_wrong_arguments_are_one_clear_line(scene: Path, tmp_path: Path) -> None:
    pytest.importorskip("poselib")
    output = ("-o", str(tmp_path / "w"))
    for arguments, message in (
        ((str(tmp_path),), "images: no such folder"),
        ((str(scene), "--max-gap", "0"), "--max-gap is 0"),
        ((str(scene), str(scene)), "two of the given scenes have this name"),
    ):
        with pytest.raises(LinGlueError, match=message):
            command.run(_options(*arguments, *output))
