"""Match a real stereo pair with known truth, with nothing but the package; draw it and count what is right."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from linglue import viz
from linglue.cli import common
from linglue.io.images import Image
from linglue.matcher import Matcher
from linglue.matching.baselines import mutual_matches
from linglue.matching.nearest import nearest_both_ways
from linglue.sfm.workspace import Workspace
from linglue.types import Features, FloatArray

THRESHOLD = 3.0  # pixels from the true position at which a match counts as correct


@dataclass(frozen=True)
class StereoPair:
    """Two rectified views and, for every pixel of the left one, how far left it is in the right one."""

    left: Image
    right: Image
    disparity: FloatArray  # (H, W) pixels, not finite where unknown

    def errors(self, left_points: FloatArray, right_points: FloatArray) -> FloatArray:
        """(K,) pixels between the matched and the true position in the right view; NaN where the truth is unknown."""
        column, row = np.rint(left_points).astype(int).T
        disparity = self.disparity[row, column]  # (K,)
        true = left_points - np.stack([disparity, np.zeros_like(disparity)], axis=1)
        error = np.linalg.norm(np.where(np.isfinite(true), true, np.nan) - right_points, axis=1)
        return error.astype(np.float32)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `linglue demo`."""
    parser.add_argument(
        "-o", "--output", type=Path, default=Path("linglue-demo"), metavar="DIR", help="folder for the picture"
    )
    common.add_max_keypoints(parser, default=2048)
    common.add_overwrite(parser)
    common.add_json(parser)


def run(options: argparse.Namespace) -> None:
    """Do what `linglue demo` was asked for, and report it."""
    common.check_folder(options.output)
    work, picture = Workspace(options.output), options.output / "demo.png"
    work.check_free([picture], options.overwrite, "another folder by -o, or --overwrite to replace it")
    report = common.Report(options.json)
    pair = load_motorcycle()
    result = Matcher.from_pretrained().match(pair.left, pair.right, options.max_keypoints)
    baseline = nearest_baseline(result.features0, result.features1)
    ours = _judge(report, "LinGlue", "linglue", pair, result.points0, result.points1)
    plain = _judge(report, "mutual nearest neighbours", "mutual_nearest_neighbours", pair, *baseline)
    seconds = ", ".join(f"{stage} {value:.2f} s" for stage, value in result.timing.items())
    report.line(f"seconds of LinGlue: {seconds}", seconds=dict(result.timing))

    options.output.mkdir(parents=True, exist_ok=True)
    with work.making(picture, "demo"):
        viz.save_image(picture, viz.compare(ours, plain, "LinGlue", "mutual nearest neighbours"))
    report.line(f"picture: {picture} (green: within {THRESHOLD:.0f} px of the truth, red: wrong)", picture=str(picture))
    report.finish()


def _judge(
    report: common.Report, name: str, key: str, pair: StereoPair, points0: FloatArray, points1: FloatArray
) -> Image:
    """Report how many of the matches (K, 2) are right and draw those whose truth is known."""
    errors = pair.errors(points0, points1)
    known = np.isfinite(errors)
    judged, correct = int(known.sum()), int((errors[known] <= THRESHOLD).sum())
    precision = correct / max(1, judged)
    facts = {"matches": len(errors), "with_truth": judged, "correct": correct, "precision": precision}
    report.line(
        f"{name}: {correct} correct of {judged} matches with known truth, precision {precision:.1%}", **{key: facts}
    )
    return viz.draw_matches(
        pair.left,
        pair.right,
        points0[known],
        points1[known],
        correct=viz.correctness(errors[known], THRESHOLD),
        caption=[f"{correct} correct, precision {precision:.0%}"],
    )


def load_motorcycle() -> StereoPair:
    """The Middlebury motorcycle pair, at a quarter of its size, from scikit-image's wheel."""
    from skimage import data

    left, right, disparity = data.stereo_motorcycle()
    return StereoPair(np.ascontiguousarray(left), np.ascontiguousarray(right), disparity.astype(np.float32))


def nearest_baseline(features0: Features, features1: Features) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Points (K, 2) of what most people start with: mutual nearest neighbours of the raw descriptors."""
    descriptors = (torch.from_numpy(f.descriptors) for f in (features0, features1))
    pairs, _ = mutual_matches(*nearest_both_ways(*descriptors))
    return features0.keypoints[pairs[:, 0].numpy()], features1.keypoints[pairs[:, 1].numpy()]
