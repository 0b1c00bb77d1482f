"""Features of an hloc file into a work folder, to be matched and reconstructed there."""

from __future__ import annotations

import argparse
from pathlib import Path

from tqdm import tqdm

from linglue.cli import common
from linglue.core.fingerprint import file_sha256
from linglue.errors import LinGlueError
from linglue.features import front_end
from linglue.io.hloc import list_hloc_images, load_hloc_features
from linglue.sfm.workspace import Workspace


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", type=Path, metavar="FEATURES.h5", help="hloc's feature file")
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="WORK", help="work folder")
    parser.add_argument("--features", required=True, metavar="NAME", help="front-end that made them")
    parser.add_argument("--hloc-dog", action="store_true", help="made by hloc's DoG: degrees, and sigma for diameter")
    common.add_json(parser)


def run(options: argparse.Namespace) -> None:
    made_by = front_end(options.features)
    names = list_hloc_images(options.file)
    if not names:
        raise LinGlueError(f"{options.file}: holds no image, expected a feature file of hloc")
    common.check_folder(options.output)
    report = common.Report(options.json)
    work, made_from = Workspace(options.output), file_sha256(options.file)
    keypoints = 0
    with work.locked(), work.features() as store:
        for name in tqdm(names, unit="image", desc="import", disable=None):
            found = load_hloc_features(options.file, name, made_by.name, options.hloc_dog)
            if found.dim != made_by.dim:
                raise LinGlueError(
                    f"{options.file}: descriptors of {name!r} have {found.dim} entries, expected {made_by.dim} "
                    f"for {made_by.name}"
                )
            store.put(name, made_from, found)
            keypoints += len(found)
    report.line(f"{len(names)} images, {keypoints} keypoints", images=len(names), keypoints=keypoints)
    report.finish()
