"""What every front-end has in common: shrinking, masks, tiles and the way back to original pixels."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from linglue.errors import LinGlueError
from linglue.io.images import Image, ImageSource, Mask, as_image, resize_points, shrink
from linglue.types import Features, ImageSize

TILE_OVERLAP = 64  # pixels a tile sees beyond its own area, so that no descriptor is cut at its border


class Extractor(ABC):
    """A keypoint detector with its descriptor. Subclasses say what they are and implement `detect`."""

    kind: str  # stored in Features.kind; a network refuses features of another kind
    dim: int  # descriptor length
    licence: str  # of code and weights together

    @abstractmethod
    def detect(self, image: Image, max_keypoints: int, mask: Mask | None) -> Features:
        """The strongest keypoints of an RGB image, in its own pixels, only where `mask` (same size) is True."""

    def extract(
        self,
        source: ImageSource,
        max_keypoints: int = 2048,
        resize: int | None = None,
        mask: Mask | None = None,
        tile: int | None = None,
    ) -> Features:
        """Features of an image in pixels of the original.

        `resize` is the longer side to work at (never enlarges), `mask` has the size of the original, `tile` cuts what
        remains into squares of that side, so that very large images need little memory.
        """
        if max_keypoints < 1:
            raise LinGlueError(f"max_keypoints is {max_keypoints}, allowed is at least 1")
        if resize is not None and resize < 16:
            raise LinGlueError(f"resize is {resize}, allowed is a longer side of at least 16 pixels")
        if tile is not None and tile < 2 * TILE_OVERLAP:
            raise LinGlueError(f"tile is {tile}, allowed is at least {2 * TILE_OVERLAP} pixels")
        original = as_image(source)
        size = ImageSize(original.shape[1], original.shape[0])
        if mask is not None and mask.shape != original.shape[:2]:
            raise LinGlueError(f"mask is {mask.shape[1]}x{mask.shape[0]}, allowed is the image's size {size[0]}x{size[1]}")
        image = shrink(original, resize)
        if mask is not None and image.shape != original.shape:
            mask = _shrink_mask(mask, image.shape[:2])
        if tile is None or max(image.shape[:2]) <= tile:
            features = self.detect(image, max_keypoints, mask)
        else:
            features = self._detect_tiles(image, max_keypoints, mask, tile)
        original_from_work = np.array(
            [original.shape[1] / image.shape[1], original.shape[0] / image.shape[0]], dtype=np.float32
        )
        features = features.strongest(max_keypoints)
        growth = np.float32(np.sqrt(original_from_work.prod()))
        return replace(
            features,
            keypoints=resize_points(features.keypoints, original_from_work),
            scales=None if features.scales is None else features.scales * growth,
            image_size=size,
        )

    def _detect_tiles(self, image: Image, max_keypoints: int, mask: Mask | None, tile: int) -> Features:
        parts = []
        for core, seen in _tiles(image.shape[1], image.shape[0], tile):
            x0, y0, x1, y1 = seen
            part = self.detect(
                image[y0:y1, x0:x1].copy(), max_keypoints, None if mask is None else mask[y0:y1, x0:x1].copy()
            )
            part = replace(part, keypoints=part.keypoints + np.array([x0, y0], dtype=np.float32))
            # A keypoint belongs to the tile whose core holds its pixel, so none is found twice.
            pixel = np.rint(part.keypoints)
            inside = (pixel >= core[:2]).all(axis=1) & (pixel < core[2:]).all(axis=1)
            parts.append(part.select(inside))
        return _concatenate(parts)


def _shrink_mask(mask: Mask, shape: tuple[int, ...]) -> Mask:
    import cv2

    return cv2.resize(mask.astype(np.uint8), (shape[1], shape[0]), interpolation=cv2.INTER_NEAREST) > 0


def _tiles(width: int, height: int, tile: int) -> Iterator[tuple[tuple[int, int, int, int], tuple[int, int, int, int]]]:
    """(core, seen) boxes (x0, y0, x1, y1): cores partition the image evenly, seen boxes add the overlap."""
    core_side = tile - 2 * TILE_OVERLAP if tile > 4 * TILE_OVERLAP else tile // 2
    columns, rows = -(-width // core_side), -(-height // core_side)
    xs = np.linspace(0, width, columns + 1).round().astype(int)
    ys = np.linspace(0, height, rows + 1).round().astype(int)
    for y0, y1 in zip(ys[:-1], ys[1:], strict=True):
        for x0, x1 in zip(xs[:-1], xs[1:], strict=True):
            seen = (
                max(0, x0 - TILE_OVERLAP),
                max(0, y0 - TILE_OVERLAP),
                min(width, x1 + TILE_OVERLAP),
                min(height, y1 + TILE_OVERLAP),
            )
            yield (int(x0), int(y0), int(x1), int(y1)), tuple(int(v) for v in seen)  # type: ignore[misc]


def _concatenate(parts: list[Features]) -> Features:
    first = parts[0]
    return replace(
        first,
        keypoints=np.concatenate([p.keypoints for p in parts]),
        descriptors=np.concatenate([p.descriptors for p in parts]),
        scores=np.concatenate([p.scores for p in parts]),
        scales=None if first.scales is None else np.concatenate([p.scales for p in parts]),  # type: ignore[misc]
        oris=None if first.oris is None else np.concatenate([p.oris for p in parts]),  # type: ignore[misc]
    )
