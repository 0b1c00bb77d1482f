"""Match two images (or two feature files) and write or draw the result."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from linglue.cli import common
from linglue.core.paths import check_outputs
from linglue.errors import LinGlueError
from linglue.features import front_end

if TYPE_CHECKING:
    from linglue.features.base import Extractor
    from linglue.types import Features

HDF5_SUFFIXES = (".h5", ".hdf5")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("image0", metavar="A", help="image, features .npz, or FILE.h5::IMAGE of an hloc file")
    parser.add_argument("image1", metavar="B", help="the same for the other side")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="matches as .npz or .json")
    parser.add_argument("--draw", type=Path, metavar="PICTURE", help="the matches drawn on both images, .png or .jpg")
    parser.add_argument(
        "--lines", type=int, default=200, metavar="N", help="matches that are drawn, spread over the image; 0: all"
    )
    common.add_front_end(parser)
    common.add_extraction(parser)
    parser.add_argument("--mask0", type=Path, metavar="FILE", help="image of A's size: no keypoints where it is black")
    parser.add_argument("--mask1", type=Path, metavar="FILE", help="the same for B")
    parser.add_argument(
        "--hloc-dog", action="store_true", help=".h5 files are of hloc's DoG: degrees, and sigma instead of diameter"
    )
    common.add_matching(parser)
    common.add_device(parser)
    common.add_json(parser)


def run(options: argparse.Namespace) -> None:
    from linglue.core.stopwatch import Stopwatch
    from linglue.features import make_extractor
    from linglue.io.npz import save_matches
    from linglue.matcher import Matcher
    from linglue.viz.canvas import SUFFIXES

    common.check_output(options.output, (".npz", ".json"))
    common.check_output(options.draw, SUFFIXES)
    sources, masks = (options.image0, options.image1), (options.mask0, options.mask1)
    files = [source.partition("::")[0] if _is_hloc(source) else source for source in sources]
    check_outputs([*files, *masks, options.weights, options.extractor_weights], [options.output, options.draw])
    if options.lines < 0:
        raise LinGlueError(f"--lines is {options.lines}, expected a number of matches, or 0 for all")
    if options.draw:
        for source in sources:
            if _is_feature_file(source):
                raise LinGlueError(f"{source}: holds features and no picture, --draw is allowed with two images")
    report = common.Report(options.json)
    device = common.device(options)
    ready = all(_is_feature_file(source) for source in sources)
    kind = _kind(options, ready)
    matcher = common.matcher_config(options, kind, device).build()
    extractor = None if ready else make_extractor(options.features, options.extractor_weights, device)
    dim = matcher.network.config.input_dim if isinstance(matcher, Matcher) else None
    watch = Stopwatch(device)
    features = []
    for number, (source, mask) in enumerate(zip(sources, masks, strict=True)):
        stage = f"extract{number}"
        with watch.stage(stage):
            found = _features(extractor, source, mask, kind, dim, options)
        features.append(found)
        report.line(
            f"{source}: {len(found)} {kind} keypoints, {watch.seconds[stage]:.2f} s",
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
        matcher=options.matcher,
        features=kind,
        seconds={**watch.seconds, **stages},
    )
    if options.output:
        save_matches(options.output, result)
        report.line(f"written: {options.output}", output=str(options.output))
    if options.draw:
        replace(result, image0=Path(sources[0]), image1=Path(sources[1])).draw(options.draw, options.lines or None)
        report.line(f"drawn: {options.draw}", drawing=str(options.draw))
    report.finish()


def _kind(options: argparse.Namespace, ready: bool) -> str:
    """Of the features. Where both sides are features already, one's own network says what it takes."""
    if not (ready and options.weights):
        return front_end(options.features).name
    from linglue.network.weights import read_info

    return read_info(options.weights).kind


def _is_feature_file(source: str) -> bool:
    return source.endswith((".npz", *HDF5_SUFFIXES)) or _is_hloc(source)


def _is_hloc(source: str) -> bool:
    """FILE.h5::IMAGE."""
    return source.partition("::")[0].endswith(HDF5_SUFFIXES)


def _features(
    extractor: Extractor | None,
    source: str,
    mask: Path | None,
    kind: str,
    dim: int | None,
    options: argparse.Namespace,
) -> Features:
    """The features of one side, of the kind and dimension that the matcher takes; every error names the source."""
    if extractor is None or _is_feature_file(source):
        if mask is not None:
            raise LinGlueError(f"{mask}: masks go with images, {source} holds features already")
        features = _load(source, kind, options.hloc_dog)
        if features.kind != kind:
            raise LinGlueError(f"{source}: features are of kind {features.kind!r}, expected {kind!r}")
        if dim not in (None, features.dim):
            raise LinGlueError(f"{source}: descriptors have {features.dim} entries, expected {dim} for this network")
    else:
        features = _extract(extractor, source, mask, options)
    if len(features) == 0:
        raise LinGlueError(f"{source}: no {kind} keypoint, expected at least one")
    return features


def _extract(extractor: Extractor, source: str, mask: Path | None, options: argparse.Namespace) -> Features:
    from linglue.io.images import read_image, read_mask

    image = read_image(source)
    keep = None if mask is None else read_mask(mask)
    if keep is not None and keep.shape != image.shape[:2]:
        raise LinGlueError(
            f"{mask}: mask is {keep.shape[1]}x{keep.shape[0]} pixels, expected the size of {source}, "
            f"{image.shape[1]}x{image.shape[0]}"
        )
    return extractor.extract(image, options.max_keypoints, common.longer_side(options), keep, options.tile)


def _load(source: str, kind: str, dog: bool) -> Features:
    if source.endswith(".npz"):
        from linglue.io.npz import load_features

        return load_features(source)
    from linglue.io.hloc import load_hloc_features

    file, separator, name = source.partition("::")
    if not separator:
        raise LinGlueError(f"{source}: holds many images, expected {source}::IMAGE to say which")
    return load_hloc_features(file, name, kind=kind, dog=dog)
