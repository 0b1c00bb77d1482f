"""What a source of training data is: it draws groups of images with functions that map points of one into another.

A group shows one scene from two or more views and names the pairs of them that overlap, so that the price of making
images and features is shared by all pairs of the group.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from linglue.io.images import Image

Points = NDArray[np.floating[Any]]  # (N, 2) x, y in pixels, centre of the top-left pixel is (0, 0)
Flags = NDArray[np.bool_]  # (N,)

# (N, 2) points → ((N, 2) float64 points in the other image, (N,) bool visible there). A point that is not visible keeps
# its coordinates when that is certain (out of frame, occluded); they are NaN when it cannot be told (depth unknown).
Mapper = Callable[[Points], tuple[Points, Flags]]


@dataclass(frozen=True, eq=False)
class ImagePair:
    """Two images with the correspondences between them."""

    image0: Image
    image1: Image
    one_from_zero: Mapper
    zero_from_one: Mapper


@dataclass(frozen=True, eq=False)
class ImageGroup:
    """Images of one scene, and the correspondences between those pairs of them that have any.

    Example:
        >>> group = HomographySource().sample(images, rng)  # doctest: +SKIP
        >>> [group.pair(i, j) for i, j in group.pairs]  # doctest: +SKIP
    """

    images: Sequence[Image]
    pairs: Sequence[tuple[int, int]]  # indices into images
    mapper: Callable[[int, int], Mapper]  # mapper(a, b) takes points of image a into image b
    shows: frozenset[str] = frozenset()  # names of the real scenes in it; not said of images used as textures
    # fundamental(a, b) takes points of image a to their lines in image b; for sources that know some matches only
    fundamental: Callable[[int, int], NDArray[np.float64] | None] = lambda a, b: None

    def pair(self, zero: int = 0, one: int = 1) -> ImagePair:
        """Two images of the group.

        Args:
            zero: which image becomes image 0.
            one: which becomes image 1.
        """
        return ImagePair(self.images[zero], self.images[one], self.mapper(zero, one), self.mapper(one, zero))


class PairSource(Protocol):
    """Makes groups out of images that it is given, or has its own material; all randomness comes from `rng`."""

    @property
    def settings(self) -> Mapping[str, Any]:
        """All that decides what is drawn, in JSON values: part of a cache's fingerprint."""
        ...

    def sample(self, images: Sequence[Image], rng: np.random.Generator) -> ImageGroup:
        """One new group.

        Args:
            images: what scenes are textured with.
            rng: decides everything random.
        """
        ...


@lru_cache(maxsize=64)
def grid_points(width: int, height: int, count: int) -> NDArray[np.float64]:
    """(count², 2) points spread evenly over an image of width x height pixels; shared, so read-only."""
    x, y = np.meshgrid(np.linspace(0, width - 1, count), np.linspace(0, height - 1, count))
    points = np.stack([x.ravel(), y.ravel()], axis=1)
    points.flags.writeable = False
    return points
