"""Photographs as arrays: reading with EXIF rotation applied, and shrinking."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import torch
from numpy.typing import NDArray

from linglue.errors import LinGlueError

Image = NDArray[np.uint8]  # (H, W, 3) RGB
Mask = NDArray[np.bool_]  # (H, W), True where keypoints are allowed
ImageSource = str | Path | Image | torch.Tensor

MIN_SIDE = 16  # pixels; below this no front-end can place a descriptor
IMAGE_SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".tif", ".tiff", ".webp", ".bmp", ".ppm", ".pgm", ".jp2"})


def _decode(path: Path, flags: int) -> NDArray[np.uint8]:
    """Decode by content, not by extension, and through memory, so that any path Python can open works."""
    if not path.is_file():
        raise LinGlueError(f"{path}: no such image file")
    try:
        data = np.fromfile(path, dtype=np.uint8)
    except OSError as error:
        raise LinGlueError(f"{path}: cannot be read ({error.strerror})") from error
    try:
        image = cv2.imdecode(data, flags) if data.size else None
    except cv2.error:  # absurd sizes in a damaged header
        image = None
    if image is None:
        raise LinGlueError(f"{path}: not an image that can be decoded (expected: JPEG, PNG, TIFF, WebP, BMP, …)")
    return np.asarray(image, dtype=np.uint8)


def read_image(path: str | Path) -> Image:
    """(H, W, 3) RGB uint8 at full resolution with the EXIF rotation applied; 16-bit and grey files are converted."""
    rgb = cv2.cvtColor(_decode(Path(path), cv2.IMREAD_COLOR), cv2.COLOR_BGR2RGB)
    return _check_size(np.asarray(rgb, dtype=np.uint8), str(path))


def read_mask(path: str | Path) -> Mask:
    """A mask image: keypoints are kept where it is not black."""
    return _decode(Path(path), cv2.IMREAD_GRAYSCALE) > 0


def as_image(source: ImageSource) -> Image:
    """The image behind a path, a numpy array (H, W[, C]) uint8 or a torch tensor ([C,] H, W) float in [0, 1]."""
    if isinstance(source, str | Path):
        return read_image(source)
    if isinstance(source, torch.Tensor):
        if source.ndim not in (2, 3) or not source.is_floating_point():
            raise LinGlueError(
                f"image tensor has shape {tuple(source.shape)} and type {source.dtype}, expected float (C, H, W)"
            )
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
    """The image with its longer side at most `longer_side`; never enlarges."""
    height, width = image.shape[:2]
    factor = 1.0 if longer_side is None else longer_side / max(height, width)
    if factor >= 1:
        return image
    size = (max(1, round(width * factor)), max(1, round(height * factor)))
    return np.asarray(cv2.resize(image, size, interpolation=cv2.INTER_AREA), dtype=np.uint8)
