"""Descriptors of one front-end in the language of another."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import pytest
import torch

from linglue.errors import LinGlueError
from linglue.features.base import Extractor
from linglue.io.images import Image, Mask
from linglue.training.lightglue.translate import fit_translation, same_places, translate
from linglue.types import Features

MIXED = np.random.default_rng(0).normal(size=(3, 5))


class Corners(Extractor):
    """Keypoints on a grid, told by the colours there; another dialect of it, two pixels beside, mixes them."""

    kind, dim, licence = "corners", 3, "none"

    def __init__(self, mixed: bool) -> None:
        self.mixed, self.dim = mixed, 5 if mixed else 3

    def detect(self, image: Image, max_keypoints: int, mask: Mask | None) -> Features:
        y, x = (part.ravel() for part in np.mgrid[10:90:8, 10:90:8])
        colours = image[y, x].astype(np.float32) / 255
        places = np.stack([x, y], axis=1).astype(np.float32) + 2 * self.mixed
        descriptors = (colours @ MIXED if self.mixed else colours).astype(np.float32)
        return Features(places, descriptors, (100, 100), np.ones(len(x)), kind=self.kind)


def photographs(folder: Path, count: int) -> list[Path]:
    rng, paths = np.random.default_rng(1), []
    for number in range(count):
        paths.append(folder / f"{number}.png")
        cv2.imwrite(str(paths[-1]), rng.integers(0, 256, (100, 100, 3), dtype=np.uint8))
    return paths


def test_the_translation_is_what_was_said_of_the_same_places(tmp_path: Path) -> None:
    found = fit_translation(Corners(mixed=False), Corners(mixed=True), photographs(tmp_path, 12))
    assert found.shape == (3, 5)
    assert np.allclose(found, MIXED, atol=0.02)


def test_too_few_places_are_refused(tmp_path: Path) -> None:
    with pytest.raises(LinGlueError, match="2 images share 200 places with ALIKED, expected at least 1000"):
        fit_translation(Corners(mixed=False), Corners(mixed=True), photographs(tmp_path, 2))


def test_the_same_place_is_near_and_nearest_from_both_sides() -> None:
    zero = np.array([[0.0, 0.0], [50.0, 0.0], [80.0, 0.0]])
    one = np.array([[80.0, 1.0], [1.0, 0.0], [2.0, 0.0], [60.0, 0]])
    assert same_places(zero, one).tolist() == [[0, 1], [2, 0]]
    assert same_places(zero, one[:0]).shape == same_places(zero[:0], one).shape == (0, 2)


def test_aliked_needs_no_translation_and_others_keep_their_precision() -> None:
    rows = torch.randn(4, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert translate(rows, None) is rows
    told = translate(rows, torch.eye(3))
    assert told.dtype == torch.float64
    assert torch.allclose(told.norm(dim=1), torch.ones(4, dtype=torch.float64))
