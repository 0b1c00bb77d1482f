"""`linglue eval localization`: its own options, and how it is run and reported."""

from __future__ import annotations

import argparse
from collections import Counter
from pathlib import Path
from typing import Any

from linglue.cli import common
from linglue.core.optional import need
from linglue.errors import LinGlueError
from linglue.evaluation.known_poses import load_known_scene
from linglue.evaluation.recipes import MethodRecipe, scene_folder
from linglue.evaluation.report import json_values, write_csv, write_json
from linglue.evaluation.tasks import localization
from linglue.localization.absolute_pose import REFERENCE_SIDE, PoseConfig
from linglue.matcher import MAX_KEYPOINTS, RESIZE
from linglue.sfm.retrieval import TOP
from linglue.sfm.workspace import Workspace


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Beside those that all evaluations share."""
    parser.add_argument(
        "scenes",
        type=Path,
        nargs="+",
        metavar="SCENE",
        help="images/ with gt/ or a COLMAP model: leave-one-out; with queries/ too: Aachen's layout",
    )
    parser.add_argument("--model", type=Path, metavar="DIR", help="the COLMAP model, where SCENE has several or none")
    parser.add_argument(
        "--truth", type=Path, metavar="POSES", help="of queries: lines `name qw qx qy qz tx ty tz` (camera from world)"
    )
    parser.add_argument("--top", type=int, default=TOP, metavar="N", help="similar images matched in large scenes")
    parser.add_argument(
        "--threshold",
        type=float,
        default=PoseConfig.max_error,
        metavar="PX",
        help=f"of a keypoint that fits the pose, at a longer side of {REFERENCE_SIDE} pixels",
    )
    common.add_workers(parser)
    parser.set_defaults(plot=None, max_keypoints=MAX_KEYPOINTS, resize=RESIZE)  # what users of the pipeline get


def run(
    options: argparse.Namespace,
    report: common.Report,
    recipes: list[MethodRecipe],
    settings: dict[str, Any],
    device: str,
) -> None:
    """Do what `linglue eval localization` was asked for, and report it."""
    need("pycolmap", "linglue eval localization")
    how = localization.Measurement(
        recipes,
        common.extract_config(options, device),
        PoseConfig(max_error=options.threshold, seed=options.seed),
        options.top,
        common.workers(options, device),
    )
    scores: dict[str, list[localization.ImageScore]] = {recipe.name: [] for recipe in recipes}
    problems: list[str] = []
    poses: list[str] = []
    for scene, measure in [(folder, _loaded(folder, options)) for folder in _checked(options)]:
        measured = measure(Workspace(scene_folder(options.output, scene.resolve().name, how.extract)), how)
        for method, values in measured.scores.items():
            scores[method] += values
        problems += measured.problems
        poses += [str(path) for path in measured.poses.values()]
    summary = localization.summarise(scores)
    settings |= {"scenes": [str(scene) for scene in options.scenes], "top": options.top}
    results = {"settings": settings, "results": summary, "problems": problems}
    files = {"summary": str(options.output / "summary.json"), "images": str(options.output / "images.csv")}
    write_json(options.output / "summary.json", results)
    write_csv(options.output / "images.csv", localization.csv_rows(scores))
    for problem in problems:
        report.line(problem)
    for table in localization.tables(summary):
        report.line(f"\n{table.markdown() if options.markdown else table.text()}")
    size = f"longer side at most {options.resize}" if options.resize else "original size"
    report.line(
        f"\nsettings: {options.features}, at most {options.max_keypoints} keypoints, {size}; known intrinsics; "
        f"error at most {options.threshold:g} px at a longer side of {REFERENCE_SIDE}, at least {how.pose.min_inliers} "
        f"inliers, seed {options.seed}; distances in the unit of the truth",
        **json_values(results),
        files={**files, "poses": poses},
    )
    if not options.markdown:
        report.line(f"written: {', '.join([*files.values(), *poses])}")


def _checked(options: argparse.Namespace) -> list[Path]:
    """The scenes, if all options go with them."""
    scenes: list[Path] = options.scenes
    twice = [name for name, times in Counter(scene.resolve().name for scene in scenes).items() if times > 1]
    if twice:
        raise LinGlueError(f"{twice[0]}: two of the given scenes have this name, expected different ones")
    for option, value in (("--model", options.model), ("--truth", options.truth)):
        if value is not None and len(scenes) > 1:
            raise LinGlueError(f"{option} is {value}, expected only with a single scene")
    if options.top < 1:
        raise LinGlueError(f"--top is {options.top}, expected at least 1")
    return scenes


def _loaded(folder: Path, options: argparse.Namespace) -> Any:
    """What measures the scene: all scenes are read before any is worked on, so that complaints come at once."""
    if localization.is_query_scene(folder):
        queries = localization.load_query_scene(folder, options.model, options.truth)
        return lambda work, how: localization.localize_scene(queries, work, how)
    if options.truth is not None:
        raise LinGlueError(f"--truth is {options.truth}, expected only with a folder queries/ only, {folder} has none")
    known = load_known_scene(folder, options.model)
    return lambda work, how: localization.leave_one_out(known, work, how)
