"""Front-ends alone: accuracy, repeatability and costs in one result; what a missing front-end says."""

from pathlib import Path

import pytest

from evaluation.tasks.test_homography import write_data_set
from linglue.errors import LinGlueError
from linglue.evaluation.extraction_cost import ExtractionCost, measure_apart
from linglue.evaluation.tasks import front_ends
from linglue.sfm.extract import ExtractConfig

EXTRACT = ExtractConfig("sift", max_keypoints=200, resize=300)


def test_planes_repeatability_and_costs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("poselib")
    monkeypatch.setattr(front_ends, "measure_apart", lambda extract, images, threads: ExtractionCost(0.2, 0.1, 30))
    data = write_data_set(tmp_path / "data")
    image = next(data.glob("v_*/1.*"))
    result = front_ends.evaluate(
        [data], {}, tmp_path / "work", EXTRACT, front_ends=("sift", "linpoint"), images=[image]
    )
    accuracy, costs = result.tables
    assert accuracy.header[4] == "repeatability" and [row[0] for row in accuracy.rows] == ["sift", "linpoint"]
    assert all(0 < values["repeatability"] <= 1 for values in result.summary["data"].values())
    assert costs.rows[0] == ("sift", "100", "1.00", "30")
    assert {row["front_end"] for row in result.rows} == {"sift", "linpoint"} and "mma@3" in result.rows[0]
    assert result.text()


def test_costs_come_from_a_process_of_its_own(tmp_path: Path) -> None:
    image = next(write_data_set(tmp_path / "data").glob("v_*/1.*"))
    cost = measure_apart(EXTRACT, [image])
    assert cost.cpu_seconds > 0 and cost.seconds > 0 and cost.megabytes > 0
    with pytest.raises(LinGlueError, match="sift: its costs could not be measured"):
        measure_apart(EXTRACT, [tmp_path / "none.png"])


def test_without_data_is_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(LinGlueError, match="no data to measure on, expected planes or scenes"):
        front_ends.evaluate([], {}, tmp_path)
