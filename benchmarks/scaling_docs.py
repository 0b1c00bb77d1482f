"""docs/scaling.md from what benchmarks/scaling.py measured: the figures, and a cost model made of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from linglue.evaluation.result import Result, Table
from linglue.evaluation.suite import MEASURED

SIZES = (10_000, 100_000, 1_000_000)
PAIRS_PER_IMAGE = 20  # that retrieval proposes at most
CORES = 64

INTRODUCTION = """# Many machines

<!-- written by benchmarks/scaling.py from its measurements; edit benchmarks/scaling_docs.py -->

    pip install linglue[ray]
    linglue reconstruct IMAGES -o WORK --engine ray                       # a Ray of this machine's own
    linglue reconstruct IMAGES -o WORK --engine ray --address HEAD:6379   # a cluster that this machine has joined

`--engine ray` works with `extract`, `match-pairs`, `reconstruct`, `localize`, `eval` and, for making training pairs,
`train`. Results are those of the process pool, bit for bit where both use one thread per worker; tests compare them.

- **The cluster** is Ray's own: `ray start --head` on one machine, `ray start --address HEAD:6379` on the others, the
  same LinGlue installed on all of them (a node with another one is refused). The driver runs on one of these machines.
- **One process writes**, the driver. It reads features from its store and puts them into Ray's object store, from where
  every node fetches an image's features once; up to half of that store is used, then the least recently used images are
  dropped and travel again when they are needed. At most two tasks per core are in flight, so memory does not grow with
  the number of pairs.
- **Images** are read by path, from storage that all nodes share. `--ship-images` sends them along instead. Your own
  `--weights` must lie at the same path on all nodes.
- **A worker or node that dies** costs its tasks in work; they are done again elsewhere, up to five times. A driver that
  is killed leaves what it has written, and the same command resumes from there. New nodes are used once they join.
- **GPUs**: with `--device cuda` every worker asks Ray for one. The driver needs one, too.
- No telemetry, no dashboard: `RAY_USAGE_STATS_ENABLED=0`.

`localize` sends the map once per node; workers of a node share its memory. `eval` extracts and matches on the cluster;
poses, models and scores are computed by the driver. Mapping (COLMAP) is done by the driver alone.
"""


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    marks = ["---", *["---:"] * (len(header) - 1)]
    return "\n".join(f"| {' | '.join(row)} |" for row in (header, marks, *rows))


def _overhead(found: Mapping[str, Any], cores: int) -> str:
    rows = [
        [name, f"{found['pairs_per_second'][name]:.2f}", f"{1000 * found['cpu_seconds_per_pair'][name]:.0f}"]
        for name in ("pool", "ray")
    ]
    cpu, wall = (f"{100 * (found[key] - 1):+.1f} %" for key in ("cpu_ratio", "wall_ratio"))
    share = found.get("daemon_share")
    whose = "all processes, Ray's own included," if share is None else "driver and workers"
    daemons = "" if share is None else f" Ray's own processes use {100 * share:.0f} % of a core besides, idle or not."
    same = "identical" if found["identical"] else "NOT identical"
    return f"""## Ray beside the pool

{found["pairs"]} pairs of {found["keypoints"]} keypoints (synthetic SIFT, median {found["matches"]:.0f} matches), two
workers of one thread each on the same {cores} cores, engines in turns over {found["rounds"]} rounds, medians; from the
end of the warm-up to the last result. The machine had other work to do (load {found["load_before"]:.0f} on {cores}
cores), so CPU time of {whose} is the figure to trust; time by the clock is not.

{_table(["engine", "pairs per second", "CPU ms per pair"], rows)}

Ray against the pool: {cpu} CPU time per pair, {wall} time by the clock (medians of the ratios within rounds); matches
{same}.{daemons}
"""


def _simulation(found: Mapping[str, Any], pair_seconds: float) -> str:
    peak, over = found["peak_mb"], ", ".join(f"{mb:.0f}" for mb in found["driver_mb_over_time"])
    images, pairs, each = found["images"], found["pairs"], found["pairs"] / found["images"]
    driver, rate = found["driver_cpu_seconds"], found["pairs_per_second"]
    disk, pair_disk = found["bytes_per_image"] / 1000, found["bytes_per_pair"] / 1000
    return f"""## A run of {images:,} images

{pairs:,} pairs ({each:.0f} per image instead of up to {PAIRS_PER_IMAGE}, so that it ends within minutes) of
{found["keypoints"]} keypoints with a matcher that takes no time: what is left is the engine, the stores and the writer.

