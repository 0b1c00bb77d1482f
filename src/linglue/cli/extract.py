"""Extract the features of a folder of images, or of a single one; what is there already is kept."""

from __future__ import annotations

import argparse
from pathlib import Path

from linglue.cli import common
from linglue.errors import LinGlueError
from linglue.features import make_extractor
from linglue.io.npz import save_features
from linglue.sfm.extract import extract_images
from linglue.sfm.scan import check_images, scan_images
from linglue.sfm.workspace import Workspace


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `linglue extract`."""
    common.add_images(parser)
    parser.add_argument(
        "-o", "--output", type=Path, required=True, metavar="WORK", help="work folder; or FILE.npz for one image"
    )
    common.add_front_end(parser)
    common.add_extraction(parser)
    common.add_overwrite(parser)
    common.add_engine(parser)
    common.add_device(parser)
    common.add_json(parser)


def run(options: argparse.Namespace) -> None:
    """Do what `linglue extract` was asked for, and report it."""
    if options.output.suffix.lower() == ".npz":
        _extract_one(options)
    else:
        _extract_folder(options)


def _extract_one(options: argparse.Namespace) -> None:
    for option, value in (("--masks", options.masks), ("--image-list", options.image_list)):
        if value is not None:
            raise LinGlueError(f"{option} is {value}, expected a folder of images with it")
    common.check_output(options.output, (".npz",))
    report = common.Report(options.json)
    extractor = make_extractor(options.features, options.extractor_weights, common.device(options))
    features = extractor.extract(options.images, options.max_keypoints, common.longer_side(options), tile=options.tile)
    save_features(options.output, features)
    report.line(f"{options.images}: {len(features)} {features.kind} keypoints", keypoints=len(features))
    report.line(f"written: {options.output}", output=str(options.output))
    report.finish()


def _extract_folder(options: argparse.Namespace) -> None:
    device = common.device(options)
    config = common.extract_config(options, device)
    scan = common.scan_config(options)
    check_images(options.images, scan)
    common.check_folder(options.output)
    settings = config.settings()  # what the front-end lacks is said before anything is written
    engine = common.engine(options, device)
    report = common.Report(options.json)
    work = Workspace(options.output)
    with work.locked(), work.features(repair=True) as store:
        if store.imported():
            if not options.overwrite:
                raise LinGlueError(
                    f"{store.path}: holds imported features, expected another WORK, or --overwrite to replace them"
                )
            store.expect({})
        found = scan_images(options.images, store, scan, work.not_images(options.images))
        result = extract_images(found.images, config, store, engine)
        stale = len(store.stale())
        problems = [*found.problems, *result.problems]
        if not result.images:
            for problem in problems:
                report.line(problem)
            raise LinGlueError(f"{options.images}: none of its images could be used, expected at least one")
        work.note(extract=settings, images=str(options.images.absolute()))
    report.line(
        f"{result.made} images extracted, {result.kept} were there already; "
        f"{result.keypoints} {config.features} keypoints in {len(result.images)} images",
        made=result.made,
        kept=result.kept,
        images=len(result.images),
        keypoints=result.keypoints,
        problems=problems,
    )
    if stale:
        report.line(f"{stale} images of earlier runs are not current any more", stale=stale)
    for problem in [*problems, *found.notes]:
        report.line(problem)
    report.finish()
