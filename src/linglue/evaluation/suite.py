"""All evaluations in one run: the tables of the paper on the data at hand, with the peers whose weights are at hand.

    WORK/results/SECTION.json, and the work folders of the tasks

An interrupted run resumes: predictions, models, measurements and finished sections are kept. A section whose data are
not at hand, or that fails, does not keep the others from being measured.
"""

from __future__ import annotations

import os
import platform
import resource
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import cv2
import torch

from linglue.core.fingerprint import PACKAGE, code_sha256, file_sha256, settings_hash
from linglue.core.pool import Pool
from linglue.core.progress import Verbosity, set_verbosity, verbosity
from linglue.errors import LinGlueError
from linglue.evaluation import figures, pair_pictures
from linglue.evaluation.peers import ENVIRONMENT
from linglue.evaluation.report import OTHER_SECTIONS, about, write_html, write_markdown
from linglue.evaluation.result import Result, read_json, write_json
from linglue.evaluation.sections import LANES, SECTIONS, NoData, Suite

DATA = "LINGLUE_DATA"  # environment variable: the folder of data
MEASURED = "measured"  # folder beside the document: sections that other benchmarks measured and saved as JSON
PACKAGES = ("linglue", "torch", "numpy", "opencv-python-headless", "kornia", "transformers", "pycolmap", "poselib")


def run(suite: Suite, only: Sequence[str] = ()) -> tuple[dict[str, Result], dict[str, str]]:
    """Run all sections, or some, and keep each when it is finished.

    Args:
        suite: what to measure.
        only: names of sections; none: all.

    Returns:
        The results by section, those of earlier runs among them; and for each section that could not run, why.
    """
    unknown = [name for name in only if name not in SECTIONS]
    if unknown:
        raise LinGlueError(f"section is {unknown[0]!r}, expected {', '.join(SECTIONS)}")
    if not suite.data.is_dir():
        raise LinGlueError(f"{suite.data}: no such folder, expected the one with oxford/ and epfl/")
    suite.results.mkdir(parents=True, exist_ok=True)
    failed: dict[str, str] = {}
    lanes = [lane for names in LANES if (lane := tuple(name for name in names if name in (only or SECTIONS)))]
    for _, problems in Pool(suite.workers).run(partial(_make_worker, suite, verbosity()), lanes):
        failed |= problems
    return load(suite, only), failed


def _make_worker(suite: Suite, said: Verbosity) -> Callable[[Sequence[str]], dict[str, str]]:
    """What measures the sections of a lane, with one thread; several processes say a line about each section."""
    torch.set_num_threads(1)
    cv2.setNumThreads(1)
    made_from, several = _made_from(suite), suite.workers > 1
    if several:
        set_verbosity(Verbosity.QUIET)  # bars of several processes would be drawn over each other

    def work(names: Sequence[str]) -> dict[str, str]:
        failed: dict[str, str] = {}
        for name in names:
            start = time.perf_counter()
            why = _measure(suite, name, made_from)
            if why is not None:
                failed[name] = why
            if several and said is not Verbosity.QUIET:
                print(f"{name}: {why or f'{time.perf_counter() - start:.0f} s'}", file=sys.stderr, flush=True)
        return failed

    return work


def _measure(suite: Suite, name: str, made_from: str) -> str | None:
    """Measure a section and keep it, unless it is there; returns why it could not be."""
    path, stamp = suite.results / f"{name}.json", suite.results / f"{name}.stamp.json"
    if path.is_file() and stamp.is_file() and read_json(stamp)["made_from"] == made_from:
        return None
    start, cpu = time.perf_counter(), _cpu_seconds()
    try:
        result = SECTIONS[name](suite)
    except NoData as error:
        return f"no data ({error})"
    except LinGlueError as error:
        return str(error)
    result.save(path)
    spent = {"seconds": time.perf_counter() - start, "cpu_seconds": _cpu_seconds() - cpu}
    write_json(stamp, {"made_from": made_from, **spent, **machine()})
    return None


def _made_from(suite: Suite) -> str:
    """All that decides the results beside the content of the data: code, networks, where data and peers are."""
    folders = [PACKAGE / "weights", *([suite.networks] if suite.networks else [])]
    networks = {str(path): file_sha256(path) for folder in folders for path in sorted(folder.rglob("*.safetensors"))}
    places = {"data": str(suite.data), "scenes": str(suite.scenes), "peers": os.environ.get(ENVIRONMENT)}
    return settings_hash({"code": code_sha256("."), "networks": networks, "quick": suite.quick, **places})


def load(suite: Suite, only: Sequence[str] = ()) -> dict[str, Result]:
    """The finished sections of a run.

    Args:
        suite: the same as for `run`.
        only: names of sections; none: all.
    """
    paths = {name: suite.results / f"{name}.json" for name in SECTIONS if name in (only or SECTIONS)}
    return {name: Result.load(path) for name, path in paths.items() if path.is_file()}


def stamps(suite: Suite, names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """How long finished sections took, and on what machine.

    Args:
        suite: the same as for `run`.
        names: of sections.
    """
    paths = {name: suite.results / f"{name}.stamp.json" for name in names}
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
        pictures["homography"] += pair_pictures.draw(suite)
    found = stamps(suite, list(results))
    others = {} if document is None else load_measured(document.parent / MEASURED)
    page = suite.results / "report.html"
    write_html(page, "LinGlue: benchmarks", {**results, **others}, pictures, about(found, suite.quick), published=True)
    if document is not None:
        write_markdown(document, {**results, **others}, found, suite.quick)
    return [*files, page, *([document] if document else [])]


def load_measured(folder: Path) -> dict[str, Result]:
    """What other benchmarks (benchmarks/scaling.py, dense.py, viewing.py, …) measured, by section.

    Args:
        folder: where they saved it; it need not be there.
    """
    paths = {name: folder / f"{name}.json" for name in OTHER_SECTIONS}
    return {name: Result.load(path) for name, path in paths.items() if path.is_file()}


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
