"""Features, matches and model of a work folder for hloc, COLMAP, numpy, viewers and splatting."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from linglue.cli import common
from linglue.core.paths import check_name, path_below
from linglue.core.progress import progress
from linglue.errors import LinGlueError

if TYPE_CHECKING:
    from linglue.sfm.current import Current
    from linglue.sfm.store import FeatureStore, MatchStore
    from linglue.sfm.workspace import Workspace

HDF5 = (".h5", ".hdf5")
Item = TypeVar("Item")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `linglue export`."""
    common.add_work(parser)
    parser.add_argument("--hloc-features", type=Path, metavar="FILE.h5", help="features as hloc reads them")
    parser.add_argument("--hloc-matches", type=Path, metavar="FILE.h5", help="matches as hloc reads them")
    parser.add_argument(
        "--colmap-text", type=Path, metavar="FILE.txt", help="matches for `colmap matches_importer --match_type raw`"
    )
    parser.add_argument("--npz", type=Path, metavar="DIR", help="features, one IMAGE.npz per image; a new folder")
    parser.add_argument("--ply", type=Path, metavar="FILE.ply", help="the points of the model, with colours")
    parser.add_argument("--model-text", type=Path, metavar="DIR", help="the model in COLMAP's text files; a new folder")
    parser.add_argument(
        "--undistorted",
        type=Path,
        metavar="DIR",
        help="images without distortion, their model as 3DGS reads it, transforms.json for nerfstudio; a new folder",
    )
    parser.add_argument("--images", type=Path, metavar="DIR", help="the images; where they were unless given")
    common.add_json(parser)


def run(options: argparse.Namespace) -> None:
    """Do what `linglue export` was asked for, and report it."""
    from linglue.sfm.current import current_state, model_state

    work = common.check_work(options.work)
    _check_outputs(options, work)
    report = common.Report(options.json)
    with work.reading(), work.features() as features, common.stored_matches(work) as matches:
        state, stale = current_state(work, features, matches), features.stale()
        if (options.hloc_features or options.npz) and not state.counts:
            raise LinGlueError(f"{work.folder}: holds no current features, expected those of `linglue extract`")
        if (options.hloc_matches or options.colmap_text) and not state.matched:
            raise LinGlueError(f"{work.folder}: holds no current matches, expected those of `linglue match-pairs`")
        _export_features(options, sorted(state.counts), features)
        if matches is not None:
            _export_matches(options, state, matches)
        _export_model(options, work, features)
        model = model_state(work, features, state)
    files = [str(path) for path in _targets(options) if path]
    problems = state.problems()
    if stale:
        problems.insert(0, f"{len(stale)} images are not current any more, left out")
    if (options.ply or options.model_text or options.undistorted) and model not in ("current", None):
        problems.insert(0, f"the model is {model}")
    report.line(
        f"{len(state.counts)} images, {len(state.matched)} pairs; written: {', '.join(files)}",
        images=len(state.counts),
        pairs=len(state.matched),
        files=files,
        problems=problems,
    )
    for problem in problems:
        report.line(problem)
    report.finish()


def _targets(options: argparse.Namespace) -> tuple[Path | None, ...]:
    files = (options.hloc_features, options.hloc_matches, options.colmap_text, options.npz)
    return (*files, options.ply, options.model_text, options.undistorted)


def _check_outputs(options: argparse.Namespace, work: Workspace) -> None:
    from linglue.sfm.export_model import check_new_folder

    ours = (work.features_file, work.matches_file, work.pairs, work.retrieval, work.database, work.summary, work.folder)
    common.check_outputs(ours, _targets(options))
    if not any(_targets(options)):
        raise LinGlueError("nothing to export, expected --hloc-features, --hloc-matches, --npz, --ply or another")
    common.check_output(options.hloc_features, HDF5)
    common.check_output(options.hloc_matches, HDF5)
    common.check_output(options.colmap_text, (".txt",))
    common.check_output(options.ply, (".ply",))
    if options.images is not None and not options.images.is_dir():
        raise LinGlueError(f"{options.images}: no such folder, expected the folder of the images")
    for folder in (options.npz, options.model_text, options.undistorted):
        if folder is not None:
            check_new_folder(folder)
    if (options.hloc_matches or options.colmap_text) and not work.matches_file.is_file():
        raise LinGlueError(f"{work.folder}: holds no matches, expected a folder of `linglue match-pairs`")
    if (options.ply or options.model_text or options.undistorted) and not work.model.is_dir():
        raise LinGlueError(f"{work.folder}: holds no model, expected a folder of `linglue reconstruct`")


def _export_features(options: argparse.Namespace, names: list[str], features: FeatureStore) -> None:
    from linglue.io.hloc import save_hloc_features
    from linglue.io.npz import save_features
    from linglue.sfm.export_model import new_folder

    if options.hloc_features:
        save_hloc_features(options.hloc_features, ((name, features.get(name)) for name in _shown(names, "image")))
    if options.npz:
        with new_folder(options.npz) as partial:
            for name in _shown(names, "image"):
                target = path_below(partial, check_name(name, features.path), ".npz")
                target.parent.mkdir(parents=True, exist_ok=True)
                save_features(target, features.get(name))


def _export_matches(options: argparse.Namespace, state: Current, matches: MatchStore) -> None:
    from linglue.io.colmap.text import write_match_text
    from linglue.io.hloc import save_hloc_matches

    pairs = sorted(state.matched)
    if options.hloc_matches:
        found = ((*pair, *matches.get(*pair)) for pair in _shown(pairs, "pair"))
        save_hloc_matches(options.hloc_matches, found, state.counts)
    if options.colmap_text:
        write_match_text(options.colmap_text, ((*p, matches.get(*p)[0]) for p in _shown(pairs, "pair")))


def _export_model(options: argparse.Namespace, work: Workspace, features: FeatureStore) -> None:
    from linglue.sfm.export_model import export_ply, export_text, export_undistorted

    if options.ply:
        export_ply(work.model, options.ply)
    if options.model_text:
        export_text(work.model, options.model_text)
    if options.undistorted:
        paths = features.paths()
        if options.images is not None:
            paths = {name: options.images / name for name in features.names()}
        export_undistorted(work.model, paths, options.undistorted)


def _shown(items: Sequence[Item], unit: str) -> Iterable[Item]:
    shown: Iterable[Item] = progress(items, unit=unit, desc="export")
    return shown
