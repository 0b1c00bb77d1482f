"""Measure matchers on data with known truth, all on the same keypoints: parse, call `linglue.evaluation`, print."""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import Any

from linglue import evaluation
from linglue.cli import common
from linglue.core.pool import Pool
from linglue.dense.dense import DenseConfig
from linglue.errors import LinGlueError
from linglue.evaluation.estimators import HOMOGRAPHY_ESTIMATORS
from linglue.evaluation.figures import CURVES, draw_curves
from linglue.evaluation.peers import ENVIRONMENT
from linglue.evaluation.report import write_html
from linglue.evaluation.result import Result
from linglue.evaluation.sections import SCENES, SECTIONS, Suite
from linglue.evaluation.suite import DATA, MEASURED, write_suite
from linglue.evaluation.suite import run as run_suite
from linglue.evaluation.tasks.ablation import KEYPOINTS
from linglue.evaluation.tasks.pose import ESTIMATOR_THRESHOLD, MAX_GAP
from linglue.evaluation.tasks.pose import REFERENCE_SIDE as POSE_SIDE
from linglue.evaluation.tasks.reconstruction import COLMAP
from linglue.evaluation.tasks.scalability import SUBJECTS
from linglue.evaluation.timing import SIZES, Limits
from linglue.localization.absolute_pose import REFERENCE_SIDE, PoseConfig
from linglue.matcher import MATCHERS, MatcherConfig
from linglue.network.weights import packaged_weights
from linglue.sfm.extract import ExtractConfig
from linglue.sfm.retrieval import TOP
from linglue.viz import plots

