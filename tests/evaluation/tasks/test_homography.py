"""A small data set with known homographies, from the folder on disk to the table."""

import argparse
import json
from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np
import pytest
from skimage import data as images

from linglue import evaluation
from linglue.cli import eval as command
from linglue.errors import LinGlueError
from linglue.evaluation.estimators import HOMOGRAPHY_ESTIMATORS, RobustSettings
from linglue.evaluation.store import Pair, Prediction, Predictions, scene_folder
from linglue.evaluation.tasks import homography
from linglue.evaluation.tasks.homography import HomographyPair, load_pairs, score_pair
from linglue.geometry.homography import apply
from linglue.matcher import MatcherConfig
from linglue.sfm.extract import ExtractConfig
from linglue.types import ImageSize

SIZE = ImageSize(400, 300)


def write_data_set(root: Path) -> Path:
    """One viewpoint and one illumination sequence of three images each."""
    image = cv2.resize(images.astronaut(), SIZE, interpolation=cv2.INTER_AREA)[..., ::-1]
    views = {
        2: np.array([[0.95, 0.10, 5], [-0.08, 0.97, 20], [5e-5, 2e-5, 1]]),
        3: np.array([[0.80, -0.25, 60], [0.22, 0.85, -10], [1e-4, -5e-5, 1]]),
    }
    for name in ("v_astronaut", "i_astronaut"):
        folder = root / name
        folder.mkdir(parents=True)
        cv2.imwrite(str(folder / "1.png"), image)
        for number, view in views.items():
            truth = view if name.startswith("v") else np.eye(3)
            if name.startswith("v"):
                changed = cv2.warpPerspective(image, truth, SIZE, borderMode=cv2.BORDER_REFLECT)
            else:
                changed = (255 * (image / 255.0) ** (0.6 * number)).astype(np.uint8)
            cv2.imwrite(str(folder / f"{number}.png"), changed)
            np.savetxt(folder / f"H_1_{number}", truth * (-0.5 if number == 3 else 1))  # any scale and sign is allowed
    return root


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return write_data_set(tmp_path / "data")