- {found["seconds"]:.0f} s, {rate:.0f} pairs per second (load {found["load_before"]:.0f} by others);
  {1000 * driver:.1f} ms CPU of the driver per pair. As a pair takes {1000 * pair_seconds:.0f} ms of a core, one driver
  keeps about {pair_seconds / driver:.0f} cores busy.
- Memory of its own at most: driver {peak["driver"]:.0f} MB, largest worker {peak["worker"]:.0f} MB; object store
  {peak["store"]:.0f} MB. The driver after each tenth of the run: {over} MB.
- On disk: {disk:.0f} kB per image, {pair_disk:.1f} kB per pair of 300 matches.
"""


def _hours(seconds: float) -> str:
    hours = seconds / 3600
    return f"{hours * 60:.0f} min" if hours < 1 else f"{hours:.0f} h" if hours < 100 else f"{hours / 24:,.0f} days"


def _bytes(count: float) -> str:
    return f"{count / 1e9:,.0f} GB" if count < 1e12 else f"{count / 1e12:,.1f} TB"


def seconds(found: Mapping[str, Any], images: float) -> dict[str, float]:
    """How long the stages take, by the name to show.

    Args:
        found: all parts of benchmarks/scaling.py.
        images: their number.
    """
    stages, simulation, mappers = found["stages"], found["simulation"], found["mappers"]
    pairs, scale = PAIRS_PER_IMAGE * images, images / mappers["sizes"][-1]
    pair = found["overhead"]["cpu_seconds_per_pair"]["ray"]
    mapping = {
        f"{name} mapper, one core": mappers[name]["seconds"][-1] * scale ** max(1.0, mappers[name]["exponent"])
        for name in ("incremental", "global")
    }
    return {
        f"extraction, {CORES} cores": images * stages["extract_seconds"]["sift"] / CORES,
        f"matching, {CORES} cores": pairs * pair / CORES,
        "driver: reading, sending, writing": images * simulation["write_features_seconds"]
        + pairs * simulation["driver_cpu_seconds"],
        "retrieval: describing": images * stages["describe_seconds"],
        "retrieval: comparing all with all": images**2 * stages["compare_seconds"],
        **mapping,
    }


def costs(found: Mapping[str, Any], images: int) -> dict[str, str]:
    """What one number of images costs, stage by stage, for people.

    Args:
        found: all parts of benchmarks/scaling.py.
        images: their number.
    """
    simulation, pairs = found["simulation"], PAIRS_PER_IMAGE * images
    return {
        "pairs by retrieval, at most": f"{pairs:,}",
        **{name: _hours(value) for name, value in seconds(found, images).items()},
        "retrieval: memory": _bytes(images * found["stages"]["description_bytes"]),
        "features.db": _bytes(images * simulation["bytes_per_image"]),
        "matches.db": _bytes(pairs * simulation["bytes_per_pair"]),
    }


def draw_costs(path: Path, found: Mapping[str, Any]) -> None:
    """The stages' times against the number of images.

    Args:
        path: the picture.
        found: all parts of benchmarks/scaling.py.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.5, 4.2), layout="constrained")
    axes = figure.add_subplot()
    images = 10 ** np.linspace(3, 6, 31)
    curves = [seconds(found, count) for count in images]
    for name in curves[0]:
        axes.loglog(images, [curve[name] / 3600 for curve in curves], label=name)
    for hours, text in ((1, "an hour"), (24, "a day"), (720, "a month")):
        axes.axhline(hours, color="0.8", linewidth=0.8, zorder=0)
        axes.annotate(text, (images[0], hours), color="0.5", fontsize=8, va="bottom")
    axes.set(xlabel="images", ylabel="hours")
    axes.legend(fontsize=8)
    figure.savefig(path, dpi=130)


def _model(found: Mapping[str, Any]) -> str:
    columns = [costs(found, images) for images in SIZES]
    rows = [[name, *(column[name] for column in columns)] for name in columns[0]]
    mappers = found["mappers"]
    growth = ", ".join(f"{name} ^{mappers[name]['exponent']:.2f}" for name in ("incremental", "global"))
    last = ", ".join(f"{name} {mappers[name]['seconds'][-1]:.0f} s" for name in ("incremental", "global"))
    extract, compare = 1000 * found["stages"]["extract_seconds"]["sift"], 1e9 * found["stages"]["compare_seconds"]
    return f"""## What it costs

From the figures above, {extract:.0f} ms per image for SIFT, {compare:.0f} ns per comparison of two images in retrieval,
and both mappers on synthetic scenes of {mappers["sizes"][0]} to {mappers["sizes"][-1]} images without noise,
{mappers["points"]} points in 10 images each (CPU time of the largest: {last}; growth with the number of images:
{growth}). Stages of the driver use one core.

{_table(["", *(f"{images:,} images" for images in SIZES)], rows)}

![Hours of every stage against the number of images](images/scaling.png)

Mapping is the least certain line: extrapolated from {mappers["sizes"][-1]} images, at least linearly.
"""


