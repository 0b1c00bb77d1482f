"""Time and peak memory of the parts of a matcher against the number of keypoints: the one way to measure them.

Keypoints are synthetic: points under a smooth warp with noisy descriptors, scales and orientations, and in both images
as many others again that match nothing. Every measurement has a process of its own, which may fail or run out of
memory.
"""

from __future__ import annotations

import ctypes
import json
import math
import os
import resource
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from linglue.core.progress import Stopwatch
from linglue.errors import is_out_of_memory
from linglue.evaluation.subjects import DIMS, Subject, build
from linglue.types import Features, ImageSize

SIZES = (1024, 2048, 4096, 8192, 16384, 32768)
PARTS = ("network", "matching")
SIZE = ImageSize(1600, 1200)
COVISIBLE = 0.5  # part of the keypoints that has a true match
NOISE = (0.3, 1.4)  # of a descriptor against its true match, relative to its length: from, to
WARM_UP = 256  # keypoints of the run that loads libraries and fills caches


@dataclass(frozen=True)
class Cost:
    """What one part of a subject costs at one number of keypoints.

    Args:
        subject: what tables call it.
        part: "network" or "matching".
        keypoints: per image.
        seconds: median over the repeats.
        cpu_seconds: the same in CPU time, which a busy machine changes less.
        megabytes: by which the resident set grew at most.
        matches: found in the pair.
        untrained: whether it ran with random weights, for want of its own.
    """

    subject: str
    part: str
    keypoints: int
    seconds: float
    cpu_seconds: float
    megabytes: float
    matches: int
    untrained: bool = False


@dataclass(frozen=True)
class Limits:
    """When a measurement is given up.

    Args:
        seconds: of CPU time, warm-up and repeats included: a busy machine gives up no sooner than an idle one.
        megabytes: address space beyond what the imports take.
    """

    seconds: float = 300.0
    megabytes: int = 8000


def warp(points: np.ndarray) -> np.ndarray:
    """Where points (N, 2) of image 0 are in image 1: rotated, shrunk, seen from the side, and gently bent.

    Args:
        points: (N, 2) pixels.
    """
    centre = np.array(SIZE) / 2
    x, y = ((points - centre) / centre[0]).T
    depth = 1 + 0.25 * x + 0.1 * y
    bent = np.stack([x + 0.02 * np.sin(4 * y), y + 0.02 * np.sin(5 * x)], axis=1) / depth[:, None]
    angle = np.radians(12)
    rotation = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    return np.asarray(0.85 * centre[0] * bent @ rotation.T + centre)


def synthetic_pair(count: int, features: str = "sift", seed: int = 0) -> tuple[Features, Features]:
    """Two feature sets of the same size, in random order.

    Args:
        count: keypoints per image.
        features: kind they stand for; only SIFT's have scales and orientations.
        seed: of everything random.
    """
    rng = np.random.default_rng(seed)
    dim, matched = DIMS[features], round(COVISIBLE * count)
    points0, points1 = rng.uniform((0, 0), SIZE, (2, count, 2))
    points1[:matched] = warp(points0[:matched]) + rng.normal(0, 0.7, (matched, 2))
    # Descriptors of images fill their space unevenly: a few directions carry most.
    spread = np.exp(-np.arange(dim) * 3.2 / dim)
    x0, x1 = (rng.normal(size=(count, dim)) * spread for _ in range(2))
    x1[:matched] = x0[:matched] + rng.uniform(*NOISE, (matched, 1)) * rng.normal(size=(matched, dim)) * spread
    ahead = warp(points0[:matched] + np.array([1, 0])) - warp(points0[:matched])
    oris0, oris1 = rng.uniform(0, 2 * np.pi, (2, count))
    oris1[:matched] = oris0[:matched] + np.arctan2(ahead[:, 1], ahead[:, 0]) + rng.normal(0, 0.1, matched)
    scales0, scales1 = rng.lognormal(1.5, 0.6, (2, count))
    scales1[:matched] = scales0[:matched] * np.linalg.norm(ahead, axis=1) * rng.lognormal(0, 0.1, matched)
    order = rng.permutation(count)
    sides = (points0, x0, scales0, oris0), (points1[order], x1[order], scales1[order], oris1[order])
    shaped = features == "sift"
    zero, one = (
        Features(
            keypoints=points.clip(0, np.array(SIZE) - 1),
            descriptors=x / np.linalg.norm(x, axis=1, keepdims=True),
            image_size=SIZE,
            scores=np.linspace(1, 0.1, count, dtype=np.float32),
            scales=scales if shaped else None,
            oris=oris % (2 * np.pi) if shaped else None,
            kind=features,
        )
        for points, x, scales, oris in sides
    )
    return zero, one


