"""Time and peak additional memory of every stage against the number of keypoints.

python benchmarks/scalability.py [--sizes 1024 2048 …] [--preset geo] [--threads 1] [--repeats 3] [--json]

Keypoints are synthetic: points under a smooth warp with noisy descriptors, scales and orientations, and in both images
as many others again that match nothing. The network is the identity start, so that as many matches as in an image
reach the filter. `selection` is a part of `network`, shown once more by itself.

Each stage of each size runs in a process of its own. Memory is the peak of the resident set during the stage, above
what the process held just before it; the second number in a cell is how many times that of the smallest size.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from linglue.core.progress import Stopwatch
from linglue.matching.match import MatchingConfig, match_descriptors
from linglue.matching.nearest import nearest_both_ways
from linglue.matching.neighborhood import select
from linglue.network.batch import matchable
from linglue.network.config import PRESETS, LinGlueConfig
from linglue.network.linglue import LinGlue
from linglue.training.identity import identity_network
from linglue.types import Features, ImageSize

SIZES = (1024, 2048, 4096, 8192, 16384, 32768)
STAGES = ("network", "selection", "matching", "filter", "completion")
SIZE = ImageSize(1600, 1200)
DIM = 128
COVISIBLE = 0.5  # part of the keypoints that has a true match
NOISE = (0.3, 1.4)  # of a descriptor against its true match, relative to its length: from, to
WARM_UP = 256  # keypoints of the run that loads libraries and fills caches


def warp(points: np.ndarray) -> np.ndarray:
    """Where points (N, 2) of image 0 are in image 1: turned, shrunk, seen from the side, and gently bent."""
    centre = np.array(SIZE) / 2
    x, y = ((points - centre) / centre[0]).T
    depth = 1 + 0.25 * x + 0.1 * y
    bent = np.stack([x + 0.02 * np.sin(4 * y), y + 0.02 * np.sin(5 * x)], axis=1) / depth[:, None]
    angle = np.radians(12)
    turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    return 0.85 * centre[0] * bent @ turn.T + centre


def synthetic_pair(count: int, seed: int = 0) -> tuple[Features, Features]:
    """Two feature sets of `count` keypoints each, in random order."""
    rng = np.random.default_rng(seed)
    matched = round(COVISIBLE * count)
    points0 = rng.uniform((0, 0), SIZE, (count, 2))
    points1 = rng.uniform((0, 0), SIZE, (count, 2))
    points1[:matched] = warp(points0[:matched]) + rng.normal(0, 0.7, (matched, 2))
    # Descriptors of images fill their space unevenly: a few directions carry most.
    spread = np.exp(-np.arange(DIM) / 40)
    x0, x1 = (rng.normal(size=(count, DIM)) * spread for _ in range(2))
    x1[:matched] = x0[:matched] + rng.uniform(*NOISE, (matched, 1)) * rng.normal(size=(matched, DIM)) * spread
    ahead = warp(points0[:matched] + np.array([1, 0])) - warp(points0[:matched])
    oris0, oris1 = rng.uniform(0, 2 * np.pi, (2, count))
    oris1[:matched] = oris0[:matched] + np.arctan2(ahead[:, 1], ahead[:, 0]) + rng.normal(0, 0.1, matched)
    oris1 %= 2 * np.pi
    scales0, scales1 = rng.lognormal(1.5, 0.6, (2, count))
    scales1[:matched] = scales0[:matched] * np.linalg.norm(ahead, axis=1) * rng.lognormal(0, 0.1, matched)
    order = rng.permutation(count)
    return (
        Features(keypoints=points0, descriptors=_unit(x0), image_size=SIZE, scales=scales0, oris=oris0, kind="sift"),
        Features(
            keypoints=points1[order],
            descriptors=_unit(x1)[order],
            image_size=SIZE,
            scales=scales1[order],
            oris=oris1[order],
            kind="sift",
        ),
    )


def _unit(x: np.ndarray) -> np.ndarray:
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def prepare(network: LinGlue, count: int, stage: str) -> Callable[[Probe], Any]:
    """A function that runs `stage`, with the stages of matching before and after it where they belong together."""
    entry0, entry1 = (features.tensors() for features in synthetic_pair(count))
    if stage == "network":
        return lambda probe: probe.call("network", lambda: network.encode(entry0, entry1))
    encoded = network.encode(entry0, entry1)
    x0, x1, f0, f1 = (x[0] for x in (encoded.descriptors0, encoded.descriptors1, encoded.coarse0, encoded.coarse1))
    view0, view1, _, _ = matchable(entry0, entry1, encoded.descriptors0, encoded.descriptors1)[0]

    def selection() -> None:
        nearest0, nearest1 = nearest_both_ways(f0, f1)
        how = (network.config.expansion, network.config.separation)
        forward = select(view0, view1, nearest0, nearest1, *how)
        backward = select(view1, view0, nearest1, nearest0, *how)
        for one_way in (forward, backward):
            for _ in one_way.neighborhoods():
                pass

    if stage == "selection":
        return lambda probe: probe.call("selection", selection)
    return lambda probe: match_descriptors(view0, view1, x0, x1, MatchingConfig(), watch=probe)[0]


def _status(name: str) -> int:
    """An entry of /proc/self/status in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name + ":"):
            return 1024 * int(line.split()[1])
    raise KeyError(name)


