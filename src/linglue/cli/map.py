"""A sparse model from the features and matches of a work folder as they stand."""

from __future__ import annotations

import argparse
from pathlib import Path

from linglue.cli import common
from linglue.cli.reconstruct import add_mapping, report_summary
from linglue.core.optional import need
from linglue.errors import LinGlueError
from linglue.sfm.cameras import CameraConfig
from linglue.sfm.map import MappingConfig
from linglue.sfm.reconstruct import map_work


def add_arguments(parser: argparse.ArgumentParser) -> None:
    common.add_work(parser)
    parser.add_argument(
        "--images", type=Path, metavar="DIR", help="the images, for EXIF and colours; where they were unless given"
    )
    add_mapping(parser)
    common.add_overwrite(parser)
    common.add_json(parser)


def run(options: argparse.Namespace) -> None:
    need("pycolmap", "linglue map")
    work = common.check_work(options.work)
    if options.images is not None and not options.images.is_dir():
        raise LinGlueError(f"{options.images}: no such folder, expected the folder of the images")
    cameras = CameraConfig(options.camera_model, options.camera_sharing, options.intrinsics)
    mapping = MappingConfig(options.mapper, seed=options.seed)
    report = common.Report(options.json)
    report_summary(report, map_work(work, cameras, mapping, options.images, overwrite=options.overwrite), work)