ADVICE = """## What breaks first, and what to use then

- **10,000 images**: nothing breaks. Matching is what the cluster is for; beyond the cores that one driver keeps busy
  (above; the more pairs an image has, the more) further nodes do not help. Then you wait for the mapper.
- **100,000 images**: the mapper. Cut the collection into overlapping parts, by position or by retrieval, reconstruct
  them by themselves (`--image-list`), each on a machine of its own, and merge the models (`colmap model_merger`).
  features.db is read by one process: keep WORK on a local SSD of the driver.
- **1,000,000 images**: besides the mapper, retrieval, which compares all with all and keeps every description in
  memory. Use an approximate index (such as faiss, product quantisation) or positions, and give the pairs as a list
  (`--pairs list`); then the one driver and its two SQLite files: one driver per part of the collection, each with a
  WORK of its own.
"""


def section(found: Mapping[str, Any]) -> Result:
    """Ray beside the pool, and the simulated run, as a section of docs/benchmarks.md.

    Args:
        found: all parts of benchmarks/scaling.py.
    """
    overhead, run, cores = found["overhead"], found["simulation"], found["machine"]["cores"]
    ratios = {
        "pool": ("–", "–"),
        "ray": tuple(f"{100 * (overhead[k] - 1):+.1f} %" for k in ("wall_ratio", "cpu_ratio")),
    }
    engines = tuple(
        (
            name,
            f"{overhead['pairs_per_second'][name]:.2f}",
            f"{1000 * overhead['cpu_seconds_per_pair'][name]:.0f}",
            *ratios[name],
        )
        for name in ("pool", "ray")
    )
    peak = run["peak_mb"]
    numbers = (f"{run['pairs']:,}", f"{run['seconds']:.0f}", f"{run['pairs_per_second']:.0f}")
    memory = (
        f"{1000 * run['driver_cpu_seconds']:.1f}",
        *(f"{peak[name]:.0f}" for name in ("driver", "worker", "store")),
    )
    tables = [
        Table(("engine", "pairs per second", "CPU ms per pair", "overhead, clock", "overhead, CPU"), engines),
        Table(
            (
                "images",
                "pairs",
                "s",
                "pairs per second",
                "driver, CPU ms per pair",
                "driver MB",
                "worker MB",
                "store MB",
            ),
            ((f"{run['images']:,}", *numbers, *memory),),
        ),
    ]
    note = (
        f"{overhead['pairs']} pairs of {overhead['keypoints']} keypoints (synthetic SIFT), {overhead['workers']} "
        f"workers of one thread on the same {cores} cores, in turns over {overhead['rounds']} rounds, medians, load "
        f"{overhead['load_before']:.1f} before; matches {'identical' if overhead['identical'] else 'NOT identical'}; "
        f"below, a run by Ray with a matcher that takes no time; {overhead['date']}, by benchmarks/scaling.py"
    )
    return Result("ray", {"ray": {"overhead": overhead, "simulation": run}}, [run], "runs", tables, note, {}, 1, 0)


def write_docs(path: Path, found: Mapping[str, Any]) -> None:
    """Write the page, its picture, and what is for docs/benchmarks.md.

    Args:
        path: docs/scaling.md.
        found: all parts of benchmarks/scaling.py.
    """
    pair_seconds = found["overhead"]["cpu_seconds_per_pair"]["ray"]
    parts = [
        INTRODUCTION,
        _overhead(found["overhead"], found["machine"]["cores"]),
        _simulation(found["simulation"], pair_seconds),
        _model(found),
        ADVICE,
        "Measured by `python benchmarks/scaling.py RESULTS --docs docs/scaling.md`, "
        f"{found['overhead']['date']}, {found['machine']['cores']} cores.\n",
    ]
    path.write_text("\n".join(parts), encoding="utf-8")
    draw_costs(path.parent / "images" / "scaling.png", found)
    section(found).save(path.parent / MEASURED / "ray.json")
