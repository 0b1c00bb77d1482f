"""A small data set with known homographies, from the folder on disk to the table."""

import argparse
import json
import os
from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np
import pytest
from skimage import data as photos

from linglue.cli import eval as command
from linglue.errors import LinGlueError
from linglue.evaluation.estimators import HOMOGRAPHY_ESTIMATORS, RobustSettings
from linglue.evaluation.methods import Method, MethodOptions, make_method
from linglue.evaluation.store import Extraction, Pair, Prediction, Store, load_prediction
from linglue.evaluation.tasks import homography
from linglue.evaluation.tasks.homography import HomographyPair, load_pairs, score_pair
from linglue.geometry.homography import apply
from linglue.types import ImageSize

SIZE = ImageSize(400, 300)


def write_data_set(root: Path) -> Path:
    """One viewpoint and one illumination sequence of three images each."""
    image = cv2.resize(photos.astronaut(), SIZE, interpolation=cv2.INTER_AREA)[..., ::-1]
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
    assert set(output["results"]) == {"overall", "illumination", "viewpoint"}
    assert list(output["results"]["overall"]) == ["mnn", "ratio", "linglue"]
    for split, pairs in (("overall", 4), ("illumination", 2), ("viewpoint", 2)):
        values = output["results"][split]["linglue"]
        assert values["pairs"] == pairs
        assert values["mma"]["3"] > 0.85 and values["correct"] > 50
        assert values["auc"]["opencv-ransac"]["5"] > 0.6
    lines = (work / "pairs.csv").read_text().splitlines()
    assert len(lines) == 1 + 4 * 3 and lines[1].startswith("mnn,i_astronaut 1-2,illumination,")
    assert cv2.imread(str(plot)) is not None

    command.run(_options(*arguments, "--markdown"))
    printed = capsys.readouterr().out
    assert "| overall | linglue |" in printed
    assert "seed 0" in printed and "threshold 3 px" in printed and "OpenCV" in printed


def test_resumes_and_scores_saved_files_only(data: Path, tmp_path: Path) -> None:
    truths, _ = load_pairs(data)
    pairs = [truth.pair for truth in truths]
    calls: list[int] = []
    plain = make_method("mnn", MethodOptions())

    def counted(*features: object) -> object:
        calls.append(1)
        return plain.match(*features)  # type: ignore[arg-type]

    method = Method("mnn", counted, plain.settings)  # type: ignore[arg-type]
    store = Store(tmp_path / "work", data, Extraction())
    assert store.predict(pairs, [method]) == len(calls) == 4
    before = homography.score(truths, [method], store, [], RobustSettings(3))
    gone = store.path(method, pairs[2])
    gone.unlink()
    with pytest.raises(LinGlueError, match="no such prediction"):
        homography.score(truths, [method], store, [], RobustSettings(3))
    assert Store(tmp_path / "work", data, Extraction()).predict(pairs, [method]) == 1 and len(calls) == 5
    after = homography.score(truths, [method], store, [], RobustSettings(3))
    assert [s.accuracy for s in after["mnn"]] == [s.accuracy for s in before["mnn"]]

    gone.write_bytes(b"PK damaged")
    with pytest.raises(LinGlueError, match=r"2\.png\.npz: damaged prediction; delete the file"):
        load_prediction(gone)
    gone.unlink()
    later = pairs[0].image1.stat().st_mtime + 1000
    os.utime(pairs[0].image1, (later, later))  # as if the image was replaced
    assert store.predict(pairs, [method]) == 2


def test_other_settings_go_to_other_folders(data: Path, tmp_path: Path) -> None:
    truths, _ = load_pairs(data)
    method = make_method("mnn", MethodOptions())
    stores = [Store(tmp_path, data, Extraction(max_keypoints=n)) for n in (100, 200)]
    for store in stores:
        assert store.predict([truths[0].pair], [method]) == 1
    assert stores[0].folder(method) != stores[1].folder(method)
    assert [load_prediction(s.path(method, truths[0].pair)).keypoints[0] for s in stores] == [100, 200]
    record = stores[0].folder(method) / "settings.json"
    assert json.loads(record.read_text())["extraction"]["max_keypoints"] == 100
    record.write_text("{}")
    with pytest.raises(LinGlueError, match=r"settings\.json: not the settings that the folder is named after"):
        stores[0].predict([truths[0].pair], [method])


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
        ((str(data), "--compare", "best"), "expected mnn, ratio"),
        ((str(data), "--estimators", "guess"), "estimator is 'guess', expected poselib"),
        ((str(data), "--threshold", "0"), "--threshold is 0"),
        ((str(data), "--plot", str(tmp_path / "x.txt")), "expected .png"),
    ):
        with pytest.raises(LinGlueError, match=message):
            command.run(_options(*arguments, *output))
