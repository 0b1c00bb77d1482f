"""What every front-end has in common: shrinking, masks, tiles and the way back to original pixels."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import cv2
import numpy as np

from linglue.errors import LinGlueError
from linglue.geometry.pixels import resize_points
from linglue.io.images import Image, ImageSource, Mask, open_image, shrink
from linglue.types import Features, ImageSize

TILE_GRID = 32  # tiles begin at multiples of this, so that cells and pyramid levels lie as in the whole image


class Extractor(ABC):
    """A keypoint detector with its descriptor. A subclass needs `kind`, `dim`, `licence` and `detect`.

    One that has weights or computes on a device also needs its own `__init__(weights=None, device="cpu")`.
    `make_extractor` and `--features` take it as "package.module:Class"; docs/extending.md shows a whole one.

    Example:
        >>> from linglue.features.sift import Sift
        >>> issubclass(Sift, Extractor)
        True
    """

    kind: str  # stored in Features.kind; a network refuses features of another kind
    dim: int  # descriptor length
    licence: str  # of code and weights together
    tile_overlap: int = 64  # pixels a tile sees beyond its own area, so that no descriptor is cut at its border
    default_tile: int | None = None  # side of tiles where none is asked for; None: images are taken whole

    def __init__(self, weights: str | Path | None = None, device: str = "cpu") -> None:
        if weights is not None:
            raise LinGlueError(
                f"front-end {self.kind} got the weights file {weights}, expected none: it has no weights"
            )

    @abstractmethod
    def detect(self, image: Image, max_keypoints: int, mask: Mask | None) -> Features:
        """The strongest keypoints of an RGB image, in its own pixels, only where `mask` (same size) is True."""

    def extract(
        self,
        source: ImageSource,
        max_keypoints: int = 2048,
        resize: int | None = None,
        mask: Mask | str | Path | None = None,
        tile: int | None = None,
    ) -> Features:
        """Features of an image in pixels of the original.

        Args:
            source: a path, a numpy array (H, W[, C]) uint8 or a torch tensor ([C,] H, W) float in [0, 1].
            max_keypoints: the strongest are kept; `sift` counts places, and keeps all orientations of a place.
            resize: longer side to work at; never enlarges. None: the image as it is.
            mask: (H, W) of the original, or the file of such an image; keypoints are found only where it is True.
                Without an array, none are found where a file is transparent.
            tile: side of the squares that larger images are cut into, so that they need little memory.

        Example:
            >>> from skimage.data import camera
            >>> from linglue.features.sift import Sift
            >>> len(Sift().extract(camera(), max_keypoints=100)) >= 100
            True
        """
        self.check_settings(max_keypoints, resize, tile)
        tile = tile or self.default_tile
        opened = open_image(source, mask, enough=resize)
        image = shrink(opened.image, resize)
        usable = None if opened.mask is None else _shrink_mask(opened.mask.astype(np.bool_), image.shape[:2])
        if tile is None or max(image.shape[:2]) <= tile:
            features = self.detect(image, max_keypoints, usable)
        else:
            features = self._detect_tiles(image, max_keypoints, usable, tile)
        work = ImageSize(image.shape[1], image.shape[0])
        return _to_original(self.keep(features, max_keypoints), opened.size, work)

    def keep(self, features: Features, max_keypoints: int) -> Features:
        """The strongest of what was detected; a front-end may count in another way.

        Args:
            features: of a whole image, more than are wanted if it was cut into tiles.
            max_keypoints: how many to keep.
        """
        return features.strongest(max_keypoints)

    def check_settings(self, max_keypoints: int, resize: int | None, tile: int | None) -> None:
        """Refuse what `extract` would refuse, before any image is read; the arguments are its own."""
        if max_keypoints < 1:
            raise LinGlueError(f"max_keypoints is {max_keypoints}, expected at least 1")
        if resize is not None and resize < 16:
            raise LinGlueError(f"resize is {resize}, expected a longer side of at least 16 pixels")
        smallest = 2 * self.tile_overlap + TILE_GRID
        if tile is not None and tile < smallest:
            raise LinGlueError(f"tile is {tile}, expected at least {smallest} pixels")

    def _empty(self, size: ImageSize) -> Features:
        """No keypoints, of a front-end without scales and orientations."""
        return Features(
            keypoints=np.zeros((0, 2), np.float32),
            descriptors=np.zeros((0, self.dim), np.float32),
            image_size=size,
            kind=self.kind,
        )

    def _detect_tiles(self, image: Image, max_keypoints: int, mask: Mask | None, tile: int) -> Features:
        parts = []
        for core, seen in _tiles(image.shape[1], image.shape[0], tile, self.tile_overlap):
            x0, y0, x1, y1 = seen
            part = self.detect(
                image[y0:y1, x0:x1].copy(), max_keypoints, None if mask is None else mask[y0:y1, x0:x1].copy()
            )
            whole = ImageSize(image.shape[1], image.shape[0])
            part = replace(part, keypoints=part.keypoints + np.array([x0, y0], dtype=np.float32), image_size=whole)
            # A keypoint belongs to the tile whose core holds its pixel, so none is found twice.
            pixel = np.rint(part.keypoints)
            inside = np.all((pixel >= core[:2]) & (pixel < core[2:]), axis=1)
            parts.append(part.select(inside))
        return _concatenate(parts)


def _shrink_mask(mask: Mask, shape: tuple[int, ...]) -> Mask:
    """The mask at the working size (H, W): True only where all original pixels under a pixel are."""
    if mask.shape == shape:
        return mask
    share = cv2.resize(mask.astype(np.float32), (shape[1], shape[0]), interpolation=cv2.INTER_AREA)
    return np.asarray(share > 0.999)


def _to_original(features: Features, original: ImageSize, work: ImageSize) -> Features:
    """Features of the working size in pixels of the original."""
    original_from_work = np.array([original.width / work.width, original.height / work.height], dtype=np.float32)
    scale = np.float32(np.sqrt(original_from_work.prod()))
    return replace(
        features,
        keypoints=resize_points(features.keypoints, original_from_work),
        scales=None if features.scales is None else features.scales * scale,
        image_size=original,
    )


Box = tuple[int, int, int, int]  # x0, y0, x1, y1


def _tiles(width: int, height: int, tile: int, overlap: int) -> Iterator[tuple[Box, Box]]:
    """(core, seen) boxes: cores partition the image, seen boxes add the overlap and fit in a tile."""
    largest = (tile - 2 * overlap) // TILE_GRID * TILE_GRID

    def cuts(length: int) -> list[int]:
        count = -(-length // largest)
        step = -(-length // (count * TILE_GRID)) * TILE_GRID
        return [min(i * step, length) for i in range(count + 1)]

    xs, ys = cuts(width), cuts(height)
    for y0, y1 in pairwise(ys):
        for x0, x1 in pairwise(xs):
            seen = (
                max(0, x0 - overlap),
                max(0, y0 - overlap),
                min(width, x1 + overlap),
                min(height, y1 + overlap),
            )
            yield (x0, y0, x1, y1), seen


def _concatenate(parts: list[Features]) -> Features:
    first = parts[0]
    return replace(
        first,
        keypoints=np.concatenate([p.keypoints for p in parts]),
        descriptors=np.concatenate([p.descriptors for p in parts]),
        scores=np.concatenate([p.scores for p in parts]),
        scales=None if first.scales is None else np.concatenate([p.scales for p in parts]),
        oris=None if first.oris is None else np.concatenate([p.oris for p in parts]),
    )
