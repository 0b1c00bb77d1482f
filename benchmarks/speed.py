"""LinGlue and its peers against the number of keypoints, features given: seconds, peak additional memory, growth.

python benchmarks/speed.py --quick                                  # 1k and 2k keypoints, without the slowest peers
python benchmarks/speed.py --sizes 1024 2048 4096 8192 --repeats 5 --json speed.json --plot speed.png
python benchmarks/speed.py --images a.jpg b.jpg                     # real features instead of random ones

All methods take turns in one process, so that whatever else the machine does hits all of them. A method that would take
longer than --longest at a size, by its growth so far, is not run there: the number is extrapolated and marked with ~.
With --json the results so far are kept in that file, and a second run continues where the first one ended. On a machine
that is not quiet, --clock cpu with --threads 1 compares seconds of work instead of seconds on the clock. Peers' weights
come from LINGLUE_PEERS. Each method gets the features it was made for: linpoint for linglue (its default: no layers,
learned consensus) and the nearest neighbours alone, sift for linglue-geo (the network, filter, consensus, completion),
adalam and colmap-sift, aliked for LightGlue, superpoint for SuperGlue. FAISS takes part where it is installed; gemm is
the floor of exact nearest neighbours, all inner products and nothing else.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib
import json
import math
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from linglue.errors import LinGlueError
from linglue.features.registry import make_extractor
from linglue.matcher import MatcherConfig, PairMatcher
from linglue.matching.nearest import BLOCK_COLUMNS, BLOCK_ROWS, nearest_k
from linglue.types import Features, ImageSize

SIZES = (1024, 2048, 4096, 8192)
SIZE = ImageSize(1600, 1200)
WARM_UP = 256  # keypoints of the run that loads libraries
DIMS = {"linpoint": 64, "sift": 128, "aliked": 128, "superpoint": 256}
FEATURES = {
    "linglue": "linpoint",
    "linglue-geo": "sift",
    "nearest": "linpoint",
    "gemm": "linpoint",
    "matmul-topk": "linpoint",
    "faiss": "linpoint",
    "adalam": "sift",
    "colmap-sift": "sift",
    "lightglue": "aliked",
    "lightglue-full": "aliked",
    "superglue": "superpoint",
    "superglue-10": "superpoint",
}
METHODS = tuple(FEATURES)
NEIGHBOURS = 5  # of each descriptor, as many as the learned consensus asks for
MARK = "<!-- {} {} -->"  # around the tables in the document that --docs names
SLOW = ("lightglue-full", "superglue")  # left out by --quick
Run = Callable[[Features, Features], Any]
Pairs = Callable[[str, int], tuple[Features, Features] | None]


def random_pair(kind: str, count: int) -> tuple[Features, Features]:
    """Two images that share half of their keypoints, with noisy descriptors and a similarity between them."""
    rng = np.random.default_rng(count)
    half, dim = count // 2, DIMS[kind]
    points0, points1 = rng.uniform((0, 0), SIZE, (2, count, 2))
    centre, angle = np.array(SIZE) / 2, 0.2
    rotation = np.array([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]])
    points1[:half] = (points0[:half] - centre) @ rotation.T * 0.8 + centre + rng.normal(0, 0.7, (half, 2))
    x0, x1 = np.abs(rng.normal(size=(2, count, dim)))
    x1[:half] = np.abs(x0[:half] + rng.uniform(0.1, 0.6, (half, 1)) * rng.normal(size=(half, dim)))
    oris0, oris1 = rng.uniform(0, 2 * np.pi, (2, count))
    oris1[:half] = (oris0[:half] + angle + rng.normal(0, 0.1, half)) % (2 * np.pi)
    scales0, scales1 = rng.lognormal(1.5, 0.6, (2, count))
    scales1[:half] = 0.8 * scales0[:half] * rng.lognormal(0, 0.1, half)
    order = rng.permutation(count)
    return (
        _features(kind, points0, x0, scales0, oris0),
        _features(kind, points1[order], x1[order], scales1[order], oris1[order]),
    )


def _features(kind: str, points: np.ndarray, x: np.ndarray, scales: np.ndarray, oris: np.ndarray) -> Features:
    shape = {"scales": scales, "oris": oris} if kind == "sift" else {}
    return Features(
        keypoints=points.clip(0, np.array(SIZE) - 1),
        descriptors=x / np.linalg.norm(x, axis=1, keepdims=True),
        scores=np.linspace(1, 0.1, len(points)),
        image_size=SIZE,
        kind=kind,
        **shape,
    )


def real_pairs(images: list[str]) -> Pairs:
    """Features of two images, or None where an image has not so many keypoints, or the front-end no weights."""

    def extract(kind: str, count: int) -> tuple[Features, Features] | None:
        try:
            found = [make_extractor(kind).extract(image, max_keypoints=count) for image in images]
        except LinGlueError as error:
            print(f"{kind}: {error}", file=sys.stderr)
            return None
        return (found[0], found[1]) if min(len(f) for f in found) >= 0.9 * count else None

    return extract


def make_run(method: str) -> Run:
    """What matches two feature sets by `method`."""
    if method == "nearest":
        return lambda a, b: nearest_k(torch.from_numpy(a.descriptors), torch.from_numpy(b.descriptors), NEIGHBOURS)
    if method == "matmul-topk":
        return _plain_nearest
    if method == "gemm":
        return _product
    if method == "faiss":
        return _faiss_nearest()
    name = {"lightglue-full": "lightglue", "linglue-geo": "linglue"}.get(method, method)
    matcher: PairMatcher = MatcherConfig(name=name, features=FEATURES[method]).build()
    if method == "lightglue-full":  # every layer for every keypoint
        conf = matcher.net.conf  # type: ignore[attr-defined]
        conf.depth_confidence = conf.width_confidence = -1
    return matcher.match


def _plain_nearest(a: Features, b: Features) -> tuple[Any, Any]:
    """The nearest both ways without blocks: the whole matrix, then topk."""
    similarity = torch.from_numpy(a.descriptors) @ torch.from_numpy(b.descriptors).T
    return similarity.topk(NEIGHBOURS, dim=1), similarity.topk(NEIGHBOURS, dim=0)


def _product(a: Features, b: Features) -> None:
    """The floor of exact nearest neighbours: all inner products, block by block, of which nothing is kept."""
    x, y = torch.from_numpy(a.descriptors), torch.from_numpy(b.descriptors)
    for left in x.split(BLOCK_ROWS):
        for right in y.split(BLOCK_COLUMNS):
            torch.mm(left, right.T)


def _faiss_nearest() -> Run:
    """The same by FAISS's exhaustive search."""
    try:
        faiss = importlib.import_module("faiss")
    except ImportError:
        raise LinGlueError("faiss is not installed") from None
    faiss.omp_set_num_threads(torch.get_num_threads())
    return lambda a, b: [faiss.knn(x.descriptors, y.descriptors, NEIGHBOURS) for x, y in ((a, b), (b, a))]


