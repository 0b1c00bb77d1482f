"""All evaluations in one run: the tables of the paper on the data at hand, with the peers whose weights are at hand.

    WORK/results/SECTION.json, and the work folders of the tasks

An interrupted run resumes: predictions, models, measurements and finished sections are kept. A section whose data are
not at hand, or that fails, does not keep the others from being measured.
"""

from __future__ import annotations

import os
import platform
import resource
import time
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from linglue.core.fingerprint import PACKAGE, code_sha256, file_sha256, settings_hash
from linglue.errors import LinGlueError
from linglue.evaluation import figures, pair_pictures
from linglue.evaluation.peers import ENVIRONMENT
from linglue.evaluation.report import about, write_html, write_markdown
from linglue.evaluation.result import Result, read_json, write_json
from linglue.evaluation.sections import SECTIONS, NoData, Suite

DATA = "LINGLUE_DATA"  # environment variable: the folder of data
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
    made_from = _made_from(suite)
    failed: dict[str, str] = {}
    for name in only or SECTIONS:
        path, stamp = suite.results / f"{name}.json", suite.results / f"{name}.stamp.json"
        if path.is_file() and stamp.is_file() and read_json(stamp)["made_from"] == made_from:
            continue
        start, cpu = time.perf_counter(), _cpu_seconds()
        try:
            result = SECTIONS[name](suite)
        except NoData as error:
            failed[name] = f"no data ({error})"
            continue
        except LinGlueError as error:
            failed[name] = str(error)
            continue
        result.save(path)
        spent = {"seconds": time.perf_counter() - start, "cpu_seconds": _cpu_seconds() - cpu}
        write_json(stamp, {"made_from": made_from, **spent, **machine()})
    return load(suite, only), failed


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
    page = suite.results / "report.html"
    write_html(page, "LinGlue: benchmarks", results, pictures, about(found, suite.quick))
    if document is not None:
        write_markdown(document, results, found, suite.quick)
    return [*files, page, *([document] if document else [])]


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
