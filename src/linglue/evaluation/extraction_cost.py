"""Time and memory of a front-end, each in a process of its own: the one way to measure them."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import cv2
import torch

from linglue.errors import LinGlueError
from linglue.evaluation.timing import Probe
from linglue.sfm.extract import ExtractConfig

REPEATS = 3


@dataclass(frozen=True)
class ExtractionCost:
    """What the features of an image cost.

    Args:
        seconds: median per image.
        cpu_seconds: the same in CPU time, which a busy machine changes less.
        megabytes: by which building the front-end and extracting raised the peak of the process.
    """

    seconds: float
    cpu_seconds: float
    megabytes: float


def measure(extract: ExtractConfig, images: Sequence[Path], threads: int = 1) -> ExtractionCost:
    """The costs in this process.

    Args:
        extract: which front-end, how many keypoints, which image size.
        images: every one is extracted once to warm up, then REPEATS times.
        threads: of torch.
    """
    torch.set_num_threads(threads)
    cv2.setNumThreads(threads)
    seconds, cpu, probe = [], [], Probe()
    with probe.stage("all"):
        extractor = extract.extractor()
        for image in images:
            for number in range(1 + REPEATS):
                start, cpu_start = time.perf_counter(), time.process_time()
                extractor.extract(image, extract.max_keypoints, extract.resize, tile=extract.tile)
                if number:
                    seconds.append(time.perf_counter() - start)
                    cpu.append(time.process_time() - cpu_start)
    return ExtractionCost(statistics.median(seconds), statistics.median(cpu), probe.bytes["all"] / 2**20)


def measure_apart(extract: ExtractConfig, images: Sequence[Path], threads: int = 1) -> ExtractionCost:
    """The same in a fresh process.

    Args:
        extract: which front-end, how many keypoints, which image size.
        images: at least one.
        threads: of the process.
    """
    request = {"extract": asdict(extract), "images": list(images), "threads": threads}
    command = [sys.executable, "-m", "linglue.evaluation.extraction_cost", json.dumps(request, default=str)]
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
    done = subprocess.run(command, capture_output=True, env=environment, text=True)
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise LinGlueError(f"{extract.features}: its costs could not be measured ({reason})")
    return ExtractionCost(**json.loads(done.stdout))


def main(arguments: Sequence[str]) -> None:
    """Measure one front-end and print its costs as JSON; `measure_apart` calls this.

    Args:
        arguments: one JSON object.
    """
    request = json.loads(arguments[0])
    weights = request["extract"].pop("weights")
    extract = ExtractConfig(**request["extract"], weights=Path(weights) if weights else None)
    print(json.dumps(asdict(measure(extract, [Path(image) for image in request["images"]], request["threads"]))))


if __name__ == "__main__":
    main(sys.argv[1:])
