"""Front-ends with one matcher, mutual nearest neighbours: accuracy, repeatability, time and memory.

What a front-end is worth by itself, before any network: planar data and scenes with known cameras as in the tasks of
those names, and costs from a process of its own for each.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from linglue.errors import LinGlueError
from linglue.evaluation.extraction_cost import ExtractionCost, measure_apart
from linglue.evaluation.methods import Prepared, prepare
from linglue.evaluation.metrics import repeatability
from linglue.evaluation.result import Result, Table, percent
from linglue.evaluation.settings import common_settings, size_note
from linglue.evaluation.store import Predictions
from linglue.evaluation.tasks import homography, pose
from linglue.features import DEFAULT_FEATURES
from linglue.sfm.extract import ExtractConfig

FRONT_ENDS = (DEFAULT_FEATURES, "sift", "superpoint", "aliked", "disk", "xfeat")
WITHIN = 3.0  # pixels, for repeatability
MATCHER = "mnn"
BASE = "sift"  # whose time is 1


def evaluate(
    planes: Sequence[str | Path],
    scenes: Mapping[str, Sequence[str | Path]],
    work: str | Path,
    extract: ExtractConfig | None = None,
    *,
    front_ends: Sequence[str] = FRONT_ENDS,
    images: Sequence[str | Path] = (),
    threads: int = 1,
    max_gap: int = pose.MAX_GAP,
) -> Result:
    """Measure front-ends, all with mutual nearest neighbours.

    Args:
        planes: folders in the HPatches layout.
        scenes: by the name of the table: scenes with known cameras.
        work: folder where features and matches are kept; what is there is not made again.
        extract: number of keypoints and image size; None: 2048 keypoints, longer side 1024.
        front_ends: their names.
        images: whose extraction is timed; none: no costs.
        threads: of the timed processes.
        max_gap: of pairs, where a scene lists none.

    Returns:
        One row per set and front-end; a table per set, and one of costs.

    Example:
        >>> evaluate(["hpatches"], {}, "work", front_ends=["linpoint", "sift"]).text()  # doctest: +SKIP
    """
    work, extract = Path(work), extract or ExtractConfig(max_keypoints=2048, resize=1024)
    if not planes and not scenes:
        raise LinGlueError("no data to measure on, expected planes or scenes")
    methods = (prepared := prepare([f"{name}:{MATCHER}" for name in front_ends], extract)).ready
    summary: dict[str, dict[str, Any]] = {}
    for folder in map(Path, planes):
        name = folder.resolve().name
        found = homography.evaluate(folder, methods, work / name, extract, estimators=["poselib"]).summary["overall"]
        for method, values in found.items():
            repeated = mean_repeatability(folder, work / name, methods[method].extract)
            summary.setdefault(name, {})[_plain(method)] = {**values, "repeatability": repeated}
    for name, folders in scenes.items():
        found = list(pose.evaluate(folders, methods, work / "scenes", extract, max_gap=max_gap).summary.values())[-1]
        summary[name] = {_plain(method): values for method, values in found.items()}
    costs = {
        _plain(name): measure_apart(method.extract, [Path(image) for image in images], threads)
        for name, method in (methods.items() if images else ())
    }
    rows = [{"set": group, "front_end": n, **_flat(v)} for group, of in summary.items() for n, v in of.items()]
    if costs:
        summary["costs"] = {name: asdict(cost) for name, cost in costs.items()}
    missing = {_plain(name): why for name, why in prepared.missing.items()}
    shown = [*(table(name, of) for name, of in summary.items() if name != "costs"), *cost_tables(costs)]
    settings = {
        **common_settings("front-ends", extract, {}),
        "front_ends": list(map(_plain, methods)),
        "threads": threads,
    }
    note = _note(prepared, extract, len(images), threads)
    return Result("front-ends", summary, rows, "rows", shown, note, settings, len(rows), 0, missing)


def _plain(method: str) -> str:
    return method.removesuffix(f":{MATCHER}")


def _note(prepared: Prepared, extract: ExtractConfig, images: int, threads: int) -> str:
    note = (
        f"{size_note(prepared, extract)}; mutual nearest neighbours of the raw descriptors, means per pair; AUC by "
        f"PoseLib; repeatability: share of the keypoints seen in both images with one within {WITHIN:g} px, both ways"
    )
    if images:
        note += (
            f"; time: CPU time per image, median over {images} images, {threads} thread(s); memory: by how much "
            "building the front-end and extracting raise the resident set of a process at most"
        )
    return note


def mean_repeatability(data: Path, work: Path, extract: ExtractConfig) -> float:
    """Over all pairs of planar data, from the features that the evaluation kept.

    Args:
        data: folder in the HPatches layout.
        work: of its evaluation.
        extract: how the features were taken.
    """
    shares = []
    for truth in homography.load_pairs(data)[0]:
        with Predictions(work, truth.pair.group, extract).workspace.features() as store:
            zero, one = (store.get(image.name) for image in (truth.pair.image0, truth.pair.image1))
        sizes = zero.image_size, one.image_size
        shares.append(repeatability(truth.homography_1_from_0, zero.keypoints, one.keypoints, *sizes, WITHIN))
    return float(np.mean(shares))


def _flat(values: Mapping[str, Any]) -> dict[str, Any]:
    """Values of a task for one line of a CSV file."""
    plain = {name: value for name, value in values.items() if not isinstance(value, Mapping)}
    areas = values["auc"].get("poselib", values["auc"])
    accuracy = {f"mma@{t}": share for t, share in values.get("mma", {}).items()}
    return {**plain, **accuracy, **{f"auc@{t}": area for t, area in areas.items()}}


def table(name: str, front_ends: Mapping[str, Mapping[str, Any]]) -> Table:
    """One set: counts, accuracy and AUC; in percent where not counts.

    Args:
        name: of the set.
        front_ends: values by front-end.
    """
    rows = []
    header: tuple[str, ...] = ()
    for front_end, v in front_ends.items():
        counts = (f"{v['keypoints']:.0f}", f"{v['matches']:.0f}", f"{v['correct']:.0f}")
        if "mma" in v:
            areas = v["auc"]["poselib"]
            shares = (v["repeatability"], v["mma"]["1"], v["mma"]["3"], *(areas[t] for t in ("3", "5", "10")))
            header = ("repeatability", "MMA@1", "MMA@3", "AUC@3", "AUC@5", "AUC@10")
        else:
            shares = (v["precision"], *(v["auc"][t] for t in ("5", "10", "20")))
            header = ("precision %", "AUC@5°", "AUC@10°", "AUC@20°")
        rows.append((front_end, *counts, *map(percent, shares)))
    pairs = next(iter(front_ends.values()))["pairs"]
    return Table((f"{name} ({pairs} pairs)", "keypoints", "matches", "correct", *header), tuple(rows))


def cost_tables(costs: Mapping[str, ExtractionCost]) -> list[Table]:
    """Time and memory; empty without any.

    Args:
        costs: by front-end.
    """
    if not costs:
        return []
    base = costs[BASE].cpu_seconds if BASE in costs else None
    rows = [
        (
            name,
            f"{1000 * cost.cpu_seconds:.0f}",
            f"{cost.cpu_seconds / base:.2f}" if base else "–",
            f"{cost.megabytes:.0f}",
        )
        for name, cost in costs.items()
    ]
    return [Table(("costs", "ms per image", f"time/{BASE}", "memory MB"), tuple(rows))]
