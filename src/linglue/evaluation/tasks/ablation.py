"""What each part of the method contributes: networks, neighborhoods and steps of matching, on the same keypoints.

The paper's two ablation tables: localization and homographies, at several numbers of keypoints. A preset is measured
when a network of it is at hand, in the package or given; others are shown as "no weights".
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from linglue.core.engine import Engine
from linglue.errors import LinGlueError
from linglue.evaluation.result import Result, Table, percent
from linglue.evaluation.settings import common_settings
from linglue.evaluation.tasks import homography, localization
from linglue.evaluation.tasks.localization_scores import within_name
from linglue.matcher import Matcher, MatcherConfig
from linglue.matching.match import MatchingConfig
from linglue.network.linglue import LinGlue
from linglue.network.weights import PRESETS, packaged_weights, read_info
from linglue.sfm.extract import ExtractConfig

KEYPOINTS = (1024, 2048, 3072, 4096)
HEADS = {
    "no filter": MatchingConfig.unfiltered(),
    "paper's filter": MatchingConfig.paper(),
    "filter": MatchingConfig(learned=False),
}
LEARNED = "learned consensus"
NEIGHBORHOODS = {
    "no separation": {"separation": False},
    "no separation, from input": {"separation": False, "select_from_input": True},
}
STRICT, PAPER = (0.05, 0.5), (0.25, 2.0)  # metres and degrees; the second is the paper's


@dataclass(frozen=True)
class Variant(MatcherConfig):
    """A network whose neighborhoods are chosen in another way than it was trained with.

    Args:
        separation: whether seeds must be the most distinctive within their radius; None: as trained.
        select_from_input: whether neighborhoods come from the raw descriptors; None: as trained.
    """

    separation: bool | None = None
    select_from_input: bool | None = None

    def build(self) -> Matcher:
        """The matcher itself, or a LinGlueError that says what it lacks."""
        path = self.weights or packaged_weights(self.features)
        network = LinGlue.load(path, self.device)
        given: dict[str, Any] = {"separation": self.separation, "select_from_input": self.select_from_input}
        network.config = replace(network.config, **{name: value for name, value in given.items() if value is not None})
        return Matcher(None, network, read_info(path).kind, self.device, self.matching)


def find_networks(kind: str, given: Sequence[str | Path] = (), folder: str | Path | None = None) -> dict[str, Path]:
    """The networks at hand for features of a kind, by preset.

    Args:
        kind: of the features.
        given: files besides those in the package; they take precedence.
        folder: where more of them are, for any kind of features; other files are passed over.

    Raises:
        LinGlueError: a given file is no network for this kind.
    """
    if folder is not None and not Path(folder).is_dir():
        raise LinGlueError(f"{folder}: no such folder, expected one with networks (*.safetensors)")
    found: dict[str, Path] = {}
    folders = [packaged_weights(kind).parent, *([] if folder is None else [Path(folder)])]
    for path in (path for place in folders for path in sorted(place.rglob("*.safetensors"))):
        try:
            info = read_info(path)
        except LinGlueError:  # a front-end's weights
            continue
        if info.kind == kind:
            found.setdefault(info.preset, path)
    for path in map(Path, given):
        info = read_info(path)
        if info.kind != kind:
            raise LinGlueError(f"{path}: network was made for {info.kind!r} features, expected one for {kind!r}")
        found[info.preset] = path
    return found


def variants(kind: str, networks: Mapping[str, Path], device: str = "cpu") -> dict[str, MatcherConfig]:
    """The methods of the ablation by name.

    Args:
        kind: of the features.
        networks: weights by preset.
        device: where they run.

    Returns:
        Baselines, every network with the heads it can have, and the neighborhoods of those that have any.
    """
    methods: dict[str, MatcherConfig] = {name: MatcherConfig(name, kind, device=device) for name in ("mnn", "adalam")}
    for preset in (name for name in PRESETS if name in networks):
        path = networks[preset]
        config = read_info(path).config
        if config.sinkhorn:  # optimal transport is its head, nothing comes after it
            methods[preset] = MatcherConfig("linglue", kind, path, device)
            continue
        heads = {**HEADS, **({LEARNED: MatchingConfig(effort="full")} if config.voting else {})}
        for head, matching in heads.items():
            methods[f"{preset}, {head}"] = MatcherConfig("linglue", kind, path, device, matching)
        if config.pairwise_layers:
            for how, changes in NEIGHBORHOODS.items():
                matching = list(heads.values())[-1]
                methods[f"{preset}, {how}"] = Variant("linglue", kind, path, device, matching, **changes)
    return methods


def evaluate(
    data: Sequence[str | Path],
    scenes: Sequence[str | Path],
    work: str | Path,
    extract: ExtractConfig | Sequence[ExtractConfig] | None = None,
    *,
    weights: Sequence[str | Path] = (),
    folder: str | Path | None = None,
    keypoints: Sequence[int] = KEYPOINTS,
    engine: Engine | None = None,
) -> Result:
    """Measure what each part contributes, on homographies and on localization.

    Args:
        data: folders in the HPatches layout; none: no table of homographies.
        scenes: scenes with known poses; none: no table of localization.
        work: folder where features and matches are kept; what is there is not made again.
        extract: front-end and image size, or several; None: the default front-end, longer side 1600.
        weights: networks besides those in the package, for the first front-end.
        folder: where more networks are, for any front-end.
        keypoints: numbers of keypoints per image.
        engine: where images are extracted and pairs matched; None: in this process.

    Returns:
        One row per task, front-end, method and number of keypoints.

    Example:
        >>> evaluate(["hpatches"], [], "work").text()  # doctest: +SKIP
    """
    if not data and not scenes:
        raise LinGlueError("no data to measure on, expected --homography or --localization")
    work, several = Path(work), isinstance(extract, Sequence)
    extracts = list(extract) if isinstance(extract, Sequence) else [extract or ExtractConfig()]
    rows: list[dict[str, Any]] = []
    names: list[str] = []
    used: dict[str, str] = {}
    for number, config in enumerate(extracts):
        kind = config.extractor().kind
        networks = find_networks(kind, () if number else weights, folder)
        prefix = f"{kind}: " if several else ""
        methods = variants(kind, networks, config.device)
        rows += [
            {**row, "method": prefix + row["method"]}
            for count in keypoints
            for row in _measure(data, scenes, work, replace(config, max_keypoints=count), methods, engine)
        ]
        names += [prefix + name for name in methods]
        used |= {f"{prefix}{preset}": path.name for preset, path in networks.items()}
    lacking = [preset for preset in PRESETS if preset not in {name.rpartition(": ")[2] for name in used}]
    missing = {preset: f"no network of preset {preset} for any of the features" for preset in lacking}
    settings = {
        **common_settings("ablation", extracts[0], {}),
        "networks": used,
        "data": [str(folder) for folder in (*data, *scenes)],
    }
    found = ("ablation", _summary(rows), rows, "cells", tables(rows, [*names, *lacking]), NOTE, settings)
    return Result(*found, len(rows), 0, missing)


def _summary(rows: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Mapping[str, Any]]]:
    """The rows by task and number of keypoints, and by method."""
    summary: dict[str, dict[str, Mapping[str, Any]]] = {}
    for row in rows:
        summary.setdefault(f"{row['task']} {row['keypoints']}", {})[row["method"]] = row
    return summary


NOTE = (
    "rows of one front-end on the same keypoints; heads: no filter (mutual nearest neighbours of the network's "
    "descriptors), the paper's filter, our filter with consensus and completion, and the learned consensus where the "
    "network has one; 'no separation' changes how neighborhoods are chosen in a network trained with it; raw has no "
    "layers; linear-sinkhorn matches by optimal transport"
)


def _measure(
    data: Sequence[str | Path],
    scenes: Sequence[str | Path],
    work: Path,
    extract: ExtractConfig,
    methods: Mapping[str, MatcherConfig],
    engine: Engine | None,
) -> list[dict[str, Any]]:
    """The rows of one front-end at one number of keypoints."""
    rows = []
    if data:
        planar = homography.evaluate(data, methods, work / "homography", extract, estimators=["poselib"], engine=engine)
        rows += [_homography_row(name, extract.max_keypoints, v) for name, v in planar.summary["overall"].items()]
    if scenes:
        placed = localization.evaluate(scenes, methods, work / "localization", extract, engine=engine)
        values = list(placed.summary.values())[-1]
        rows += [_localization_row(name, extract.max_keypoints, v) for name, v in values.items()]
    return rows


def _homography_row(method: str, count: int, values: Mapping[str, Any]) -> dict[str, Any]:
    named = {"MMA@3": values["mma"]["3"], "AUC@5": values["auc"]["poselib"]["5"]}
    return {"task": "homography", "method": method, "keypoints": count, "correct": values["correct"], **named}


def _localization_row(method: str, count: int, values: Mapping[str, Any]) -> dict[str, Any]:
    within = values.get("within", {})
    named = {within_name(*limit): within.get(within_name(*limit)) for limit in (STRICT, PAPER)}
    position = values.get("position_error")
    named["median mm"] = None if position is None else 1000 * position
    return {"task": "localization", "method": method, "keypoints": count, "inliers": values["inliers"], **named}


def tables(rows: Sequence[Mapping[str, Any]], methods: Sequence[str]) -> list[Table]:
    """One table per task and measure: a row per method, a column per number of keypoints; percent where not counts.

    Args:
        rows: of `evaluate`.
        methods: in the order of the tables; those without any row have no weights.
    """
    found = []
    measures = {
        "homography": ("MMA@3", "AUC@5", "correct"),
        "localization": (within_name(*STRICT), "median mm", "inliers"),
    }
    for task, names in measures.items():
        cells = {(row["method"], row["keypoints"]): row for row in rows if row["task"] == task}
        counts = sorted({count for _, count in cells})
        for name in names if cells else ():
            lines = []
            for method in methods:
                values = [cells.get((method, count)) for count in counts]
                texts = ["no weights" if v is None else _cell(v[name], name) for v in values]
                lines.append((method, *texts))
            found.append(Table((f"{task}: {name}", *map(str, counts)), tuple(lines)))
    return found


def _cell(value: float | None, name: str) -> str:
    if value is None or not math.isfinite(value):
        return "–"
    if name == "median mm":
        return f"{value:.1f}"
    return f"{value:.0f}" if name in ("correct", "inliers") else percent(value)
