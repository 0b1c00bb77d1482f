"""The measures give what was put in, and the command measures a rendered room in all layouts it accepts."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from scipy.spatial.transform import Rotation

from linglue import LinGlueError
from linglue.cli import main
from linglue.evaluation.known_poses import find_model, load_known_scene
from linglue.evaluation.tasks import localization
from linglue.evaluation.tasks.localization import load_query_scene
from linglue.evaluation.tasks.localization_scores import ImageScore, score_image, summarise, tables
from linglue.geometry.pose import Pose
from linglue.io.poses import read_poses, write_poses
from linglue.localization.absolute_pose import PoseEstimate
from linglue.sfm.workspace import Workspace
from rendered import render, write_images
from rendered_map import intrinsics, truth, write_map

pycolmap = pytest.importorskip("pycolmap")

VIEWS = render(5)
QUICK = ("--compare", "ratio", "--max-keypoints", "300", "--workers", "1", "--json")


def numbers(matrix: np.ndarray) -> str:
    return "\n".join(" ".join(map(repr, row.tolist())) for row in matrix)


@pytest.fixture(scope="module")
def scene(tmp_path_factory) -> Path:
    """EPFL's layout: images/ and gt/."""
    folder = tmp_path_factory.mktemp("scenes") / "röom 1"
    (folder / "gt").mkdir(parents=True)
    write_images(folder, VIEWS)
    (folder / "room").rename(folder / "images")
    for view in VIEWS:
        pose, size = truth(view), view.camera.size
        parts = [f"{size.width} {size.height}", numbers(view.camera.matrix), numbers(pose.rotation)]
        text = "\n".join([*parts, numbers(pose.translation[None])])
        (folder / "gt" / f"{Path(view.name).name}.txt").write_text(text)
    return folder


@pytest.fixture(scope="module")
def aachen(tmp_path_factory) -> Path:
    """The layout of Aachen v1.1: three images in the reference model, a query by day and one at night."""
    folder = tmp_path_factory.mktemp("aachen") / "aachen"
    images = folder / "images" / "images_upright"
    write_images(images, VIEWS)
    write_map(folder / "map", (VIEWS[0], VIEWS[2], VIEWS[4]))
    (folder / "3D-models").mkdir()
    shutil.move(folder / "map" / "model", folder / "3D-models" / "aachen_v_1_1")
    shutil.rmtree(folder / "map")
    (folder / "queries").mkdir()
    for number, time in ((1, "day"), (3, "night")):
        text = f"{VIEWS[number].name}\t{intrinsics(VIEWS[number])}\n"
        (folder / "queries" / f"{time}_time_queries_with_intrinsics.txt").write_text(text)
    return folder


def run(capfd, *arguments: object) -> dict:
    capfd.readouterr()
    code = main(["eval", "localization", *QUICK, *map(str, arguments)])
    out, err = capfd.readouterr()
    assert code == 0, err
    return json.loads(out)


def test_leave_one_out_of_images_with_known_cameras(scene, tmp_path, capfd):
    facts = run(capfd, scene, "-o", tmp_path)
    for method in ("ratio", "linglue"):
        values = facts["results"]["röom 1"][method]
        assert values["images"] == values["with_truth"] == 5 and values["localized"] == 1
        assert values["within"] == {"0.05 m 0.5°": 1, "0.25 m 2°": 1, "0.5 m 5°": 1, "5 m 10°": 1}
        assert 0 < values["position_error"] < 0.03 and values["rotation_error"] < 0.2
    rows = (tmp_path / "images.csv").read_text().splitlines()
    assert len(rows) == 1 + 2 * 5 and rows[0].startswith("method,scene,image,position_error")
    poses = read_poses(tmp_path / "röom 1" / "poses-linglue.txt")
    assert list(poses) == [Path(view.name).name for view in VIEWS]
    assert json.loads((tmp_path / "summary.json").read_text())["results"] == facts["results"]


def test_leave_one_out_of_a_model(aachen, scene, tmp_path, capfd):
    folder = tmp_path / "scene"
    shutil.copytree(aachen / "images" / "images_upright", folder / "images")
    shutil.copytree(aachen / "3D-models" / "aachen_v_1_1", folder / "sparse" / "0")
    facts = run(capfd, folder, "-o", tmp_path / "work")
    assert facts["results"]["scene"]["linglue"]["images"] == 3
    assert facts["results"]["scene"]["linglue"]["within"]["0.25 m 2°"] == 1


