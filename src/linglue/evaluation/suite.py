"""All evaluations in one run: the tables of the paper on the data at hand, with the peers whose weights are at hand.

    WORK/results/SECTION.json, and the work folders of the tasks

An interrupted run resumes: predictions, models, measurements and finished sections are kept.
"""

from __future__ import annotations

import os
import platform
import resource
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from linglue.core.engine import Engine
from linglue.core.fingerprint import code_sha256, settings_hash
from linglue.core.pool import Pool
from linglue.errors import LinGlueError
from linglue.evaluation import figures
from linglue.evaluation.methods import prepare
from linglue.evaluation.report import about, write_html, write_markdown
from linglue.evaluation.result import Result, read_json, write_json
from linglue.evaluation.store import Predictions, predict
from linglue.evaluation.tasks import ablation, homography, localization, pose, reconstruction, scalability
from linglue.evaluation.timing import SIZES, Limits
from linglue.matcher import Matcher
from linglue.sfm.extract import ExtractConfig

DATA = "LINGLUE_DATA"  # environment variable: the folder of data
METHODS = (
    *("sift:mnn", "sift:ratio", "sift:adalam", "sift:colmap-sift", "sift:linglue"),
    *("superpoint:mnn", "superpoint:superglue", "superpoint:superglue-10", "superpoint:linglue"),
    *("aliked:mnn", "aliked:lightglue", "aliked:linglue"),
    *("disk:lightglue", "xfeat:lightglue", "loftr"),
    *("linpoint:mnn", "linpoint:linglue"),
)
MODEL_METHODS = ("sift:mnn", "sift:ratio", "sift:adalam", "sift:linglue", "superpoint:superglue", "superpoint:linglue")
QUICK_METHODS = (
    *("sift:mnn", "sift:ratio", "sift:adalam", "sift:linglue"),
    *("superpoint:mnn", "superpoint:superglue-10", "superpoint:linglue"),
    *("aliked:lightglue", "aliked:linglue", "linpoint:mnn", "linpoint:linglue", "loftr"),
)
QUICK_MODEL_METHODS = ("sift:mnn", "sift:ratio", "sift:linglue")
QUICK_SEQUENCES = ("v_graf", "i_leuven")
QUICK_SUBJECTS = ("geo", "pair", "linear", "linear-sinkhorn", "mnn", "superglue-10", "lightglue")
PACKAGES = ("linglue", "torch", "numpy", "opencv-python-headless", "kornia", "transformers", "pycolmap", "poselib")


@dataclass(frozen=True)
class Suite:
    """What the whole run is made of.

    Args:
        data: folder with oxford/ and epfl/.
        work: where everything is kept.
        quick: a small part of everything, in minutes.
        engine: where images are extracted and pairs matched.
    """

    data: Path
    work: Path
    quick: bool = False
    engine: Engine = field(default_factory=Pool)

    @property
    def results(self) -> Path:
        """The folder of the finished sections."""
        return self.work / ("results-quick" if self.quick else "results")


Section = Callable[[Suite], Result]


def run(suite: Suite, only: Sequence[str] = ()) -> dict[str, Result]:
    """Run all sections, or some, and keep each when it is finished.

    Args:
        suite: what to measure.
        only: names of sections; none: all.

    Returns:
        The results by section, those of earlier runs with the same code among them.
    """
    unknown = [name for name in only if name not in SECTIONS]
    if unknown:
        raise LinGlueError(f"section is {unknown[0]!r}, expected {', '.join(SECTIONS)}")
    if not suite.data.is_dir():
        raise LinGlueError(f"{suite.data}: no such folder, expected the one with oxford/ and epfl/")
    suite.results.mkdir(parents=True, exist_ok=True)
    made_from = settings_hash({"code": code_sha256("."), "data": str(suite.data), "quick": suite.quick})
    for name in only or SECTIONS:
        path, stamp = suite.results / f"{name}.json", suite.results / f"{name}.stamp.json"
        if path.is_file() and stamp.is_file() and read_json(stamp)["made_from"] == made_from:
            continue
        start, cpu = time.perf_counter(), _cpu_seconds()
        result = SECTIONS[name](suite)
        result.save(path)
        spent = {"seconds": time.perf_counter() - start, "cpu_seconds": _cpu_seconds() - cpu}
        write_json(stamp, {"made_from": made_from, **spent, **machine()})
    return load(suite)


def load(suite: Suite) -> dict[str, Result]:
    """The finished sections of a run.

    Args:
        suite: the same as for `run`.
    """
    paths = {name: suite.results / f"{name}.json" for name in SECTIONS}
    return {name: Result.load(path) for name, path in paths.items() if path.is_file()}


def stamps(suite: Suite) -> dict[str, dict[str, Any]]:
    """How long each finished section took, and on what machine.

    Args:
        suite: the same as for `run`.
    """
    paths = {name: suite.results / f"{name}.stamp.json" for name in SECTIONS}
    return {name: read_json(path) for name, path in paths.items() if path.is_file()}


def write_suite(suite: Suite, results: Mapping[str, Result], document: Path | None = None) -> list[Path]:
    """The report of a run: one HTML page with pictures, and the JSON and CSV of every section.

    Args:
        suite: the same as for `run`.
        results: of `run`.
        document: a Markdown file to write besides.

    Returns:
        The files.
    """
    pictures: dict[str, list[Path]] = {}
    files: list[Path] = []
    for name, result in results.items():
        folder = suite.results / name
        files += result.write(folder).values()
        curves = figures.draw_curves(result, folder / "curves.png")
        pictures[name] = [curves] if curves else []
    if "homography" in results:
        pictures["homography"] += draw_pair(suite)
    found = stamps(suite)
    page = suite.results / "report.html"
    write_html(page, "LinGlue: benchmarks", results, pictures, about(found, suite.quick))
    if document is not None:
        write_markdown(document, results, found, suite.quick)
    return [*files, page, *([document] if document else [])]


