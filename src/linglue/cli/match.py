"""Match two photographs (or two feature files) and write or draw the result."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from linglue.cli import common
from linglue.core.stopwatch import Stopwatch
from linglue.errors import LinGlueError
from linglue.io.images import read_image, read_mask
from linglue.io.npz import load_features, save_matches
from linglue.matcher import Matcher
from linglue.network.weights import find_weights, load_network
from linglue.types import Features
from linglue.viz.canvas import SUFFIXES as PICTURE_SUFFIXES

HDF5_SUFFIXES = (".h5", ".hdf5")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("image0", metavar="A", help="image, features .npz, or FILE.h5::IMAGE of an hloc file")
    parser.add_argument("image1", metavar="B", help="the same for the other side")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="matches as .npz or .json")
    parser.add_argument("--draw", type=Path, metavar="PICTURE", help="the matches drawn on both images, .png or .jpg")
    common.add_front_end(parser)
    common.add_extraction(parser)
    parser.add_argument("--mask0", type=Path, metavar="FILE", help="image of A's size: no keypoints where it is black")
    parser.add_argument("--mask1", type=Path, metavar="FILE", help="the same for B")
    parser.add_argument(
        "--hloc-dog", action="store_true", help=".h5 files are of hloc's DoG: degrees, and sigma instead of diameter"
    )
    common.add_weights(parser)
    common.add_device(parser)
    common.add_json(parser)


def run(options: argparse.Namespace) -> None:
    common.check_output(options.output, (".npz", ".json"))
    common.check_output(options.draw, PICTURE_SUFFIXES)
    sources, masks = (options.image0, options.image1), (options.mask0, options.mask1)
    if options.draw:
        for source in sources:
            if _is_feature_file(source):
                raise LinGlueError(f"{source}: holds features and no picture, --draw is allowed with two images")
    report = common.Report(options.json)
    matcher = _make_matcher(options)
    watch = Stopwatch(matcher.device)
    features = []
    for number, (source, mask) in enumerate(zip(sources, masks, strict=True)):
        stage = f"extract{number}"
        with watch.stage(stage):
            found = _features(matcher, source, mask, options)
        features.append(found)
        report.line(
            f"{source}: {len(found)} {matcher.kind} keypoints, {watch.seconds[stage]:.2f} s",
            **{f"keypoints{number}": len(found)},
        )
    result = matcher.match(features[0], features[1])
    stages = {stage: value for stage, value in result.timing.items() if stage != "extract"}  # done above
    for stage, value in stages.items():
        report.line(f"{stage}: {value:.2f} s")
    report.line(
        f"{len(result)} matches, pair score {result.pair_score:.2f}",
        matches=len(result),
        pair_score=result.pair_score,
        features=matcher.kind,
        seconds={**watch.seconds, **stages},
    )
    if options.output:
        save_matches(options.output, result)
        report.line(f"written: {options.output}", output=str(options.output))
    if options.draw:
        replace(result, image0=Path(sources[0]), image1=Path(sources[1])).draw(options.draw)
        report.line(f"drawn: {options.draw}", drawing=str(options.draw))
    report.finish()


def _make_matcher(options: argparse.Namespace) -> Matcher:
    """With the front-end, unless both sides are features already: then its weights are not needed, nor its kind."""
    device = common.device(options)
    if _is_feature_file(options.image0) and _is_feature_file(options.image1):
        network, info = load_network(options.weights or find_weights(options.features), device)
        return Matcher(None, network, info.kind, device)
    return Matcher.from_pretrained(options.features, options.extractor_weights, options.weights, device)


def _is_feature_file(source: str) -> bool:
    return source.endswith((".npz", *HDF5_SUFFIXES)) or _is_hloc(source)


def _is_hloc(source: str) -> bool:
    """FILE.h5::IMAGE."""
    return source.partition("::")[0].endswith(HDF5_SUFFIXES)


def _features(matcher: Matcher, source: str, mask: Path | None, options: argparse.Namespace) -> Features:
    """The features of one side; every complaint names the source."""
    if _is_feature_file(source):
        if mask is not None:
            raise LinGlueError(f"{mask}: masks go with images, {source} holds features already")
        features = _load(matcher, source, options.hloc_dog)
        wanted = matcher.network.config.input_dim
        if features.kind != matcher.kind:
            raise LinGlueError(
                f"{source}: features are of kind {features.kind!r}, this network takes {matcher.kind!r} only"
            )
        if features.dim != wanted:
            raise LinGlueError(f"{source}: descriptors have {features.dim} entries, this network takes {wanted} only")
    else:
        image = read_image(source)
        keep = None if mask is None else read_mask(mask)
        if keep is not None and keep.shape != image.shape[:2]:
            raise LinGlueError(
                f"{mask}: mask is {keep.shape[1]}x{keep.shape[0]} pixels, expected the size of {source}, "
                f"{image.shape[1]}x{image.shape[0]}"
            )
        features = matcher.extract(image, options.max_keypoints, common.longer_side(options), keep, options.tile)
    if len(features) == 0:
        raise LinGlueError(f"{source}: no {matcher.kind} keypoint, expected at least one")
    return features


def _load(matcher: Matcher, source: str, dog: bool) -> Features:
    if source.endswith(".npz"):
        return load_features(source)
    from linglue.io.hloc import load_hloc_features

    file, separator, name = source.partition("::")
    if not separator:
        raise LinGlueError(f"{source}: holds many images, expected {source}::IMAGE to say which")
    return load_hloc_features(file, name, kind=matcher.kind, dog=dog)
