"""`linglue eval reconstruction`: its own options, and how it is run and reported."""

from __future__ import annotations

import argparse
import os
from collections import Counter
from pathlib import Path
from typing import Any

import torch

from linglue.cli import common
from linglue.core.optional import need
from linglue.errors import LinGlueError
from linglue.evaluation.colmap_sift import ColmapConfig
from linglue.evaluation.methods import METHODS
from linglue.evaluation.recipes import MethodRecipe
from linglue.evaluation.report import json_values, write_csv, write_json
from linglue.evaluation.tasks import reconstruction
from linglue.features import make_extractor
from linglue.matcher import MAX_KEYPOINTS, RESIZE
from linglue.sfm.map import MappingConfig


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Beside those that all evaluations share."""
    parser.add_argument(
        "scenes",
        type=Path,
        nargs="+",
        metavar="SCENE",
        help="images/ with gt/: known intrinsics and true poses; or any folder of photographs",
    )
    common.add_workers(parser)
    parser.set_defaults(
        plot=None,
        threshold=None,
        compare=f"mnn,ratio,adalam,{reconstruction.COLMAP}",
        max_keypoints=MAX_KEYPOINTS,  # what users of the pipeline get
        resize=RESIZE,
    )


def take_colmap(names: list[str]) -> bool:
    """Whether COLMAP's own pipeline is among the methods to compare; it is taken off the list, being no matcher."""
    unknown = [name for name in names if name not in (*METHODS, reconstruction.COLMAP)]
    if unknown:
        raise LinGlueError(f"method is {unknown[0]!r}, expected {', '.join((*METHODS, reconstruction.COLMAP))}")
    if reconstruction.COLMAP not in names:
        return False
    names.remove(reconstruction.COLMAP)
    return True


def run(
    options: argparse.Namespace, report: common.Report, recipes: list[MethodRecipe], with_colmap: bool, device: str
) -> None:
    """Do what `linglue eval reconstruction` was asked for, and report it."""
    need("pycolmap", "linglue eval reconstruction")
    twice = [name for name, times in Counter(scene.resolve().name for scene in options.scenes).items() if times > 1]
    if twice:
        raise LinGlueError(f"{twice[0]}: two of the given scenes have this name, expected different ones")
    scenes = [reconstruction.load_scene(folder) for folder in options.scenes]
    make_extractor(options.features, options.extractor_weights, device)  # what it lacks is said before any work
    workers = common.workers(options, device)
    # As many as one of our workers has, so that times per pair can be compared.
    threads = torch.get_num_threads() if workers == 1 else max(1, (os.cpu_count() or 1) // workers)
    how = reconstruction.Measurement(
        recipes,
        common.extract_config(options, device),
        MappingConfig(seed=options.seed),
        workers,
        ColmapConfig(options.max_keypoints, common.longer_side(options), threads, options.seed)
        if with_colmap
        else None,
    )
    scores = [score for scene in scenes for score in reconstruction.measure(scene, options.output, how)]
    summary = reconstruction.summarise(scores)
    results: dict[str, Any] = {
        "settings": {
            "task": options.task,
            "scenes": [str(scene) for scene in options.scenes],
            **how.extract.settings(),
            "seed": options.seed,
            "methods": {recipe.name: dict(recipe.build().settings) for recipe in recipes},
            "colmap": need("pycolmap", "linglue eval reconstruction").__version__,
        },
        "results": summary,
    }
    files = {"summary": str(options.output / "summary.json"), "cameras": str(options.output / "cameras.csv")}
    write_json(options.output / "summary.json", results)
    write_csv(options.output / "cameras.csv", reconstruction.csv_rows(scores))
    made = sum(score.made for score in scores)
    if not options.markdown:
        report.line(f"{made} models made, {len(scores) - made} were there already")
    for score in scores:
        if score.reason is not None:
            report.line(f"{score.scene}, {score.method}: {score.reason}")
    for table in reconstruction.tables(summary):
        report.line(f"\n{table.markdown() if options.markdown else table.text()}")
    report.line(f"\n{_line(options, with_colmap)}", **json_values(results), files=files, models_made=made)
    if not options.markdown:
        report.line(f"written: {', '.join(files.values())}")


def _line(options: argparse.Namespace, with_colmap: bool) -> str:
    """How the table came about."""
    size = f"longer side at most {options.resize}" if options.resize else "original size"
    line = (
        f"settings: {options.features}, at most {options.max_keypoints} keypoints, {size}, seed {options.seed}; same "
        "features, pairs, verification, mapper and robust refinement for all matchers; known intrinsics given where "
        "a scene has gt/; mm if its truth is in metres, after the best similarity; time: median of matching a pair"
    )
    if with_colmap:
        line += (
            f"\n{reconstruction.COLMAP}: its own CPU SIFT, matcher (all pairs, mean time) and mapper with default "
            "options, without our refinement; it keeps whole scales of its SIFT, so more keypoints than allowed"
        )
    return line
