"""How far LinGlue goes: Ray beside the pool, a run of 10,000 images, and what a cost model is made of.

`python benchmarks/scaling.py RESULTS` measures every part by itself and keeps it in RESULTS, a JSON file; `--docs
docs/scaling.md` writes the page from it. Features are synthetic: what is measured is what engines, stores, retrieval
and mappers cost, not what they find.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch
from scaling_docs import write_docs
from skimage import data

from linglue.core.engine import Engine, Make
from linglue.core.pool import Pool
from linglue.core.ray_engine import Ray
from linglue.features import make_extractor
from linglue.io.pair_list import Pair
from linglue.matcher import MatcherConfig
from linglue.sfm.map import MappingConfig, build_model
from linglue.sfm.match import match_pairs
from linglue.sfm.retrieval import WORDS, Retrieval, Vocabulary
from linglue.sfm.store import FeatureStore, MatchStore
from linglue.types import Features, Matches

SIZE = (1600, 1200)
WORKERS = 2
GROUP = 20  # images that show the same
WARM_UP = 2 * WORKERS  # results before the clock starts: all workers have built their network then
STAND_IN_MATCHES = 300


@cache
def _scene(group: int, keypoints: int) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(group)
    return random.uniform(100, 1100, (keypoints, 2)), random.normal(size=(keypoints, 128))


def synthetic(number: int, keypoints: int) -> Features:
    """An image of a group that shows the same: keypoints moved together, descriptors with noise, in another order."""
    random = np.random.default_rng([1, number])
    places, descriptors = _scene(number // GROUP % 8, keypoints)
    order = random.permutation(keypoints)
    noisy = np.maximum(descriptors[order] + 0.5 * random.normal(size=(keypoints, 128)), 0)
    return Features(
        keypoints=places[order] + random.uniform(-90, 90, 2) + random.normal(size=(keypoints, 2)),
        descriptors=noisy / np.linalg.norm(noisy, axis=1, keepdims=True),
        image_size=SIZE,
        scales=random.uniform(2, 20, keypoints),
        oris=random.uniform(-3, 3, keypoints),
        kind="sift",
    )


def neighbours(images: int, each: int) -> list[Pair]:
    """Every image with those that follow it."""
    return [(_name(i), _name(i + k)) for i in range(images) for k in range(1, each + 1) if i + k < images]


def _name(number: int) -> str:
    return f"image {number:06}.jpg"


@dataclass
class Timed:
    """An engine, and how long it took from the end of its warm-up to the last result: by the clock and in CPU time."""

    engine: Engine
    results: int = 0
    seconds: float = 0.0
    cpu: float = 0.0  # of this process and its workers
    daemons: float = 0.0  # CPU time of Ray's own processes, which also run while nothing happens

    @property
    def threads(self) -> int:
        return self.engine.threads

    def run(self, make: Make, tasks: Sequence[Any], inputs: Any = None) -> Iterator[tuple[Any, Any]]:
        start, cpu, daemons = 0.0, 0.0, 0.0
        for number, result in enumerate(self.engine.run(make, tasks, inputs)):
            yield result
            if number == WARM_UP:
                start, (cpu, daemons) = time.perf_counter(), _cpu_seconds()
            if number == len(tasks) - 1:  # before the workers are gone
                self.seconds = time.perf_counter() - start
                now = _cpu_seconds()
                self.cpu, self.daemons = now[0] - cpu, now[1] - daemons
                self.results = number - WARM_UP


def _cpu_seconds() -> tuple[float, float]:
    """Of this process and its workers, and of Ray's daemons: all that is below this process and no worker."""
    work, daemons = sum(psutil.Process().cpu_times()[:2]), 0.0
    for process in psutil.Process().children(recursive=True):
        try:
            seconds, title = sum(process.cpu_times()[:2]), " ".join(process.cmdline())
        except psutil.Error:  # it has ended
            continue
        if any(name in title for name in ("ray::_work_on", "ray::IDLE", "multiprocessing")):
            work += seconds
        else:
            daemons += seconds
    return work, daemons


