"""Pairs per second of `linglue match-pairs`, one process per core and one thread each, against peers run the same way.

python benchmarks/throughput.py IMAGES --keypoints 2048 --docs docs/performance.md

Every method gets the features it was made for, extracted before; of a slow one fewer pairs are matched. Starting
processes and loading libraries takes seconds whatever the number of pairs: a first run matches one pair per process.
"Running" is the rate of the rest without that time, "all" is the pairs over all seconds of the second command.
LightGlue's weights come from LINGLUE_PEERS.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from speed_tables import write_tables

from linglue.io.images import IMAGE_SUFFIXES


@dataclass(frozen=True)
class Method:
    """A matcher, the features it is given, its effort, and how many times fewer pairs it has to match."""

    matcher: str
    features: str
    effort: str = "adaptive"
    fewer: int = 1


METHODS = {
    "linglue": Method("linglue", "linpoint"),
    "linglue-full": Method("linglue", "linpoint", "full"),
    "linglue-fast": Method("linglue-fast", "linpoint"),
    "linglue-geo": Method("linglue", "sift"),
    "linglue-geo-full": Method("linglue", "sift", "full"),
    "adalam": Method("adalam", "sift"),
    "lightglue": Method("lightglue", "aliked", fewer=10),
}


def linglue(*words: str | Path) -> dict[str, Any]:
    """What a command reports; one thread per process."""
    threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    command = [sys.executable, "-m", "linglue", *map(str, words), "--json", "--quiet"]
    done = subprocess.run(command, env={**os.environ, **threads}, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def timed(work: Path, pairs: list[tuple[str, str]], method: Method, workers: int) -> float:
    """Seconds in which `match-pairs` matches those of the pairs that are not matched yet."""
    chosen = work / "chosen.txt"
    chosen.write_text("".join(f"{a}\t{b}\n" for a, b in pairs), encoding="utf-8")
    linglue("pairs", work, "--pairs", "list", "--pair-list", chosen)
    start = time.perf_counter()
    how = ("--matcher", method.matcher, "--effort", method.effort)
    linglue("match-pairs", work, *how, "--workers", str(workers), "--device", "cpu")
    return time.perf_counter() - start


def measure(method: Method, images: Path, folder: Path, arguments: argparse.Namespace) -> tuple[int, float, float]:
    """Pairs, and pairs per second: of a whole run, and while it runs."""
    names = sorted(p.relative_to(images).as_posix() for p in images.rglob("*") if p.suffix.lower() in IMAGE_SUFFIXES)
    pairs = list(itertools.combinations(names, 2))[: max(arguments.pairs // method.fewer, 3 * arguments.workers)]
    used, work = folder / "used.txt", folder / f"{method.matcher}-{method.features}-{method.effort}"
    used.write_text("".join(f"{name}\n" for name in sorted({name for pair in pairs for name in pair})))
    options = ("--features", method.features, "--max-keypoints", str(arguments.keypoints), "--image-list", used)
    linglue("extract", images, "-o", work, *options, "--device", "cpu", "--workers", str(arguments.workers))
    begin = timed(work, pairs[: arguments.workers], method, arguments.workers)
    whole = timed(work, pairs, method, arguments.workers)
    made = len(pairs) - arguments.workers  # by the second run
    return len(pairs), made / whole, (made - arguments.workers) / max(whole - begin, 1e-3)


def parse(words: list[str] | None = None) -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("images", type=Path, help="folder of images; all of its pairs, in the order of names")
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--pairs", type=int, default=200)
    parser.add_argument("--keypoints", type=int, default=2048)
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--docs", type=Path, help="write the table between <!-- begin throughput --> and its end")
    return parser.parse_args(words)


def main(words: list[str] | None = None) -> None:
    """Measure, print, and write what was asked for."""
    arguments = parse(words)
    lines = [
        f"{arguments.workers} processes of one thread, {arguments.keypoints} keypoints per image.",
        "",
        "| pairs per second | features | pairs | all | running |",
        "|---|---|---:|---:|---:|",
    ]
    with tempfile.TemporaryDirectory() as folder:
        for name in arguments.methods:
            pairs, whole, running = measure(METHODS[name], arguments.images, Path(folder), arguments)
            lines.append(f"| {name} | {METHODS[name].features} | {pairs} | {whole:.2f} | {running:.2f} |")
            print(lines[-1], file=sys.stderr)
    print("\n".join(lines))
    if arguments.docs:
        write_tables(arguments.docs, "throughput", "\n".join(lines))


if __name__ == "__main__":
    main()
