"""Extract features of photographs into .npz files; what is there already is kept, so it can be interrupted."""

from __future__ import annotations

import argparse
import hashlib
import json
from collections import Counter
from pathlib import Path
from typing import Any

from tqdm import tqdm

from linglue.cli import common
from linglue.errors import LinGlueError
from linglue.features import make_extractor
from linglue.io.atomic import atomic_path
from linglue.io.images import IMAGE_SUFFIXES
from linglue.io.npz import save_features

SETTINGS = "features.json"  # beside the features: how all of them were extracted
FAILURES_SHOWN = 3


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("images", nargs="+", type=Path, metavar="IMAGES", help="photographs, or folders of them")
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="DIR", help="folder for the .npz files")
    common.add_front_end(parser)
    common.add_extraction(parser)
    common.add_device(parser)
    common.add_json(parser)


def run(options: argparse.Namespace) -> None:
    work = _list_images(options.images)
    common.check_folder(options.output)
    extractor = make_extractor(options.features, options.extractor_weights, common.device(options))
    settings = _settings(options)
    _check_settings(options.output, settings, [name for _, name in work])
    report = common.Report(options.json)
    written = kept = keypoints = 0
    failed: list[str] = []
    for path, name in tqdm(work, unit="image", disable=None):
        target = _target(options.output, name)
        if target.exists():
            kept += 1
            continue
        try:
            features = extractor.extract(path, options.max_keypoints, common.longer_side(options), tile=options.tile)
        except LinGlueError as error:
            failed.append(str(error))
            continue
        if written == 0:
            _write_settings(options.output, settings)
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
        more = f"; and {len(failed) - FAILURES_SHOWN} more" if len(failed) > FAILURES_SHOWN else ""
        raise LinGlueError(
            f"{len(failed)} of {len(work)} images could not be used: {'; '.join(failed[:FAILURES_SHOWN])}{more}"
        )


def _list_images(sources: list[Path]) -> list[tuple[Path, str]]:
    """(file, name below the output folder) of every photograph; folders are searched to any depth."""
    found: list[tuple[Path, str]] = []
    for source in sources:
        if source.is_dir():
            inside = sorted(p for p in source.rglob("*") if p.suffix.lower() in IMAGE_SUFFIXES)
            if not inside:
                raise LinGlueError(f"{source}: holds no image (allowed: {', '.join(sorted(IMAGE_SUFFIXES))})")
            found += [(p, p.relative_to(source).as_posix()) for p in inside]
        elif source.is_file():
            found.append((source, source.name))
        else:
            raise LinGlueError(f"{source}: no such image file or folder")
    name, times = Counter(name for _, name in found).most_common(1)[0]
    if times > 1:
        raise LinGlueError(f"{name}: {times} of the given images have this name, their features would collide")
    return found


def _target(folder: Path, name: str) -> Path:
    return folder / f"{name}.npz"


def _settings(options: argparse.Namespace) -> dict[str, Any]:
    """All that decides what the features of an image are."""
    weights = options.extractor_weights
    return {
        "features": options.features,
        "extractor_weights_sha256": weights and hashlib.sha256(weights.read_bytes()).hexdigest(),
        "max_keypoints": options.max_keypoints,
        "resize": options.resize,
        "tile": options.tile,
    }


def _check_settings(folder: Path, settings: dict[str, Any], names: list[str]) -> None:
    """Features made with different settings must not end up side by side."""
    record = folder / SETTINGS
    if record.is_file():
        try:
            before = dict(json.loads(record.read_text(encoding="utf-8")))
        except (ValueError, TypeError) as error:
            raise LinGlueError(f"{record}: damaged, allowed is the record that `linglue extract` wrote") from error
        for key in sorted(settings.keys() | before.keys()):
            if settings.get(key) != before.get(key):
                raise LinGlueError(
                    f"{folder}: its features were extracted with {key} {before.get(key)}, now it is "
                    f"{settings.get(key)}; allowed are the same settings or another folder"
                )
    else:
        for name in names:
            if _target(folder, name).exists():
                raise LinGlueError(
                    f"{_target(folder, name)}: extracted with unknown settings ({SETTINGS} is missing), "
                    "allowed is another folder"
                )


def _write_settings(folder: Path, settings: dict[str, Any]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with atomic_path(folder / SETTINGS) as temporary:
        temporary.write_text(json.dumps(settings, indent=1) + "\n", encoding="utf-8")
