"""What every drawing is made of: pictures laid out side by side, colours, thin lines, dots, text, and saving it.

Drawing happens on float32 canvases, so that thousands of faint lines add up without rounding; `finish` makes the
(H, W, 3) uint8 RGB picture.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import cv2
import numpy as np
from numpy.typing import ArrayLike, NDArray

from linglue.core.atomic import atomic_path
from linglue.errors import LinGlueError
from linglue.geometry.pixels import resize_points
from linglue.io.images import Image, ImageSource, as_image, to_grey
from linglue.types import FloatArray

MAX_WIDTH = 1600  # pixels of a canvas: two images fit a screen
MAX_HEIGHT = 1600
GAP = 8  # black pixels between two pictures
SUFFIXES = (".png", ".jpg", ".jpeg", ".webp")

_RED_GREEN = np.array([[255, 40, 25], [255, 220, 0], [30, 235, 60]], dtype=np.float32)
BLACK = np.zeros(3, dtype=np.float32)
LIME = np.array([120, 255, 40], dtype=np.float32)

HEADER = 36  # pixels, the height of a label in `compare`
_FONT = cv2.FONT_HERSHEY_DUPLEX
_FADE = 40.0  # pixels from its end after which a line has lost 63 % of the way to the opacity of its middle


class Placement(NamedTuple):
    """Where a picture lies on the canvas."""

    scale: FloatArray  # (2,) canvas pixels per pixel of the original image, x and y
    left: int  # first column of the picture
    width: int  # columns of the picture

    def points(self, points: FloatArray) -> FloatArray:
        """(K, 2) pixels of the original image → pixels of the canvas."""
        return resize_points(points, self.scale) + np.array([self.left, 0], dtype=np.float32)


def as_points(name: str, values: ArrayLike) -> FloatArray:
    """`values` as (K, 2) finite float32 points, or a LinGlueError naming them; an empty list is zero points."""
    points = np.asarray(values, dtype=np.float32)
    if points.size == 0:
        return np.zeros((0, 2), dtype=np.float32)
    if points.ndim != 2 or points.shape[1] != 2 or not np.isfinite(points).all():
        raise LinGlueError(f"{name} has shape {points.shape}, expected (K, 2) with finite numbers only")
    return points


def _fit(image: Image, width: int, height: int) -> FloatArray:
    method = cv2.INTER_AREA if height < image.shape[0] else cv2.INTER_CUBIC
    return cv2.resize(image, (width, height), interpolation=method).astype(np.float32)


def lay_out(sources: Sequence[ImageSource]) -> tuple[FloatArray, list[Placement]]:
    """The pictures on one row, all as high as the highest, together at most MAX_WIDTH wide and MAX_HEIGHT high.

    They are a little darker and paler than they are: bright colours then belong to what is drawn.
    """
    images = [as_image(source) for source in sources]
    gaps = GAP * (len(images) - 1)
    aspects = [image.shape[1] / image.shape[0] for image in images]
    height = max(1, int(min(max(i.shape[0] for i in images), (MAX_WIDTH - gaps) / sum(aspects), MAX_HEIGHT)))
    widths = [max(1, int(height * aspect)) for aspect in aspects]
    canvas = np.zeros((height, sum(widths) + gaps, 3), dtype=np.float32)
    placements, left = [], 0
    for image, width in zip(images, widths, strict=True):
        muted = 0.7 * image + 0.3 * to_grey(image)[..., None]
        canvas[:, left : left + width] = _fit((0.75 * muted).astype(np.uint8), width, height)
        scale = np.array([width / image.shape[1], height / image.shape[0]], dtype=np.float32)
        placements.append(Placement(scale, left, width))
        left += width + GAP
    return canvas, placements


def quality_colours(values: FloatArray) -> FloatArray:
    """(K,) in [0, 1] → (K, 3) RGB from red (doubtful, wrong) over yellow to green (confident, correct)."""
    at = np.linspace(0, 1, len(_RED_GREEN))
    return np.stack([np.interp(values, at, channel) for channel in _RED_GREEN.T], axis=-1).astype(np.float32)


def blend_line(
    canvas: FloatArray,
    start: FloatArray,
    end: FloatArray,
    colour: FloatArray,
    width: float,
    alpha: float,
    middle_alpha: float,
) -> None:
    """Blend an anti-aliased line into the canvas, in place; its opacity falls from `alpha` at the ends to the middle's.

    OpenCV's own anti-aliasing has neither fractional widths nor transparency.

    Args:
        canvas: (H, W, 3).
        start: (2,) x, y.
        end: (2,) x, y.
        colour: (3,) RGB.
        width: in pixels.
        alpha: opacity at the ends.
        middle_alpha: opacity in the middle.
    """
    steep = abs(end[1] - start[1]) > abs(end[0] - start[0])
    view = canvas.transpose(1, 0, 2) if steep else canvas  # now the line runs mostly along x
    first, last = (start[::-1], end[::-1]) if steep else (start, end)
    if first[0] > last[0]:
        first, last = last, first
    low, high = max(0.0, float(first[0])), min(view.shape[1] - 1.0, float(last[0]))
    along = np.arange(round(low), round(high) + 1)[:, None]  # (L, 1)
    slope = (last[1] - first[1]) / max(float(last[0] - first[0]), 1e-6)
    centre = first[1] + slope * (along - first[0])
    reach = int(np.ceil(width / 2)) + 1  # enough at 45 degrees, where a line is √2 times as high as wide
    across = np.rint(centre).astype(np.int64) + np.arange(-reach, reach + 1)  # (L, 2 reach + 1)
    cover = np.clip(width / 2 + 0.5 - np.abs(across - centre) / np.hypot(1.0, slope), 0, min(1.0, width))
    to_end = np.maximum(np.minimum(along - first[0], last[0] - along), 0)
    fade = middle_alpha + (alpha - middle_alpha) * np.exp(-to_end / _FADE)
    where, lane = np.nonzero((cover > 0) & (across >= 0) & (across < view.shape[0]))
    y, x = across[where, lane], along[where, 0]
    view[y, x] += (cover * fade)[where, lane].astype(np.float32)[:, None] * (colour - view[y, x])


def blend_circle(
    canvas: FloatArray, centre: FloatArray, radius: float, colour: FloatArray, alpha: float, width: float | None = None
) -> None:
    """Blend an anti-aliased disc, or a ring if `width` is given, into the canvas, in place.

    Args:
        canvas: (H, W, 3).
        centre: (2,) x, y.
        radius: in pixels.
        colour: (3,) RGB.
        alpha: opacity.
        width: of the ring.
    """
    reach = radius + (width or 0) + 1
    low = np.maximum(np.floor(centre - reach), 0).astype(np.int64)
    high = np.maximum(np.ceil(centre + reach) + 1, 0).astype(np.int64)
    patch = canvas[low[1] : high[1], low[0] : high[0]]
    y, x = np.ogrid[low[1] : low[1] + patch.shape[0], low[0] : low[0] + patch.shape[1]]
    distance = np.hypot(y - centre[1], x - centre[0])
    cover = radius + 0.5 - distance if width is None else width / 2 + 0.5 - np.abs(distance - radius)
    patch += alpha * np.clip(cover, 0, 1)[..., None].astype(np.float32) * (colour - patch)


def blend_dots(canvas: FloatArray, centres: FloatArray, radius: float, colours: FloatArray) -> None:
    """Dots with a dark rim, so that they stand out on any picture and from each other; the last one is on top.

    Args:
        canvas: (H, W, 3).
        centres: (N, 2) x, y.
        radius: in pixels.
        colours: (N, 3) RGB.
    """
    for centre, colour in zip(centres, colours, strict=True):
        blend_circle(canvas, centre, radius + 0.8, BLACK, 0.6)
        blend_circle(canvas, centre, radius, colour, 1.0)


def blend_legend(canvas: FloatArray, worst: str, best: str) -> None:
    """Say what the colours mean, in the bottom-left corner, in place: a bar of them between two words.

    Args:
        canvas: is changed.
        worst: word at the red end.
        best: word at the green end.
    """
    size = _letter_size(canvas)
    height, width = canvas.shape[:2]
    words = [cv2.getTextSize(word, _FONT, size / 30, 1)[0][0] for word in (worst, best)]
    margin, bar = round(size * 0.5), round(size * 5)
    if sum(words) + bar + 4 * margin > width or 3 * size > height:
        return  # too small a picture
    bottom = height - margin
    left = 2 * margin + words[0]
    _write(canvas, [(worst, (margin, bottom)), (best, (left + bar + margin, bottom))], size)
    top = max(0, bottom - round(size * 0.6))
    canvas[top - 2 : bottom + 2, left - 2 : left + bar + 2] = BLACK
    canvas[top:bottom, left : left + bar] = quality_colours(np.linspace(0, 1, bar, dtype=np.float32))


def finish(canvas: FloatArray, caption: Sequence[str]) -> Image:
    """The canvas as (H, W, 3) uint8 RGB with lines of text in the top-left corner."""
    picture = np.clip(np.rint(canvas), 0, 255).astype(np.uint8)
    if caption:
        _write_lines(picture, caption, _letter_size(canvas))
    return picture


def _letter_size(canvas: FloatArray) -> float:
    """Pixels."""
    return float(np.clip(canvas.shape[0] / 24, 9, 24))


def _write_lines(picture: Image, lines: Sequence[str], size: float) -> None:
    """Write lines under each other, in place; smaller than `size` if they are wider than the picture."""
    widest = max(cv2.getTextSize(line, _FONT, size / 30, 1)[0][0] for line in lines)
    size *= min(1.0, (picture.shape[1] - size) / max(widest, 1))
    places = [(round(size * 0.5), round(size * (1.2 + 1.3 * number))) for number in range(len(lines))]
    _write(picture, list(zip(lines, places, strict=True)), size)


def _write(picture: NDArray[Any], texts: Sequence[tuple[str, tuple[int, int]]], size: float) -> None:
    """Write white letters with a black outline at the given places, in place; `size` in pixels.

    The outline is grown from the letters: OpenCV 4 and 5 disagree on what the thickness of a letter is.
    """
    letters = np.zeros(picture.shape[:2], dtype=np.uint8)
    for text, place in texts:
        cv2.putText(letters, text, place, _FONT, size / 30, 255, 1, cv2.LINE_AA)
    reach = 2 * max(1, round(size / 12)) + 1
    outline = cv2.dilate(letters, cv2.getStructuringElement(cv2.MORPH_ELLIPSE, (reach, reach)))[..., None] / 255
    white = letters[..., None] / 255
    picture[:] = np.rint(picture * (1 - outline) * (1 - white) + 255 * white)


def compare(canvas_a: Image, canvas_b: Image, label_a: str, label_b: str) -> Image:
    """Two drawings of the same size or nearly, each under its label: stacked, or side by side if they are upright.

    The larger one is shrunk to the width (the height, side by side) of the smaller.

    Args:
        canvas_a: (H, W, 3).
        canvas_b: (H, W, 3).
        label_a: above the first.
        label_b: above the second.

    Returns:
        (H, W, 3) RGB.

    Example:
        >>> compare(np.zeros((40, 60, 3), np.uint8), np.zeros((40, 60, 3), np.uint8), "a", "b").shape[1]
        60
    """
    upright = canvas_a.shape[0] > canvas_a.shape[1] and canvas_b.shape[0] > canvas_b.shape[1]
    across = 0 if upright else 1  # the axis along which both must agree
    common = min(canvas_a.shape[across], canvas_b.shape[across])
    parts = []
    for canvas, label in ((canvas_a, label_a), (canvas_b, label_b)):
        factor = common / canvas.shape[across]
        height, width = (max(1, round(side * factor)) for side in canvas.shape[:2])
        header = np.full((HEADER, width, 3), 32, dtype=np.uint8)
        _write_lines(header, [label], HEADER * 0.6)
        parts.append(np.concatenate([header, _fit(canvas, width, height).astype(np.uint8)]))
    return np.concatenate(parts, axis=1 - across)


def save_image(path: str | Path, canvas: Image) -> None:
    """Write an (H, W, 3) RGB picture in the format of the path's suffix; the file appears whole or not at all.

    Args:
        path: .png, .jpg or .webp.
        canvas: the picture.

    Example:
        >>> save_image("compared.png", compare(drawn_a, drawn_b, "mnn", "linglue"))  # doctest: +SKIP
    """
    path = Path(path)
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        raise LinGlueError(
            f"{path}: cannot write a picture as {suffix or 'no suffix'!r} (expected: {', '.join(SUFFIXES)})"
        )
    data: NDArray[np.uint8] = cv2.imencode(suffix, cv2.cvtColor(canvas, cv2.COLOR_RGB2BGR))[1]
    with atomic_path(path) as partial:
        partial.write_bytes(data.tobytes())
