"""LinGlue and its peers against the number of keypoints, features given: seconds, peak additional memory, growth.

python benchmarks/speed.py --quick                                  # 1k and 2k keypoints, without the slowest peers
python benchmarks/speed.py --images a.jpg b.jpg                     # on random features, and on those of two images
python benchmarks/speed.py --json speed.json --plot speed.png --docs docs/performance.md

All methods take turns in one process, so that whatever else the machine does hits all of them; what takes longer than a
few seconds runs once. A method that would take longer than --longest at a size, by its growth so far, or for which no
time of --budget is left, is not run there: the number is extrapolated and marked with ~. With --json the results so far
are kept in that file, and a second run continues where the first one ended. On a machine that is not quiet, --clock cpu
with --threads 1 compares seconds of work instead of seconds on the clock. Peers' weights come from LINGLUE_PEERS.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path

import torch
from speed_methods import FEATURES, METHODS, Pairs, Run, make_run, random_pair, real_pairs
from speed_tables import Cell, growth, plot, tables, targets, write_tables

from linglue.errors import LinGlueError
from linglue.evaluation.timing import Probe
from linglue.types import Features

SIZES = (1024, 2048, 4096, 8192, 10240, 16384, 32768)
REAL_SIZES = (2048, 4096)
WARM_UP = 256  # keypoints of the run that loads libraries
SLOW = ("lightglue-full", "superglue")  # left out by --quick
ONCE = 4.0  # seconds; what takes longer is not repeated


def measure(run: Run, pair: tuple[Features, Features], clock: str) -> tuple[float, int]:
    """Seconds by a clock ("cpu" or "wall"), and by how many bytes the resident set grew at most."""
    pair = replace(pair[0]), replace(pair[1])  # new objects: a matcher may remember what it knows of the old
    probe = Probe()
    with torch.inference_mode(), probe.stage("all"):
        run(*pair)
    return (probe.cpu_seconds if clock == "cpu" else probe.seconds)["all"], max(0, probe.bytes["all"])


class Benchmark:
    """Methods that take turns, and what has been measured so far."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments, self.started, self.cells = arguments, time.monotonic(), dict[str, Cell]()
        if arguments.json and arguments.json.exists():
            self.cells = {key: Cell(**cell) for key, cell in json.loads(arguments.json.read_text()).items()}
        self.runs: dict[str, Run] = {}
        for method in arguments.methods:
            try:
                run = make_run(method)
                measure(run, random_pair(FEATURES[method], WARM_UP), arguments.clock)
                self.runs[method] = run
            except LinGlueError as error:
                print(f"{method} is left out: {error}", file=sys.stderr)

    def run(self, features: str, pairs: Pairs, sizes: list[int]) -> None:
        """Measure what is missing of one kind of features, sizes from small to large, methods in turns."""
        for size in sorted(sizes):
            samples: dict[str, list[tuple[float, int]]] = {}
            for turn in range(self.arguments.repeats):
                for method in self.runs:
                    before = samples.get(method, [])
                    if turn and (not before or before[0][0] > ONCE):
                        continue
                    if not turn and not self._wanted(features, method, size):
                        continue
                    if pair := pairs(FEATURES[method], size):
                        samples[method] = [*before, measure(self.runs[method], pair, self.arguments.clock)]
            for method, found in samples.items():
                seconds = statistics.median(s for s, _ in found)
                self._put(Cell(features, method, size, seconds, max(b for _, b in found), len(found)))

    def _wanted(self, features: str, method: str, size: int) -> bool:
        """Whether to run it; where it would take too long, its time is extrapolated."""
        if f"{features}:{method}@{size}" in self.cells:
            return False
        seconds = self._expected(features, method, size)
        left = self.arguments.budget - (time.monotonic() - self.started)
        if seconds is None or seconds <= min(self.arguments.longest, left):
            return True
        self._put(Cell(features, method, size, seconds, None, 0))
        return False

    def _expected(self, features: str, method: str, size: int) -> float | None:
        """By the method's growth so far, quadratic where only one size is known; None where nothing is."""
        mine = (c for c in self.cells.values() if c.method == method and c.features == features and c.measured)
        known = sorted((c for c in mine if c.size < size), key=lambda c: c.size)
        if not known:
            return None
        power = max(1.0, growth(known)) if len(known) > 1 else 2.0
        return known[-1].seconds * (size / known[-1].size) ** power

    def _put(self, cell: Cell) -> None:
        self.cells[cell.key] = cell
        if self.arguments.json:
            text = json.dumps({key: asdict(cell) for key, cell in self.cells.items()}, indent=1)
            self.arguments.json.write_text(text)


def report(benchmark: Benchmark) -> str:
    """All tables, each with the conditions it was measured under."""
    arguments, parts = benchmark.arguments, []
    clock = {"cpu": "seconds of CPU work", "wall": "seconds on the clock"}[arguments.clock]
    for features in ("random", "real"):
        mine = [c for c in benchmark.cells.values() if c.features == features]
        if mine:
            runs = f"medians of up to {max(c.repeats for c in mine)} runs"
            parts.append(f"{arguments.threads} thread(s), {clock}, {features} features, {runs}; ~ is extrapolated.")
            parts.append(tables(benchmark.cells, features))
    return "\n\n".join([*parts, targets(benchmark.cells)])


def parse(words: list[str] | None = None) -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES), help="numbers of keypoints per image")
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--quick", action="store_true", help=f"1k and 2k keypoints, without {', '.join(SLOW)}")
    parser.add_argument("--repeats", type=int, default=3, help="time is the median of so many runs")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall")
    parser.add_argument("--longest", type=float, default=60, help="seconds; what would take longer is extrapolated")
    parser.add_argument("--budget", type=float, default=1e9, help="seconds of the whole run; extrapolated beyond")
    parser.add_argument("--images", nargs=2, metavar="IMAGE", help="real features of these two, too")
    parser.add_argument("--real-sizes", type=int, nargs="+", default=list(REAL_SIZES), help="of the real features")
    parser.add_argument("--json", type=Path, help="keep the results here, and continue from what is there")
    parser.add_argument("--docs", type=Path, help="write the tables between the marks of this document")
    parser.add_argument("--mark", default="speed", help="name of these marks: <!-- begin NAME -->, <!-- end NAME -->")
    parser.add_argument("--plot", type=Path, help="log-log plot, as PNG or SVG")
    arguments = parser.parse_args(words)
    if arguments.quick:
        arguments.sizes = [n for n in arguments.sizes if n <= 2048]
        arguments.methods = [m for m in arguments.methods if m not in SLOW]
    return arguments


def main(words: list[str] | None = None) -> None:
    """Measure, print, and write what was asked for."""
    arguments = parse(words)
    torch.set_num_threads(arguments.threads)
    benchmark = Benchmark(arguments)
    if arguments.images:
        benchmark.run("real", real_pairs(arguments.images, max(arguments.real_sizes)), arguments.real_sizes)
    benchmark.run("random", random_pair, arguments.sizes)
    text = report(benchmark)
    print(text)
    if arguments.docs:
        write_tables(arguments.docs, arguments.mark, text)
    if arguments.plot:
        plot(benchmark.cells, arguments.plot)


if __name__ == "__main__":
    main()
