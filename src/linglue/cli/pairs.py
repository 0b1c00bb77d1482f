"""Choose which images of a work folder are to be matched."""

from __future__ import annotations

import argparse
from pathlib import Path

from linglue.cli import common
from linglue.cli.pair_options import add_pairs, pairs_config
from linglue.errors import LinGlueError
from linglue.io.pair_list import write_pairs
from linglue.sfm.pairs import choose_pairs
from linglue.sfm.reconstruct import pairs_fingerprint


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `linglue pairs`."""
    common.add_work(parser)
    add_pairs(parser)
    parser.add_argument(
        "--images",
        type=Path,
        metavar="DIR",
        help="the images, to read positions from their EXIF; where they were extracted from unless given",
    )
    common.add_overwrite(parser)
    common.add_json(parser)


def run(options: argparse.Namespace) -> None:
    """Do what `linglue pairs` was asked for, and report it."""
    config, work = pairs_config(options), common.check_work(options.work)
    if options.images is not None and not options.images.is_dir():
        raise LinGlueError(f"{options.images}: no such folder, expected the folder of the images")
    report = common.Report(options.json)
    with work.locked(), work.features() as features:
        work.check_free([work.pairs], options.overwrite)
        names = [name for name, count in sorted(features.counts().items()) if count]
        paths = features.paths() if options.images is None else {name: options.images / name for name in names}
        pairs = choose_pairs(config, names, features.get, paths)
        with work.making(work.pairs, pairs_fingerprint(config, names, features)):
            write_pairs(work.pairs, pairs)
    method = config.method_for(len(names))
    report.line(
        f"{len(pairs)} pairs of {len(names)} images ({method})", pairs=len(pairs), images=len(names), method=method
    )
    report.line(f"written: {work.pairs}", output=str(work.pairs))
    report.finish()