def measure_overhead(pairs: int = 500, keypoints: int = 2048, rounds: int = 4) -> dict[str, Any]:
    """The same pairs by both engines on the same cores, in turns; every round is a part of the pairs."""
    images, found = pairs // 10 + 10, {"pool": Timed(Pool(WORKERS)), "ray": Timed(Ray(WORKERS))}
    wall: dict[str, list[float]] = {name: [] for name in found}
    cpu: dict[str, list[float]] = {name: [] for name in found}
    daemons: list[float] = []
    same = True
    with tempfile.TemporaryDirectory() as folder, FeatureStore(Path(folder) / "f.db") as features:
        for number in range(images):
            features.put(_name(number), "synthetic", synthetic(number, keypoints))
        wanted, kept = neighbours(images, 10)[:pairs], dict[Pair, Any]()
        for part in range(rounds):
            for name in list(found) if part % 2 == 0 else reversed(list(found)):
                timed = Timed(found[name].engine)
                with MatchStore(Path(folder) / f"{name}{part}.db") as store:
                    chosen = wanted[part::rounds]
                    match_pairs(chosen, MatcherConfig(features="sift"), features, store, timed)
                    indices = {pair: store.get(*pair)[0] for pair in chosen}
                wall[name].append(timed.seconds / timed.results)
                cpu[name].append(timed.cpu / timed.results)
                if name == "ray":
                    daemons.append(timed.daemons / timed.seconds)
                same &= all(np.array_equal(v, indices[k]) for k, v in kept.items() if k in indices)
                kept = {**kept, **indices}
    return {
        "pairs": pairs,
        "keypoints": keypoints,
        "rounds": rounds,
        "workers": WORKERS,
        "matches": statistics.median(map(len, kept.values())),
        "identical": bool(same),
        "pairs_per_second": {name: 1 / statistics.median(values) for name, values in wall.items()},
        "cpu_seconds_per_pair": {name: statistics.median(values) for name, values in cpu.items()},
        "daemon_share": statistics.median(daemons),
        "wall_ratio": statistics.median(r / p for p, r in zip(wall["pool"], wall["ray"], strict=True)),
        "cpu_ratio": statistics.median(r / p for p, r in zip(cpu["pool"], cpu["ray"], strict=True)),
    }


class StandIn:
    """Takes no time: what is left is what the engine, the stores and their one writer cost."""

    def __init__(self, config: MatcherConfig) -> None:
        self.settings = {"random": STAND_IN_MATCHES}

    def match(self, features0: Features, features1: Features) -> Matches:
        rows = np.arange(STAND_IN_MATCHES)
        return Matches.of(features0, features1, np.column_stack([rows, rows]), np.ones(STAND_IN_MATCHES))


