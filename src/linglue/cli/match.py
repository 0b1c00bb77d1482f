"""Match two images, two feature files, all images of a folder or a list of pairs; write or draw the result."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from linglue.cli import common
from linglue.errors import LinGlueError
from linglue.features import front_end

if TYPE_CHECKING:
    from linglue.features.base import Extractor
    from linglue.sfm.two_view import GeometryConfig
    from linglue.types import Features, Matches

HDF5_SUFFIXES = (".h5", ".hdf5")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `linglue match`."""
    parser.add_argument(
        "image0",
        metavar="A",
        help="image, features .npz, or FILE.h5::IMAGE of an hloc file; alone: a folder of images, all pairs of which "
        "are matched, or a list of pairs, two names and a tab a line",
    )
    parser.add_argument("image1", nargs="?", metavar="B", help="the other image, or its features")
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        metavar="FILE",
        help="matches as .npz or .json; of many pairs a folder",
    )
    parser.add_argument(
        "--draw",
        type=Path,
        metavar="PICTURE",
        help="the matches drawn on both images, .png or .jpg; of many pairs a folder",
    )
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
    parser.add_argument(
        "--images", type=Path, metavar="DIR", help="with a list of pairs: where its images lie; beside it unless given"
    )
    common.add_matching(parser)
    _add_geometry(parser)
    common.add_device(parser)
    common.add_json(parser)


def _add_geometry(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("geometry (needs PoseLib)")
    group.add_argument(
        "--geometry",
        choices=("fundamental", "homography", "essential"),
        help="estimate it and keep only the matches that obey it",
    )
    group.add_argument("--max-error", type=float, metavar="PX", help="of a match that obeys it; 2 unless given")
    group.add_argument(
        "--intrinsics",
        metavar="VALUES",
        help="essential: fx,fy,cx,cy of both cameras, COLMAP's origin; EXIF or a guess unless given",
    )


def run(options: argparse.Namespace) -> None:
    """Do what `linglue match` was asked for, and report it."""
    if options.lines < 0:
        raise LinGlueError(f"--lines is {options.lines}, expected a number of matches, or 0 for all")
    if options.image1 is None:
        from linglue.cli.match_many import run_many

        run_many(options)
    else:
        _run_pair(options)


def _run_pair(options: argparse.Namespace) -> None:
    from linglue.io.npz import save_matches

    sources = options.image0, options.image1
    _check_pair(options, sources)
    geometry = geometry_config(options)
    report = common.Report(options.json)
    result = _match_pair(options, report, sources)
    arrays: dict[str, Any] = {}
    if geometry is not None:
        from linglue.sfm.two_view import estimate_geometry

        found = estimate_geometry(replace(result, **_paths(sources)), geometry)
        matrix = None if found.matrix is None else found.matrix.tolist()
        facts = {"inliers": len(found.matches), "geometry": {"kind": geometry.kind, "matrix": matrix}}
        report.line(f"{len(found.matches)} of {len(result)} matches obey one {geometry.kind} geometry", **facts)
        result = found.matches
        if found.matrix is not None:
            arrays[geometry.kind] = found.matrix
    if options.output:
        save_matches(options.output, replace(result, **_paths(sources)), arrays)
        report.line(f"written: {options.output}", output=str(options.output))
    if options.draw:
        replace(result, **_paths(sources)).draw(options.draw, options.lines or None)
        report.line(f"drawn: {options.draw}", drawing=str(options.draw))
    report.finish()


def _check_pair(options: argparse.Namespace, sources: tuple[str, str]) -> None:
    from linglue.viz.canvas import SUFFIXES

    common.check_output(options.output, (".npz", ".json"))
    common.check_output(options.draw, SUFFIXES)
    if options.images is not None:
        raise LinGlueError(f"--images is {options.images}, expected only with a list of pairs")
    for source in sources:
        if options.draw and _is_feature_file(source):
            raise LinGlueError(f"{source}: holds features and no picture, expected two images with --draw")


def _match_pair(options: argparse.Namespace, report: common.Report, sources: tuple[str, str]) -> Matches:
    from linglue.core.progress import Stopwatch
    from linglue.features import make_extractor
    from linglue.matcher import Matcher

    device = common.device(options)
    ready = all(_is_feature_file(source) for source in sources)
    kind = _kind(options, ready)
    matcher = common.matcher_config(options, kind, device).build()
    extractor = None if ready else make_extractor(options.features, options.extractor_weights, device)
    dim = matcher.network.config.input_dim if isinstance(matcher, Matcher) else None
    watch = Stopwatch(device)
    features = []
    for number, (source, mask) in enumerate(zip(sources, (options.mask0, options.mask1), strict=True)):
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
    return result


def geometry_config(options: argparse.Namespace) -> GeometryConfig | None:
    """What --geometry and its companions ask for."""
    if options.geometry is None:
        for name in ("max_error", "intrinsics"):
            if getattr(options, name) is not None:
                option = f"--{name.replace('_', '-')}"
                raise LinGlueError(f"{option} is {getattr(options, name)}, expected only with --geometry")
        return None
    from linglue.sfm.two_view import MAX_ERROR, GeometryConfig

    error = MAX_ERROR if options.max_error is None else options.max_error
    return GeometryConfig(options.geometry, error, options.intrinsics)


def _paths(sources: tuple[str, str]) -> dict[str, Any]:
    """The images of a result, for drawings and EXIF."""
    return {f"image{i}": None if _is_feature_file(source) else Path(source) for i, source in enumerate(sources)}


def _kind(options: argparse.Namespace, ready: bool) -> str:
    """Of the features. Where both sides are features already, one's own network says what it takes."""
    if not (ready and options.weights):
        return front_end(options.features).name
    from linglue.network.weights import read_info

    return read_info(options.weights).kind


def _is_feature_file(source: str) -> bool:
    return source.lower().endswith((".npz", *HDF5_SUFFIXES)) or _is_hloc(source)


def _is_hloc(source: str) -> bool:
    """FILE.h5::IMAGE."""
    return source.partition("::")[0].lower().endswith(HDF5_SUFFIXES)


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
        features = _load(source, kind, options.hloc_dog, dim)
        if features.kind != kind:
            raise LinGlueError(
                f"{source}: features are of kind {features.kind!r}, expected {kind!r} or --features {features.kind}"
            )
        if dim not in (None, features.dim):
            raise LinGlueError(f"{source}: descriptors have {features.dim} entries, expected {dim} for this network")
    else:
        features = extractor.extract(source, options.max_keypoints, common.longer_side(options), mask, options.tile)
    if len(features) == 0:
        raise LinGlueError(f"{source}: no {kind} keypoint, expected at least one")
    return features


def _load(source: str, kind: str, dog: bool, dim: int | None) -> Features:
    if source.lower().endswith(".npz"):
        from linglue.io.npz import load_features

        return load_features(source)
    from linglue.io.hloc import load_hloc_features

    file, separator, name = source.partition("::")
    if not separator:
        raise LinGlueError(f"{source}: holds many images, expected {source}::IMAGE to say which")
    return load_hloc_features(file, name, kind, dog, dim)
