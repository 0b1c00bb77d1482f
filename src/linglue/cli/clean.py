"""Remove from a work folder what is not current any more."""

from __future__ import annotations

import argparse

from linglue.cli import common
from linglue.sfm.current import current_state


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `linglue clean`."""
    common.add_work(parser)
    parser.add_argument(
        "--model",
        action="store_true",
        help="also database, model, pictures, summary, dense points and report that LinGlue made",
    )
    common.add_json(parser)


def run(options: argparse.Namespace) -> None:
    """Do what `linglue clean` was asked for, and report it."""
    work = common.check_work(options.work)
    report = common.Report(options.json)
    with work.locked(), work.features() as features, work.matches() as matches:
        images = features.prune()
        pairs = matches.prune(current_state(work, features, matches).matched)
        outputs = [path for path, current in work.derived().items() if options.model or not current]
        if options.model:
            outputs += [path for path in work.outputs() if path != work.pairs]
        removed = [str(path) for path in work.remove(outputs)]
        if options.model:
            work.note(mapped={}, verified=None, continued_from=None)
    report.line(
        f"removed: features of {images} images, matches of {pairs} pairs{''.join(f', {path}' for path in removed)}",
        images=images,
        pairs=pairs,
        removed=removed,
    )
    report.finish()
