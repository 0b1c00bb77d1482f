"""Images as arrays: reading with EXIF rotation applied, where they are opaque, and shrinking."""

from __future__ import annotations

import contextlib
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import cv2
import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image as PillowImage
from PIL import ImageOps

from linglue.errors import LinGlueError
from linglue.types import ImageSize

Image = NDArray[np.uint8]  # (H, W, 3) RGB
Mask = NDArray[np.bool_]  # (H, W), True where keypoints are allowed
ImageSource = str | Path | Image | torch.Tensor

MIN_SIDE = 16  # pixels; below this no front-end can place a descriptor
BY_OPENCV = {".jpg", ".jpeg", ".png", ".tif", ".tiff", ".webp", ".bmp", ".ppm", ".pgm", ".jp2"}
BY_PILLOW = {".gif", ".avif", ".heic", ".heif"}  # where Pillow can, HEIC with the package pillow-heif
IMAGE_SUFFIXES = frozenset(BY_OPENCV | BY_PILLOW)
_PNG = b"\x89PNG\r\n\x1a\n"
_PILLOW_FORMATS = ("GIF", "AVIF", "HEIF")
REDUCED = {8: cv2.IMREAD_REDUCED_COLOR_8, 4: cv2.IMREAD_REDUCED_COLOR_4, 2: cv2.IMREAD_REDUCED_COLOR_2}
SPARE = 1.75  # times the size wanted that a reduced image must have at least, so that shrinking it further is as sharp
OVERSHOOT = 0.1  # beyond 0 and 1, as interpolation leaves it
_DEPTHS = (8, 10, 12, 14, 16)  # bits that cameras and scanners have in files of 16


def _decode(path: Path, flags: int) -> NDArray[Any]:
    """Decode by content, not by extension, and through memory, so that any path Python can open works."""
    if path.is_dir():
        raise LinGlueError(f"{path}: is a folder, expected an image file")
    if not path.is_file():
        raise LinGlueError(f"{path}: no such image file")
    try:
        data = np.fromfile(path, dtype=np.uint8)
    except OSError as error:
        raise LinGlueError(f"{path}: cannot be read ({error.strerror})") from error
    if data[: len(_PNG)].tobytes() == _PNG and not _is_sound(path):  # libpng itself writes to standard error
        raise LinGlueError(f"{path}: damaged, expected a PNG file with sound checksums")
    level = cv2.utils.logging.setLogLevel(cv2.utils.logging.LOG_LEVEL_SILENT)  # one line is enough, and it is ours
    try:
        image = cv2.imdecode(data, flags) if data.size else None
    except cv2.error:  # absurd sizes in a damaged header
        image = None
    finally:
        cv2.utils.logging.setLogLevel(level)
    if image is None:
        image = _decode_by_pillow(path)
    if image is None:
        needs = " (HEIC needs the package pillow-heif)" if path.suffix.lower() in (".heic", ".heif") else ""
        raise LinGlueError(f"{path}: not an image that can be decoded, expected JPEG, PNG, TIFF, WebP, BMP, …{needs}")
    return np.asarray(image)


def _is_sound(path: Path) -> bool:
    """Whether the checksums of a PNG file are right."""
    try:
        with PillowImage.open(path) as image:
            image.verify()
    except Exception:  # Pillow raises many types on damaged files
        return False
    return True


def _decode_by_pillow(path: Path) -> NDArray[np.uint8] | None:
    """(H, W, 3) BGR of the formats that OpenCV lacks; None where Pillow lacks them, too."""
    with contextlib.suppress(ImportError):
        import_module("pillow_heif").register_heif_opener()
    try:
        with PillowImage.open(path, formats=_PILLOW_FORMATS) as image:
            rgb = np.asarray(ImageOps.exif_transpose(image).convert("RGB"))
    except Exception:  # Pillow raises many types on files that are no images
        return None
    return np.ascontiguousarray(rgb[..., ::-1])


def read_image(path: str | Path) -> Image:
    """(H, W, 3) RGB uint8 at full resolution with the EXIF rotation applied; grey files are converted.

    Of files with 16 bits per value, the bits in use decide what is white: 12-bit images are not dark.

    Args:
        path: of a JPEG, PNG, TIFF, WebP, BMP, GIF, AVIF or, with pillow-heif, HEIC file.

    Returns:
        (H, W, 3) uint8.

    Example:
        >>> read_image("a.jpg").dtype
        dtype('uint8')
    """
    pixels = _decode(Path(path), cv2.IMREAD_COLOR | cv2.IMREAD_ANYDEPTH)
    if pixels.dtype == np.uint16:
        brightest = int(pixels.max())
        pixels = pixels >> (next(bits for bits in _DEPTHS if brightest < 2**bits) - 8)
    elif pixels.dtype != np.uint8:
        pixels = _decode(Path(path), cv2.IMREAD_COLOR)  # OpenCV's way with floating point
    rgb = cv2.cvtColor(pixels.astype(np.uint8), cv2.COLOR_BGR2RGB)
    return _check_size(np.asarray(rgb, dtype=np.uint8), str(path))


class Opened(NamedTuple):
    """An image to take features of."""

    image: Image  # (H, W, 3), of large JPEG files maybe a half, a quarter or an eighth of it
    size: ImageSize  # of the whole image
    mask: Mask | None  # of that size: keypoints are kept where it is True; None: everywhere


