"""What a work folder holds: what is current, what is stale, and which images have no pose and why."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from linglue.cli import common
from linglue.errors import LinGlueError
from linglue.sfm.current import current_state
from linglue.sfm.workspace import Workspace


def add_arguments(parser: argparse.ArgumentParser) -> None:
    common.add_work(parser)
    common.add_json(parser)


def run(options: argparse.Namespace) -> None:
    work = common.check_work(options.work)
    report = common.Report(options.json)
    with work.reading(), work.features() as features:
        if work.matches_file.is_file():
            with work.matches() as matches:
                state, rows = current_state(work, features, matches), len(matches.rows())
        else:
            state, rows = current_state(work, features, None), 0
        stale, imported = features.stale(), features.imported()
    kind = "imported" if imported else "extracted"
    keypoints = sum(state.counts.values())
    report.line(
        f"features: {len(state.counts)} images, {keypoints} keypoints, {kind}; {len(stale)} stale",
        features={"images": len(state.counts), "keypoints": keypoints, "origin": kind, "stale": stale},
    )
    report.line(
        f"pairs: {len(state.pairs)}; {len(state.matched)} matched, {len(state.unmatched)} to be matched; "
        f"{rows - len(state.matched)} stale",
        pairs={
            "current": len(state.pairs),
            "matched": len(state.matched),
            "to_match": len(state.unmatched),
            "stale": rows - len(state.matched),
        },
    )
    for problem in state.problems():
        report.line(problem)
    _report_model(report, work, state.counts)
    sizes = _sizes(work)
    report.line("sizes: " + ", ".join(f"{name} {size / 1e6:.1f} MB" for name, size in sizes.items()), bytes=sizes)
    report.finish()


def _report_model(report: common.Report, work: Workspace, counts: dict[str, int]) -> None:
    made = work.notes()["made"]
    ours = {name: entry["made_from"] for name, entry in made.items()}
    if work.model.name not in ours:
        report.line("model: none", model=None)
        return
    mapped = work.notes().get("mapped", {}).get("features", {})
    with work.features() as features:
        current = features.made_from()
    usable = {name for name, count in counts.items() if count}
    missing = [name for name in ours if not (work.folder / name).exists()]
    state = "current"
    if ours[work.model.name] is None or missing:
        state = f"unfinished (missing: {', '.join(missing) or 'the rest of the model'})"
    elif mapped != {name: current[name] for name in usable}:
        state = "stale: images or features have changed since"
    summary = _summary(work.summary)
    numbers = summary.get("model", {})
    report.line(
        f"model: {numbers.get('registered', 0)} of {numbers.get('images', 0)} images registered, "
        f"{numbers.get('points', 0)} points; {state}",
        model={**numbers, "state": state},
        unregistered=summary.get("reasons", {}),
        problems=summary.get("problems", []),
    )
    for name, reason in summary.get("reasons", {}).items():
        report.line(f"without a pose: {name} ({reason})")
    for problem in summary.get("problems", []):
        report.line(f"problem: {problem}")


def _summary(path: Path) -> dict[str, Any]:
    """As JSON: reading it as a Summary would import what models need."""
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise LinGlueError(f"{path}: damaged, expected the summary of a reconstruction") from error


def _sizes(work: Workspace) -> dict[str, int]:
    paths = [work.features_file, work.matches_file, *work.outputs()]
    found = {}
    for path in paths:
        if path.exists():
            files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
            found[path.relative_to(work.folder).as_posix()] = sum(file.stat().st_size for file in files)
    return found
