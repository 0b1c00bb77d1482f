"""The benchmarks of speed run at tiny sizes, and write what they are asked for."""

from __future__ import annotations

import json
from pathlib import Path

import cv2
import numpy as np
import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(autouse=True)
def beside_the_benchmarks(monkeypatch):
    """As for a script in their folder; and threads are set back."""
    import torch

    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture
def images(tmp_path) -> list[str]:
    """Three overlapping crops of one picture with many corners."""
    random = np.random.default_rng(0)
    large = cv2.resize(random.integers(0, 255, (60, 80), dtype=np.uint8), (400, 300), interpolation=cv2.INTER_CUBIC)
    folder = tmp_path / "images"
    folder.mkdir()
    for number in range(3):
        cv2.imwrite(str(folder / f"{number}.png"), large[:, 15 * number : 340 + 15 * number])
    return sorted(map(str, folder.iterdir()))


def document(path: Path, name: str) -> Path:
    """A document with marks of this name."""
    path.write_text(f"before\n<!-- begin {name} -->\nold\n<!-- end {name} -->\nafter\n", encoding="utf-8")
    return path


def test_speed(tmp_path, images, capsys):
    import speed

    results, docs, picture = tmp_path / "speed.json", document(tmp_path / "d.md", "speed"), tmp_path / "speed.png"
    words = ["--sizes", "64", "128", "--repeats", "2", "--threads", "1", "--json", str(results)]
    words += ["--methods", "linglue", "linglue-geo", "nearest", "gemm", "gemm-onednn", "matmul-topk"]
    words += ["--images", *images[:2], "--real-sizes", "100"]
    speed.main([*words, "--docs", str(docs), "--plot", str(picture)])
    cells = json.loads(results.read_text())
    assert len(cells) == 6 * 3
    assert all(cell["seconds"] > 0 and cell["repeats"] == 2 for cell in cells.values())
    text = docs.read_text(encoding="utf-8")
    assert "old" not in text and "| linglue-geo |" in text and "real features" in text and text.endswith("after\n")
    assert picture.stat().st_size > 1000
    before = results.read_text()
    speed.main(words)
    assert results.read_text() == before, "a second run continues where the first one ended"
    assert "| target |" in capsys.readouterr().out


def test_what_would_take_too_long_is_extrapolated(capsys):
    import speed

    speed.main(
        [
            "--sizes",
            "64",
            "128",
            "--methods",
            "linglue",
            "nearest",
            "--repeats",
            "1",
            "--threads",
            "1",
            "--longest",
            "0",
        ]
    )
    assert "| ~" in capsys.readouterr().out


def test_targets_say_what_is_met_and_what_is_missed():
    from speed_tables import Cell, targets

    found = [
        Cell("random", "linglue", 2048, 1.0, 10, 1),
        Cell("random", "lightglue-full", 2048, 30.0, 10, 1),
        Cell("random", "superglue", 2048, 50.0, None, 0),
        Cell("random", "linglue", 4096, 1.0, 10, 1),
        Cell("random", "linglue", 16384, 5.0, 300_000_000, 1),
    ]
    lines = targets({cell.key: cell for cell in found}).splitlines()
    verdict = {line.split("|")[1].strip(): line.split("|")[3].strip() for line in lines[2:]}
    assert verdict["LightGlue, adaptivity off, takes times ours at 2048"] == "30, met"
    assert verdict["SuperGlue, 100 iterations, takes times ours at 2048"] == "~50, **missed**"
    assert verdict["16384 takes times 4096"] == "5, **missed**"
    assert verdict["MB at 16384"] == "300, **missed**"
    assert verdict["MB at 32768"] == "–"


def test_roofline(tmp_path, capsys):
    import roofline

    docs = document(tmp_path / "d.md", "roofline")
    roofline.main(["--sizes", "128", "--repeats", "1", "--threads", "1", "--docs", str(docs)])
    assert "17 layers of linear attention | 128 | 0.4 |" in capsys.readouterr().out
    assert "GFLOP/s" in docs.read_text(encoding="utf-8")


@pytest.mark.slow
def test_throughput(tmp_path, images):
    import throughput

    docs = document(tmp_path / "d.md", "throughput")
    words = [
        str(Path(images[0]).parent),
        "--methods",
        "linglue",
        "--pairs",
        "3",
        "--keypoints",
        "100",
        "--workers",
        "1",
    ]
    throughput.main([*words, "--docs", str(docs)])
    assert "| linglue | linpoint | 3 |" in docs.read_text(encoding="utf-8")
