"""Match the chosen pairs of a work folder; what is there already is kept."""

from __future__ import annotations

import argparse

from linglue.cli import common
from linglue.errors import LinGlueError
from linglue.sfm.current import current_state
from linglue.sfm.match import match_pairs


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `linglue match-pairs`."""
    common.add_work(parser)
    common.add_matching(parser)
    common.add_engine(parser)
    common.add_device(parser)
    common.add_json(parser)


def run(options: argparse.Namespace) -> None:
    """Do what `linglue match-pairs` was asked for, and report it."""
    work = common.check_work(options.work)
    if not work.pairs.is_file():
        raise LinGlueError(f"{work.folder}: holds no {work.pairs.name}, expected a folder of `linglue pairs`")
    device = common.device(options)
    engine = common.engine(options, device)
    report = common.Report(options.json)
    with work.locked(), work.features() as features, work.matches(repair=True) as matches:
        state = current_state(work, features, matches)
        if not state.pairs:
            raise LinGlueError(f"{work.pairs}: holds no pair of current images, expected a list of `linglue pairs`")
        matcher = common.matcher_config(options, features.kind(), device)
        result = match_pairs(state.pairs, matcher, features, matches, engine)
        problems = current_state(work, features, matches).problems()
    report.line(
        f"{result.made} pairs matched, {result.kept} were there already; {result.matches} matches, "
        f"{result.seconds / len(state.pairs):.2f} s per pair",
        made=result.made,
        kept=result.kept,
        matches=result.matches,
        seconds=result.seconds,
        problems=problems,
    )
    for problem in problems:
        report.line(problem)
    report.finish()
