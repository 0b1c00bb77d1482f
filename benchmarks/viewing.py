"""What looking at a reconstruction costs: `python benchmarks/viewing.py WORK [--docs docs/viewing.md]`.

CPU seconds of one thread, and the size of the report; WORK is a folder of `linglue reconstruct`.
"""

from __future__ import annotations

import argparse
import tempfile
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

import torch

from linglue.evaluation.result import Result, Table
from linglue.evaluation.suite import MEASURED
from linglue.sfm.report import write_report
from linglue.sfm.workspace import Workspace
from linglue.viewer.contents import WorkContents
from linglue.viewer.server import Viewer

BEGIN, END = "<!-- begin figures: written by benchmarks/viewing.py -->", "<!-- end figures -->"


def timed(function: Callable[[], object]) -> float:
    """CPU seconds of a call."""
    start = time.process_time()
    function()
    return time.process_time() - start


def measure(folder: Path) -> Result:
    """The figures as a section of docs/benchmarks.md."""
    viewer: list[Viewer] = []
    rows = {"page ready (`linglue view`)": timed(lambda: viewer.append(Viewer(WorkContents(folder), port=0)))}
    page = viewer[0]
    try:
        scene, pairs = page.contents.scene, sorted(page.contents.matched)
        rows["page delivered"] = timed(lambda: urllib.request.urlopen(page.address).read())
        rows["a camera chosen, with its keypoints"] = timed(lambda: page.choose(scene.names[0]))
        rows["two images chosen, with their matches"] = timed(lambda: page.choose_pair(*pairs[0]))
        rows["points filtered"] = timed(page.filter_points)
    finally:
        page.close()
    with tempfile.TemporaryDirectory() as target:
        report = Path(target) / "report.html"
        rows["report written (`linglue report`)"] = timed(lambda: write_report(Workspace(folder), report))
        size = report.stat().st_size / 1e6
    note = (
        f"A model of {len(scene.names)} images, {len(scene.points):,} points and {len(pairs)} pairs; its report has "
        f"{size:.1f} MB. One thread, {time.strftime('%Y-%m-%d')}, by benchmarks/viewing.py."
    )
    table = Table(("", "CPU s"), tuple((name, f"{seconds:.2f}") for name, seconds in rows.items()))
    return Result("viewing", {"viewing": {"cpu_seconds": rows}}, [rows], "rows", [table], note, {}, 1, 0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("work", type=Path, metavar="WORK")
    parser.add_argument(
        "--docs",
        type=Path,
        metavar="FILE",
        help="put the figures into docs/viewing.md, and beside it what is for docs/benchmarks.md",
    )
    options = parser.parse_args()
    torch.set_num_threads(1)
    found = measure(options.work)
    print(found.text())
    if options.docs is not None:
        before, _, rest = options.docs.read_text(encoding="utf-8").partition(BEGIN)
        after = rest.partition(END)[2]
        options.docs.write_text(f"{before}{BEGIN}\n\n{found.text(markdown=True)}\n\n{END}{after}", encoding="utf-8")
        found.save(options.docs.parent / MEASURED / "viewing.json")


if __name__ == "__main__":
    main()
