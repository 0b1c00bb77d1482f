"""Measure matchers on data with known truth, all on the same keypoints: predictions are saved, then scored."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from linglue.cli import common, eval_localization, eval_reconstruction
from linglue.errors import LinGlueError
from linglue.evaluation.estimators import (
    CONFIDENCE,
    HOMOGRAPHY_ESTIMATORS,
    MAX_ITERATIONS,
    RobustSettings,
    check_estimators,
    version,
)
from linglue.evaluation.methods import METHODS, Method, MethodOptions, has_network, make_method
from linglue.evaluation.recipes import MethodRecipe
from linglue.evaluation.report import Table, json_values, write_csv, write_json
from linglue.evaluation.store import Extraction, Store
from linglue.evaluation.tasks import homography, pose
from linglue.viz import plots

TIME_NOTE = (
    "time: median per pair of matching alone, features given; absolute times depend on the machine and its load, "
    "compare only methods of one run"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `linglue eval`."""
    tasks = parser.add_subparsers(dest="task", required=True, metavar="TASK")
    summary = "planar scenes in the HPatches layout: matching accuracy (D2-Net protocol) and homography AUC"
    planar = tasks.add_parser("homography", help=summary, description=summary, formatter_class=parser.formatter_class)
    planar.add_argument("data", type=Path, metavar="DATA", help="folder of sequences v_* and i_*")
    _add_common(planar, "linglue-eval-homography")
    _add_plot(planar)
    planar.add_argument(
        "--estimators",
        type=_names,
        default=",".join(HOMOGRAPHY_ESTIMATORS),
        metavar="NAMES",
        help=f"robust estimators for the AUC, of {', '.join(HOMOGRAPHY_ESTIMATORS)}",
    )
    planar.add_argument(
        "--threshold", type=float, default=3.0, metavar="PX", help="inlier threshold of the estimators, original pixels"
    )
    summary = "scenes with known cameras (images/ and gt/): relative pose AUC and epipolar precision"
    posed = tasks.add_parser("pose", help=summary, description=summary, formatter_class=parser.formatter_class)
    posed.add_argument("scenes", type=Path, nargs="+", metavar="SCENE", help="folder with images/ and gt/")
    _add_common(posed, "linglue-eval-pose")
    _add_plot(posed)
    posed.add_argument("--max-gap", type=int, default=6, metavar="N", help="pairs at most this many images apart")
    posed.add_argument(
        "--threshold",
        type=float,
        default=pose.ESTIMATOR_THRESHOLD,
        metavar="PX",
        help=f"inlier threshold of the estimator at a longer side of {pose.REFERENCE_SIDE} pixels",
    )
    summary = "camera poses in maps of known poses: each image among the others, or queries in Aachen's layout"
    placed = tasks.add_parser("localization", help=summary, description=summary, formatter_class=parser.formatter_class)
    _add_common(placed, "linglue-eval-localization")
    eval_localization.add_arguments(placed)
    summary = "sparse models (ETH protocol): registered images, points, tracks, errors; with gt/ also of the cameras"
    built = tasks.add_parser(
        "reconstruction", help=summary, description=summary, formatter_class=parser.formatter_class
    )
    _add_common(built, "linglue-eval-reconstruction")
    eval_reconstruction.add_arguments(built)


def _add_common(parser: argparse.ArgumentParser, work: str) -> None:
    parser.add_argument(
        "--compare",
        type=_names,
        default="mnn,ratio,adalam",
        metavar="NAMES",
        help=f"methods beside linglue, of {', '.join(METHODS)}",
    )
    common.add_front_end(parser)
    common.add_extraction(parser)
    parser.set_defaults(max_keypoints=2048, resize=1024)  # what published tables use, not what users want
    parser.add_argument(
        "--weights", type=Path, metavar="FILE", help="your own network instead of the one in the package"
    )
    common.add_device(parser)
    parser.add_argument("--seed", type=int, default=0, help="of the robust estimators")
    parser.add_argument(
        "-o", "--output", type=Path, default=Path(work), metavar="WORK", help="folder for predictions and results"
    )
    parser.add_argument("--markdown", action="store_true", help="tables for documents instead of the terminal")
    common.add_json(parser)


