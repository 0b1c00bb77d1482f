"""A folder of photographs to a sparse COLMAP model; killed runs go on where they were."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path
from typing import get_args

from linglue.cli import common
from linglue.cli.pair_options import add_pairs, pairs_config
from linglue.core.optional import need
from linglue.features import make_extractor
from linglue.matcher import MatcherConfig
from linglue.sfm.cameras import CameraConfig, Sharing
from linglue.sfm.map import MapperName, MappingConfig
from linglue.sfm.reconstruct import ReconstructConfig, reconstruct
from linglue.sfm.scan import check_images
from linglue.sfm.workspace import Workspace


def add_arguments(parser: argparse.ArgumentParser) -> None:
    common.add_images(parser)
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="WORK", help="work folder")
    common.add_front_end(parser)
    common.add_extraction(parser)
    common.add_weights(parser)
    add_pairs(parser)
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
        help="known ones, kept as they are: fx,fy,cx,cy or MODEL,p1,p2,… for all photographs, or a file with lines "
        "`name MODEL width height p1 p2 …`; COLMAP's origin, the corner of the top-left pixel",
    )
    group.add_argument("--mapper", choices=get_args(MapperName), default=MappingConfig.mapper, help="COLMAP's mapper")
    parser.add_argument("--seed", type=int, default=MappingConfig.seed, help="of everything random")
    common.add_workers(parser)
    common.add_device(parser)
    common.add_json(parser)


def run(options: argparse.Namespace) -> None:
    need("pycolmap", "linglue reconstruct")
    device = common.device(options)
    config = ReconstructConfig(
        extract=common.extract_config(options, device),
        pairs=pairs_config(options),
        pair_list=options.pair_list,
        positions=options.positions,
        matcher=MatcherConfig(features=options.features, weights=options.weights, device=device),
        cameras=CameraConfig(options.camera_model, options.camera_sharing, options.intrinsics),
        mapping=MappingConfig(options.mapper, seed=options.seed),
        masks=options.masks,
        workers=common.workers(options, device),
    )
    check_images(options.images, options.masks, least=2)
    common.check_folder(options.output)
    # What the front-end or the network lacks is said before anything is written.
    make_extractor(options.features, options.extractor_weights, device)
    config.matcher.build()
    report = common.Report(options.json)
    work = Workspace(options.output)
    summary = reconstruct(options.images, work, config)
    for line in summary.lines():
        report.line(line)
    files = {"model_folder": str(work.model), "pictures": str(work.pictures)}
    report.line(f"written: {work.model}, {work.summary}, {work.pictures}", **asdict(summary), **files)
    report.finish()