TASKS = {
    "homography": "planar scenes in the HPatches layout: matching accuracy (D2-Net protocol) and homography AUC",
    "pose": "scenes with known cameras (images/ and gt/): relative pose AUC and epipolar precision",
    "localization": "camera poses in maps of known poses: each image among the others, or queries in Aachen's layout",
    "reconstruction": "sparse models (ETH protocol): registered images, points, tracks, errors; with gt/ of cameras",
    "scalability": "time and memory of presets and peers against the number of keypoints; with scenes, accuracy too",
    "ablation": "what each part contributes, on homographies and localization, at several numbers of keypoints",
    "all": "every task on the data at hand, with the peers whose weights are at hand; resumable; one HTML report",
}
ARGUMENTS = {  # of the tasks' functions that are options of the same name
    "homography": ("estimators", "threshold", "seed"),
    "pose": ("max_gap", "threshold", "seed"),
    "localization": ("model", "truth", "top"),
    "reconstruction": ("seed",),
}
OURS = "linglue"
# Keypoints and longer side (0: original) of published tables: D2-Net's and SuperGlue's papers, hloc.
PROTOCOLS = {"hpatches": (2048, 0), "megadepth-1500": (2048, 1600), "scannet-1500": (1024, 640), "aachen": (4096, 1600)}
MADE = {"homography": "predictions", "pose": "predictions", "reconstruction": "models"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `linglue eval`."""
    tasks = parser.add_subparsers(dest="task", required=True, metavar="TASK")
    for name, summary in TASKS.items():
        task = tasks.add_parser(name, help=summary, description=summary, formatter_class=parser.formatter_class)
        if name != "all":
            _add_common(task, name)
        {
            "homography": _add_homography,
            "pose": _add_pose,
            "localization": _add_localization,
            "reconstruction": _add_reconstruction,
            "scalability": _add_scalability,
            "ablation": _add_ablation,
            "all": _add_all,
        }[name](task)


def _add_common(parser: argparse.ArgumentParser, task: str) -> None:
    if task != "ablation":  # which knows what to compare
        _add_methods(parser)
    common.add_front_end(parser)
    common.add_extraction(parser)
    common.add_weights(parser)
    parser.add_argument(
        "--protocol",
        choices=tuple(PROTOCOLS),
        help="number of keypoints and image size that published tables of a data set use",
    )
    common.add_device(parser)
    parser.add_argument("--seed", type=int, default=0, help="of the robust estimators")
    parser.add_argument("--plot", type=Path, metavar="PICTURE", help="the curves, .png, .pdf or .svg")
    _add_output(parser, task)
    parser.set_defaults(threshold=None)


def _add_methods(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--compare",
        type=_names,
        default="mnn,ratio,adalam",
        metavar="NAMES",
        help=f"methods beside linglue, of {', '.join(MATCHERS.names())}, or package:Name",
    )
    parser.add_argument(
        "--methods",
        nargs="+",
        metavar="METHOD",
        help="exactly these instead: MATCHER, FRONT_END:MATCHER or FRONT_END:MATCHER@WEIGHTS, e.g. aliked:lightglue",
    )


def _add_output(parser: argparse.ArgumentParser, task: str) -> None:
    parser.add_argument(
        "--peers", type=Path, metavar="DIR", help=f"weights of learned peers (get_peers.sh); {ENVIRONMENT} unless given"
    )
    work = Path(f"linglue-eval-{task}")
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        default=work,
        metavar="WORK",
        help="folder of predictions, results, report.html",
    )
    parser.add_argument("--markdown", action="store_true", help="tables for documents instead of the terminal")
    common.add_json(parser)


def _names(text: str) -> list[str]:
    return list(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))


def _set_published_size(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(max_keypoints=2048, resize=1024)  # what published tables use, not what users want


def _add_scenes(parser: argparse.ArgumentParser, summary: str) -> None:
    parser.add_argument("scenes", type=Path, nargs="+", metavar="SCENE", help=summary)


def _add_homography(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("data", type=Path, nargs="+", metavar="DATA", help="folders of sequences v_* and i_*")
    _set_published_size(parser)
    parser.add_argument(
        "--estimators",
        type=_names,
        default=",".join(HOMOGRAPHY_ESTIMATORS),
        metavar="NAMES",
        help=f"robust estimators for the AUC, of {', '.join(HOMOGRAPHY_ESTIMATORS)}",
    )
    parser.add_argument(
        "--threshold", type=float, default=3.0, metavar="PX", help="inlier threshold of the estimators, original pixels"
    )
    common.add_engine(parser, workers="1")


def _add_pose(parser: argparse.ArgumentParser) -> None:
    _add_scenes(parser, "images/ with gt/, maybe pairs.txt; MegaDepth-1500, ScanNet-1500; a scene of ETH3D")
    _set_published_size(parser)
    parser.add_argument(
        "--max-gap", type=int, default=MAX_GAP, metavar="N", help="pairs at most this many images apart"
    )
    parser.add_argument(
        "--threshold",
        type=float,
        default=ESTIMATOR_THRESHOLD,
        metavar="PX",
        help=f"inlier threshold of the estimator at a longer side of {POSE_SIDE} pixels",
    )
    common.add_engine(parser, workers="1")


def _add_localization(parser: argparse.ArgumentParser) -> None:
    _add_scenes(parser, "images/ with gt/ or a COLMAP model: leave-one-out; with queries/ too: Aachen's layout")
    parser.add_argument("--model", type=Path, metavar="DIR", help="the COLMAP model, where SCENE has several or none")
    parser.add_argument(
        "--truth", type=Path, metavar="POSES", help="of queries: lines `name qw qx qy qz tx ty tz` (camera from world)"
    )
    parser.add_argument("--top", type=int, default=TOP, metavar="N", help="similar images matched in large scenes")
    parser.add_argument(
        "--threshold",
        type=float,
        default=PoseConfig.max_error,
        metavar="PX",
        help=f"of a keypoint that fits the pose, at a longer side of {REFERENCE_SIDE} pixels",
    )
    common.add_engine(parser)


def _add_reconstruction(parser: argparse.ArgumentParser) -> None:
    _add_scenes(parser, "images/ with gt/: known intrinsics and true poses; or any folder of images")
    parser.add_argument(
        "--dense", action="store_true", help="also make and count the dense points of every model: minutes each"
    )
    common.add_engine(parser)
    parser.set_defaults(compare=f"mnn,ratio,adalam,{COLMAP}")


def _add_scalability(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("scenes", type=Path, nargs="*", metavar="SCENE", help="for the accuracy, as for eval pose")
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES), metavar="N", help="keypoints per image")
    parser.add_argument("--subjects", nargs="+", metavar="NAME", help=f"of {', '.join(s.shown for s in SUBJECTS)}")
    parser.add_argument("--repeats", type=int, default=3, metavar="N", help="runs, of which medians are taken")
    parser.add_argument("--threads", type=int, default=1, metavar="N", help="of the timed processes")
    parser.add_argument("--max-seconds", type=float, default=Limits.seconds, help="CPU time at which one is given up")
    parser.add_argument("--max-megabytes", type=int, default=Limits.megabytes, help="the same for memory")
    _set_published_size(parser)


def _add_ablation(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--homography", type=Path, nargs="+", default=[], metavar="DATA", help="HPatches layout")
    parser.add_argument("--localization", type=Path, nargs="+", default=[], metavar="SCENE", help="known poses")
    parser.add_argument("--networks", type=Path, nargs="+", default=[], metavar="FILE", help="besides ours")
    _add_weights_dir(parser)
    parser.add_argument(
        "--sizes", type=int, nargs="+", default=list(KEYPOINTS), metavar="N", help="keypoints per image"
    )
    common.add_engine(parser)


def _add_weights_dir(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--weights-dir", type=Path, metavar="DIR", help="folder of trained networks (*.safetensors) of other presets"
    )


def _add_all(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--data", type=Path, metavar="DIR", help=f"with oxford/, evd/, epfl/; {DATA} unless given")
    parser.add_argument(
        "--scenes", type=Path, metavar="DIR", help=f"folder of scenes with known poses; {SCENES} unless given"
    )
    _add_weights_dir(parser)
    parser.add_argument("--quick", action="store_true", help="a small part of everything, in minutes")
    parser.add_argument("--only", nargs="+", default=[], metavar="SECTION", help=f"of {', '.join(SECTIONS)}")
    parser.add_argument(
        "--docs",
        type=Path,
        metavar="FILE",
        help=f"also write a document, e.g. docs/benchmarks.md, with what other benchmarks left in {MEASURED}/ there",
    )
    common.add_engine(parser)
    _add_output(parser, "all")


def run(options: argparse.Namespace) -> None:
    """Do what `linglue eval` was asked for, and report it."""
    common.check_folder(options.output)
    if options.peers is not None:
        os.environ[ENVIRONMENT] = str(options.peers)  # worker processes must find them, too
    if options.task == "all":
        _run_all(options)
        return
    if options.protocol is not None:
        options.max_keypoints, options.resize = PROTOCOLS[options.protocol]
    _check_summary(options.output)
    if options.plot is not None:
        common.check_output(options.plot, plots.SUFFIXES)
        plots.check_plotting()
    if options.threshold is not None and not 0 < options.threshold < float("inf"):
        raise LinGlueError(f"--threshold is {options.threshold}, expected a positive number of pixels")
    report = common.Report(options.json)
    extract = common.extract_config(options, common.device(options))
    methods = [] if options.task == "ablation" else _methods(options, report, extract)
    evaluate = {"scalability": _run_scalability, "ablation": _run_ablation}.get(options.task, _evaluate)
    _print(options, report, evaluate(options, methods, extract))
    report.finish()


def _methods(options: argparse.Namespace, report: common.Report, extract: ExtractConfig) -> list[str | MatcherConfig]:
    """The compared methods in the order given, LinGlue last; without a network for these features, without it."""
    if options.methods:
        return list(dict.fromkeys(options.methods))
    known = [*MATCHERS.names(), *([COLMAP] if options.task == "reconstruction" else [])]
    unknown = [name for name in options.compare if name not in known and ":" not in name]
    if unknown:
        raise LinGlueError(f"method is {unknown[0]!r}, expected {', '.join(known)}, or package:Name")
    methods: list[str | MatcherConfig] = [name for name in options.compare if name not in (OURS, COLMAP)]
    if options.weights is not None or packaged_weights(options.features).is_file():
        methods.append(MatcherConfig(OURS, options.features, options.weights, extract.device))
    else:
        report.line(
            f"linglue is left out: the package has no network for {options.features} features, "
            "give your own with --weights"
        )
    if COLMAP in options.compare:
        methods.append(COLMAP)
    return methods


def _evaluate(options: argparse.Namespace, methods: list[Any], extract: ExtractConfig) -> Result:
    """Call the task's function of `linglue.evaluation` with the options that are its arguments."""
    arguments = {name: getattr(options, name) for name in ARGUMENTS[options.task]}
    if "threshold" not in arguments and options.threshold is not None:
        arguments["pose"] = PoseConfig(max_error=options.threshold, seed=options.seed)
    if options.task == "reconstruction" and options.dense:
        arguments["dense"] = DenseConfig(device=extract.device)
    one = 1 if options.task in ("homography", "pose") else None  # quick, and their times are compared
    arguments["engine"] = common.engine(options, extract.device, one)
    data = options.data if options.task == "homography" else options.scenes
    result: Result = getattr(evaluation, options.task)(data, methods, options.output, extract, **arguments)
    return result


def _check_summary(folder: Path) -> None:
    """Refuse a folder with results that are not an evaluation's, such as a reconstruction's."""
    path = folder / "summary.json"
    if not path.exists():
        return
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        found = None
    if not isinstance(found, dict) or not {"settings", "results"} <= found.keys():
        raise LinGlueError(f"{path}: was not made by `linglue eval`, expected another WORK")


def _run_scalability(options: argparse.Namespace, methods: list[Any], extract: ExtractConfig) -> Result:
    known = {subject.shown: subject for subject in SUBJECTS}
    unknown = [name for name in options.subjects or () if name not in known]
    if unknown:
        raise LinGlueError(f"--subjects is {unknown[0]!r}, expected {', '.join(known)}")
    return evaluation.scalability(
        options.output,
        [known[name] for name in options.subjects or known],
        options.sizes,
        threads=options.threads,
        repeats=options.repeats,
        limits=Limits(options.max_seconds, options.max_megabytes),
        scenes=options.scenes,
        methods=methods,
        extract=extract,
    )


def _run_ablation(options: argparse.Namespace, methods: list[Any], extract: ExtractConfig) -> Result:
    return evaluation.ablation(
        options.homography,
        options.localization,
        options.output,
        extract,
        weights=[*options.networks, *([options.weights] if options.weights else [])],
        folder=options.weights_dir,
        keypoints=options.sizes,
        engine=common.engine(options, extract.device),
    )


def _run_all(options: argparse.Namespace) -> None:
    """Every task; tables, report.html, JSON and CSV of each section, and maybe the document."""
    data = options.data or Path(os.environ.get(DATA, "../shared/data"))
    report = common.Report(options.json)
    engine, workers = common.engine(options, "cpu"), 1
    if isinstance(engine, Pool):  # its processes take whole sections: then times within a table are comparable
        engine, workers = Pool(), engine.workers
    suite = Suite(data, options.output, options.quick, engine, options.scenes, options.weights_dir, workers=workers)
    results, failed = run_suite(suite, options.only)
    files = write_suite(suite, results, options.docs)
    for name, result in results.items():
        report.line(f"\n{name}\n\n{result.text(options.markdown)}", **{name: result.json()})
    for name, why in failed.items():
        report.line(f"{name} could not be measured: {why}")
    report.line(f"written: {', '.join(map(str, files))}", files=[str(path) for path in files], failed=failed)
    report.finish()
    if any(not why.startswith("no data") for why in failed.values()):
        raise LinGlueError(f"{', '.join(failed)}: could not be measured, see above; run the same command again")


def _print(options: argparse.Namespace, report: common.Report, result: Result) -> None:
    """Files, tables, and the settings that led to them."""
    files: dict[str, Any] = {name: str(path) for name, path in result.write(options.output).items()}
    files.update(result.files)
    if options.plot is not None:
        if draw_curves(result, options.plot) is None:
            raise LinGlueError(f"--plot is {options.plot}, expected only with {', '.join(CURVES)}")
        files["plot"] = str(options.plot)
    curves = draw_curves(result, options.output / "curves.png")
    page = options.output / "report.html"
    pictures = {result.task: [curves] if curves else []}
    write_html(page, f"LinGlue: {result.task}", {result.task: result}, pictures, [])
    files["report"] = str(page)
    facts = result.json()
    if result.task in MADE:
        facts[f"{MADE[result.task]}_made"] = result.made
        if not options.markdown:  # a document wants nothing but the tables and how they came about
            report.line(f"{result.made} {MADE[result.task]} made, {result.kept} were there already")
    for line in (*result.problems, *result.missing.values()):
        report.line(line)
    report.line(f"\n{result.text(options.markdown)}", **facts, files=files)
    if not options.markdown:
        written = [path for value in files.values() for path in (value if isinstance(value, list) else [value])]
        report.line(f"written: {', '.join(written)}")
