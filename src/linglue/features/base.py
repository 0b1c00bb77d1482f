"""What every front-end has in common: shrinking, masks, tiles and the way back to original pixels."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType

import cv2
import numpy as np
import torch
from torch import nn

from linglue.errors import LinGlueError
from linglue.geometry.pixels import resize_points
from linglue.io.images import Image, ImageSource, Mask, as_image, shrink
from linglue.types import Features, ImageSize

TILE_OVERLAP = 64  # pixels a tile sees beyond its own area, so that no descriptor is cut at its border
TILE_GRID = 32  # tiles begin at multiples of this, so that cells and pyramid levels lie as in the whole image
MIN_TILE = 2 * TILE_OVERLAP + TILE_GRID


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
            raise LinGlueError(f"max_keypoints is {max_keypoints}, expected at least 1")
        if resize is not None and resize < 16:
            raise LinGlueError(f"resize is {resize}, expected a longer side of at least 16 pixels")
        if tile is not None and tile < MIN_TILE:
            raise LinGlueError(f"tile is {tile}, expected at least {MIN_TILE} pixels")
        original = as_image(source)
        size = ImageSize(original.shape[1], original.shape[0])
        if mask is not None and mask.shape != original.shape[:2]:
            given = "x".join(str(n) for n in mask.shape[::-1])
            raise LinGlueError(f"mask is {given}, expected the image's size {size[0]}x{size[1]}")
        image = shrink(original, resize)
        if mask is not None:
            mask = _shrink_mask(mask.astype(np.bool_), image.shape[:2])
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
        for core, seen in _tiles(image.shape[1], image.shape[0], tile):
            x0, y0, x1, y1 = seen
            part = self.detect(
                image[y0:y1, x0:x1].copy(), max_keypoints, None if mask is None else mask[y0:y1, x0:x1].copy()
            )
            part = replace(part, keypoints=part.keypoints + np.array([x0, y0], dtype=np.float32))
            # A keypoint belongs to the tile whose core holds its pixel, so none is found twice.
            pixel = np.rint(part.keypoints)
            inside = np.all((pixel >= core[:2]) & (pixel < core[2:]), axis=1)
            parts.append(part.select(inside))
        return _concatenate(parts)


def load_weights(
    net: nn.Module, path: Path, expected: str, fill: Mapping[str, torch.Tensor] = MappingProxyType({})
) -> None:
    """Load a state dict from `path` into `net`, every name and shape as the net's own, or say in one line what differs.

    `expected` names the right file and where users get it; `fill` adds constants that the file may lack.
    """
    if not path.is_file():
        raise LinGlueError(f"{path}: no such weights file, expected {expected}")
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch.load raises many unrelated types on files that are no checkpoints
        raise LinGlueError(f"{path}: not a PyTorch weights file, expected {expected}") from error
    # DISK's authors wrap the state dict.
    state = state.get("extractor", state) if isinstance(state, dict) else None
    if not isinstance(state, dict) or not all(isinstance(value, torch.Tensor) for value in state.values()):
        raise LinGlueError(f"{path}: holds no state dict, expected {expected}")
    state = {**fill, **state}
    want = {name: tuple(value.shape) for name, value in net.state_dict().items()}
    have = {name: tuple(value.shape) for name, value in state.items()}
    for name in sorted(want.keys() | have.keys()):
        if want.get(name) != have.get(name):
            raise LinGlueError(
                f"{path}: {name} has shape {have.get(name, 'none (missing)')}, "
                f"expected {want.get(name, 'no such tensor')}; expected {expected}"
            )
    net.load_state_dict(state, strict=True)


def _shrink_mask(mask: Mask, shape: tuple[int, ...]) -> Mask:
    """The mask at the working size (H, W): True only where all original pixels under a pixel are."""
    if mask.shape == shape:
        return mask
    share = cv2.resize(mask.astype(np.float32), (shape[1], shape[0]), interpolation=cv2.INTER_AREA)
    return np.asarray(share > 0.999)


def _tiles(width: int, height: int, tile: int) -> Iterator[tuple[tuple[int, int, int, int], tuple[int, int, int, int]]]:
    """(core, seen) boxes (x0, y0, x1, y1): cores partition the image, seen boxes add the overlap and fit in a tile."""
    largest = (tile - 2 * TILE_OVERLAP) // TILE_GRID * TILE_GRID

    def cuts(length: int) -> list[int]:
        count = -(-length // largest)
        step = -(-length // (count * TILE_GRID)) * TILE_GRID
        return [min(i * step, length) for i in range(count + 1)]

    xs, ys = cuts(width), cuts(height)
    for y0, y1 in pairwise(ys):
        for x0, x1 in pairwise(xs):
            seen = (
                max(0, x0 - TILE_OVERLAP),
                max(0, y0 - TILE_OVERLAP),
                min(width, x1 + TILE_OVERLAP),
                min(height, y1 + TILE_OVERLAP),
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