def _options(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    return parser.parse_args(["homography", *arguments])


def _prediction(points0: np.ndarray, points1: np.ndarray) -> Prediction:
    scores = np.ones(len(points0), np.float32)
    return Prediction(points0.astype(np.float32), points1.astype(np.float32), scores, SIZE, SIZE, (500, 500), 0.01)


def test_matching_accuracy_of_known_errors() -> None:
    truth = np.array([[0.9, 0.1, 20], [-0.05, 1.1, -8], [1e-4, -5e-5, 1]])
    points0 = np.random.default_rng(0).uniform(20, 280, (40, 2))
    errors = np.repeat([0.5, 2.5, 6.5, 50], 10)
    points1 = apply(truth, points0) + np.stack([errors, np.zeros(40)], axis=1)
    pair = HomographyPair(Pair("v_x", Path("1.png"), Path("2.png")), "viewpoint", truth)
    score = score_pair(pair, _prediction(points0, points1), [], RobustSettings(3))
    assert score.matches == 40 and score.correct == 20
    np.testing.assert_allclose(score.accuracy, [0.25, 0.25, 0.5, 0.5, 0.5, 0.5, 0.75, 0.75, 0.75, 0.75])


@pytest.mark.parametrize("name", list(HOMOGRAPHY_ESTIMATORS))
def test_estimators_find_the_homography_and_survive_little_input(name: str) -> None:
    if name == "poselib":
        pytest.importorskip("poselib")
    truth = np.array([[0.9, 0.1, 20], [-0.05, 1.1, -8], [1e-4, -5e-5, 1]])
    rng = np.random.default_rng(0)
    points0 = rng.uniform(0, 400, (100, 2))
    points1 = apply(truth, points0)
    points1[:30] = rng.uniform(0, 400, (30, 2))
    pair = HomographyPair(Pair("v_x", Path("1.png"), Path("2.png")), "viewpoint", truth)
    score = score_pair(pair, _prediction(points0, points1), [name], RobustSettings(3))
    assert score.corner_errors[name] < 0.05
    for count in (0, 1, 3):
        few = score_pair(pair, _prediction(points0[:count], points1[:count]), [name], RobustSettings(3))
        assert few.corner_errors[name] == np.inf
    same = score_pair(pair, _prediction(np.full((9, 2), 7.0), np.full((9, 2), 7.0)), [name], RobustSettings(3))
    assert same.corner_errors[name] > 10


def test_pair_without_matches_counts_zero() -> None:
    pair = HomographyPair(Pair("i_x", Path("1.png"), Path("2.png")), "illumination", np.eye(3))
    points = np.arange(20.0).reshape(10, 2)
    empty = score_pair(pair, _prediction(points[:0], points[:0]), [], RobustSettings(3))
    full = score_pair(pair, _prediction(points, points), [], RobustSettings(3))
    values = homography.summarise({"mnn": [empty, full]})["overall"]["mnn"]
    assert values["mma"]["3"] == 0.5 and values["matches"] == 5 and values["inlier_ratio"] == 1


def test_end_to_end(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    work, plot = tmp_path / "work", tmp_path / "mma.png"
    arguments = [str(data), "--compare", "mnn,ratio", "-o", str(work), "--estimators", "opencv-ransac"]
    command.run(_options(*arguments, "--json", "--plot", str(plot)))
    output = json.loads(capsys.readouterr().out)
    assert output["predictions_made"] == 4 * 3
    assert json.loads((work / "summary.json").read_text())["results"] == output["results"]
    assert len(output["pairs"]) == 4 * 3 and output["pairs"][0]["split"] == "illumination"
    assert set(output["results"]) == {"overall", "illumination", "viewpoint"}
    assert list(output["results"]["overall"]) == ["mnn", "ratio", "linglue"]
    for split, pairs in (("overall", 4), ("illumination", 2), ("viewpoint", 2)):
        values = output["results"][split]["linglue"]
        assert values["pairs"] == pairs
        assert values["mma"]["3"] > 0.85 and values["correct"] > 50
        assert values["auc"]["opencv-ransac"]["5"] > 0.6
    lines = (work / "pairs.csv").read_text().splitlines()
    assert len(lines) == 1 + 4 * 3 and lines[1].startswith("mnn,i_astronaut 1-2,")
    assert cv2.imread(str(plot)) is not None

    command.run(_options(*arguments, "--markdown"))
    printed = " ".join(capsys.readouterr().out.split())
    assert "| overall | linglue |" in printed
    assert "seed 0" in printed and "threshold 3 px" in printed and "OpenCV" in printed


def test_resumes_and_makes_again_what_changed(data: Path, tmp_path: Path) -> None:
    truths = [truth for truth in load_pairs(data)[0] if truth.pair.group == "v_astronaut"]
    pairs, mnn = [truth.pair for truth in truths], {"mnn": MatcherConfig("mnn")}
    predictions = Predictions(tmp_path / "work", "v_astronaut", ExtractConfig())
    assert predictions.make(pairs[:1], mnn) == 1
    with pytest.raises(LinGlueError, match=r"no features of '3\.png'"):
        predictions.load(pairs, "mnn")
    assert predictions.make(pairs, mnn) == 1
    assert predictions.make(pairs, mnn) == 0
    before = predictions.load(pairs, "mnn")
    assert predictions.make(pairs, {"ratio": MatcherConfig("ratio"), **mnn}) == 2
    changed = np.asarray(cv2.imread(str(pairs[0].image1)))[:, ::-1]
    cv2.imwrite(str(pairs[0].image1), changed)
    assert predictions.make(pairs, mnn) == 1  # only the pair of the image whose content is another now
    after = predictions.load(pairs, "mnn")
    assert not np.array_equal(after[0].points1, before[0].points1)
    np.testing.assert_array_equal(after[1].points1, before[1].points1)


def test_other_settings_go_to_other_folders(data: Path, tmp_path: Path) -> None:
    pairs = [load_pairs(data)[0][0].pair]
    extractions = [ExtractConfig(max_keypoints=n) for n in (100, 200)]
    found = []
    for extract in extractions:
        predictions = Predictions(tmp_path, "i_astronaut", extract)
        assert predictions.make(pairs, {"mnn": MatcherConfig("mnn")}) == 1
        found += predictions.load(pairs, "mnn")
    assert [prediction.keypoints[0] for prediction in found] == [100, 200]
    assert len({scene_folder(tmp_path, "i_astronaut", extract) for extract in extractions}) == 2


def test_library_call_gives_rows_and_tables(data: Path, tmp_path: Path) -> None:
    result = evaluation.homography(data, ["mnn", MatcherConfig("ratio")], tmp_path, estimators=["opencv-ransac"])
    assert (result.made, result.kept, len(result.rows)) == (8, 0, 8)
    assert list(result.summary["overall"]) == ["mnn", "ratio"] == list(result.settings["methods"])
    assert "MMA@3" in result.text() and "seed 0" in result.text()
    files = result.write(tmp_path / "out")
    assert json.loads(files["summary"].read_text())["results"] == result.json()["results"]
    assert len(files["pairs"].read_text().splitlines()) == 9


def test_several_data_sets_and_front_ends_in_one_run(data: Path, tmp_path: Path) -> None:
    """Sequences of the same name in two data sets do not get mixed up, and each method has its own features."""
    other = tmp_path / "other"
    write_data_set(other)
    methods = ["sift:mnn", "mnn"]
    extract = ExtractConfig(max_keypoints=150)
    result = evaluation.homography([data, other], methods, tmp_path / "work", extract, estimators=["opencv-ransac"])
    assert list(result.summary) == ["overall", *sorted([data.name, "other"]), "illumination", "viewpoint"]
    assert [values["pairs"] for values in (s["mnn"] for s in result.summary.values())] == [8, 4, 4, 4, 4]
    assert (result.made, len(result.rows)) == (16, 16)
    again = evaluation.homography([data, other], methods, tmp_path / "work", extract, estimators=["opencv-ransac"])
    assert again.made == 0 and again.summary == result.summary


def test_one_kind_of_change_is_shown_once(data: Path, tmp_path: Path) -> None:
    few = tmp_path / "few"
    few.mkdir()
    sequence = next(path for path in data.iterdir() if path.name.startswith("v_"))
    (few / sequence.name).symlink_to(sequence)
    result = homography.evaluate(few, ["mnn"], tmp_path / "work", estimators=[])
    assert list(result.summary) == ["overall", "viewpoint"]
    assert [row[0] for row in result.tables[0].rows] == ["overall"]


def test_excluded_sequences_are_left_out(data: Path) -> None:
    (data / "v_astronaut").rename(data / "v_talent")
    truths, skipped = load_pairs(data)
    assert skipped == ["v_talent"] and {t.pair.group for t in truths} == {"i_astronaut"}


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda d: (d / "v_astronaut" / "H_1_2").unlink(), "H_1_2 is missing"),
        (lambda d: (d / "v_astronaut" / "2.png").unlink(), "image 2 is missing"),
        (lambda d: (d / "v_astronaut" / "1.png").unlink(), "image 1 is missing"),
        (lambda d: (d / "v_astronaut" / "H_1_2").write_text("1 0 0 0 1"), "holds 5 numbers"),
        (lambda d: (d / "v_astronaut" / "H_1_2").write_text("a b c"), "not a text file of numbers"),
        (lambda d: (d / "v_astronaut" / "H_1_2").write_text("0 " * 9), "singular"),
        (lambda d: (d / "v_astronaut" / "2.png").write_bytes(b"no image"), "not an image"),
    ],
)
def test_spoilt_data_is_one_clear_line(
    data: Path, tmp_path: Path, spoil: Callable[[Path], object], message: str
) -> None:
    spoil(data)
    options = _options(str(data), "--compare", "mnn", "-o", str(tmp_path / "w"), "--estimators", "opencv-ransac")
    with pytest.raises(LinGlueError, match=message) as error:
        command.run(options)
    assert "\n" not in str(error.value) and str(data) in str(error.value)


def test_wrong_arguments_are_one_clear_line(data: Path, tmp_path: Path) -> None:
    output = ("-o", str(tmp_path / "w"))
    for arguments, message in (
        ((str(tmp_path / "none"),), "no such folder"),
        ((str(data / "v_astronaut"),), "holds no sequence"),
        (
            (str(data), "--compare", "best"),
            "expected linglue, linglue-full, linglue-fast, linglue-nofilter, linglue-paper, mnn, ratio",
        ),
        ((str(data), "--estimators", "guess"), "estimator is 'guess', expected poselib"),
        ((str(data), "--threshold", "0"), "--threshold is 0"),
        ((str(data), "--plot", str(tmp_path / "x.txt")), "expected .png"),
    ):
        with pytest.raises(LinGlueError, match=message):
            command.run(_options(*arguments, *output))
