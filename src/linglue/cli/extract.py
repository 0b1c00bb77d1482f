"""Extract features of photographs into .npz files; what is there already is kept, so it can be interrupted."""

from __future__ import annotations

import argparse
from pathlib import Path

from tqdm import tqdm

from linglue.cli import common
from linglue.errors import LinGlueError
from linglue.features import make_extractor
from linglue.io.images import IMAGE_SUFFIXES
from linglue.io.npz import save_features


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("images", nargs="+", type=Path, metavar="IMAGES", help="photographs, or folders of them")
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="DIR", help="folder for the .npz files")
    common.add_front_end(parser)
    common.add_extraction(parser)
    common.add_json(parser)


def run(options: argparse.Namespace) -> None:
    work = _list_images(options.images)
    report = common.Report(options.json)
    extractor = make_extractor(options.features, options.extractor_weights)
    written = kept = keypoints = 0
    failed: list[str] = []
    for path, name in tqdm(work, unit="image", disable=None):
        target = options.output / f"{name}.npz"
        if target.exists():
            kept += 1
            continue
        try:
            features = extractor.extract(path, options.max_keypoints, common.longer_side(options), tile=options.tile)
        except LinGlueError as error:
            failed.append(str(error))
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        save_features(target, features)
        written, keypoints = written + 1, keypoints + len(features)
    report.line(
        f"{written} images extracted, {keypoints} {extractor.kind} keypoints; {kept} were there already",
        written=written,
        kept=kept,
        keypoints=keypoints,
        failed=failed,
    )
    report.finish()
    if failed:
        raise LinGlueError(f"{len(failed)} of {len(work)} images could not be used: {'; '.join(failed)}")


def _list_images(sources: list[Path]) -> list[tuple[Path, str]]:
    """(file, name below the output folder) of every photograph; folders are searched to any depth."""
    found: list[tuple[Path, str]] = []
    for source in sources:
        if source.is_dir():
            inside = sorted(p for p in source.rglob("*") if p.suffix.lower() in IMAGE_SUFFIXES)
            if not inside:
                raise LinGlueError(f"{source}: holds no image (allowed: {', '.join(sorted(IMAGE_SUFFIXES))})")
            found += [(p, p.relative_to(source).as_posix()) for p in inside]
        else:
            found.append((source, source.name))
    names = [name for _, name in found]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise LinGlueError(f"{twice[0]}: two of the given images have this name, their features would collide")
    return found