def measure(run: Run, pair: tuple[Features, Features], clock: Callable[[], float]) -> tuple[float, int]:
    """Seconds, and by how many bytes the resident set grew at most."""
    pair = replace(pair[0]), replace(pair[1])  # new objects: a matcher may remember what it knows of the old
    ctypes.CDLL("libc.so.6").malloc_trim(0)  # else memory that was freed before would be used again, uncounted
    Path("/proc/self/clear_refs").write_text("5")  # resets VmHWM
    before, start = _status("VmRSS"), clock()
    with torch.inference_mode():
        run(*pair)
    return clock() - start, max(0, _status("VmHWM") - before)


def _status(name: str) -> int:
    """An entry of /proc/self/status in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(name + ":"))


def expected_seconds(cells: dict[str, dict[str, Any]], method: str, size: int) -> float | None:
    """By the method's growth so far, quadratic where only one size is known; None where nothing is."""
    known = [(c["size"], c["seconds"]) for c in cells.values() if c["method"] == method and not c["extrapolated"]]
    known = sorted(k for k in known if k[0] < size)
    if not known:
        return None
    return known[-1][1] * (size / known[-1][0]) ** (max(1.0, growth(known)) if len(known) > 1 else 2.0)


def growth(points: list[tuple[int, float]]) -> float:
    """The exponent p of seconds ~ keypoints^p between the last two sizes."""
    (n0, t0), (n1, t1) = points[-2:]
    return math.log(t1 / t0) / math.log(n1 / n0)


def run_all(arguments: argparse.Namespace, cells: dict[str, dict[str, Any]], pairs: Pairs) -> None:
    """Measure what is missing in `cells`, sizes from small to large, methods in turns."""
    runs: dict[str, Run] = {}
    clock = time.process_time if arguments.clock == "cpu" else time.perf_counter
    for method in arguments.methods:
        try:
            runs[method] = make_run(method)
            measure(runs[method], random_pair(FEATURES[method], WARM_UP), clock)
        except LinGlueError as error:
            print(f"{method} is left out: {error}", file=sys.stderr)
            runs.pop(method, None)
    for size in sorted(arguments.sizes):
        samples: dict[str, list[tuple[float, int]]] = {}
        ready: dict[str, tuple[Features, Features]] = {}
        for method in runs:
            wanted = expected_seconds(cells, method, size)
            if f"{method}@{size}" in cells:
                continue
            if wanted is not None and wanted > arguments.longest:
                cells[f"{method}@{size}"] = _cell(method, size, wanted, None, 0)
            elif pair := pairs(FEATURES[method], size):
                ready[method], samples[method] = pair, []
        for _ in range(arguments.repeats):
            for method, pair in ready.items():
                samples[method].append(measure(runs[method], pair, clock))
        for method, found in samples.items():
            seconds = statistics.median(s for s, _ in found)
            cells[f"{method}@{size}"] = _cell(method, size, seconds, max(b for _, b in found), len(found))
        if arguments.json:
            arguments.json.write_text(json.dumps(cells, indent=1))


def _cell(method: str, size: int, seconds: float, memory: int | None, repeats: int) -> dict[str, Any]:
    return {
        "method": method,
        "size": size,
        "seconds": seconds,
        "bytes": memory,
        "repeats": repeats,
        "extrapolated": memory is None,
    }


