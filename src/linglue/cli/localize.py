"""Camera poses of new images in the model of a work folder; what was localized already is kept."""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path
from typing import Any

from linglue.cli import common
from linglue.core.optional import need
from linglue.errors import LinGlueError
from linglue.features import front_end
from linglue.io.poses import write_poses
from linglue.localization.absolute_pose import PoseConfig
from linglue.localization.localize import localize_queries, map_settings, read_record
from linglue.localization.localizer import LocalizeConfig, Localizer, check_map
from linglue.localization.queries import find_queries
from linglue.matcher import MAX_KEYPOINTS, RESIZE, Matcher, MatcherConfig
from linglue.matching.match import MatchingConfig
from linglue.sfm.extract import ExtractConfig
from linglue.sfm.match import build_matcher
from linglue.sfm.workspace import Workspace

DETAILS_SUFFIX = ".jsonl"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `linglue localize`."""
    parser.add_argument(
        "queries",
        type=Path,
        metavar="QUERIES",
        help="folder of images, one image, or a list with lines `name MODEL width height p1 p2 …`",
    )
    parser.add_argument("--map", type=Path, required=True, metavar="WORK", help="work folder of `linglue reconstruct`")
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        required=True,
        metavar="POSES",
        help="lines `name qw qx qy qz tx ty tz` (camera from world), .txt; POSES.jsonl beside it says more",
    )
    parser.add_argument("--images", type=Path, metavar="DIR", help="with a list: where its images lie")
    parser.add_argument(
        "--intrinsics",
        metavar="VALUES",
        help="with a folder: known ones, fx,fy,cx,cy or MODEL,p1,p2,… for all, or a file like the list; else they are "
        "found together with the pose, beginning with EXIF; COLMAP's origin, the corner of the top-left pixel",
    )
    common.add_front_end(parser)
    common.add_extraction(parser)
    parser.set_defaults(features=None, max_keypoints=None, resize=None)
    parser.epilog = "--features, --max-keypoints, --resize and --tile are those of the map unless given."
    common.add_weights(parser)
    common.add_effort(parser)
    parser.add_argument(
        "--top", type=int, default=LocalizeConfig.top, metavar="N", help="most similar images of the map to match"
    )
    parser.add_argument(
        "--max-error",
        type=float,
        default=PoseConfig.max_error,
        metavar="PX",
        help="of a keypoint that fits the pose, at a longer side of 1600 pixels",
    )
    parser.add_argument(
        "--min-inliers", type=int, default=PoseConfig.min_inliers, metavar="N", help="keypoints that must fit a pose"
    )
    parser.add_argument("--seed", type=int, default=PoseConfig.seed, help="of everything random")
    common.add_engine(parser, workers="1")
    common.add_device(parser)
    common.add_json(parser)


def run(options: argparse.Namespace) -> None:
    """Do what `linglue localize` was asked for, and report it."""
    need("pycolmap", "linglue localize")
    common.check_output(options.output, (".txt",))
    details = options.output.with_suffix(DETAILS_SUFFIX)
    common.check_outputs([options.queries], [options.output, details])
    work = Workspace(options.map)
    check_map(work)
    device = common.device(options)
    read_record(details)  # another's file of that name is refused before any work
    how = _extraction(options, work, device)
    matching = MatchingConfig(effort=options.effort)
    kind = front_end(how.features).name
    asked = MatcherConfig(features=kind, weights=options.weights, device=device, matching=matching)
    pose = PoseConfig(options.max_error, options.min_inliers, options.seed)
    config = LocalizeConfig(how.max_keypoints, how.resize, how.tile, options.top, pose)
    settings = map_settings(work, config, {"extract": how.settings(), "matcher": dict(build_matcher(asked).settings)})
    matcher = partial(Matcher.from_pretrained, how.features, how.weights, options.weights, device, matching)
    queries, problems = find_queries(options.queries, options.images, options.intrinsics)
    if not queries:
        why = f" ({problems[0]})" if problems else ""
        raise LinGlueError(f"{options.queries}: none of its images could be used{why}, expected at least one")

    engine = common.engine(options, device, 1)
    found = localize_queries(
        queries, lambda: Localizer.from_work(work.folder, matcher(), config), settings, details, engine, matcher
    )
    if not found.located:
        raise LinGlueError(f"{options.queries}: none of its images could be used ({found.problems[0]})")
    poses = {located.name: located.pose for located in found.located if located.pose is not None}
    write_poses(options.output, poses)

    report = common.Report(options.json)
    failed = {located.name: located.reason for located in found.located if located.pose is None}
    problems = [*problems, *found.problems]
    report.line(
        f"{len(poses)} of {len(found.located)} images localized ({found.kept} were done before)",
        queries=len(found.located),
        localized=len(poses),
        made=found.made,
        kept=found.kept,
        failed=failed,
        problems=problems,
    )
    for name, reason in failed.items():
        report.line(f"{name}: not localized ({reason})")
    for problem in problems:
        report.line(problem)
    report.line(f"written: {options.output}, {details}", output=str(options.output), details=str(details))
    report.finish()


def _extraction(options: argparse.Namespace, work: Workspace, device: str) -> ExtractConfig:
    """As the features of the map were taken, where nothing else is asked for."""
    made: dict[str, Any] = work.notes().get("extract", {})
    with work.features() as store:
        kind = store.kind()
    features = options.features or made.get("features", kind)
    if front_end(features).name != kind:
        raise LinGlueError(f"--features is {options.features}, expected {kind}: the map {work.folder} is made of it")
    asked = options.max_keypoints is not None
    return ExtractConfig(
        features=features,
        weights=options.extractor_weights,
        max_keypoints=options.max_keypoints if asked else made.get("max_keypoints", MAX_KEYPOINTS),
        resize=made.get("resize", RESIZE) if options.resize is None else common.longer_side(options),
        tile=made.get("tile") if options.tile is None else options.tile,
        device=device,
    )
