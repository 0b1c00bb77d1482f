"""How far the stages of matching are from what the machine can do: useful arithmetic against the speed of a product.

python benchmarks/roofline.py --threads 1 --clock cpu --docs docs/performance.md

The preset `geo` on random sift features, the default's nearest neighbours on random linpoint features. The floor of a
stage is its useful arithmetic at the speed of a float32 product: of torch's own, and of oneDNN's, which the large
products here use.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from speed_methods import NEIGHBOURS, random_pair
from speed_tables import write_tables
from torch import Tensor, nn

from linglue.matching.nearest import linear, nearest_k
from linglue.network.layers import EncoderLayer
from linglue.network.linglue import LinGlue

SIDE = 1024  # of the matrices whose product shows what the machine can do
Clock = Callable[[], float]


def seconds(run: Callable[[], object], clock: Clock, repeats: int) -> float:
    """The median of several runs, after one that is not counted."""
    found = []
    for number in range(repeats + 1):
        start = clock()
        run()
        if number:
            found.append(clock() - start)
    return statistics.median(found)


def layer_flops(layer: EncoderLayer) -> int:
    """Useful arithmetic of a layer of linear attention per token: all of its products."""
    dim, first = len(layer.heads), layer.project_query
    given = first.in_features if isinstance(first, nn.Linear) else dim
    attention = 2 * dim * dim * 4 + 2 * given * dim * 2  # query, sums, totals, messages; keys and values of the input
    project = 2 * given * dim if given != dim else 0
    return attention + project + 2 * (2 * dim * 2 * dim + 2 * dim * dim)


def stages(size: int, clock: Clock, repeats: int) -> list[tuple[str, float | None, float]]:
    """Name, GFLOP where they are known, and seconds of each stage."""
    network = LinGlue.from_pretrained("sift")
    entries = [features.tensors() for features in random_pair("sift", size)]
    x0, x1 = (torch.from_numpy(features.descriptors) for features in random_pair("linpoint", size))
    images, layers = [slice(0, size), slice(size, 2 * size)], [m for m in (network.first, *network.linear) if m]
    tokens = torch.cat([entry["descriptors"][0] for entry in entries])  # (2N, D)

    def attention() -> Tensor:
        x = tokens
        for number, layer in enumerate(layers):
            x = layer(x, images, (0, 1) if number % 2 else (1, 0))
        return x

    arithmetic = 2e-9 * size * sum(layer_flops(layer) for layer in layers)
    return [
        (f"{len(layers)} layers of linear attention", arithmetic, seconds(attention, clock, repeats)),
        ("network in all", None, seconds(lambda: network.encode(*entries), clock, repeats)),
        (
            f"{NEIGHBOURS} nearest neighbours both ways, {x0.shape[1]} numbers",
            2e-9 * size * size * x0.shape[1],
            seconds(lambda: nearest_k(x0, x1, NEIGHBOURS), clock, repeats),
        ),
    ]


def table(sizes: list[int], clock: Clock, repeats: int) -> str:
    """What was measured, as Markdown."""
    a, b, flops = torch.randn(SIDE, SIDE), torch.randn(SIDE, SIDE), 2e-9 * SIDE**3
    speeds = [flops / seconds(lambda p=p: p(a, b), clock, 10) for p in (F.linear, linear)]  # type: ignore[misc]
    large = torch.randn(1 << 25)
    copied = 2 * large.nbytes / 1e9 / seconds(lambda: large.clone(), clock, 5)
    lines = [
        f"A product of two {SIDE} × {SIDE} float32 matrices reaches {speeds[0]:.0f} GFLOP/s by torch's own, "
        f"{speeds[1]:.0f} by oneDNN; memory is copied at {copied:.0f} GB/s.",
        "",
        "| stage | keypoints | GFLOP | floor (torch, oneDNN) | measured | of torch's product | of oneDNN's |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for size in sizes:
        for name, work, spent in stages(size, clock, repeats):
            start = f"| {name} | {size} |"
            if work is None:
                lines.append(f"{start} – | – | {1e3 * spent:.0f} ms | – | – |")
                continue
            floors = ", ".join(f"{1e3 * work / speed:.0f} ms" for speed in speeds)
            shares = " | ".join(f"{work / spent / speed:.0%}" for speed in speeds)
            lines.append(f"{start} {work:.1f} | {floors} | {1e3 * spent:.0f} ms | {shares} |")
    return "\n".join(lines)


def main(words: list[str] | None = None) -> None:
    """Measure, print, and write what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[2048, 8192], help="numbers of keypoints per image")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall")
    parser.add_argument("--docs", type=Path, help="write the table between <!-- begin roofline --> and its end")
    arguments = parser.parse_args(words)
    torch.set_num_threads(arguments.threads)
    clock, name = (time.process_time, "CPU work") if arguments.clock == "cpu" else (time.perf_counter, "the clock")
    with torch.inference_mode():
        found = table(arguments.sizes, clock, arguments.repeats)
    text = f"{arguments.threads} thread(s), times of {name}, medians of {arguments.repeats} runs.\n\n{found}"
    print(text)
    if arguments.docs:
        write_tables(arguments.docs, "roofline", text)


if __name__ == "__main__":
    main()