class Probe(Stopwatch):
    """A stopwatch that also knows the CPU seconds of every stage and by how many bytes the resident set grew at most.

    Linux only.
    """

    def __init__(self) -> None:
        super().__init__()
        self.cpu_seconds: dict[str, float] = {}
        self.bytes: dict[str, int] = {}

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Measure what runs inside, as one stage.

        Args:
            name: of the stage.
        """
        ctypes.CDLL("libc.so.6").malloc_trim(0)  # else memory that was freed before would be used again, uncounted
        Path("/proc/self/clear_refs").write_text("5")  # resets VmHWM
        before, start = _status("VmRSS"), time.process_time()
        with super().stage(name):
            yield
        self.cpu_seconds[name] = self.cpu_seconds.get(name, 0) + time.process_time() - start
        self.bytes[name] = max(self.bytes.get(name, 0), _status("VmHWM") - before)


def _status(name: str) -> int:
    """An entry of /proc/self/status in bytes."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))


@torch.inference_mode()
def measure(subject: Subject, keypoints: int, threads: int = 1, repeats: int = 3) -> list[Cost]:
    """The costs of all parts of a subject, in this process.

    Args:
        subject: what is timed.
        keypoints: per image.
        threads: of torch.
        repeats: runs, of which medians are taken.
    """
    torch.set_num_threads(threads)
    run, untrained = build(subject)
    run(*synthetic_pair(WARM_UP, subject.features), Stopwatch())
    pair, probes, matches = synthetic_pair(keypoints, subject.features), [], 0
    for _ in range(repeats):
        probes.append(Probe())
        matches = run(*pair, probes[-1])
    return [
        Cost(
            subject.shown,
            part,
            keypoints,
            statistics.median(probe.seconds[part] for probe in probes),
            statistics.median(probe.cpu_seconds[part] for probe in probes),
            max(probe.bytes[part] for probe in probes) / 2**20,
            matches,
            untrained,
        )
        for part in probes[0].seconds
    ]


def measure_apart(
    subject: Subject, keypoints: int, threads: int = 1, repeats: int = 3, limits: Limits | None = None
) -> list[Cost] | str:
    """The same in a fresh process.

    Args:
        subject: what is timed.
        keypoints: per image.
        threads: of torch.
        repeats: runs, of which medians are taken.
        limits: when it is given up.

    Returns:
        The costs, or why there are none: "too slow", "too much memory", or the last line of an error.
    """
    limits = limits or Limits()
    request = {**asdict(subject), "keypoints": keypoints, "threads": threads, "repeats": repeats}
    request |= {"limits": asdict(limits)}
    command = [sys.executable, "-m", "linglue.evaluation.timing", json.dumps(request)]
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
    try:
        patience = _PATIENCE * limits.seconds
        done = subprocess.run(command, capture_output=True, env=environment, text=True, timeout=patience)
    except subprocess.TimeoutExpired:
        return "too slow"
    if done.returncode:
        return _FAILURES.get(done.returncode) or _last_line(done.stderr)
    return [Cost(**cost) for cost in json.loads(done.stdout)]


_PATIENCE = 20  # times the limit, in wall-clock seconds: for a process that does not even compute
_NO_MEMORY = 12  # exit code, errno's ENOMEM
_FAILURES = {
    _NO_MEMORY: "too much memory",
    -signal.SIGKILL: "too much memory",  # by the kernel
    -signal.SIGXCPU: "too slow",
}


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or ["failed"])[-1]


def _child(request: dict[str, Any]) -> list[dict[str, Any]]:
    """What a process of `measure_apart` does."""
    limits = Limits(**request.pop("limits"))
    memory = _status("VmSize") + limits.megabytes * 2**20
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    seconds = math.ceil(time.process_time() + limits.seconds)
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))
    subject = Subject(*(request.pop(name) for name in ("name", "features", "label")))
    return [asdict(cost) for cost in measure(subject, **request)]


def main(arguments: Sequence[str]) -> None:
    """Measure one subject at one size and print its costs as JSON; `measure_apart` calls this.

    Args:
        arguments: one JSON object.
    """
    try:
        print(json.dumps(_child(json.loads(arguments[0]))))
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        sys.exit(_NO_MEMORY)


if __name__ == "__main__":
    main(sys.argv[1:])
