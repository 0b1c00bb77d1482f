"""Replace the matches in a COLMAP database of SIFT features by better ones; interrupted work is resumed."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path

from linglue.cli import common
from linglue.core.progress import Stopwatch
from linglue.matcher import MatcherConfig
from linglue.matching.match import MatchingConfig
from linglue.sfm.match_database import EXHAUSTIVE, EXISTING, match_database


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `linglue match-database`."""
    parser.add_argument("database", type=Path, metavar="DATABASE", help="made by `colmap feature_extractor`")
    parser.add_argument(
        "--pairs",
        default=EXISTING,
        metavar="WHICH",
        help=f"{EXISTING}: those the database has matches of; {EXHAUSTIVE}: all; or a file, two names and a tab a line",
    )
    parser.add_argument(
        "--verify",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="estimate the two-view geometries, without which no mapper can start",
    )
    parser.add_argument(
        "--weights", type=Path, metavar="FILE", help="your own network instead of the one in the package"
    )
    common.add_effort(parser)
    common.add_device(parser)
    common.add_json(parser)


def run(options: argparse.Namespace) -> None:
    """Do what `linglue match-database` was asked for, and report it."""
    matching = MatchingConfig(effort=options.effort)
    matcher = MatcherConfig(features="sift", weights=options.weights, device=common.device(options), matching=matching)
    report = common.Report(options.json)
    watch = Stopwatch("cpu")
    with watch.stage("total"):
        result = match_database(options.database, options.pairs, matcher, options.verify)
    report.line(
        f"{result.made} pairs matched, {result.kept} were there already; {result.matches} matches",
        **asdict(result),
        database=str(options.database),
        seconds=watch.seconds["total"],
    )
    if result.verified is not None:
        report.line(f"{result.verified} pairs verified, {result.inliers} inliers")
    report.finish()