def tables(cells: dict[str, dict[str, Any]]) -> str:
    """Seconds with the ratio to LinGlue's, memory, and growth, as Markdown."""
    sizes = sorted({c["size"] for c in cells.values()})
    methods = [m for m in METHODS if any(c["method"] == m for c in cells.values())]
    head = "".join(f" {n} |" for n in sizes)
    lines = [f"| seconds (× LinGlue) |{head} growth |", "|---|" + "---:|" * (len(sizes) + 1)]
    for method in methods:
        row = [cells.get(f"{method}@{n}") for n in sizes]
        own = [cells.get(f"linglue@{n}") for n in sizes]
        texts = [_seconds(cell, ours) for cell, ours in zip(row, own, strict=True)]
        known = [(c["size"], c["seconds"]) for c in row if c and not c["extrapolated"]]
        lines.append(f"| {method} | {' | '.join(texts)} | {f'{growth(known):.2f}' if len(known) > 1 else '–'} |")
    lines += ["", f"| peak additional memory, MB |{head}", "|---|" + "---:|" * len(sizes)]
    for method in methods:
        row = [cells.get(f"{method}@{n}") for n in sizes]
        texts = ["–" if c is None or c["bytes"] is None else f"{c['bytes'] / 1e6:.0f}" for c in row]
        lines.append(f"| {method} | {' | '.join(texts)} |")
    return "\n".join(lines)


def _seconds(cell: dict[str, Any] | None, ours: dict[str, Any] | None) -> str:
    if cell is None:
        return "–"
    times = cell["seconds"] / ours["seconds"] if ours else 1
    ratio = f" ({times:{'.0f' if times >= 10 else '.2g'}}×)" if ours and ours is not cell else ""
    return f"{'~' if cell['extrapolated'] else ''}{cell['seconds']:.3f}{ratio}"


def write_tables(path: Path, name: str, text: str) -> None:
    """Replace what is between the marks in a document.

    Args:
        path: of the document.
        name: of the marks.
        text: what takes its place.
    """
    start, end = (MARK.format(word, name) for word in ("begin", "end"))
    before, _, rest = path.read_text(encoding="utf-8").partition(start)
    _, found, after = rest.partition(end)
    if not found:
        raise SystemExit(f"{path}: expected {start} and {end}")
    path.write_text(f"{before}{start}\n{text}\n{end}{after}", encoding="utf-8")


def plot(cells: dict[str, dict[str, Any]], path: Path) -> None:
    """Seconds against keypoints, both logarithmic; extrapolated points are hollow."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 5))
    for method in METHODS:
        rows = sorted((c for c in cells.values() if c["method"] == method), key=lambda c: c["size"])
        if rows:
            (line,) = axes.loglog([c["size"] for c in rows], [c["seconds"] for c in rows], label=method)
            for c in rows:
                face = "white" if c["extrapolated"] else line.get_color()
                axes.plot(c["size"], c["seconds"], "o", color=line.get_color(), markerfacecolor=face)
    axes.set(xlabel="keypoints per image", ylabel="seconds per pair, features given")
    axes.grid(which="both", alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=120, bbox_inches="tight")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES), help="numbers of keypoints per image")
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--quick", action="store_true", help=f"1k and 2k keypoints, without {', '.join(SLOW)}")
    parser.add_argument("--repeats", type=int, default=3, help="time is the median of so many runs")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall")
    parser.add_argument("--longest", type=float, default=60, help="seconds; what would take longer is extrapolated")
    parser.add_argument("--images", nargs=2, metavar="IMAGE", help="real features of these two instead of random ones")
    parser.add_argument("--json", type=Path, help="keep the results here, and continue from what is there")
    parser.add_argument("--docs", type=Path, help="write the tables between the marks of this document")
    parser.add_argument("--mark", default="speed", help="name of these marks: <!-- begin NAME -->, <!-- end NAME -->")
    parser.add_argument("--plot", type=Path, help="log-log plot, as PNG or SVG")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.sizes = [n for n in arguments.sizes if n <= 2048]
        arguments.methods = [m for m in arguments.methods if m not in SLOW]
    torch.set_num_threads(arguments.threads)
    cells: dict[str, dict[str, Any]] = {}
    if arguments.json and arguments.json.exists():
        cells = json.loads(arguments.json.read_text())
    run_all(arguments, cells, real_pairs(arguments.images) if arguments.images else random_pair)
    clock = {"cpu": "seconds of CPU work", "wall": "seconds on the clock"}[arguments.clock]
    features = f"features of {' and '.join(arguments.images)}" if arguments.images else "random features"
    repeats = sorted({c["repeats"] for c in cells.values()} - {0})
    runs = "one run" if repeats == [1] else f"medians of {' or '.join(map(str, repeats))} runs"
    text = f"{arguments.threads} thread(s), {clock}, {features}, {runs}; ~ is extrapolated.\n\n"
    text += tables(cells)
    print(text)
    if arguments.docs:
        write_tables(arguments.docs, arguments.mark, text)
    if arguments.plot:
        plot(cells, arguments.plot)


if __name__ == "__main__":
    main()
