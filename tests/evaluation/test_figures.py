"""Curves of results: what the panels and the legend say. SVG files keep every text as a comment."""

from pathlib import Path

import pytest

from linglue.evaluation import figures
from linglue.evaluation.result import Result
from linglue.evaluation.tasks.scalability import growth

pytest.importorskip("matplotlib")

SIZES = (1024, 2048, 4096, 8192)


def scalability() -> Result:
    powers = {("pair", "network"): 1, ("pair", "matching"): 1.5, ("mnn", "matching"): 2}
    rows = [
        {"subject": name, "part": part, "keypoints": n, "cpu_seconds": n**power / 1e5, "megabytes": n / 100}
        for (name, part), power in powers.items()
        for n in SIZES
    ]
    accuracy = {str(n): {"mnn": {"auc": {"5": 0.5}}, "linglue": {"auc": {"5": 0.9}}} for n in SIZES}
    summary = {"exponents": growth(rows), "accuracy": accuracy}
    return Result("scalability", summary, rows, "costs", [], "", {}, 1, 0)


def texts(path: Path) -> list[str]:
    lines = (line.strip() for line in path.read_text(encoding="utf-8").splitlines())
    return [line[5:-4] for line in lines if line.startswith("<!-- ") and line.endswith(" -->")]


def test_every_part_has_its_panels_and_growth(tmp_path: Path) -> None:
    path = figures.draw_curves(scalability(), tmp_path / "curves.svg")
    assert path is not None
    found = texts(path)
    for part in ("network", "matching"):
        assert f"{part}: CPU time, ms" in found and f"{part}: peak memory, MB" in found
    assert "pose AUC@5°, %" in found and {"1k", "2k", "4k", "8k"} <= set(found)
    assert found.count("pair: network n^1.0, matching n^1.5") == 1  # once, though it is in four panels
    assert found.count("mnn: matching n^2.0") == 1  # which the first panel lacks


def test_many_scenes_take_several_rows(tmp_path: Path) -> None:
    scenes = [f"scene {number}" for number in range(4)]
    rows = [
        {"scene": scene, "method": "mnn", "rotation_error": 1.0, "translation_error": None if number else 2.0}
        for number, scene in enumerate(scenes)
    ]
    summary: dict[str, dict[str, dict[str, float]]] = {name: {"mnn": {}} for name in [*scenes, "all"]}
    result = Result("pose", summary, rows, "pairs", [], "", {}, 1, 0)
    path = figures.draw_curves(result, tmp_path / "curves.svg")
    assert path is not None
    found = texts(path)
    assert "scene 3 (1 pairs)" in found and "all (4 pairs)" in found
    assert found.count("pairs within the error (%)") == 2  # two rows