def test_queries_with_and_without_truth(aachen, tmp_path, capfd):
    results = run(capfd, aachen, "-o", tmp_path / "work")["results"]
    assert list(results) == ["aachen day", "aachen night", "all"]  # as the benchmark reports them
    unknown = results["all"]["linglue"]
    assert (unknown["images"], unknown["with_truth"], unknown["localized"]) == (2, 0, 1)
    assert "within" not in unknown
    submission = read_poses(tmp_path / "work" / "aachen" / "poses-linglue.txt")
    assert sorted(submission) == ["view 1.png", "view 3.png"]  # as visuallocalization.net wants them: no folders

    write_poses(tmp_path / "truth.txt", {Path(VIEWS[1].name).name: truth(VIEWS[1]), VIEWS[3].name: truth(VIEWS[3])})
    known = run(capfd, aachen, "-o", tmp_path / "work", "--truth", tmp_path / "truth.txt")
    assert known["results"]["aachen night"]["linglue"]["within"]["0.25 m 2°"] == 1
    assert known["results"]["all"]["linglue"]["with_truth"] == 2


def test_images_that_cannot_be_used_count_as_failures(scene, tmp_path, capfd):
    folder = tmp_path / "damaged"
    shutil.copytree(scene, folder)
    (folder / "images" / "view 4.png").write_bytes(b"no picture")
    facts = run(capfd, folder, "-o", tmp_path / "work", "--compare", "mnn")
    values = facts["results"]["damaged"]["mnn"]  # the quickest
    assert values["images"] == 5 and values["localized"] == values["within"]["0.25 m 2°"] == 0.8
    assert len(facts["problems"]) == 1 and facts["problems"][0].startswith("view 4.png: left out")


def estimate(pose: Pose | None) -> PoseEstimate:
    return PoseEstimate(pose, None if pose else "too dark", None, 50, 40)  # type: ignore[arg-type]


def test_errors_are_those_that_were_put_in():
    true = Pose(Rotation.from_euler("xyz", [10, 20, 30], degrees=True).as_matrix(), np.array([1.0, 2.0, 3.0]))
    turned = Rotation.from_euler("y", 1.5, degrees=True).as_matrix() @ true.rotation
    moved = Pose(turned, -turned @ (true.centre + np.array([0.0, 0.3, 0.4])))
    score = score_image("s", "a", estimate(moved), true)
    assert score.position_error == pytest.approx(0.5) and score.rotation_error == pytest.approx(1.5)
    assert score_image("s", "a", estimate(None), true).position_error == float("inf")
    assert score_image("s", "a", estimate(moved), None).position_error is None
    assert score_image("s", "a", None, true).reason == "the image could not be used"


def test_shares_and_medians():
    errors = [(0.04, 0.4), (0.2, 0.4), (0.2, 3.0), (float("inf"), float("inf"))]
    scores = [
        ImageScore("s", str(i), *e, 10 * i, 50, None if np.isfinite(e[0]) else "none") for i, e in enumerate(errors)
    ]
    summary = summarise({"linglue": scores})
    values = summary["s"]["linglue"]
    assert list(values["within"].values()) == [0.25, 0.5, 0.75, 0.75] and values["localized"] == 0.75
    assert (values["position_error"], values["rotation_error"], values["inliers"]) == (0.2, 3.0, 15)
    assert "linglue" in tables(summary)[0].text()
    for failed in (scores[3:], [ImageScore("s", "x", None, None, 0, 0, "none")]):
        assert "–" in tables(summarise({"linglue": failed}))[0].text()


def test_two_models_must_be_told_apart(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "images.bin").touch()
    with pytest.raises(LinGlueError, match=r"holds 2 COLMAP models: a, b; expected one, or --model"):
        find_model(tmp_path)
    with pytest.raises(LinGlueError, match="no such folder"):
        load_known_scene(tmp_path)


def test_what_does_not_fit_is_refused(aachen, scene, tmp_path):
    write_poses(tmp_path / "truth.txt", {"other.jpg": truth(VIEWS[1])})
    with pytest.raises(LinGlueError, match="holds no pose of any query"):
        load_query_scene(aachen, truth=tmp_path / "truth.txt")
    for arguments in (
        [scene, "--truth", tmp_path / "truth.txt"],
        [scene, scene],
        [scene, aachen, "--model", aachen],
        [scene, "--top", "0"],
        [scene, "--threshold", "0"],
    ):
        assert main(["eval", "localization", *map(str, arguments), "-o", str(tmp_path / "work"), *QUICK]) == 1
    assert not (tmp_path / "work").exists()
    known = load_known_scene(scene)
    known.views.clear()
    with pytest.raises(LinGlueError, match="holds 0 images with poses, expected at least 3"):
        localization.leave_one_out(known, Workspace(tmp_path / "work"), None)  # type: ignore[arg-type]
