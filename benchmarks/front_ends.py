"""Front-ends with the same matcher, mutual nearest neighbours: accuracy, repeatability, time and memory in one run.

    python benchmarks/front_ends.py [--features linpoint,sift,...] [--quick] [--linpoint-weights FILE] [-o WORK]

Data: oxford, evd and epfl/entry-P10 in $LINGLUE_DATA (default ../shared/data), and the scenes that pose_scenes.py made,
in --pose-scenes. Weights of the others: the folder of get_peers.sh in $LINGLUE_PEERS. Features and matches are kept in
WORK, so an interrupted run resumes; times and memory are always measured anew. WORK/front_ends.json has all figures.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from linglue import evaluation
from linglue.errors import LinGlueError
from linglue.evaluation.metrics import repeatability
from linglue.evaluation.peers import find_peer_file
from linglue.evaluation.result import Table, percent, write_json
from linglue.evaluation.store import Predictions
from linglue.evaluation.tasks.homography import load_pairs
from linglue.features import make_extractor
from linglue.sfm.extract import ExtractConfig

DATA = Path(os.environ.get("LINGLUE_DATA", Path(__file__).resolve().parent.parent.parent / "shared" / "data"))
NAMES = {"xfeat": "linglue.evaluation.peers.xfeat:XFeat"}  # not built in
FILES = {"superpoint": "superpoint_v1.pth", "aliked": "aliked-n16.pth", "disk": "depth-save.pth", "xfeat": "xfeat.pt"}
ALL = ("linpoint", "sift", "superpoint", "aliked", "disk", "xfeat")
KEYPOINTS, SIDE = 2048, 1024
WITHIN = 3.0  # pixels, for repeatability
THREADS = 2
TIMED = ("oxford/v_graf/1.png", "oxford/v_wall/1.png", "oxford/i_leuven/1.png", "oxford/v_boat/1.png")
QUICK = {"oxford": ("v_graf", "i_leuven"), "evd": ("v_graf", "v_cafe", "v_there")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--features", default=",".join(ALL), help="front-ends, separated by commas")
    parser.add_argument("--linpoint-weights", type=Path, help="LinPoint's file; the package's unless given")
    parser.add_argument("--pose-scenes", type=Path, help="folder of scenes with images/, gt/ and pairs.txt")
    parser.add_argument("--quick", action="store_true", help="a few sequences and scenes only")
    parser.add_argument("-o", "--output", type=Path, default=Path("runs/front-ends"), metavar="WORK")
    parser.add_argument("--memory-of", help=argparse.SUPPRESS)  # one front-end in a process of its own
    options = parser.parse_args()
    if options.memory_of:
        print(_peak_memory(_config(options.memory_of, options.linpoint_weights)))
        return
    torch.set_num_threads(THREADS)
    options.output.mkdir(parents=True, exist_ok=True)
    configs, missing = _available(options)
    found: dict[str, Any] = {
        name: _homographies(name, configs, options) for name in ("oxford", "evd") if (DATA / name).is_dir()
    }
    for name, scenes in _pose_sets(options).items():
        found[name] = _poses(scenes, configs, options)
    costs = _costs(configs, options)
    write_json(options.output / "front_ends.json", {"sets": found, "costs": costs, "missing": missing})
    for name, table in _tables(found, costs):
        print(f"\n{name}\n\n{table.markdown()}")
    for name, why in missing.items():
        print(f"\n{name}: no weights ({why})")
    print(
        f"\nMutual nearest neighbours, at most {KEYPOINTS} keypoints, longer side at most {SIDE}; means per pair; AUC "
        f"by PoseLib; repeatability: share of the keypoints seen in both images with one within {WITHIN:g} px, both "
        f"ways; time: median per image relative to SIFT's, {THREADS} threads; memory: growth of the process's peak"
    )


def _config(name: str, linpoint: Path | None) -> ExtractConfig:
    """How a front-end is run; a LinGlueError says what it lacks."""
    weights = linpoint if name == "linpoint" else None
    if name in FILES:
        weights = find_peer_file(FILES[name], f"front-end {name}")
    return ExtractConfig(NAMES.get(name, name), weights, KEYPOINTS, SIDE)


def _available(options: argparse.Namespace) -> tuple[dict[str, ExtractConfig], dict[str, str]]:
    configs, missing = {}, {}
    for name in options.features.split(","):
        try:
            configs[name] = _config(name, options.linpoint_weights)
            make_extractor(configs[name].features, configs[name].weights)
        except LinGlueError as error:
            configs.pop(name, None)
            missing[name] = str(error)
    if not configs:
        raise LinGlueError(f"no front-end to measure: {'; '.join(missing.values())}")
    return configs, missing


def _homographies(name: str, configs: dict[str, ExtractConfig], options: argparse.Namespace) -> dict[str, Any]:
    data = DATA / name
    if options.quick:
        data = options.output / "quick" / name
        data.mkdir(parents=True, exist_ok=True)
        for sequence in QUICK[name]:
            if not (data / sequence).exists():
                (data / sequence).symlink_to((DATA / name / sequence).resolve())
    results = {}
    for front_end, extract in configs.items():
        print(f"{name}: {front_end}", file=sys.stderr, flush=True)
        work = options.output / name
        values = evaluation.homography(data, ["mnn"], work, extract, estimators=["poselib"]).summary["overall"]["mnn"]
        results[front_end] = {**values, "repeatability": _repeatability(data, work, extract)}
    return results


def _repeatability(data: Path, work: Path, extract: ExtractConfig) -> float:
    """Mean over all pairs, from the features that the evaluation kept."""
    shares = []
    for truth in load_pairs(data)[0]:
        with Predictions(work, truth.pair.group, extract).workspace.features() as features:
            sides = [features.get(image.name) for image in (truth.pair.image0, truth.pair.image1)]
        zero, one = sides
        sizes = zero.image_size, one.image_size
        shares.append(repeatability(truth.homography_1_from_0, zero.keypoints, one.keypoints, *sizes, WITHIN))
    return float(np.mean(shares))


def _pose_sets(options: argparse.Namespace) -> dict[str, list[Path]]:
    sets = {}
    if (DATA / "epfl" / "entry-P10").is_dir():
        sets["entry-P10"] = [DATA / "epfl" / "entry-P10"]
    if options.pose_scenes is not None:
        scenes = sorted(path for path in options.pose_scenes.iterdir() if (path / "gt").is_dir())
        sets["held-out scenes"] = scenes[:2] if options.quick else scenes
    return sets


def _poses(scenes: list[Path], configs: dict[str, ExtractConfig], options: argparse.Namespace) -> dict[str, Any]:
    results = {}
    for front_end, extract in configs.items():
        print(f"{len(scenes)} pose scenes: {front_end}", file=sys.stderr, flush=True)
        gap = {"max_gap": 1} if options.quick else {}
        summary = evaluation.pose(scenes, ["mnn"], options.output / "pose", extract, **gap).summary
        results[front_end] = {**list(summary.values())[-1]["mnn"], "scenes": {k: v["mnn"] for k, v in summary.items()}}
    return results


def _costs(configs: dict[str, ExtractConfig], options: argparse.Namespace) -> dict[str, dict[str, float]]:
    """Seconds per image, one front-end after the other on each image so that load hits all alike, and peak memory."""
    extractors = {name: make_extractor(config.features, config.weights) for name, config in configs.items()}
    images = [DATA / name for name in (TIMED[:1] if options.quick else TIMED)]
    seconds: dict[str, list[float]] = {name: [] for name in extractors}
    for round_number in range(4):
        for image in images:
            for name, extractor in extractors.items():
                start = time.perf_counter()
                extractor.extract(image, KEYPOINTS, SIDE)
                if round_number:  # the first one warms up
                    seconds[name].append(time.perf_counter() - start)
    costs = {}
    for name in extractors:
        command = [sys.executable, __file__, "--memory-of", name]
        if options.linpoint_weights is not None:
            command += ["--linpoint-weights", str(options.linpoint_weights)]
        peak = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        costs[name] = {"seconds": float(np.median(seconds[name])), "megabytes": float(peak)}
        if "sift" in seconds:
            ratios = np.array(seconds[name]) / np.array(seconds["sift"])
            costs[name]["time_over_sift"] = float(np.median(ratios))
    return costs


def _peak_memory(config: ExtractConfig) -> float:
    """Megabytes by which building the front-end and extracting one image raise the peak of this process."""
    torch.set_num_threads(THREADS)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    make_extractor(config.features, config.weights).extract(DATA / TIMED[0], KEYPOINTS, SIDE)
    return (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024  # Linux counts in kilobytes


def _tables(found: dict[str, Any], costs: dict[str, dict[str, float]]) -> list[tuple[str, Table]]:
    tables = []
    for name, front_ends in found.items():
        rows = []
        for front_end, v in front_ends.items():
            counts = (f"{v['keypoints']:.0f}", f"{v['matches']:.0f}", f"{v['correct']:.0f}")
            cells: tuple[float, ...]
            header: tuple[str, ...]
            if "mma" in v:
                areas = v["auc"]["poselib"]
                cells = (v["mma"]["1"], v["mma"]["3"], v["repeatability"], areas["3"], areas["5"], areas["10"])
                header = ("MMA@1", "MMA@3", "repeatability", "AUC@3", "AUC@5", "AUC@10")
            else:
                cells = (v["precision"], v["auc"]["5"], v["auc"]["10"], v["auc"]["20"])
                header = ("precision", "AUC@5°", "AUC@10°", "AUC@20°")
            rows.append((front_end, *counts, *map(percent, cells)))
        tables.append((name, Table(("front-end", "keypoints", "matches", "correct", *header), tuple(rows))))
    rows = [
        (name, f"{1000 * v['seconds']:.0f}", f"{v.get('time_over_sift', float('nan')):.2f}", f"{v['megabytes']:.0f}")
        for name, v in costs.items()
    ]
    return [*tables, ("Time and memory", Table(("front-end", "ms per image", "time/sift", "memory MB"), tuple(rows)))]


if __name__ == "__main__":
    try:
        main()
    except LinGlueError as error:
        sys.exit(json.dumps(str(error), ensure_ascii=False))
