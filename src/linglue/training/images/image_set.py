"""The images that training pairs are made of."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import overload

import cv2
import numpy as np

from linglue.errors import LinGlueError
from linglue.io.images import IMAGE_SUFFIXES, Image, read_image, shrink

SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".tif", ".tiff", ".bmp")


def image_names(folder: Path, at_least: int) -> list[str]:
    """Names, below `folder`, of the images of one scene, in their order.

    Args:
        folder: with any folders below it.
        at_least: fewer images are an error.
    """
    if not folder.is_dir():
        raise LinGlueError(f"{folder}: no such folder, expected a folder of images of one scene")
    names = sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.suffix.lower() in IMAGE_SUFFIXES)
    if len(names) < at_least:
        raise LinGlueError(f"{folder}: holds {len(names)} images, expected at least {at_least}")
    return names


class ImageSet(Sequence[Image]):
    """Image files, read when asked for, shrunk to a longer side of `longer_side`; the last `keep` stay in memory."""

    def __init__(self, paths: Iterable[str | Path], longer_side: int = 1024, keep: int = 512) -> None:
        self.paths = [Path(p) for p in paths]
        if not self.paths:
            raise LinGlueError("no images given, expected at least 1")
        self.longer_side = longer_side
        self.keep = keep
        self._recent: OrderedDict[int, Image] = OrderedDict()

    @classmethod
    def in_folder(cls, folder: str | Path) -> ImageSet:
        """All images of a folder and the folders below it, in the order of their names."""
        found = sorted(p for p in Path(folder).rglob("*") if p.suffix.lower() in SUFFIXES)
        if not found:
            raise LinGlueError(f"{folder}: holds no images (expected: {', '.join(SUFFIXES)})")
        return cls(found)

    def split(self, held_out: float) -> tuple[ImageSet, ImageSet]:
        """(training, held-out) images; which side a file falls on depends on its name alone."""

        def is_held_out(path: Path) -> bool:
            return int(hashlib.sha256(path.name.encode()).hexdigest()[:8], 16) < held_out * 2**32

        sides = [[p for p in self.paths if is_held_out(p) == side] for side in (False, True)]
        if not all(sides):
            folder, count = self.paths[0].parent, len(self.paths)
            raise LinGlueError(f"{folder}: {count} images, too few to hold some out; expected at least about 30")
        return ImageSet(sides[0], self.longer_side, self.keep), ImageSet(sides[1], self.longer_side, self.keep)

    def __len__(self) -> int:
        return len(self.paths)

    @overload
    def __getitem__(self, index: int) -> Image: ...
    @overload
    def __getitem__(self, index: slice) -> ImageSet: ...
    def __getitem__(self, index: int | slice) -> Image | ImageSet:
        if isinstance(index, slice):
            return ImageSet(self.paths[index], self.longer_side, self.keep)
        image = self._recent.pop(index, None)
        if image is None:
            image = shrink(read_image(self.paths[index]), self.longer_side)
            if len(self._recent) >= self.keep:
                self._recent.popitem(last=False)
        self._recent[index] = image
        return image

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_recent": OrderedDict()}  # workers read for themselves


class Deck:
    """Images drawn at random without repetition, so that no part of a pair shows what another part shows too."""

    def __init__(self, images: Sequence[Image], rng: np.random.Generator) -> None:
        self._images = images
        self._rng = rng
        self._order = rng.permutation(len(images))
        self._drawn = 0

    @property
    def exhausted(self) -> bool:
        """Whether every image was drawn; they come round again from here on."""
        return self._drawn >= len(self._order)

    def draw(self) -> Image:
        """The next image, half of the time mirrored."""
        image = self._images[int(self._order[self._drawn % len(self._order)])]
        self._drawn += 1
        return np.asarray(cv2.flip(image, 1), dtype=np.uint8) if self._rng.random() < 0.5 else image
