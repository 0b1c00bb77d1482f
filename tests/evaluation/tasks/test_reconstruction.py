"""Models of the rendered room, whose cameras are known."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from epfl_scene import write_epfl
from linglue.core.pool import Pool
from linglue.dense.dense import DenseConfig
from linglue.errors import LinGlueError
from linglue.evaluation.colmap_pipeline import ColmapConfig
from linglue.evaluation.tasks import reconstruction
from linglue.evaluation.tasks.reconstruction import (
    ModelScore,
    ModelSettings,
    load_scene,
    measure,
    summarise,
    tables,
)
from linglue.matcher import MatcherConfig
from linglue.sfm.extract import ExtractConfig
from linglue.sfm.map import MappingConfig
from linglue.sfm.sparse_model import ModelStatistics
from rendered import render

pytest.importorskip("pycolmap")

VIEWS = render(5)
HOW = ModelSettings(
    {"mnn": MatcherConfig("mnn")},
    ExtractConfig(max_keypoints=500, resize=None),
    MappingConfig(threads=1),
    engine=Pool(),
    colmap=ColmapConfig(max_keypoints=500, resize=None, match_threads=1),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return write_epfl(tmp_path_factory.mktemp("données") / "the room", VIEWS)


@pytest.fixture(scope="module")
def work(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("work")


@pytest.fixture(scope="module")
def scores(folder, work) -> list[ModelScore]:
    return measure(load_scene(folder), work, HOW)


def test_dense_points_are_a_column_if_they_are_asked_for(folder, work, scores):
    assert "dense points" not in tables(summarise(scores))[0].header
    how = replace(HOW, colmap=None, dense=DenseConfig(longer_side=120, neighbours=2, planes=32))
    (score,) = measure(load_scene(folder), work, how)
    assert score.dense is not None and score.dense > 500
    table = tables(summarise([score]))[0]
    assert table.rows[0][table.header.index("dense points")] == str(score.dense)


def test_all_methods_find_the_cameras(scores):
    assert [score.method for score in scores] == ["mnn", "colmap"]
    for score in scores:
        assert score.scene == "the room"
        assert score.made
        assert score.reason is None
        assert score.model.registered == score.model.images == len(VIEWS)
        assert score.model.points > 100
        assert score.seconds > 0
        assert score.keypoints > 400
        assert set(score.position_errors) == set(score.rotation_errors) == {f"view {i}.png" for i in range(5)}
        # COLMAP's own threads finish in any order, and its models of so small a scene differ with it.
        slack = 3 if score.method == "colmap" else 1
        assert max(score.position_errors.values()) < slack * 0.05  # metres; the cameras stand on an arc of 5 metres
        assert max(score.rotation_errors.values()) < slack * 0.4


def test_known_intrinsics_stay_as_they_are(scores, work):
    from linglue.sfm.sparse_model import read_model

    for method in ("mnn", "colmap"):
        (model,) = work.glob(f"the room/*/models-*/{method}/model")
        for camera in read_model(model).cameras.values():
            assert camera.model.name == "PINHOLE"
            np.testing.assert_array_equal(camera.params, [460, 460, 240, 180])  # COLMAP's half pixel is added


def test_a_second_run_makes_nothing(scores, folder, work, monkeypatch):
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("made again")

    for name in ("sfm.extract._Worker", "sfm.match._make_worker", "sfm.map_stores.build_model"):
        monkeypatch.setattr(f"linglue.{name}", refuse)
    monkeypatch.setattr("linglue.evaluation.colmap_pipeline._extract", refuse)
    assert measure(load_scene(folder), work, HOW) == [replace(score, made=False) for score in scores]


def test_images_without_truth(folder, tmp_path):
    scene = load_scene(folder / "images")
    assert (scene.name, scene.views) == ("images", {})
    (score,) = measure(scene, tmp_path, replace(HOW, colmap=None))
    assert score.model.registered == len(VIEWS)
    assert not score.position_errors
    (table,) = tables(summarise([score]))
    assert (
        score.inlier_pairs == 10 and score.inlier_matches is not None and score.inlier_matches > 150
    )  # all pairs of five images
    numbers = (
        "registered",
        "keypoints",
        "inlier pairs",
        "inlier matches",
        "points",
        "observations",
        "track",
        "error px",
        "ms",
    )
    assert table.header == ("scene", "method", *numbers)


def test_without_a_model_there_is_a_reason(tmp_path):
    scene = load_scene(write_epfl(tmp_path / "few", render(2)))
    extract = ExtractConfig(max_keypoints=10, resize=None)
    assert HOW.colmap is not None
    few = replace(HOW, extract=extract, colmap=replace(HOW.colmap, max_keypoints=10))
    scores = measure(scene, tmp_path / "work", few)
    assert all(score.model is None and "model" in str(score.reason) for score in scores)
    (table,) = tables(summarise(scores))
    assert set(table.rows[0][2:]) == {"–"}


def test_two_images_make_a_model_that_cannot_be_aligned(tmp_path):
    scene = load_scene(write_epfl(tmp_path / "two", render(2)))
    (score,) = measure(scene, tmp_path / "work", replace(HOW, colmap=None))
    assert score.model.registered == 2
    assert "at least 3" in str(score.reason)


def test_an_empty_folder_is_refused(tmp_path):
    with pytest.raises(LinGlueError, match="holds no image"):
        load_scene(tmp_path)


def test_table_compares_times_with_linglue_and_gives_millimetres():
    model = ModelStatistics(3, 2, 1000, 3500, 3.5, 1750.0, 0.4321)
    scores = [
        ModelScore(
            "s", "ratio", model, True, 1999.6, 0.5, {"a": 0.001, "b": 0.003}, {"a": 0.01, "b": 0.02}, None, None, 3, 900
        ),
        ModelScore("s", "linglue", None, True, 2000.0, 2.0, {}, {}, "no model"),
    ]
    summary = summarise(scores)
    assert summary["s"]["ratio"]["mean_position_error"] == pytest.approx(0.002)
    assert summary["s"]["linglue"] == {"keypoints": 2000.0, "seconds": 2.0, "reason": "no model"}
    (table,) = tables(summary)
    assert dict(zip(table.header, table.rows[0], strict=True)) == {
        "scene": "s",
        "method": "ratio",
        "registered": "2/3",
        "keypoints": "2000",
        "inlier pairs": "3",
        "inlier matches": "900",
        "points": "1000",
        "observations": "3500",
        "track": "3.50",
        "error px": "0.432",
        "mean mm": "2.00",
        "median mm": "2.00",
        "mean °": "0.0150",
        "median °": "0.0150",
        "time/linglue": "0.25",
    }
    assert len(reconstruction.csv_rows(scores)) == 2
