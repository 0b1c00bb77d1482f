"""What each part of the method contributes: networks, neighborhoods and steps of matching, on the same keypoints.

The paper's two ablation tables: localization and homographies, at several numbers of keypoints. A preset is measured
when a network of it is at hand, in the package or given; others are shown as "no weights".
"""

from __future__ import annotations

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
    "": MatchingConfig(),
}
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


def find_networks(kind: str, given: Sequence[str | Path] = ()) -> dict[str, Path]:
    """The networks at hand for features of a kind, by preset.

    Args:
        kind: of the features.
        given: files besides those in the package; they take precedence.

    Raises:
        LinGlueError: a given file is no network for this kind.
    """
    found: dict[str, Path] = {}
    for path in sorted(packaged_weights(kind).parent.glob("*.safetensors")):
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
        Baselines, every network with the three heads, and the neighborhoods of those that have any.
    """
    methods: dict[str, MatcherConfig] = {name: MatcherConfig(name, kind, device=device) for name in ("mnn", "adalam")}
    for preset in (name for name in PRESETS if name in networks):
        path = networks[preset]
        if PRESETS[preset].get("sinkhorn"):  # optimal transport is its head, nothing comes after it
            methods[preset] = MatcherConfig("linglue", kind, path, device)
            continue
        for head, matching in HEADS.items():
            name = f"{preset}, {head}" if head else preset
            methods[name] = MatcherConfig("linglue", kind, path, device, matching)
        if PRESETS[preset].get("pairwise_layers", 2):
            for how, changes in NEIGHBORHOODS.items():
                methods[f"{preset}, {how}"] = Variant("linglue", kind, path, device, MatchingConfig(), **changes)
    return methods


def evaluate(
    data: Sequence[str | Path],
    scenes: Sequence[str | Path],
    work: str | Path,
    extract: ExtractConfig | None = None,
    *,
    weights: Sequence[str | Path] = (),
    keypoints: Sequence[int] = KEYPOINTS,
    engine: Engine | None = None,
) -> Result:
    """Measure what each part contributes, on homographies and on localization.

    Args:
        data: folders in the HPatches layout; none: no table of homographies.
        scenes: scenes with known poses; none: no table of localization.
        work: folder where features and matches are kept; what is there is not made again.
        extract: front-end and image size; None: the default front-end, longer side 1600.
        weights: networks besides those in the package.
        keypoints: numbers of keypoints per image.
        engine: where images are extracted and pairs matched; None: in this process.

    Returns:
        One row per task, method and number of keypoints.

    Example:
        >>> evaluate(["hpatches"], [], "work").text()  # doctest: +SKIP
    """
    if not data and not scenes:
        raise LinGlueError("no data to measure on, expected --homography or --localization")
    work, extract = Path(work), extract or ExtractConfig()
    kind = extract.extractor().kind
    networks = find_networks(kind, weights)
    methods = variants(kind, networks, extract.device)
    rows: list[dict[str, Any]] = []
    for count in keypoints:
        config = replace(extract, max_keypoints=count)
        if data:
            planar = homography.evaluate(
                data, methods, work / "homography", config, estimators=["poselib"], engine=engine
            )
            rows += [_homography_row(name, count, v) for name, v in planar.summary["overall"].items()]
        if scenes:
            placed = localization.evaluate(scenes, methods, work / "localization", config, engine=engine)
            rows += [_localization_row(name, count, v) for name, v in list(placed.summary.values())[-1].items()]
    missing = {name: f"no network of preset {name} for {kind} features" for name in PRESETS if name not in networks}
    settings = {
        **common_settings("ablation", extract, {}),
        "networks": {preset: path.name for preset, path in networks.items()},
        "data": [str(folder) for folder in (*data, *scenes)],
    }
    note = (
        f"{kind}; every row on the same keypoints; heads: no filter (mutual nearest neighbours of the new "
        "descriptors), the paper's filter, and ours (filter, consensus, completion); 'no separation' changes how "
        "neighborhoods are chosen in a network trained with it; linear-sinkhorn matches by optimal transport"
    )
    summary: dict[str, dict[str, dict[str, Any]]] = {}
    for row in rows:
        summary.setdefault(f"{row['task']} {row['keypoints']}", {})[row["method"]] = row
    shown = tables(rows, [*methods, *missing])
    return Result("ablation", summary, rows, "cells", shown, note, settings, len(rows), 0, missing)


def _homography_row(method: str, count: int, values: Mapping[str, Any]) -> dict[str, Any]:
    named = {"MMA@3": values["mma"]["3"], "AUC@5": values["auc"]["poselib"]["5"]}
    return {"task": "homography", "method": method, "keypoints": count, "correct": values["correct"], **named}


def _localization_row(method: str, count: int, values: Mapping[str, Any]) -> dict[str, Any]:
    within = values.get("within", {})
    named = {within_name(*limit): within.get(within_name(*limit)) for limit in (STRICT, PAPER)}
    return {"task": "localization", "method": method, "keypoints": count, "inliers": values["inliers"], **named}


def tables(rows: Sequence[Mapping[str, Any]], methods: Sequence[str]) -> list[Table]:
    """One table per task and measure: a row per method, a column per number of keypoints; percent where not counts.

    Args:
        rows: of `evaluate`.
        methods: in the order of the tables; those without any row have no weights.
    """
    found = []
    measures = {"homography": ("MMA@3", "AUC@5", "correct"), "localization": (within_name(*STRICT), "inliers")}
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
    if value is None:
        return "–"
    return f"{value:.0f}" if name in ("correct", "inliers") else percent(value)