class Watch(threading.Thread):
    """Looks every second at the memory of the driver, of its largest worker and of the object store, in MB."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.samples: list[dict[str, float]] = []
        self.over = threading.Event()

    def run(self) -> None:
        empty = shutil.disk_usage("/dev/shm").used
        while not self.over.wait(1.0):
            workers = [_own_memory(p) for p in psutil.Process().children(recursive=True) if "ray::" in _title(p)]
            store = (shutil.disk_usage("/dev/shm").used - empty) / 2**20
            self.samples.append(
                {"driver": _own_memory(psutil.Process()), "worker": max(workers, default=0.0), "store": store}
            )


def _title(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


def _own_memory(process: psutil.Process) -> float:
    """MB that are not backed by a file: libraries and the object store, which is counted by itself, are left out."""
    try:
        lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
    except OSError:  # it has ended
        return 0.0
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith("RssAnon:")), 0.0)


def simulate_run(images: int = 10_000, each: int = 1, keypoints: int = 2048) -> dict[str, Any]:
    """Matching of many images by Ray, with a matcher that takes no time: time and memory of driver and workers."""
    watch = Watch()
    with tempfile.TemporaryDirectory() as folder:
        path, found = Path(folder), {}
        with FeatureStore(path / "features.db") as features, MatchStore(path / "matches.db") as matches:
            start = time.perf_counter()
            some = [synthetic(number, keypoints) for number in range(GROUP)]
            for number in range(images):
                features.put(_name(number), f"synthetic {number}", some[number % GROUP])
            found["write_features_seconds"] = (time.perf_counter() - start) / images
            pairs, timed = neighbours(images, each), Timed(Ray(WORKERS))
            timed.engine.connect()  # type: ignore[attr-defined]
            watch.start()
            before = time.process_time()
            match_pairs(pairs, MatcherConfig("scaling:StandIn"), features, matches, timed)
            found["driver_cpu_seconds"] = (time.process_time() - before) / len(pairs)
            watch.over.set()
        bytes_of = {name: sum(p.stat().st_size for p in path.glob(f"{name}.db*")) for name in ("features", "matches")}
    tenths = [watch.samples[int(len(watch.samples) * k / 10)] for k in range(1, 10)]
    return {
        **found,
        "images": images,
        "pairs": len(pairs),
        "keypoints": keypoints,
        "seconds": timed.seconds,
        "pairs_per_second": timed.results / timed.seconds,
        "peak_mb": {name: max(sample[name] for sample in watch.samples) for name in ("driver", "worker", "store")},
        "driver_mb_over_time": [sample["driver"] for sample in tenths],
        "bytes_per_image": bytes_of["features"] / images,
        "bytes_per_pair": bytes_of["matches"] / len(pairs),
    }


def measure_stages(keypoints: int = 2048) -> dict[str, Any]:
    """CPU seconds of one thread: extraction of an image, its description, one comparison of two descriptions."""
    torch.set_num_threads(1)
    image = np.ascontiguousarray(data.retina()[:1200, :1400])
    extractors = {name: make_extractor(name) for name in ("sift", "linpoint")}
    extract = {name: _cpu(partial(e.extract, image, keypoints)) for name, e in extractors.items()}
    some = {_name(number): synthetic(number, keypoints) for number in range(2 * GROUP)}
    vocabulary = Vocabulary.learn(list(some), some.__getitem__)
    size = 1000
    descriptors = np.random.default_rng(0).normal(size=(size, WORDS * 128)).astype(np.float32)
    retrieval = Retrieval(tuple(map(_name, range(size))), descriptors, vocabulary)
    return {
        "extract_seconds": extract,
        "describe_seconds": _cpu(lambda: vocabulary.describe(some[_name(0)])),
        "compare_seconds": _cpu(lambda: retrieval.pairs(20)) / size**2,
        "description_bytes": descriptors.nbytes / size,
    }


def _cpu(function: Callable[[], Any], repeats: int = 3) -> float:
    """Median CPU seconds of a call, after one that does not count."""
    function()
    seconds = []
    for _ in range(repeats):
        start = time.process_time()
        function()
        seconds.append(time.process_time() - start)
    return statistics.median(seconds)


def measure_mappers(sizes: Sequence[int] = (10, 20, 40, 80), points: int = 500) -> dict[str, Any]:
    """CPU seconds of both mappers on synthetic scenes without noise, and how they grow with the number of images."""
    import pycolmap

    found: dict[str, Any] = {"sizes": list(sizes), "points": points}
    for mapper in ("incremental", "global"):
        seconds = []
        for size in sizes:
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder) / "database.db"
                with pycolmap.Database.open(str(path)) as database:
                    pycolmap.set_random_seed(0)
                    pycolmap.synthesize_dataset(_scene_options(size, points), database)
                start = time.process_time()
                build_model(path, [], MappingConfig(mapper, threads=1))
                seconds.append(time.process_time() - start)
        slope = np.polyfit(np.log(sizes[1:]), np.log(seconds[1:]), 1)[0]
        found[mapper] = {"seconds": seconds, "exponent": float(slope)}
    return found


def _scene_options(images: int, points: int) -> Any:
    import pycolmap

    options = pycolmap.SyntheticDatasetOptions()
    options.num_rigs, options.num_frames_per_rig = 1, images
    options.num_points3D, options.num_points2D_without_point3D = points, 100
    options.track_length = 10
    options.camera_has_prior_focal_length = True
    return options


PARTS: dict[str, Callable[..., dict[str, Any]]] = {
    "overhead": measure_overhead,
    "simulation": simulate_run,
    "stages": measure_stages,
    "mappers": measure_mappers,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("results", type=Path, metavar="RESULTS", help="JSON file; parts that it has are not measured")
    parser.add_argument("--only", nargs="+", choices=tuple(PARTS), default=list(PARTS), help="parts to measure")
    parser.add_argument("--pairs", type=int, default=500, metavar="N", help="of the comparison of both engines")
    parser.add_argument("--docs", type=Path, metavar="FILE", help="also write the page, docs/scaling.md")
    options = parser.parse_args()
    found = json.loads(options.results.read_text()) if options.results.is_file() else {}
    for name in options.only:
        if name not in found:
            load = os.getloadavg()[0]
            arguments = {"pairs": options.pairs} if name == "overhead" else {}
            found[name] = {**PARTS[name](**arguments), "date": time.strftime("%Y-%m-%d"), "load_before": load}
            found["machine"] = {"cores": os.cpu_count(), "processor": platform.processor() or platform.machine()}
            options.results.write_text(json.dumps(found, indent=1))
            print(f"{name}: {json.dumps(found[name])}", flush=True)
    if options.docs is not None:
        write_docs(options.docs, found)
        print(f"written: {options.docs}")


if __name__ == "__main__":
    main()