def _add_plot(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--plot", type=Path, metavar="PICTURE", help="the curves, .png, .pdf or .svg")


def _names(text: str) -> list[str]:
    return list(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))


def run(options: argparse.Namespace) -> None:
    """Do what `linglue eval` was asked for, and report it."""
    common.check_folder(options.output)
    if options.plot is not None:
        common.check_output(options.plot, plots.SUFFIXES)
        plots.check_plotting()
    if options.threshold is not None and options.threshold <= 0:
        raise LinGlueError(f"--threshold is {options.threshold}, expected a positive number of pixels")
    report = common.Report(options.json)
    tasks = {
        "homography": _run_homography,
        "pose": _run_pose,
        "localization": _run_localization,
        "reconstruction": _run_reconstruction,
    }
    tasks[options.task](options, report)
    report.finish()


def _run_homography(options: argparse.Namespace, report: common.Report) -> None:
    check_estimators(options.estimators)
    truths, skipped = homography.load_pairs(options.data)
    device = common.device(options)
    methods = _methods(options, report, device)
    store = Store(options.output, options.data, _extraction(options))
    made = store.predict([truth.pair for truth in truths], methods, device)
    robust = RobustSettings(options.threshold, options.seed)
    scores = homography.score(truths, methods, store, options.estimators, robust)
    summary = homography.summarise(scores)
    settings = {
        **_settings(options, methods),
        "data": str(options.data),
        "skipped_sequences": skipped,
        "estimators": {name: version(name) for name in options.estimators},
        "pixels": "original images",
        "correct": f"reprojection error <= {homography.CORRECT} px",
    }
    used = ", ".join(f"{name} ({package})" for name, package in settings["estimators"].items()) or "none"
    line = (
        f"{_line(options, summary['overall'])}; errors in original pixels, correct: at most {homography.CORRECT} px; "
        f"homographies by {used}, {_robust_line(options)}"
        f"; {len(skipped)} sequences left out by the protocol"
    )
    results = {"settings": settings, "results": summary}
    rows, tables = homography.csv_rows(scores), homography.tables(summary)
    _finish(options, report, tables, line, results, rows, made, lambda path: plots.plot_mma(path, summary))


def _run_pose(options: argparse.Namespace, report: common.Report) -> None:
    check_estimators(["poselib"])
    twice = [name for name, times in Counter(s.resolve().name for s in options.scenes).items() if times > 1]
    if twice:
        raise LinGlueError(f"{twice[0]}: two of the given scenes have this name, expected different ones")
    scenes = [(scene, pose.load_scene(scene, options.max_gap)) for scene in options.scenes]
    device = common.device(options)
    methods = _methods(options, report, device)
    robust = RobustSettings(options.threshold, options.seed)
    made = 0
    scores: dict[str, list[pose.PairScore]] = {method.name: [] for method in methods}
    for scene, truths in scenes:
        store = Store(options.output, scene, _extraction(options))
        made += store.predict([truth.pair for truth in truths], methods, device)
        for name, values in pose.score(truths, methods, store, robust).items():
            scores[name] += values
    summary = pose.summarise(scores)
    settings = {
        **_settings(options, methods),
        "scenes": [str(scene) for scene in options.scenes],
        "max_gap": options.max_gap,
        "estimators": {"poselib": version("poselib")},
        "pixels": f"at a longer side of {pose.REFERENCE_SIDE}",
        "correct": f"symmetric epipolar distance <= {pose.CORRECT} px",
    }
    line = (
        f"{_line(options, list(summary.values())[-1])}, at most {options.max_gap} images apart; thresholds at a longer "
        f"side of {pose.REFERENCE_SIDE}, correct: at most {pose.CORRECT:g} px from the epipolar line in both images; "
        f"relative pose by {version('poselib')}, {_robust_line(options)}; error: larger of rotation and "
        "translation direction, whose sign is ignored"
    )
    errors = {
        scene: {name: [s.error for s in values if scene in ("all", s.scene)] for name, values in scores.items()}
        for scene in summary
    }
    results = {"settings": settings, "results": summary}
    rows, tables = pose.csv_rows(scores), pose.tables(summary)
    _finish(options, report, tables, line, results, rows, made, lambda path: plots.plot_pose(path, errors))


