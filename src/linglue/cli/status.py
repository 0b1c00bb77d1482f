"""What a work folder holds: what is current, what is stale, and which images have no pose and why."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from linglue.cli import common
from linglue.errors import LinGlueError
from linglue.sfm.current import current_state, model_state
from linglue.sfm.workspace import Workspace


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `linglue status`."""
    common.add_work(parser)
    common.add_json(parser)


def run(options: argparse.Namespace) -> None:
    """Do what `linglue status` was asked for, and report it."""
    work = common.check_work(options.work)
    report = common.Report(options.json)
    with work.reading(), work.features() as features, common.stored_matches(work) as matches:
        state, rows = current_state(work, features, matches), 0 if matches is None else len(matches.rows())
        stale, imported, changed = features.stale(), features.imported(), features.changed()
        model = model_state(work, features, state)
    kind = "imported" if imported else "extracted"
    keypoints = sum(state.counts.values())
    report.line(
        f"features: {len(state.counts)} images, {keypoints} keypoints, {kind}; {len(stale)} stale",
        features={
            "images": len(state.counts),
            "keypoints": keypoints,
            "origin": kind,
            "stale": stale,
            "changed": changed,
        },
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
    problems = state.problems()
    if changed:
        problems.append(f"{len(changed)} images are not there any more as they were extracted, e.g. {changed[0]}")
    for problem in problems:
        report.line(problem)
    _report_model(report, work, model)
    _report_derived(report, work)
    sizes = _sizes(work)
    report.line("sizes: " + ", ".join(f"{name} {size / 1e6:.1f} MB" for name, size in sizes.items()), bytes=sizes)
    report.finish()


def _report_model(report: common.Report, work: Workspace, state: str | None) -> None:
    if state is None:
        report.line("model: none", model=None)
        return
    summary = _summary(work.summary)
    numbers = summary.get("model", {})
    told = "{registered} of {images} images registered, {points} points; ".format(**numbers) if numbers else ""
    report.line(
        f"model: {told}{state}",
        model={**numbers, "state": state},
        unregistered=summary.get("reasons", {}),
        problems=summary.get("problems", []),
    )
    for name, reason in summary.get("reasons", {}).items():
        report.line(f"without a pose: {name} ({reason})")
    for problem in summary.get("problems", []):
        report.line(f"problem: {problem}")


def _report_derived(report: common.Report, work: Workspace) -> None:
    """What other commands made from the model."""
    found = {path.relative_to(work.folder).as_posix(): current for path, current in work.derived().items()}
    for name, current in found.items():
        report.line(f"{name}: {'current' if current else 'stale: of another model, or unfinished'}", derived=found)


def _summary(path: Path) -> dict[str, Any]:
    """As JSON: reading it as a Summary would import what models need."""
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise LinGlueError(f"{path}: damaged, expected the summary of a reconstruction") from error


def _sizes(work: Workspace) -> dict[str, int]:
    paths = [work.features_file, work.matches_file, *work.outputs(), work.dense, work.report]
    found = {}
    for path in paths:
        if path.exists():
            files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
            found[path.relative_to(work.folder).as_posix()] = sum(file.stat().st_size for file in files)
    return found
