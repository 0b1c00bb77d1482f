"""A reconstruction, or the matches of one pair, in the browser."""

from __future__ import annotations

import argparse
from pathlib import Path

from linglue.cli import common
from linglue.errors import LinGlueError

FILES = (".npz", ".json")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `linglue view`."""
    parser.add_argument("source", type=Path, metavar="WORK", help="work folder, or a file of `linglue match -o`")
    parser.add_argument(
        "--images", type=Path, nargs=2, metavar=("A", "B"), help="of a file of matches: moved or other files"
    )
    parser.add_argument("--queries", type=Path, metavar="POSES", help="file of `linglue localize`: shown in blue")
    parser.add_argument("--points", type=int, default=200_000, metavar="N", help="points to show; more are thinned")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on; 0.0.0.0 lets everybody look")
    parser.add_argument("--port", type=int, default=8080, help="0: any that is free")
    common.add_json(parser)


def run(options: argparse.Namespace) -> None:
    """Do what `linglue view` was asked for, until Ctrl-C."""
    from linglue.viewer.contents import WorkContents
    from linglue.viewer.page import silence
    from linglue.viewer.pair import PairViewer
    from linglue.viewer.server import Viewer

    silence()
    report = common.Report(options.json)
    if options.source.suffix.lower() in FILES:
        viewer: Viewer | PairViewer = PairViewer(options.source, options.images, options.host, options.port)
    elif options.images is not None:
        raise LinGlueError(f"--images is given, expected only with a file of matches, {' or '.join(FILES)}")
    else:
        common.check_work(options.source)
        contents = WorkContents(options.source, options.queries, options.points)
        viewer = Viewer(contents, options.host, options.port)
    report.line(f"{viewer.address} (Ctrl-C ends it)", address=viewer.address)
    report.finish()
    try:
        viewer.run()
    finally:
        viewer.close()
