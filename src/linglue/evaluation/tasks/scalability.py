"""How time and memory grow with the number of keypoints, and what more keypoints are good for.

Time and peak memory of network and matching at 1k to 32k keypoints, for our presets and the peers, with the exponents
of their growth; pose accuracy against the number of keypoints. Measurements are kept in the work folder, so an
interrupted run resumes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from linglue.core.fingerprint import code_sha256, file_sha256, settings_hash
from linglue.core.progress import progress
from linglue.evaluation.methods import Methods
from linglue.evaluation.result import Result, Table, percent, read_json, write_json
from linglue.evaluation.subjects import Subject
from linglue.evaluation.tasks import pose
from linglue.evaluation.timing import PARTS, SIZES, Cost, Limits, measure_apart
from linglue.features import DEFAULT_FEATURES
from linglue.network.weights import PRESETS, packaged_weights
from linglue.sfm.extract import ExtractConfig

SUBJECTS = (
    Subject("linglue", DEFAULT_FEATURES),
    *(Subject(name, "superpoint") for name in PRESETS if name != "raw"),  # which has no layers
    Subject("mnn", "superpoint"),
    Subject("ratio", "superpoint"),
    Subject("adalam", "superpoint"),
    Subject("superglue", "superpoint"),
    Subject("superglue-10", "superpoint"),
    Subject("lightglue", "aliked"),  # the network for disk is as large
    Subject("lightglue", "xfeat", "lighterglue"),
    Subject("colmap-sift", "sift"),
    Subject("loftr"),  # whatever the features, it makes its own of images
)
KEYPOINTS = (512, 1024, 2048, 4096, 8192)  # of the accuracy panel
SMALLEST = {"cpu_seconds": 0.0005, "megabytes": 0.5}  # of which growth can be seen
METRICS = {"cpu_seconds": ("CPU time, ms", 1000.0), "megabytes": ("peak additional memory, MB", 1.0)}
_CODE = ("evaluation/subjects.py", "evaluation/timing.py", "evaluation/peers", "network", "matching")


def evaluate(
    work: str | Path,
    subjects: Sequence[Subject] = SUBJECTS,
    sizes: Sequence[int] = SIZES,
    *,
    threads: int = 1,
    repeats: int = 3,
    limits: Limits | None = None,
    scenes: Sequence[str | Path] = (),
    methods: Methods = ("mnn", "linglue"),
    extract: ExtractConfig | None = None,
    keypoints: Sequence[int] = KEYPOINTS,
) -> Result:
    """Measure time, memory and accuracy against the number of keypoints.

    Args:
        work: folder where measurements, features and matches are kept.
        subjects: presets and peers to time.
        sizes: numbers of keypoints per image at which they are timed.
        threads: of torch in the timed processes.
        repeats: runs, of which medians are taken.
        limits: when a measurement is given up; larger sizes are then not tried.
        scenes: for the accuracy, as for `evaluation.pose`; none: no accuracy.
        methods: whose accuracy is measured.
        extract: front-end and image size of the accuracy.
        keypoints: numbers at which the accuracy is measured.

    Returns:
        One row per subject, part and size; tables of time, memory and accuracy.

    Example:
        >>> print(evaluate("work", sizes=[1024, 2048]).text())  # doctest: +SKIP
    """
    work, limits = Path(work), limits or Limits()
    order = [(subject, size) for size in sizes for subject in subjects]  # load hits all subjects of a size alike
    rows: list[dict[str, Any]] = []
    failed: dict[Subject, str] = {}
    for subject, size in progress(order, desc="scalability", unit="size"):
        why = failed.get(subject) or _too_slow(rows, subject, size, repeats, limits)
        found = why or _kept(work, subject, size, threads, repeats, limits)
        if isinstance(found, str):
            failed.setdefault(subject, found)
            continue
        rows += [asdict(cost) for cost in found]
    accuracy = _accuracy(work, scenes, methods, extract, keypoints) if scenes else {}
    exponents = growth(rows)
    summary = {"exponents": exponents, "accuracy": accuracy}
    settings = {
        "task": "scalability",
        "threads": threads,
        "repeats": repeats,
        "limits": asdict(limits),
        "scenes": [str(scene) for scene in scenes],
        "given_up": {subject.shown: why for subject, why in failed.items()},
    }
    note = _note(threads, repeats, limits)
    problems = [f"{subject.shown}: {why}" for subject, why in failed.items()]
    parts = [*tables(rows, sizes, exponents, {s.shown: why for s, why in failed.items()}), *_accuracy_table(accuracy)]
    return Result("scalability", summary, rows, "costs", parts, note, settings, len(rows), 0, {}, problems)


def _note(threads: int, repeats: int, limits: Limits) -> str:
    """How the tables came about."""
    return (
        f"synthetic keypoints, half of them with a true match; {threads} thread(s), medians of {repeats}; linglue: "
        f"what is shipped for {DEFAULT_FEATURES}, full effort; presets as the identity start with the filter, peers "
        f"with their weights, or random ones where said; lightglue, lighterglue and loftr as one part; loftr: images "
        f"of as many squares of 8 pixels; given up beyond "
        f"{limits.seconds:g} s of CPU time, also where growth so far says so, or {limits.megabytes} MB; "
        "n^: exponent fitted from 4096 on, or to all sizes where that leaves fewer than two"
    )


def _too_slow(
    rows: Sequence[Mapping[str, Any]], subject: Subject, size: int, repeats: int, limits: Limits
) -> str | None:
    """Whether a size would take too long if the subject grows on as it did between the last two sizes."""
    times: dict[int, float] = {}
    for row in rows:
        if row["subject"] == subject.shown:
            times[row["keypoints"]] = times.get(row["keypoints"], 0.0) + row["cpu_seconds"]
    if len(times) < 2:
        return None
    (size0, time0), (size1, time1) = sorted(times.items())[-2:]
    growth = math.log(max(time1, 1e-9) / max(time0, 1e-9)) / math.log(size1 / size0)
    return "too slow" if repeats * time1 * (size / size1) ** growth > limits.seconds else None


def _kept(work: Path, subject: Subject, size: int, threads: int, repeats: int, limits: Limits) -> list[Cost] | str:
    """The measurement of an earlier run with the same code and settings, or a new one."""
    made_from = {**asdict(subject), "size": size, "threads": threads, "repeats": repeats, "code": code_sha256(*_CODE)}
    if subject.name == "linglue":
        made_from["weights"] = file_sha256(packaged_weights(subject.features))
    path = work / "costs" / f"{subject.shown}-{size}-{settings_hash(made_from)}.json"
    if not path.is_file():
        found = measure_apart(subject, size, threads, repeats, limits)
        if isinstance(found, str):
            return found
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, {"costs": [asdict(cost) for cost in found]})
    return [Cost(**cost) for cost in read_json(path)["costs"]]


def growth(rows: Sequence[Mapping[str, Any]], smallest: int = 4096) -> dict[str, dict[str, dict[str, float]]]:
    """Exponents e of cost ~ keypoints^e, by least squares of logarithms.

    Args:
        rows: costs of `evaluate`.
        smallest: sizes below are dominated by overhead and left out, where two others remain.

    Returns:
        Per subject and part, and per metric; parts with one size, or too small to measure, have none.

    Example:
        >>> rows = [{"subject": "a", "part": "network", "keypoints": n, "cpu_seconds": n * n, "megabytes": n}
        ...         for n in (1024, 2048, 4096, 8192)]
        >>> {metric: round(value, 3) for metric, value in growth(rows)["a"]["network"].items()}
        {'cpu_seconds': 2.0, 'megabytes': 1.0}
    """
    found: dict[str, dict[str, dict[str, float]]] = {}
    for subject, part in dict.fromkeys((row["subject"], row["part"]) for row in rows):
        chosen = [row for row in rows if (row["subject"], row["part"]) == (subject, part)]
        large = [row for row in chosen if row["keypoints"] >= smallest]
        chosen = large if len(large) > 1 else chosen
        if len(chosen) < 2:
            continue
        sizes = np.log([row["keypoints"] for row in chosen])
        found.setdefault(subject, {})[part] = {
            metric: float(np.polyfit(sizes, np.log([row[metric] for row in chosen]), 1)[0])
            for metric, least in SMALLEST.items()
            if min(row[metric] for row in chosen) >= least
        }
    return found


def tables(
    rows: Sequence[Mapping[str, Any]],
    sizes: Sequence[int],
    exponents: Mapping[str, Mapping[str, Mapping[str, float]]],
    failed: Mapping[str, str],
) -> list[Table]:
    """Time and memory: one row per subject and part, one column per size, and the exponent.

    Args:
        rows: costs.
        sizes: columns.
        exponents: of `growth`.
        failed: why a subject was given up, by name.
    """
    cells = {(row["subject"], row["part"], row["keypoints"]): row for row in rows}
    subjects = list(dict.fromkeys([*(row["subject"] for row in rows), *failed]))
    found = []
    for metric, (title, factor) in METRICS.items():
        lines = []
        for subject in subjects:
            parts = [part for part in PARTS if any((subject, part, size) in cells for size in sizes)]
            for part in parts or ["–"]:
                values = [cells.get((subject, part, size)) for size in sizes]
                texts = ["–" if value is None else f"{factor * value[metric]:.0f}" for value in values]
                if subject in failed and "–" in texts:
                    texts[texts.index("–")] = failed[subject]  # larger sizes are not tried
                exponent = exponents.get(subject, {}).get(part, {}).get(metric)
                lines.append((shown_name(subject, rows), part, *texts, "–" if exponent is None else f"{exponent:.2f}"))
        header = (title, "part", *(f"{size}" for size in sizes), "n^")
        found.append(Table(header, tuple(lines), labels=2))
    return found


def shown_name(subject: str, rows: Sequence[Mapping[str, Any]]) -> str:
    """The name of a subject, and that its weights are random where they are.

    Args:
        subject: its name.
        rows: costs.
    """
    untrained = any(row.get("untrained") for row in rows if row["subject"] == subject)
    return f"{subject} (random weights)" if untrained else subject


def _accuracy(
    work: Path, scenes: Sequence[str | Path], methods: Methods, extract: ExtractConfig | None, counts: Sequence[int]
) -> dict[str, dict[str, Any]]:
    """Per number of keypoints and method: what `evaluation.pose` says of all scenes."""
    extract = extract or ExtractConfig(resize=None)
    found = {}
    for count in counts:
        result = pose.evaluate(scenes, methods, work, replace(extract, max_keypoints=count))
        found[str(count)] = dict(list(result.summary.values())[-1])
    return found


def _accuracy_table(accuracy: Mapping[str, Mapping[str, Any]]) -> list[Table]:
    if not accuracy:
        return []
    methods = list(next(iter(accuracy.values())))
    rows = [(method, *(percent(values[method]["auc"]["5"]) for values in accuracy.values())) for method in methods]
    return [Table(("pose AUC@5° over keypoints", *accuracy), tuple(rows))]
