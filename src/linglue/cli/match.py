"""Match two photographs (or two feature files) and write or draw the result."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from linglue.cli import common
from linglue.errors import LinGlueError
from linglue.io.hloc import load_hloc_features
from linglue.io.images import read_mask
from linglue.io.npz import load_features, save_matches
from linglue.matcher import Matcher
from linglue.stopwatch import Stopwatch
from linglue.types import Features


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("image0", metavar="A", help="image, features .npz, or FILE.h5::IMAGE of an hloc file")
    parser.add_argument("image1", metavar="B", help="the same for the other side")
    parser.add_argument("-o", "--output", type=Path, help="matches as .npz or .json")
    parser.add_argument("--draw", type=Path, metavar="PICTURE", help="the matches drawn on both images, .png or .jpg")
    common.add_front_end(parser)
    common.add_extraction(parser)
    parser.add_argument("--mask0", type=Path, metavar="FILE", help="image of A's size: no keypoints where it is black")
    parser.add_argument("--mask1", type=Path, metavar="FILE", help="the same for B")
    common.add_network(parser)
    common.add_json(parser)


def run(options: argparse.Namespace) -> None:
    common.check_output(options.output, (".npz", ".json"))
    common.check_output(options.draw, (".png", ".jpg", ".jpeg", ".webp"))
    sources, masks = (options.image0, options.image1), (options.mask0, options.mask1)
    if options.draw and any(map(_is_feature_file, sources)):
        raise LinGlueError("--draw needs two images: feature files hold no picture to draw on")
    report = common.Report(options.json)
    matcher = common.make_matcher(options)
    watch = Stopwatch()
    features = []
    for number, (source, mask) in enumerate(zip(sources, masks, strict=True)):
        stage = f"extract{number}"
        with watch.stage(stage):
            features.append(_features(matcher, source, mask, options))
        found = features[-1]
        if len(found) == 0:
            raise LinGlueError(f"{source}: {matcher.kind} finds no keypoint, nothing to match")
        report.line(
            f"{source}: {len(found)} {matcher.kind} keypoints, {watch.seconds[stage]:.2f} s",
            **{f"keypoints{number}": len(found)},
        )
    result = matcher.match(features[0], features[1])
    for stage in ("network", "matching", "filter"):
        if stage in result.timing:
            report.line(f"{stage}: {result.timing[stage]:.2f} s")
    report.line(
        f"{len(result)} matches, pair score {result.pair_score:.2f}",
        matches=len(result),
        pair_score=result.pair_score,
        features=matcher.kind,
        seconds={**watch.seconds, **result.timing},
    )
    if options.draw:
        replace(result, image0=Path(sources[0]), image1=Path(sources[1])).draw(options.draw)
        report.line(f"drawn: {options.draw}", drawing=str(options.draw))
    if options.output:
        save_matches(options.output, result)
        report.line(f"written: {options.output}", output=str(options.output))
    report.finish()


def _is_feature_file(source: str) -> bool:
    return source.endswith(".npz") or "::" in source


def _features(matcher: Matcher, source: str, mask: Path | None, options: argparse.Namespace) -> Features:
    if not _is_feature_file(source):
        keep = None if mask is None else read_mask(mask)
        return matcher.extract(source, options.max_keypoints, common.longer_side(options), keep, options.tile)
    if mask is not None:
        raise LinGlueError(f"{mask}: masks go with images, {source} holds features already")
    if source.endswith(".npz"):
        return load_features(source)
    file, name = source.split("::", 1)
    return load_hloc_features(file, name, kind=matcher.kind)
