"""Features of an hloc file into a work folder, to be matched and reconstructed there."""

from __future__ import annotations

import argparse
from pathlib import Path

from linglue.cli import common
from linglue.core.paths import check_name
from linglue.core.progress import progress
from linglue.errors import LinGlueError
from linglue.features import front_end
from linglue.io.hloc import list_hloc_images, load_hloc_features
from linglue.sfm.store import FeatureStore, features_sha256
from linglue.sfm.workspace import Workspace
from linglue.types import Features


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `linglue import-hloc`."""
    parser.add_argument("file", type=Path, metavar="FEATURES.h5", help="hloc's feature file")
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="WORK", help="work folder")
    parser.add_argument("--features", required=True, metavar="NAME", help="front-end that made them")
    parser.add_argument("--hloc-dog", action="store_true", help="made by hloc's DoG: degrees, and sigma for diameter")
    common.add_overwrite(parser)
    common.add_json(parser)


def run(options: argparse.Namespace) -> None:
    """Do what `linglue import-hloc` was asked for, and report it."""
    kind = front_end(options.features).name
    names = list_hloc_images(options.file)
    if not names:
        raise LinGlueError(f"{options.file}: holds no image, expected a feature file of hloc")
    for name in names:
        check_name(name, options.file)
    _load(options, names[0])  # a file of other features is refused before anything is written
    common.check_folder(options.output)
    report = common.Report(options.json)
    work, keypoints = Workspace(options.output), 0
    with work.locked(), work.features() as store, store.all_or_nothing():
        _check_kind(store, kind, options.overwrite)
        for name in progress(names, unit="image", desc="import"):
            found = _load(options, name)
            store.put(name, features_sha256(found), found, imported=True)
            keypoints += len(found)
    work.note(extract={"imported": str(options.file.absolute())})
    report.line(f"{len(names)} images, {keypoints} keypoints", images=len(names), keypoints=keypoints)
    report.finish()


def _load(options: argparse.Namespace, name: str) -> Features:
    made_by = front_end(options.features)
    return load_hloc_features(options.file, name, made_by.name, options.hloc_dog, made_by.dim)


def _check_kind(store: FeatureStore, kind: str, overwrite: bool) -> None:
    """Refuse a folder of other features; with --overwrite they are not current any more."""
    if overwrite:
        store.expect({})
    elif store.names() and not store.imported():
        raise LinGlueError(f"{store.path}: holds extracted features, expected another WORK, or --overwrite")
    elif store.names() and store.kind() != kind:
        raise LinGlueError(
            f"{store.path}: holds {store.kind()} features, expected {kind}, another WORK, or --overwrite"
        )
