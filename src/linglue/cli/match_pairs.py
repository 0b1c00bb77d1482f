"""Match the chosen pairs of a work folder; what is there already is kept."""

from __future__ import annotations

import argparse

from linglue.cli import common
from linglue.errors import LinGlueError
from linglue.io.pair_list import read_pairs
from linglue.matcher import MatcherConfig
from linglue.sfm.match import match_pairs


def add_arguments(parser: argparse.ArgumentParser) -> None:
    common.add_work(parser)
    common.add_weights(parser)
    common.add_workers(parser)
    common.add_device(parser)
    common.add_json(parser)


def run(options: argparse.Namespace) -> None:
    work = common.check_work(options.work)
    if not work.pairs.is_file():
        raise LinGlueError(f"{work.folder}: holds no {work.pairs.name}, expected a folder of `linglue pairs`")
    device = common.device(options)
    workers = common.workers(options, device)
    report = common.Report(options.json)
    with work.locked(), work.features() as features, work.matches() as matches:
        pairs = read_pairs(work.pairs)
        kind = features.kind()
        matcher = MatcherConfig(features=kind, weights=options.weights, device=device)
        result = match_pairs(pairs, matcher, features, matches, workers)
    report.line(
        f"{result.made} pairs matched, {result.kept} were there already; {result.matches} matches, "
        f"{result.seconds / max(1, len(pairs)):.2f} s per pair",
        made=result.made,
        kept=result.kept,
        matches=result.matches,
        seconds=result.seconds,
    )
    report.finish()
