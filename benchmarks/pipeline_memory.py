"""Memory of the pipeline's stages for many images, with synthetic features: `python benchmarks/pipeline_memory.py`.

Prints the peak memory of a process that stores features, chooses pairs by retrieval, stores matches and writes COLMAP's
database, for several numbers of images. What grows with them is what the stages keep per image and pair.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from linglue.evaluation.result import Result, Table
from linglue.evaluation.suite import MEASURED
from linglue.io.colmap.database import write_database
from linglue.matcher import MatcherConfig
from linglue.sfm.match import match_pairs
from linglue.sfm.retrieval import Retrieval
from linglue.sfm.store import FeatureStore, MatchStore
from linglue.types import Features, Matches

SIZE = (1600, 1200)
MATCHES = 300  # per pair


@dataclass(frozen=True)
class RandomMatcher:
    """Stands for a matcher whose own memory is measured elsewhere (docs/benchmarks.md, scalability)."""

    config: MatcherConfig

    @property
    def settings(self) -> dict[str, Any]:
        return {"random": MATCHES}

    def match(self, features0: Features, features1: Features) -> Matches:
        random = np.random.default_rng(len(features0))
        columns = [random.choice(len(f), MATCHES, replace=False) for f in (features0, features1)]
        return Matches.of(features0, features1, np.column_stack(columns), np.ones(MATCHES))


def synthetic(number: int, keypoints: int) -> Features:
    """Each image has its own few visual words, so that retrieval has something to find."""
    random = np.random.default_rng(number)
    centres = np.random.default_rng(number // 20).normal(size=(50, 128))
    descriptors = centres[random.integers(50, size=keypoints)] + 0.3 * random.normal(size=(keypoints, 128))
    return Features(
        keypoints=random.uniform((0, 0), SIZE, (keypoints, 2)),
        descriptors=descriptors / np.linalg.norm(descriptors, axis=1, keepdims=True),
        image_size=SIZE,
        scales=random.uniform(2, 20, keypoints),
        oris=random.uniform(-3, 3, keypoints),
        kind="sift",
    )


def peak() -> float:
    """MB, of this process until now."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def measure(images: int, keypoints: int) -> dict[str, float]:
    """Peak MB after each stage."""
    import pycolmap

    names = [f"image {number:05}.jpg" for number in range(images)]
    camera = pycolmap.Camera(model="SIMPLE_PINHOLE", width=SIZE[0], height=SIZE[1], params=[1500, 800, 600])
    found = {"images": float(images), "start": peak()}
    with tempfile.TemporaryDirectory() as folder:
        with FeatureStore(Path(folder) / "features.db") as features, MatchStore(Path(folder) / "matches.db") as matches:
            for number, name in enumerate(names):
                features.put(name, "synthetic", synthetic(number, keypoints))
            found["features"] = peak()
            pairs = Retrieval.build(names, features.get).pairs()
            found["pairs"] = peak()
            match_pairs(pairs, MatcherConfig(f"{__name__}:RandomMatcher"), features, matches)
            found["matches"] = peak()
            entries = ((*pair, matches.get(*pair)[0]) for pair in pairs)
            write_database(Path(folder) / "database.db", dict.fromkeys(names, camera), features.get, entries)
            found["database"] = peak()
        disk = sum(path.stat().st_size for path in Path(folder).iterdir()) / 2**20
    return {**found, "number of pairs": float(len(pairs)), "disk": disk}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, nargs="+", default=[125, 250, 500, 1000], metavar="N")
    parser.add_argument("--keypoints", type=int, default=2048, metavar="N", help="per image")
    parser.add_argument("--one", type=int, metavar="N", help=argparse.SUPPRESS)  # a run of its own, for a clean peak
    parser.add_argument("--docs", type=Path, metavar="FILE", help="docs/benchmarks.md: save the table beside it")
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measure(options.one, options.keypoints)))
        return
    found = section([_measure_apart(images, options.keypoints) for images in options.images], options.keypoints)
    print(found.text())
    if options.docs is not None:
        found.save(options.docs.parent / MEASURED / "memory.json")


def _measure_apart(images: int, keypoints: int) -> dict[str, float]:
    """In a process of its own, for a clean peak."""
    command = [sys.executable, __file__, "--one", str(images), "--keypoints", str(keypoints)]
    found: dict[str, float] = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    return found


def section(rows: list[dict[str, float]], keypoints: int) -> Result:
    """The figures as a section of docs/benchmarks.md."""
    header = ("images", "pairs", "disk MB", "start", "features", "retrieval", "matches", "COLMAP database")
    keys = ("images", "number of pairs", "disk", "start", "features", "pairs", "matches", "database")
    table = Table(header, tuple(tuple(f"{row[key]:.0f}" for key in keys) for row in rows))
    note = (
        f"peak memory in MB until the end of each stage; {keypoints} keypoints of 128 entries per image, "
        f"{MATCHES} matches per pair; {time.strftime('%Y-%m-%d')}, by benchmarks/pipeline_memory.py"
    )
    return Result(
        "memory", {"memory": {f"{row['images']:.0f}": row for row in rows}}, rows, "sizes", [table], note, {}, 1, 0
    )


if __name__ == "__main__":
    main()
