"""Choose which photographs of a work folder are to be matched."""

from __future__ import annotations

import argparse
from pathlib import Path

from linglue.cli import common
from linglue.cli.pair_options import add_pairs, pairs_config
from linglue.errors import LinGlueError
from linglue.io.pair_list import write_pairs
from linglue.sfm.pairs import choose_pairs
from linglue.sfm.positions import exif_positions, read_positions


def add_arguments(parser: argparse.ArgumentParser) -> None:
    common.add_work(parser)
    add_pairs(parser)
    parser.add_argument("--images", type=Path, metavar="DIR", help="the photographs, to read positions from their EXIF")
    common.add_json(parser)


def run(options: argparse.Namespace) -> None:
    config, work = pairs_config(options), common.check_work(options.work)
    if config.method == "positions" and options.positions is None and options.images is None:
        raise LinGlueError("--pairs is positions, expected only with --images DIR (EXIF) or --positions FILE only")
    report = common.Report(options.json)
    with work.locked(), work.features() as features:
        names = [name for name, count in sorted(features.counts().items()) if count]
        positions = None
        if config.method == "positions":
            paths = {} if options.images is None else {name: options.images / name for name in names}
            positions = exif_positions(paths) if options.positions is None else read_positions(options.positions)
        pairs = choose_pairs(config, names, features.get, positions, options.pair_list)
        write_pairs(work.pairs, pairs)
    method = config.method_for(len(names))
    report.line(
        f"{len(pairs)} pairs of {len(names)} images ({method})", pairs=len(pairs), images=len(names), method=method
    )
    report.line(f"written: {work.pairs}", output=str(work.pairs))
    report.finish()
