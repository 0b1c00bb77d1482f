"""One HTML file about a reconstruction, to look at and to send on."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from linglue.cli import common
from linglue.errors import LinGlueError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `linglue report`."""
    common.add_work(parser)
    parser.add_argument(
        "-o", "--output", type=Path, metavar="FILE.html", help="the file; WORK/report.html unless given"
    )
    parser.add_argument("--pairs", type=int, default=3, metavar="N", help="best and worst pairs to show, each")
    parser.add_argument("--points", type=int, default=40_000, metavar="N", help="points to show; more are thinned")
    common.add_json(parser)


def run(options: argparse.Namespace) -> None:
    """Do what `linglue report` was asked for, and report it."""
    from linglue.sfm.report import ReportConfig, write_report

    work = common.check_work(options.work)
    common.check_output(options.output, (".html",))
    if options.output is None and not os.access(work.folder, os.W_OK):
        raise LinGlueError(f"{work.folder}: cannot be written, expected a file elsewhere: -o FILE.html")
    report = common.Report(options.json)
    config = ReportConfig(options.pairs, options.points)
    with work.reading():
        if options.output is not None:
            write_report(work, options.output, config)
        else:
            work.check_free([work.report], expected="another file by -o")
            with work.making(work.report, work.model_id() or ""):
                write_report(work, work.report, config)
    output = options.output or work.report
    size = output.stat().st_size
    report.line(f"{output}: {size / 1e6:.1f} MB", file=str(output), bytes=size)
    for problem in common.model_problems(work):
        report.line(problem)
    report.finish()
