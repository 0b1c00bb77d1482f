"""`linglue match` of a folder or a list of pairs: a line per pair, and a file each below -o and --draw."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from linglue.cli import common
from linglue.cli.match import geometry_config
from linglue.core.paths import path_below
from linglue.errors import LinGlueError
from linglue.features import front_end
from linglue.io.images import IMAGE_SUFFIXES
from linglue.io.npz import save_matches
from linglue.io.pair_list import Pair
from linglue.sfm.export_model import check_new_folder
from linglue.sfm.match_images import find_pairs, match_images
from linglue.sfm.two_view import GeometryConfig, estimate_geometry
from linglue.types import Matches


def run_many(options: argparse.Namespace) -> None:
    """Do what `linglue match FOLDER` or `linglue match LIST` was asked for, and report it."""
    source = Path(options.image0)
    for option in ("mask0", "mask1"):
        if getattr(options, option) is not None:
            raise LinGlueError(f"--{option} is {getattr(options, option)}, expected only with two images")
    if not source.exists():
        raise LinGlueError(f"{source}: no such folder or list of pairs, expected one of them, or two images A B")
    if source.is_file() and source.suffix.lower() in IMAGE_SUFFIXES:
        raise LinGlueError(f"{source}: is one image, expected a second one, a folder of images or a list of pairs")
    pairs, paths = find_pairs(source, options.images)
    for folder in (options.output, options.draw):
        if folder is not None:
            check_new_folder(folder)
    geometry, device = geometry_config(options), common.device(options)
    extract = common.extract_config(options, device)
    matcher = common.matcher_config(options, front_end(options.features).name, device).build()

    def features_of(path: Path) -> Any:
        return extract.extractor().extract(path, extract.max_keypoints, extract.resize, tile=extract.tile)

    report, found = common.Report(options.json), []
    problems: dict[str, None] = {}  # each is said once
    for pair, matches in match_images(pairs, paths, features_of, matcher):
        if isinstance(matches, str):
            problems[matches] = None
        else:
            found.append(_report_pair(options, report, pair, matches, geometry))
    for problem in problems:
        report.line(problem)
    report.line(
        f"{len(found)} of {len(pairs)} pairs matched" + (f", written: {options.output}" if options.output else ""),
        pairs=found,
        problems=list(problems),
    )
    report.finish()
    if not found:
        raise LinGlueError(f"{source}: none of its pairs could be matched")


def _report_pair(
    options: argparse.Namespace, report: common.Report, pair: Pair, matches: Matches, geometry: GeometryConfig | None
) -> dict[str, Any]:
    """Write and draw what was asked for; the facts of the pair."""
    facts: dict[str, Any] = {"images": list(pair), "matches": len(matches), "pair_score": matches.pair_score}
    line = f"{pair[0]} {pair[1]}: {len(matches)} matches, pair score {matches.pair_score:.2f}"
    arrays: dict[str, Any] = {}
    if geometry is not None:
        view = estimate_geometry(matches, geometry)
        matches, facts["inliers"] = view.matches, len(view.matches)
        line += f", {len(matches)} obey one {geometry.kind} geometry"
        if view.matrix is not None:
            arrays[geometry.kind] = view.matrix
    if options.output is not None:
        target = path_below(options.output, "/".join(pair), ".npz")
        target.parent.mkdir(parents=True, exist_ok=True)
        save_matches(target, matches, arrays)
    if options.draw is not None:
        picture = path_below(options.draw, "/".join(pair), ".jpg")
        picture.parent.mkdir(parents=True, exist_ok=True)
        matches.draw(picture, options.lines or None)
    report.line(line)
    return facts