def _run_localization(options: argparse.Namespace, report: common.Report) -> None:
    device = common.device(options)
    methods = _methods(options, report, device)
    how = MethodOptions(options.features, options.weights, device)
    recipes = [MethodRecipe(method.name, how) for method in methods]
    eval_localization.run(options, report, recipes, _settings(options, methods), device)


def _run_reconstruction(options: argparse.Namespace, report: common.Report) -> None:
    with_colmap = eval_reconstruction.take_colmap(options.compare)
    device = common.device(options)
    how = MethodOptions(options.features, options.weights, device)
    recipes = [MethodRecipe(method.name, how) for method in _methods(options, report, device)]
    eval_reconstruction.run(options, report, recipes, with_colmap, device)


def _methods(options: argparse.Namespace, report: common.Report, device: str) -> list[Method]:
    """The compared methods in the order given, LinGlue last; without a network for these features, without it."""
    how = MethodOptions(options.features, options.weights, device)
    names = [name for name in options.compare if name != "linglue"]
    if has_network(how):
        names.append("linglue")
    else:
        report.line(
            f"linglue is left out: the package has no network for {options.features} features, "
            "give your own with --weights"
        )
    if not names:
        raise LinGlueError("no method to measure, expected for --compare: " + ", ".join(METHODS))
    return [make_method(name, how) for name in names]


def _extraction(options: argparse.Namespace) -> Extraction:
    return Extraction(
        options.features, options.extractor_weights, options.max_keypoints, common.longer_side(options), options.tile
    )


def _settings(options: argparse.Namespace, methods: list[Method]) -> dict[str, Any]:
    """What both tasks record about a run."""
    return {
        "task": options.task,
        "features": options.features,
        "max_keypoints": options.max_keypoints,
        "resize": options.resize,
        "threshold": options.threshold,
        "seed": options.seed,
        "confidence": CONFIDENCE,
        "max_iterations": MAX_ITERATIONS,
        "methods": {method.name: dict(method.settings) for method in methods},
        "versions": {"numpy": np.__version__, "torch": torch.__version__},
    }


def _line(options: argparse.Namespace, methods: Mapping[str, Mapping[str, Any]]) -> str:
    first = next(iter(methods.values()))
    size = f"longer side at most {options.resize}" if options.resize else "original size"
    return (
        f"settings: {options.features}, at most {options.max_keypoints} keypoints ({first['keypoints']:.0f} on "
        f"average), {size}; {first['pairs']} pairs, means per pair"
    )


def _robust_line(options: argparse.Namespace) -> str:
    return (
        f"threshold {options.threshold:g} px, confidence {CONFIDENCE}, at most {MAX_ITERATIONS} iterations, "
        f"seed {options.seed}"
    )


def _finish(
    options: argparse.Namespace,
    report: common.Report,
    tables: list[Table],
    line: str,
    results: dict[str, Any],
    rows: list[dict[str, Any]],
    made: int,
    draw: Callable[[Path], None],
) -> None:
    """Files, tables, and the settings that led to them."""
    files = {"summary": str(options.output / "summary.json"), "pairs": str(options.output / "pairs.csv")}
    write_json(options.output / "summary.json", results)
    write_csv(options.output / "pairs.csv", rows)
    if options.plot is not None:
        draw(options.plot)
        files["plot"] = str(options.plot)
    if not options.markdown:  # a document wants nothing but the tables and how they came about
        report.line(f"{made} predictions made, {len(rows) - made} were there already")
    for table in tables:
        report.line(f"\n{table.markdown() if options.markdown else table.text()}")
    report.line(f"\n{line}\n{TIME_NOTE}", **json_values(results), files=files, predictions_made=made)
    if not options.markdown:
        report.line(f"written: {', '.join(files.values())}")