class Probe(Stopwatch):
    """Stopwatch of one stage that also knows the CPU seconds and by how many bytes the resident set grew at most."""

    def __init__(self, stage: str) -> None:
        super().__init__()
        self.probed, self.bytes, self.cpu_seconds = stage, 0, 0.0

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        if name != self.probed:
            yield
            return
        ctypes.CDLL("libc.so.6").malloc_trim(0)  # else memory that was freed before would be used again, uncounted
        Path("/proc/self/clear_refs").write_text("5")  # resets VmHWM
        before, start = _status("VmRSS"), time.process_time()
        with super().stage(name):
            yield
        self.cpu_seconds = time.process_time() - start
        self.bytes = max(0, _status("VmHWM") - before)

    def call(self, name: str, function: Callable[[], Any]) -> Any:
        with self.stage(name):
            return function()


@torch.inference_mode()
def measure(stage: str, count: int, preset: str, threads: int, repeats: int) -> dict[str, Any]:
    """Seconds and bytes of one stage at one size, in this process."""
    torch.set_num_threads(threads)
    descriptors = torch.from_numpy(synthetic_pair(2048)[0].descriptors)
    network = identity_network(LinGlueConfig.preset(preset, DIM), descriptors).eval()
    prepare(network, WARM_UP, stage)(Probe(stage))
    run = prepare(network, count, stage)
    probes = [Probe(stage) for _ in range(repeats)]
    for probe in probes:
        result = run(probe)
    return {
        "stage": stage,
        "keypoints": count,
        "seconds": statistics.median(p.seconds[stage] for p in probes),
        "cpu_seconds": statistics.median(p.cpu_seconds for p in probes),
        "bytes": max(p.bytes for p in probes),
        **({"matches": len(result)} if stage == "completion" else {}),
    }


def measure_apart(stage: str, count: int, arguments: argparse.Namespace) -> dict[str, Any]:
    """The same in a fresh process."""
    options = ["--preset", arguments.preset, "--threads", arguments.threads, "--repeats", arguments.repeats]
    command = [sys.executable, __file__, "--sizes", count, "--stage", stage, *options]
    environment = {**os.environ, "OMP_NUM_THREADS": str(arguments.threads)}
    done = subprocess.run([str(c) for c in command], stdout=subprocess.PIPE, env=environment, text=True)
    if done.returncode:
        sys.exit(f"{stage} at {count} keypoints failed with exit code {done.returncode}")
    return json.loads(done.stdout)


def print_table(rows: list[dict[str, Any]], sizes: list[int]) -> None:
    cells = {(row["stage"], row["keypoints"]): row for row in rows}
    for title, key, unit in (
        ("time, ms", "seconds", 1e3),
        ("CPU time, ms", "cpu_seconds", 1e3),  # the one to read on a busy machine
        ("peak additional memory, MB", "bytes", 1e-6),
    ):
        print(f"\n{title:<28}" + "".join(f"{n:>16}" for n in sizes))
        for stage in STAGES:
            first = cells[stage, sizes[0]][key] or 1
            values = [cells[stage, n][key] for n in sizes]
            print(f"{stage:<28}" + "".join(f"{v * unit:>10.1f} {v / first:>4.0f}×" for v in values))
    print(f"\n{'true matches':<28}" + "".join(f"{round(COVISIBLE * n):>16}" for n in sizes))
    print(f"{'matches found':<28}" + "".join(f"{cells['completion', n]['matches']:>16}" for n in sizes))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES), help="numbers of keypoints per image")
    parser.add_argument("--preset", choices=[n for n, p in PRESETS.items() if not p.get("sinkhorn")], default="geo")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=3, help="time is the median of so many runs")
    parser.add_argument("--json", action="store_true", help="print one JSON list instead of a table")
    parser.add_argument("--stage", choices=STAGES, help=argparse.SUPPRESS)  # run one stage here: what a child does
    arguments = parser.parse_args()
    if arguments.stage:
        how = (arguments.preset, arguments.threads, arguments.repeats)
        print(json.dumps(measure(arguments.stage, arguments.sizes[0], *how)))
        return
    rows = [measure_apart(stage, count, arguments) for count in arguments.sizes for stage in STAGES]
    if arguments.json:
        print(json.dumps(rows, indent=1))
        return
    print(f"preset {arguments.preset}, {arguments.threads} thread(s), median of {arguments.repeats}")
    print_table(rows, arguments.sizes)


if __name__ == "__main__":
    main()
