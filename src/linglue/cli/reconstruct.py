"""A folder of images to a sparse COLMAP model; killed runs resume."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path
from typing import get_args

from linglue.cli import common
from linglue.cli.pair_options import add_pairs, pairs_config
from linglue.core.optional import need
from linglue.errors import LinGlueError
from linglue.features import DEFAULT_FEATURES, front_end
from linglue.sfm.cameras import CameraConfig, Sharing
from linglue.sfm.map import MAPPERS, MappingConfig
from linglue.sfm.match import build_matcher
from linglue.sfm.reconstruct import ReconstructConfig, reconstruct
from linglue.sfm.scan import check_images
from linglue.sfm.summary import Summary
from linglue.sfm.workspace import Workspace


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `linglue reconstruct`."""
    common.add_images(parser)
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="WORK", help="work folder")
    common.add_front_end(parser)
    common.add_extraction(parser)
    common.add_matching(parser)
    add_pairs(parser)
    add_mapping(parser)
    common.add_overwrite(parser)
    common.add_engine(parser)
    common.add_device(parser)
    common.add_json(parser)


def add_mapping(parser: argparse.ArgumentParser) -> None:
    """Options of cameras and model, which `linglue map` has, too."""
    group = parser.add_argument_group("cameras and model")
    group.add_argument("--camera-model", default=CameraConfig.model, metavar="MODEL", help="COLMAP's name")
    group.add_argument(
        "--camera-sharing",
        choices=get_args(Sharing),
        default=CameraConfig.sharing,
        help="who has the same camera: all of one size and EXIF in a folder, all, all of a folder, nobody",
    )
    group.add_argument(
        "--intrinsics",
        metavar="VALUES",
        help="known ones, kept as they are: fx,fy,cx,cy or MODEL,p1,p2,… for all images, or a file with lines "
        "`name MODEL width height p1 p2 …`; COLMAP's origin, the corner of the top-left pixel",
    )
    group.add_argument(
        "--mapper",
        metavar="NAME",
        default=MappingConfig.mapper,
        help=f"COLMAP's {' or '.join(MAPPERS.names())}, or package:function",
    )
    parser.add_argument("--seed", type=int, default=MappingConfig.seed, help="of everything random")


def run(options: argparse.Namespace) -> None:
    """Do what `linglue reconstruct` was asked for, and report it."""
    need("pycolmap", "linglue reconstruct")
    device, work = common.device(options), Workspace(options.output)
    imported = _imported_kind(work)
    kind = imported or front_end(options.features).name
    if imported is not None and options.features != DEFAULT_FEATURES and front_end(options.features).name != imported:
        raise LinGlueError(
            f"--features is {options.features}, expected {imported}: {work.folder} holds imported features of it"
        )
    scan = common.scan_config(options)
    check_images(options.images, scan, least=2)
    common.check_folder(options.output)
    config = ReconstructConfig(
        extract=common.extract_config(options, device),
        pairs=pairs_config(options),
        matcher=common.matcher_config(options, kind, device),
        cameras=CameraConfig(options.camera_model, options.camera_sharing, options.intrinsics),
        mapping=MappingConfig(options.mapper, seed=options.seed),
        scan=scan,
        engine=common.engine(options, device),
        overwrite=options.overwrite,
    )
    # What the front-end or the network lacks is said before anything is written.
    if imported is None:
        config.extract.extractor()
    build_matcher(config.matcher)
    report = common.Report(options.json)
    report_summary(report, reconstruct(options.images, work, config), work)


def report_summary(report: common.Report, summary: Summary, work: Workspace) -> None:
    """What `linglue reconstruct` and `linglue map` print."""
    for line in summary.lines():
        report.line(line)
    files = {"model_folder": str(work.model), "pictures": str(work.pictures)}
    report.line(f"written: {work.model}, {work.summary}, {work.pictures}", **asdict(summary), **files)
    report.finish()


def _imported_kind(work: Workspace) -> str | None:
    """The front-end of imported features, if the folder holds such."""
    if not work.features_file.is_file():
        return None
    with work.features() as store:
        return store.kind() if store.imported() else None
