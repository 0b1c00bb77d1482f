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
from linglue.errors import LinGlueError
from linglue.io.images import Image
from linglue.matcher import Matcher
from linglue.matching.distance import mutual_matches
from linglue.matching.nearest import nearest_both_ways
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
    parser.add_argument(
        "-o", "--output", type=Path, default=Path("linglue-demo"), metavar="DIR", help="folder for the picture"
    )
    parser.add_argument("--max-keypoints", type=int, default=2048, metavar="N", help="strongest kept per image")
    common.add_json(parser)


def run(options: argparse.Namespace) -> None:
    report = common.Report(options.json)
    pair = load_motorcycle()
    matcher = Matcher.from_pretrained("sift")
    features0, features1 = (matcher.extract(image, options.max_keypoints) for image in (pair.left, pair.right))
    result = matcher.match(features0, features1)
    found = {"LinGlue": result.indices, "mutual nearest neighbours": nearest_baseline(features0, features1)}
    canvases = []
    for name, indices in found.items():
        points0, points1 = features0.keypoints[indices[:, 0]], features1.keypoints[indices[:, 1]]
        errors = pair.errors(points0, points1)
        known = np.isfinite(errors)
        correct = int((errors[known] <= THRESHOLD).sum())
        precision = correct / max(1, int(known.sum()))
        report.line(
            f"{name}: {correct} correct of {known.sum()} matches with known truth, precision {precision:.1%}",
            **{
                name: {
                    "correct": correct,
                    "matches": len(indices),
                    "with_truth": int(known.sum()),
                    "precision": precision,
                }
            },
        )
        shown = viz.correctness(errors[known], THRESHOLD)
        caption = f"{correct} correct, precision {precision:.0%}"
        canvases.append(
            viz.draw_matches(pair.left, pair.right, points0[known], points1[known], correct=shown, lines=[caption])
        )
    try:
        options.output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise LinGlueError(f"{options.output}: cannot be made a folder ({error.strerror})") from error
    picture = options.output / "demo.png"
    viz.save_image(picture, viz.compare(canvases[0], canvases[1], *found))
    seconds = ", ".join(f"{stage} {value:.2f} s" for stage, value in result.timing.items())
    report.line(f"seconds of LinGlue: {seconds}", seconds=dict(result.timing))
    report.line(f"picture: {picture} (green: within {THRESHOLD:.0f} px of the truth, red: wrong)", picture=str(picture))
    report.finish()


def load_motorcycle() -> StereoPair:
    """The Middlebury motorcycle pair, at a quarter of its size, from scikit-image's wheel."""
    from skimage import data

    left, right, disparity = data.stereo_motorcycle()
    return StereoPair(np.ascontiguousarray(left), np.ascontiguousarray(right), disparity.astype(np.float32))


def nearest_baseline(features0: Features, features1: Features) -> NDArray[np.int64]:
    """(K, 2) what most people start with: mutual nearest neighbours of the raw descriptors."""
    descriptors = (torch.from_numpy(f.descriptors) for f in (features0, features1))
    pairs, _ = mutual_matches(*nearest_both_ways(*descriptors))
    return pairs.numpy()
