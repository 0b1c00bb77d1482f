"""Features and matches of a work folder for hloc, COLMAP or numpy."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TypeVar

from tqdm import tqdm

from linglue.cli import common
from linglue.core.paths import check_name, check_outputs, path_below
from linglue.errors import LinGlueError
from linglue.io.colmap.text import write_match_text
from linglue.io.hloc import save_hloc_features, save_hloc_matches
from linglue.io.npz import save_features

HDF5 = (".h5", ".hdf5")
Item = TypeVar("Item")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    common.add_work(parser)
    parser.add_argument("--hloc-features", type=Path, metavar="FILE.h5", help="features as hloc reads them")
    parser.add_argument("--hloc-matches", type=Path, metavar="FILE.h5", help="matches as hloc reads them")
    parser.add_argument(
        "--colmap-text", type=Path, metavar="FILE.txt", help="matches for `colmap matches_importer --match_type raw`"
    )
    parser.add_argument("--npz", type=Path, metavar="DIR", help="features, one IMAGE.npz per image")
    common.add_json(parser)


def run(options: argparse.Namespace) -> None:
    work = common.check_work(options.work)
    common.check_output(options.hloc_features, HDF5)
    common.check_output(options.hloc_matches, HDF5)
    common.check_output(options.colmap_text, (".txt",))
    if options.npz is not None:
        common.check_folder(options.npz)
    targets = (options.hloc_features, options.hloc_matches, options.colmap_text, options.npz)
    if not any(targets):
        raise LinGlueError("nothing to export, expected --hloc-features, --hloc-matches, --colmap-text and --npz")
    if (options.hloc_matches or options.colmap_text) and not work.matches_file.is_file():
        raise LinGlueError(f"{work.folder}: holds no matches, expected a folder of `linglue match-pairs`")
    ours = (work.features_file, work.matches_file, work.pairs, work.retrieval, work.database, work.summary, work.folder)
    check_outputs(ours, targets)
    report = common.Report(options.json)
    with work.locked(), work.features() as features, work.matches() as matches:
        keypoints, pairs = features.counts(), sorted(matches.counts())
        names = [check_name(name, work.features_file) for name in sorted(keypoints)]
        if options.hloc_features:
            save_hloc_features(options.hloc_features, ((name, features.get(name)) for name in _shown(names, "image")))
        if options.hloc_matches:
            found = ((*pair, *matches.get(*pair)) for pair in _shown(pairs, "pair"))
            save_hloc_matches(options.hloc_matches, found, keypoints)
        if options.colmap_text:
            write_match_text(options.colmap_text, ((*p, matches.get(*p)[0]) for p in _shown(pairs, "pair")))
        if options.npz:
            for name in _shown(names, "image"):
                target = path_below(options.npz, name, ".npz")
                target.parent.mkdir(parents=True, exist_ok=True)
                save_features(target, features.get(name))
    files = [str(path) for path in targets if path]
    report.line(
        f"{len(names)} images, {len(pairs)} pairs; written: {', '.join(files)}",
        images=len(names),
        pairs=len(pairs),
        files=files,
    )
    report.finish()


def _shown(items: Sequence[Item], unit: str) -> Iterable[Item]:
    shown: Iterable[Item] = tqdm(items, unit=unit, desc="export", disable=None)
    return shown
