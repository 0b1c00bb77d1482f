"""Predictions of matchers that take images instead of keypoints: one file per pair, made once."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import numpy as np

from linglue.core.atomic import atomic_path
from linglue.core.fingerprint import file_sha256, settings_hash
from linglue.io.exif import upright_size
from linglue.matcher import PairMatcher
from linglue.types import FloatArray

if TYPE_CHECKING:
    from linglue.evaluation.store import Pair, Prediction


@runtime_checkable
class ImageMatcher(PairMatcher, Protocol):
    """A matcher that finds its own points in the images of a pair."""

    def match_images(
        self, image0: Path, image1: Path, resize: int | None, /
    ) -> tuple[FloatArray, FloatArray, FloatArray]:
        """points0 (K, 2), points1 (K, 2) in original pixels, and scores (K,), best first."""


def predict_images(
    work: Path, pairs: Sequence[Pair], matcher: ImageMatcher, resize: int | None
) -> tuple[int, list[Prediction]]:
    """Predictions for the pairs of one group.

    Args:
        work: work folder.
        pairs: of one group.
        matcher: that takes images.
        resize: longer side to work at; None: original.

    Returns:
        How many were made, and all of them in the order of the pairs.
    """
    from linglue.evaluation.store import Prediction

    made, found = 0, []
    folder = work / pairs[0].group / "images"
    for pair in pairs:
        made_from = {"matcher": dict(matcher.settings), "resize": resize}
        images = [file_sha256(image) for image in (pair.image0, pair.image1)]
        path = folder / f"{settings_hash({**made_from, 'images': images})}.npz"
        if not path.is_file():
            start = time.perf_counter()
            points0, points1, scores = matcher.match_images(pair.image0, pair.image1, resize)
            seconds = time.perf_counter() - start
            folder.mkdir(parents=True, exist_ok=True)
            with atomic_path(path) as temporary, temporary.open("wb") as file:
                np.savez(file, points0=points0, points1=points1, scores=scores, seconds=seconds)
            made += 1
        with np.load(path) as kept:
            points0, points1, scores = kept["points0"], kept["points1"], kept["scores"]
            seconds = float(kept["seconds"])
        sizes = upright_size(pair.image0), upright_size(pair.image1)
        found.append(Prediction(points0, points1, scores, *sizes, (len(points0), len(points1)), seconds))
    return made, found