def draw_pair(suite: Suite) -> list[Path]:
    """Pictures of graf 1→3 with SIFT: matches beside AdaLAM's, neighborhoods, attention.

    Args:
        suite: whose section of homographies is finished.
    """
    truths, _ = homography.load_pairs(_oxford(suite))
    truth = next((t for t in truths if t.pair.name == "v_graf 1-3"), truths[0])
    prepared = prepare(["sift:linglue", "sift:adalam"], _extract(suite))
    work = suite.work / "oxford"
    _, predictions = predict(work, [truth.pair], prepared)
    folder = suite.results / "homography"
    paths = [folder / f"{name}.png" for name in ("matches", "neighborhoods", "attention")]
    figures.draw_beside(paths[0], truth, {name: found[0] for name, found in predictions.items()})
    images = (truth.pair.image0, truth.pair.image1)
    with Predictions(work, truth.pair.group, _extract(suite)).workspace.features() as store:
        features = [store.get(image.name) for image in images]
    matcher = Matcher.for_features("sift")
    figures.draw_neighborhoods(paths[1], matcher, images, features)
    matched = matcher.match(features[0], features[1]).indices
    figures.draw_attention(paths[2], matcher, images, features, int(matched[0, 0]))
    return paths


def machine() -> dict[str, Any]:
    """What the numbers were measured with."""
    return {
        "processor": _processor(),
        "cores": os.cpu_count() or 1,
        "threads": torch.get_num_threads(),
        "system": f"{platform.system()} {platform.machine()}, Python {platform.python_version()}",
        "versions": {name: _version(name) for name in PACKAGES},
        "date": time.strftime("%Y-%m-%d"),
    }


def _processor() -> str:
    path = Path("/proc/cpuinfo")
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def _cpu_seconds() -> float:
    """Of this process and its finished children."""
    usage = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(u.ru_utime + u.ru_stime for u in usage)


def _extract(suite: Suite, keypoints: int = 2048, resize: int | None = 1024) -> ExtractConfig:
    """Features of a section; a quick run takes fewer, and the same for all sections, which then share them."""
    return ExtractConfig(
        "sift", max_keypoints=1024 if suite.quick else keypoints, resize=800 if suite.quick else resize
    )


def _methods(suite: Suite, full: Sequence[str], quick: Sequence[str]) -> list[str]:
    return list(quick if suite.quick else full)


def _oxford(suite: Suite) -> Path:
    """The data set, or links to a few of its sequences."""
    data = suite.data / "oxford"
    if not suite.quick:
        return data
    few = suite.work / "quick-data" / "oxford"
    few.mkdir(parents=True, exist_ok=True)
    for name in QUICK_SEQUENCES:
        if not (few / name).exists():
            (few / name).symlink_to((data / name).resolve())
    return few


def _epfl(suite: Suite) -> list[Path]:
    scenes = [suite.data / "epfl" / name for name in ("Herz-Jesus-P8", "fountain-P11")]
    return scenes[:1] if suite.quick else scenes


def _homography(suite: Suite) -> Result:
    methods = _methods(suite, METHODS, QUICK_METHODS)
    return homography.evaluate(_oxford(suite), methods, suite.work / "oxford", _extract(suite), estimators=["poselib"])


def _pose(suite: Suite) -> Result:
    methods = _methods(suite, METHODS, QUICK_METHODS)
    gap = 2 if suite.quick else pose.MAX_GAP
    return pose.evaluate(_epfl(suite), methods, suite.work / "epfl", _extract(suite), max_gap=gap)


def _reconstruction(suite: Suite) -> Result:
    methods = [*_methods(suite, MODEL_METHODS, QUICK_MODEL_METHODS), reconstruction.COLMAP]
    extract = _extract(suite, 10000, None)
    return reconstruction.evaluate(_epfl(suite), methods, suite.work / "epfl", extract, engine=suite.engine)


def _localization(suite: Suite) -> Result:
    methods = _methods(suite, MODEL_METHODS, QUICK_MODEL_METHODS)
    extract = _extract(suite, 4096, 1600)
    return localization.evaluate(_epfl(suite), methods, suite.work / "epfl", extract, engine=suite.engine)


def _scalability(suite: Suite) -> Result:
    subjects = [s for s in scalability.SUBJECTS if not suite.quick or s.name in QUICK_SUBJECTS]
    accuracy: Mapping[str, Any] = {
        "scenes": _epfl(suite),
        "methods": ["sift:mnn", "sift:linglue"],
        "extract": _extract(suite),
        "keypoints": (512, 1024) if suite.quick else scalability.KEYPOINTS,
    }
    sizes = SIZES[:3] if suite.quick else SIZES
    limits = Limits(seconds=120) if suite.quick else Limits()
    repeats = 1 if suite.quick else 3
    return scalability.evaluate(suite.work / "epfl", subjects, sizes, repeats=repeats, limits=limits, **accuracy)


def _ablation(suite: Suite) -> Result:
    scenes = [] if suite.quick else _epfl(suite)
    counts = (512, 1024) if suite.quick else ablation.KEYPOINTS
    work = suite.work / "ablation"
    return ablation.evaluate([_oxford(suite)], scenes, work, _extract(suite), keypoints=counts, engine=suite.engine)


SECTIONS: dict[str, Section] = {
    "homography": _homography,
    "pose": _pose,
    "reconstruction": _reconstruction,
    "localization": _localization,
    "scalability": _scalability,
    "ablation": _ablation,
}
