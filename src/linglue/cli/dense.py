"""Dense points of a reconstruction, with colours and normals, as a PLY file; killed runs resume."""

from __future__ import annotations

import argparse
from pathlib import Path

from linglue.cli import common


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `linglue dense`."""
    common.add_work(parser)
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="FILE.ply")
    parser.add_argument("--resize", type=int, default=1024, metavar="LONGER_SIDE", help="work at this size")
    parser.add_argument("--neighbours", type=int, default=4, metavar="N", help="images each one is compared with")
    parser.add_argument("--planes", type=int, default=256, metavar="N", help="depths that are tried, at most")
    parser.add_argument("--agree", type=int, default=2, metavar="N", help="neighbours that must find the same surface")
    parser.add_argument(
        "--stereo",
        choices=("sweep", "colmap"),
        default="sweep",
        help="our plane sweep, or COLMAP's PatchMatch, which needs a COLMAP built with CUDA and takes --resize only",
    )
    common.add_device(parser)
    common.add_json(parser)


def run(options: argparse.Namespace) -> None:
    """Do what `linglue dense` was asked for, and report it."""
    from linglue.dense.dense import DenseConfig, densify
    from linglue.dense.fuse import FuseConfig

    work = common.check_work(options.work)
    common.check_output(options.output, (".ply",))
    config = DenseConfig(
        longer_side=options.resize,
        neighbours=options.neighbours,
        planes=options.planes,
        device=common.device(options),
        stereo=options.stereo,
        fusion=FuseConfig(agree=options.agree),
    )
    report = common.Report(options.json)
    with work.locked():
        cloud = densify(work, options.output, config)
    report.line(f"{options.output}: {len(cloud)} points", file=str(options.output), points=len(cloud))
    for problem in common.model_problems(work):
        report.line(problem)
    report.finish()
