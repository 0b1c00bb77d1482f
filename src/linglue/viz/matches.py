"""Pictures of matches and keypoints as (H, W, 3) uint8 RGB canvases. OpenCV only."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike

from linglue.errors import LinGlueError
from linglue.io.images import Image, ImageSource, as_image
from linglue.types import Features, FloatArray, IndexArray, Matches
from linglue.viz.canvas import (
    BLACK,
    LIME,
    as_points,
    blend_circle,
    blend_dots,
    blend_legend,
    blend_line,
    finish,
    lay_out,
    quality_colours,
    save_image,
)

LINES = 200  # drawn by default: as many as can be followed by eye


def save_drawing(path: str | Path, matches: Matches, max_lines: int | None = LINES) -> None:
    """Write a picture of the matches coloured by score, captioned with their number and the score of the pair.

    Args:
        path: .png, .jpg or .webp.
        matches: Of images, not of bare Features: these have nothing to draw on.
        max_lines: See `draw_matches`.

    Example:
        >>> save_drawing("matches.png", Matcher.from_pretrained().match("a.jpg", "b.jpg"))  # doctest: +SKIP
    """
    if matches.image0 is None or matches.image1 is None:
        raise LinGlueError(
            f"{path}: nothing to draw on, the matches carry no images (expected: match image files or arrays, "
            "not bare Features)"
        )
    count = len(matches)
    shown = count if max_lines is None else min(count, max_lines)
    caption = [
        f"{count} match{'' if count == 1 else 'es'}{'' if shown == count else f', {shown} shown'}",
        f"pair score {matches.pair_score:.2f}",
    ]
    canvas = draw_matches(
        matches.image0,
        matches.image1,
        matches.points0,
        matches.points1,
        values=matches.scores,
        caption=caption,
        max_lines=max_lines,
    )
    save_image(path, canvas)


def correctness(errors: ArrayLike, threshold: float) -> FloatArray:
    """(K,) errors → (K,) degrees for `draw_matches`: 1 without error, ½ at the threshold, 0 from twice it on or NaN.

    Args:
        errors: pixels; NaN where the truth is unknown.
        threshold: pixels up to which a match is correct.

    Returns:
        (K,) in [0, 1].

    Example:
        >>> correctness([0.0, 3.0, 9.0], threshold=3).tolist()
        [1.0, 0.5, 0.0]
    """
    return np.nan_to_num(np.clip(1 - np.asarray(errors, dtype=np.float32) / (2 * threshold), 0, 1), nan=0.0)


def draw_matches(
    image0: ImageSource,
    image1: ImageSource,
    points0: ArrayLike,
    points1: ArrayLike,
    values: ArrayLike | None = None,
    correct: ArrayLike | None = None,
    caption: Sequence[str] = (),
    max_lines: int | None = LINES,
) -> Image:
    """The two images side by side with a line per match; the more lines, the thinner and fainter they are.

    Args:
        image0: Path, array or tensor.
        image1: The same.
        points0: (K, 2) pixels of the original image 0.
        points1: (K, 2) their partners in the original image 1.
        values: (K,) confidence in [0, 1]: green is confident and drawn on top, red is doubtful.
        correct: (K,) bool or degree in [0, 1] (see `correctness`) instead: green is correct, red is wrong and on top.
        caption: Lines of text for the top-left corner.
        max_lines: At most so many matches are drawn, spread over image 0, the confident ones (of `values`)
            first; None: all.

    Returns:
        (H, W, 3) RGB; without `values` and `correct` all lines are lime, with them there is a legend.

    Example:
        >>> draw_matches("a.jpg", "b.jpg", points0, points1, correct=errors < 3)  # doctest: +SKIP
    """
    points0, points1 = _ends(points0, points1)
    count = len(points0)
    if values is not None and correct is not None:
        raise LinGlueError("both values and correct are given, expected one of them: they decide the colours")
    if max_lines is not None and max_lines < 1:
        raise LinGlueError(f"lines is {max_lines}, expected at least 1")
    name, given = ("values", values) if correct is None else ("correct", correct)
    degree = None if given is None else _per_match(name, given, count)
    chosen = _spread(points0, None if correct is not None else degree, max_lines)
    points0, points1 = points0[chosen], points1[chosen]
    degree = None if degree is None else degree[chosen]

    (canvas, (place0, place1)), shown = lay_out([image0, image1]), len(chosen)
    crowd = np.clip(np.log(max(shown, 1) / 50) / np.log(2000 / 50), 0, 1)  # 0 up to 50 lines, 1 from 2000 on
    width, alpha, dot = 1.5 - 0.6 * crowd, 0.95 - 0.25 * crowd, 3.0 - 1.5 * crowd
    middle_alpha = np.full(shown, _middle_alpha(shown))
    colours, order = np.tile(LIME, (shown, 1)), np.arange(shown)
    if degree is not None:
        colours, order = quality_colours(degree), np.argsort(degree, kind="stable")
    if correct is not None and degree is not None:
        order = order[::-1]
        # Wrong matches stay traceable through many correct ones. How many are wrong plays no part: two methods compare.
        middle_alpha[degree < 0.5] = _middle_alpha(shown / 4)
    ends0, ends1 = place0.points(points0), place1.points(points1)
    for k in order:
        blend_line(canvas, ends0[k], ends1[k], colours[k], width, alpha, middle_alpha[k])
    for ends in (ends0, ends1):
        blend_dots(canvas, ends[order], dot, colours[order])
    if shown and degree is not None:
        blend_legend(canvas, *(("doubtful", "confident") if correct is None else ("wrong", "correct")))
    return finish(canvas, caption)


def _ends(points0: ArrayLike, points1: ArrayLike) -> tuple[FloatArray, FloatArray]:
    """Both ends of the matches, (K, 2) each."""
    ends0, ends1 = as_points("points0", points0), as_points("points1", points1)
    if len(ends0) != len(ends1):
        raise LinGlueError(f"points0 has {len(ends0)} points and points1 {len(ends1)}, expected the same number")
    return ends0, ends1


def draw_keypoints(image: ImageSource, features: Features, caption: Sequence[str] = ()) -> Image:
    """The keypoints of one image: circles of their scale with a tick towards their orientation, else dots.

    Args:
        image: Path, array or tensor.
        features: Of this image.
        caption: Lines of text for the top-left corner.

    Returns:
        (H, W, 3) RGB.

    Example:
        >>> draw_keypoints("a.jpg", make_extractor("sift").extract("a.jpg"))  # doctest: +SKIP
    """
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
        return finish(canvas, caption)
    radii = features.scales / 2 * place.scale.mean()
    for k in np.argsort(-radii, kind="stable"):  # the large ones below
        blend_circle(canvas, centres[k], radii[k], BLACK, 0.35, width=2.6)
        blend_circle(canvas, centres[k], radii[k], LIME, 0.85, width=1.1)
        if features.oris is not None:
            tip = centres[k] + radii[k] * np.array([np.cos(features.oris[k]), np.sin(features.oris[k])])
            blend_line(canvas, centres[k], tip, LIME, 1.1, 0.85, 0.85)
    return finish(canvas, caption)


def _spread(points: FloatArray, degree: FloatArray | None, count: int | None) -> IndexArray:
    """Indices of at most `count` of the (K, 2) points, ascending: in turns one of each cell of a grid, the best first.

    Without a degree the order is a random one, always the same.
    """
    if count is None or len(points) <= count:
        return np.arange(len(points))
    rank = np.random.default_rng(0).permutation(len(points)) if degree is None else -degree
    order = np.argsort(rank, kind="stable")
    low, high = points.min(axis=0), points.max(axis=0)
    side = max(float(np.sqrt(np.prod(high - low) / count)), 1e-6)  # about one cell per line
    cells = np.floor((points[order] - low) / side).astype(np.int64)  # (K, 2), best first
    _, cell = np.unique(cells, axis=0, return_inverse=True)
    by_cell = np.argsort(cell.reshape(-1), kind="stable")  # of each cell the best first
    sizes = np.bincount(cell.reshape(-1))
    turn = np.empty(len(points), dtype=np.int64)
    turn[by_cell] = np.arange(len(points)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    return np.sort(order[np.argsort(turn, kind="stable")[:count]])


def _middle_alpha(count: float) -> float:
    """Opacity of a line's middle among `count` lines: the image shows through, crowded places still stand out."""
    return 0.95 * min(1.0, (50 / max(count, 1)) ** 0.55)


def _per_match(name: str, values: ArrayLike, count: int) -> FloatArray:
    degrees = np.asarray(values, dtype=np.float32).reshape(-1)
    if len(degrees) != count or not np.isfinite(degrees).all():
        raise LinGlueError(f"{name} has {len(degrees)} entries, expected {count}, one finite number per match")
    return degrees