def open_image(source: ImageSource, mask: Mask | str | Path | None = None, enough: int | None = None) -> Opened:
    """An image, and where it may have keypoints: not where its file is transparent, nor where its mask is black.

    Args:
        source: a file, or the pixels.
        mask: of the same size, or its file; an array alone decides.
        enough: longer side beyond which nobody looks; large JPEG files are decoded at a part of their size for it.

    Example:
        >>> open_image("a.jpg", enough=1024).image.shape  # of 6000 x 4000 pixels  # doctest: +SKIP
        (2000, 3000, 3)
    """
    file = Path(source) if isinstance(source, str | Path) else None
    image, reduction = (as_image(source), 1) if file is None else _read_enough(file, enough)
    size = ImageSize(image.shape[1] * reduction, image.shape[0] * reduction)
    if isinstance(mask, np.ndarray):
        return Opened(image, size, _check_mask(mask, size, "mask is", "the image's size"))
    parts = [None if file is None else _read_opaque(file, size)]
    if mask is not None:
        parts.append(_check_mask(read_mask(mask), size, f"{mask}: mask is", f"the size of {file or 'the image'},"))
    known = [part for part in parts if part is not None]
    return Opened(image, size, np.logical_and.reduce(known) if known else None)


def _check_mask(mask: Mask, size: ImageSize, subject: str, expected: str) -> Mask:
    if mask.shape != (size.height, size.width):
        have = "x".join(str(n) for n in mask.shape[::-1])
        raise LinGlueError(f"{subject} {have} pixels, expected {expected} {size.width}x{size.height}")
    return mask


def _read_enough(path: Path, enough: int | None) -> tuple[Image, int]:
    """An image, and by how much its sides were divided."""
    reduction = 1 if enough is None else _reduction(path, enough)
    if reduction == 1:
        return read_image(path), 1
    pixels = _decode(path, REDUCED[reduction])
    return np.asarray(cv2.cvtColor(pixels, cv2.COLOR_BGR2RGB), dtype=np.uint8), reduction


def _reduction(path: Path, enough: int) -> int:
    """By how much the decoder may divide the sides; only what divides both, so that no pixel is cut."""
    try:
        with PillowImage.open(path, formats=("JPEG",)) as image:
            width, height = image.size
    except Exception:  # no JPEG file; whoever decodes it says what is wrong with it
        return 1
    fits = (r for r in REDUCED if width % r == height % r == 0 and max(width, height) >= SPARE * r * enough)
    return next(fits, 1)


def read_mask(path: str | Path) -> Mask:
    """A mask image: keypoints are kept where it is not black."""
    return np.asarray(_decode(Path(path), cv2.IMREAD_GRAYSCALE) > 0)


def _read_opaque(path: Path, size: ImageSize) -> Mask | None:
    """(H, W), False where the image is fully transparent; None for images without transparency."""
    try:
        with PillowImage.open(path) as image:
            if not image.has_transparency_data:
                return None
            alpha = np.asarray(ImageOps.exif_transpose(image).convert("RGBA").getchannel("A"))
    except Exception:  # whoever decodes the image says what is wrong with it
        return None
    return None if alpha.all() or alpha.shape != (size.height, size.width) else alpha > 0


def as_image(source: ImageSource) -> Image:
    """The image behind a path, a numpy array (H, W[, C]) uint8 or a torch tensor ([C,] H, W) float in [0, 1]."""
    if isinstance(source, str | Path):
        return read_image(source)
    if isinstance(source, torch.Tensor):
        if source.ndim not in (2, 3) or not source.is_floating_point():
            raise LinGlueError(
                f"image tensor has shape {tuple(source.shape)} and type {source.dtype}, expected float (C, H, W)"
            )
        low, high = (float(value) for value in (source.min(), source.max())) if source.numel() else (0.0, 0.0)
        if not -OVERSHOOT <= low <= high <= 1 + OVERSHOOT:  # NaN, too
            raise LinGlueError(f"image tensor has values from {low:.4g} to {high:.4g}, expected 0 to 1")
        array = source.detach().cpu().float().clamp(0, 1).mul(255).round().byte().numpy()
        array = array if array.ndim == 2 else np.moveaxis(array, 0, -1)
    else:
        array = np.asarray(source)
    if array.dtype != np.uint8 or array.ndim not in (2, 3):
        raise LinGlueError(f"image array has shape {array.shape} and type {array.dtype}, expected (H, W[, C]) uint8")
    if array.ndim == 2:
        array = array[..., None]
    if array.shape[2] not in (1, 3):
        raise LinGlueError(f"image has {array.shape[2]} channels, expected 1 (grey) and 3 (RGB)")
    return _check_size(np.ascontiguousarray(np.broadcast_to(array, (*array.shape[:2], 3))), "image")


def _check_size(image: Image, name: str) -> Image:
    height, width = image.shape[:2]
    if min(height, width) < MIN_SIDE:
        raise LinGlueError(f"{name}: image is {width}x{height} pixels, expected at least {MIN_SIDE}x{MIN_SIDE}")
    return image


def to_grey(image: Image) -> NDArray[np.uint8]:
    """(H, W) luminance."""
    return np.asarray(cv2.cvtColor(image, cv2.COLOR_RGB2GRAY), dtype=np.uint8)


def shrink(image: Image, longer_side: int | None) -> Image:
    """The image with its longer side at most so long.

    Args:
        image: (H, W, 3).
        longer_side: pixels; None, or more than it has: the image itself.
    """
    height, width = image.shape[:2]
    factor = 1.0 if longer_side is None else longer_side / max(height, width)
    if factor >= 1:
        return image
    size = (max(1, round(width * factor)), max(1, round(height * factor)))
    return np.asarray(cv2.resize(image, size, interpolation=cv2.INTER_AREA), dtype=np.uint8)
