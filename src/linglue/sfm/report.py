"""A reconstruction to send to a colleague: one HTML file with numbers, the model in 3D, matches and times."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from linglue.core.atomic import atomic_path
from linglue.core.progress import progress
from linglue.errors import LinGlueError
from linglue.geometry.colmap import pixel_from_colmap
from linglue.io.colmap.database import open_database, read_images, read_matches, readable_database
from linglue.io.images import Image, read_image
from linglue.io.pair_list import Pair
from linglue.sfm.map import verified_matches
from linglue.sfm.sparse_model import read_model
from linglue.sfm.summary import Summary, read_summary
from linglue.sfm.workspace import Workspace
from linglue.types import FloatArray, IndexArray
from linglue.viz.matches import draw_matches
from linglue.viz.model import draw_match_graph
from linglue.viz.page import bars, lines, page, picture, scene_plot, table
from linglue.viz.scene import Scene

FEWEST = 20  # matches a pair must have to be among the worst: fewer say nothing


@dataclass(frozen=True)
class ReportConfig:
    """What a report shows."""

    pairs: int = 3  # best and worst ones, each
    points: int = 40_000  # of the model; more are thinned

    def __post_init__(self) -> None:
        for name, value, least in (("pairs", self.pairs, 0), ("points", self.points, 1)):
            if value < least:
                raise LinGlueError(f"{name} is {value}, expected at least {least}")


@dataclass(frozen=True, eq=False)
class PairMatches:
    """The matches of one pair as they went into the model."""

    points0: FloatArray  # (K, 2) pixels
    points1: FloatArray  # (K, 2)
    verified: IndexArray  # (K,) 1 where the geometry of the pair explains the match, else 0


def write_report(work: Workspace, path: Path, config: ReportConfig | None = None) -> None:
    """Write the report about a finished reconstruction.

    Args:
        work: a folder of `linglue reconstruct`; nothing in it is changed.
        path: the .html file, which appears whole. It opens without a network.
        config: what it shows.

    Example:
        >>> write_report(Workspace(Path("work")), Path("report.html"))  # doctest: +SKIP
    """
    config = config or ReportConfig()
    if not work.model.is_dir():
        raise LinGlueError(f"{work.folder}: holds no model, expected a folder of `linglue reconstruct`")
    summary, model = read_summary(work.summary), read_model(work.model)
    scene = Scene.of(model, config.points)
    with work.features() as features:
        names, paths = features.names(), features.paths()
    with readable_database(work.database) as database:
        verified = verified_matches(database)
        pairs = _pairs(work, database, verified, paths, config.pairs)
    sections = [
        ("Summary", _summary(summary)),
        ("Model", scene_plot(scene)),
        ("Which images match", picture(_match_graph(names, verified, scene.names), "verified matches per pair")),
        *pairs,
        ("Time", bars(summary.seconds) if summary.seconds else "<p>The last run had nothing left to do.</p>"),
    ]
    lead = f"{summary.model.registered} of {summary.model.images} images, {summary.model.points:,} points"
    with atomic_path(path) as partial:
        partial.write_text(page(f"Reconstruction {work.folder.resolve().name}", lead, sections), encoding="utf-8")


def rank_pairs(verified: Mapping[Pair, int], matched: Mapping[Pair, int], count: int) -> tuple[list[Pair], list[Pair]]:
    """The best pairs, with the most verified matches, and the worst, with the smallest share of them; none in both.

    Args:
        verified: number of verified matches by pair; pairs without any may be missing.
        matched: number of matches by pair.
        count: of pairs, each.
    """
    best = sorted((pair for pair in matched if verified.get(pair)), key=lambda pair: (-verified[pair], pair))[:count]
    rest = [pair for pair, number in matched.items() if number >= FEWEST and pair not in best]
    worst = sorted(rest, key=lambda pair: (verified.get(pair, 0) / matched[pair], pair))[:count]
    return best, worst


def _summary(summary: Summary) -> str:
    model = summary.model
    rows: list[Sequence[object]] = [
        ("images with a pose", f"{model.registered} of {model.images}"),
        ("points", model.points),
        ("track length", round(model.track_length, 2)),
        ("reprojection error, px", round(model.reprojection_error, 3)),
        ("observations per image", round(model.observations_per_image)),
        ("verified pairs", f"{summary.verified_pairs} of {summary.matched_pairs}"),
    ]
    missing = [f"no pose: {name} ({summary.reasons.get(name, 'unknown')})" for name in summary.unregistered]
    told = lines(summary.notes) if summary.notes else ""
    return table(rows) + told + (lines([*missing, *summary.problems], warn=True) if missing or summary.problems else "")


def _match_graph(names: Sequence[str], verified: Mapping[Pair, int], registered: Sequence[str]) -> Image:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "graph.png"
        draw_match_graph(path, names, verified, registered)
        return read_image(path)


def _pairs(
    work: Workspace, database: Path, verified: Mapping[Pair, int], paths: Mapping[str, Path], count: int
) -> list[tuple[str, str]]:
    """The sections of the best and the worst pairs; images that are not where they were cannot be shown."""
    with work.matches() as matches:
        matched = {
            pair: row for pair, row in matches.counts().items() if all(n in paths and paths[n].is_file() for n in pair)
        }
    sections = []
    for title, chosen in zip(("Best pairs", "Worst pairs"), rank_pairs(verified, matched, count), strict=True):
        drawn = []
        for pair in progress(chosen, desc=title.lower(), unit="pair"):
            found = read_pair(database, pair)
            caption = f"{pair[0]} and {pair[1]}: {int(found.verified.sum())} of {len(found.verified)} matches verified"
            image0, image1 = (read_image(paths[name]) for name in pair)
            canvas = draw_matches(image0, image1, found.points0, found.points1, correct=found.verified)
            drawn.append(picture(canvas, caption))
        if drawn:
            sections.append((title, "".join(drawn)))
    return sections


def read_pair(database: Path, pair: Pair) -> PairMatches:
    """The matches of a pair in a COLMAP database, and which of them were verified."""
    with open_database(database) as opened:
        every = read_images(opened)
        image0, image1 = (every[name] for name in pair)
        indices = read_matches(opened, image0, image1)
        inliers = opened.read_two_view_geometry(image0.image_id, image1.image_id).inlier_matches
        points = [opened.read_keypoints(image.image_id)[:, :2] for image in (image0, image1)]
    good = {tuple(row) for row in np.asarray(inliers).astype(np.int64).tolist()}
    flags = np.array([tuple(row) in good for row in indices.tolist()], dtype=np.int64)
    return PairMatches(pixel_from_colmap(points[0][indices[:, 0]]), pixel_from_colmap(points[1][indices[:, 1]]), flags)
