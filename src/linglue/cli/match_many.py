"""`linglue match` of a folder or a list of pairs: a line per pair, a file each below -o and --draw; resumes."""

from __future__ import annotations

import argparse
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from linglue.cli import common
from linglue.cli.match import geometry_config
from linglue.core.fingerprint import file_sha256, fingerprint
from linglue.errors import LinGlueError
from linglue.features import front_end
from linglue.io.images import IMAGE_SUFFIXES
from linglue.io.npz import save_matches
from linglue.io.pair_list import Pair
from linglue.matcher import PairMatcher
from linglue.sfm.extract import ExtractConfig
from linglue.sfm.match_images import FoundPairs, find_pairs, match_images
from linglue.sfm.pair_folder import PairFolder
from linglue.sfm.two_view import GeometryConfig, estimate_geometry
from linglue.types import Features, Matches


def run_many(options: argparse.Namespace) -> None:
    """Do what `linglue match FOLDER` or `linglue match LIST` was asked for, and report it."""
    source = Path(options.image0)
    for option in ("mask0", "mask1"):
        if getattr(options, option) is not None:
            raise LinGlueError(f"--{option} is {getattr(options, option)}, expected only with two images")
    if not source.exists():
        raise LinGlueError(f"{source}: no such folder or list of pairs, expected one of them, or two images A B")
    if source.is_file() and source.suffix.lower() in IMAGE_SUFFIXES:
        raise LinGlueError(f"{source}: is one image, expected a second one, a folder of images or a list of pairs")
    common.check_outputs([], [options.output, options.draw])
    found = find_pairs(source, options.images)
    geometry, device = geometry_config(options), common.device(options)
    extract = common.extract_config(options, device)
    matcher = common.matcher_config(options, front_end(options.features).name, device).build()
    made_by = {
        "extract": extract.settings(),
        "matcher": dict(matcher.settings),
        "geometry": None if geometry is None else asdict(geometry),
    }
    asked = (
        (options.output, ".npz", fingerprint(**made_by)),
        (options.draw, ".jpg", fingerprint(**made_by, lines=options.lines)),
    )
    folders = [PairFolder(folder, suffix, by) for folder, suffix, by in asked if folder is not None]
    for folder in folders:
        folder.check()
    with ExitStack() as stack:
        for folder in folders:
            stack.enter_context(folder.opened())
        report = common.Report(options.json)
        _match(options, report, _Run(found, folders, extract, matcher, geometry))


@dataclass(frozen=True)
class _Run:
    """What a run was asked for."""

    found: FoundPairs
    folders: list[PairFolder]  # one file per pair in each
    extract: ExtractConfig
    matcher: PairMatcher
    geometry: GeometryConfig | None

    def features_of(self, path: Path) -> Features:
        """Of one image file."""
        extract = self.extract
        return extract.extractor().extract(path, extract.max_keypoints, extract.resize, tile=extract.tile)

    def made_from(self, pair: Pair) -> str | None:
        """Fingerprint of both images as they are now; None where one cannot be read."""
        contents = [self.contents.get(name) for name in pair]
        return None if None in contents else fingerprint(images=contents)

    @cached_property
    def contents(self) -> dict[str, str]:
        """SHA-256 of every image that can be read."""
        contents = {}
        for name, path in self.found.paths.items():
            with suppress(LinGlueError):  # whoever extracts it says what is wrong
                contents[name] = file_sha256(path)
        return contents


def _match(options: argparse.Namespace, report: common.Report, run: _Run) -> None:
    """Match what earlier runs have not finished; a line per pair, then a summary."""
    pairs, facts = run.found.pairs, {}
    for pair in pairs if run.folders else ():
        there = [folder.done(pair, run.made_from(pair)) for folder in run.folders]
        if None not in there:
            facts[pair] = there[0]
    kept, missing = len(facts), [pair for pair in pairs if pair not in facts]
    problems = dict.fromkeys(run.found.problems)  # each is said once
    for pair, matches in match_images(missing, run.found.paths, run.features_of, run.matcher):
        if isinstance(matches, str):
            problems[matches] = None
        else:
            facts[pair] = _report_pair(options, report, run, pair, matches)
    for folder in run.folders:
        others = folder.others(pairs)
        if others:
            problems[f"{folder.folder}: holds {len(others)} files of other pairs, as {others[0]}"] = None
    for problem in problems:
        report.line(problem)
    line = f"{len(facts)} of {len(pairs)} pairs matched"
    line += f", {kept} of them by an earlier run" if kept else ""
    line += f", written: {options.output}" if options.output else ""
    report.line(line, pairs=[facts[pair] for pair in pairs if pair in facts], kept=kept, problems=list(problems))
    report.finish()
    if not facts:
        raise LinGlueError(f"{options.image0}: none of its pairs could be matched")


def _report_pair(
    options: argparse.Namespace, report: common.Report, run: _Run, pair: Pair, matches: Matches
) -> dict[str, Any]:
    """Write and draw what was asked for; the facts of the pair."""
    facts: dict[str, Any] = {"images": list(pair), "matches": len(matches), "pair_score": matches.pair_score}
    line = f"{pair[0]} {pair[1]}: {len(matches)} matches, pair score {matches.pair_score:.2f}"
    arrays: dict[str, Any] = {}
    if run.geometry is not None:
        view = estimate_geometry(matches, run.geometry)
        matches, facts["inliers"] = view.matches, len(view.matches)
        line += f", {len(matches)} obey one {run.geometry.kind} geometry"
        if view.matrix is not None:
            arrays[run.geometry.kind] = view.matrix

    def write(path: Path) -> None:
        if path.suffix == ".npz":
            save_matches(path, matches, arrays)
        else:
            matches.draw(path, options.lines or None)

    for folder in run.folders:
        folder.put(pair, run.made_from(pair), facts, write)
    report.line(line)
    return facts
