"""Pictures of matches, keypoints and neighbourhoods as (H, W, 3) uint8 RGB canvases. OpenCV only."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from linglue.errors import LinGlueError
from linglue.io.images import Image, ImageSource, as_image
from linglue.types import Features, FloatArray, IndexArray
from linglue.viz.canvas import (
    BLACK,
    LIME,
    as_points,
    blend_circle,
    blend_dots,
    blend_line,
    confidence_colours,
    correctness_colours,
    distinct_colours,
    finish,
    lay_out,
)


def correctness(errors: ArrayLike, threshold: float) -> FloatArray:
    """(K,) errors → (K,) degrees for `draw_matches`: 1 without error, ½ at the threshold, 0 from twice it on or NaN."""
    return np.nan_to_num(np.clip(1 - np.asarray(errors, dtype=np.float32) / (2 * threshold), 0, 1), nan=0.0)


def draw_matches(
    image0: ImageSource,
    image1: ImageSource,
    points0: ArrayLike,
    points1: ArrayLike,
    values: ArrayLike | None = None,
    correct: ArrayLike | None = None,
    lines: Sequence[str] = (),
) -> Image:
    """The two images side by side with a line per match; the more matches, the thinner and fainter the lines.

    points0, points1: (K, 2) pixels of the original images. Colours: by `values` (K,) confidence in [0, 1], red is
    confident and drawn on top; or by `correct` (K,) bool or degree in [0, 1] (see `correctness`), green is correct,
    red is wrong and drawn on top; or all lime. `lines` are written in the top-left corner.
    """
    canvas, (place0, place1) = lay_out([image0, image1])
    points0, points1 = as_points("points0", points0), as_points("points1", points1)
    count = len(points0)
    if len(points1) != count:
        raise LinGlueError(f"points0 has {count} points and points1 {len(points1)}, expected the same number")
    if values is not None and correct is not None:
        raise LinGlueError("both values and correct are given, expected one of them: they decide the colours")
    crowd = np.clip(np.log(max(count, 1) / 50) / np.log(2000 / 50), 0, 1)  # 0 up to 50 matches, 1 from 2000 on
    width, alpha, dot = 1.5 - 0.6 * crowd, 0.95 - 0.25 * crowd, 3.0 - 1.5 * crowd
    middle_alpha = np.full(count, _middle_alpha(count))
    colours, order = np.tile(LIME, (count, 1)), np.arange(count)
    if values is not None:
        degree = _per_match("values", values, count)
        colours, order = confidence_colours(degree), np.argsort(degree, kind="stable")
    if correct is not None:
        degree = _per_match("correct", correct, count)
        colours, order = correctness_colours(degree), np.argsort(-degree, kind="stable")
        # Wrong matches stay traceable through many correct ones. How many are wrong plays no part: two methods compare.
        middle_alpha[degree < 0.5] = _middle_alpha(count / 4)

    ends0, ends1 = place0.points(points0), place1.points(points1)
    for k in order:
        blend_line(canvas, ends0[k], ends1[k], colours[k], width, alpha, middle_alpha[k])
    for ends in (ends0, ends1):
        blend_dots(canvas, ends[order], dot, colours[order])
    return finish(canvas, lines)


def draw_keypoints(image: ImageSource, features: Features, lines: Sequence[str] = ()) -> Image:
    """The keypoints of one image: circles of their scale with a tick towards their orientation, else dots."""
    pixels = as_image(image)
    size = (pixels.shape[1], pixels.shape[0])
    if size != features.image_size:
        raise LinGlueError(
            f"image is {size[0]}x{size[1]} pixels, expected the size of its features, "
            f"{features.image_size.width}x{features.image_size.height}"
        )
    canvas, (place,) = lay_out([pixels])
    centres = place.points(features.keypoints)
    if features.scales is None:
        blend_dots(canvas, centres, 2.0, np.tile(LIME, (len(centres), 1)))
        return finish(canvas, lines)
    radii = features.scales / 2 * place.scale.mean()
    for k in np.argsort(-radii, kind="stable"):  # the large ones below
        blend_circle(canvas, centres[k], radii[k], BLACK, 0.35, width=2.6)
        blend_circle(canvas, centres[k], radii[k], LIME, 0.85, width=1.1)
        if features.oris is not None:
            tip = centres[k] + radii[k] * np.array([np.cos(features.oris[k]), np.sin(features.oris[k])])
            blend_line(canvas, centres[k], tip, LIME, 1.1, 0.85, 0.85)
    return finish(canvas, lines)


def draw_neighborhoods(
    image0: ImageSource,
    image1: ImageSource,
    keypoints0: ArrayLike,
    keypoints1: ArrayLike,
    seeds: ArrayLike,
    edges: tuple[ArrayLike, ArrayLike, ArrayLike],
    radii: tuple[float, float],
    lines: Sequence[str] = (),
) -> Image:
    """Seed matches, each in a colour of its own, with their circles and the member matches inside.

    keypoints0, keypoints1: (N, 2) and (M, 2) pixels of the original images. seeds: (S, 2) indices of the two keypoints
    of each seed. edges: three arrays (E,): index of the seed, of the member keypoint in image 0, and in image 1.
    radii: of the circles, in pixels of the original image 0 and image 1.
    """
    canvas, (place0, place1) = lay_out([image0, image1])
    seed_pairs = np.asarray(seeds, dtype=np.int64).reshape(-1, 2)
    owner, *members = (np.asarray(index, dtype=np.int64).reshape(-1) for index in edges)
    _check_range("seeds", owner, len(seed_pairs))
    colours = distinct_colours(len(seed_pairs))
    centres, ends = [], []
    for side, (keypoints, place) in enumerate(((keypoints0, place0), (keypoints1, place1))):
        points = place.points(as_points(f"keypoints{side}", keypoints))
        _check_range(f"keypoints{side}", np.concatenate([seed_pairs[:, side], members[side]]), len(points))
        centres.append(points[seed_pairs[:, side]])
        ends.append(points[members[side]])

    for start, end, colour in zip(*centres, colours, strict=True):
        blend_line(canvas, start, end, colour, 1.0, 0.9, 0.35)
    for side, place in enumerate((place0, place1)):
        radius = radii[side] * float(place.scale.mean())
        picture = canvas[:, place.left : place.left + place.width]  # circles end where their picture ends
        for centre, colour in zip(centres[side] - [place.left, 0], colours, strict=True):
            blend_circle(picture, centre, radius, colour, 0.10)
            blend_circle(picture, centre, radius, colour, 0.9, width=1.3)
        for end, seed in zip(ends[side], owner, strict=True):
            blend_line(canvas, centres[side][seed], end, colours[seed], 1.0, 0.45, 0.45)
        blend_dots(canvas, ends[side], 1.8, colours[owner])
        blend_dots(canvas, centres[side], 4.0, colours)
    return finish(canvas, lines)


def _middle_alpha(count: float) -> float:
    """Opacity of a line's middle among `count` lines: the photograph shows through, crowded places still stand out."""
    return 0.95 * min(1.0, (50 / max(count, 1)) ** 0.55)


def _per_match(name: str, values: ArrayLike, count: int) -> FloatArray:
    degrees = np.asarray(values, dtype=np.float32).reshape(-1)
    if len(degrees) != count or not np.isfinite(degrees).all():
        raise LinGlueError(f"{name} has {len(degrees)} entries, expected {count}, one finite number per match")
    return degrees


def _check_range(name: str, indices: IndexArray, count: int) -> None:
    if indices.size and not 0 <= indices.min() <= indices.max() < count:
        raise LinGlueError(
            f"indices into {name} run from {indices.min()} to {indices.max()}, expected 0 to {count - 1}"
        )
