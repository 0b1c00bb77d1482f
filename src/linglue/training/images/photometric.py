"""Random change of light, camera and compression: what may differ between two images of one thing."""

from __future__ import annotations

from dataclasses import dataclass

import cv2
import numpy as np
from numpy.typing import NDArray

from linglue.io.images import Image

FIELD_STEP = 4  # pixels between samples of the light field; its shadows get penumbrae of that width


@dataclass(frozen=True)
class PhotometricConfig:
    """How often (probabilities) and how much (scaled by `strength`, 0: not at all, 1: hard) an image is changed."""

    strength: float = 0.8
    shading: float = 0.6  # gradients and vignettes
    shadow: float = 0.3
    gaussian_blur: float = 0.35
    motion_blur: float = 0.12
    night: float = 0.12
    noise: float = 0.7
    jpeg: float = 0.7


def perturb(image: Image, rng: np.random.Generator, config: PhotometricConfig | None = None) -> Image:
    """The (H, W, 3) image as another camera at another hour would have recorded it; nothing moves.

    Args:
        image: RGB uint8.
        rng: decides how it changes.
        config: how much.
    """
    config = config or PhotometricConfig()
    if config.strength <= 0:
        return image
    image = _light(image, rng, config)
    image = _blur(image, rng, config)
    night = rng.random() < config.night
    image = np.asarray(cv2.LUT(image, _tone_curve(float(image.mean()), night, rng, config.strength)), dtype=np.uint8)
    if rng.random() < config.noise or night:
        image = _noise(image, rng.uniform(1, 14 if night else 9) * config.strength, rng)
    if rng.random() < config.jpeg:
        image = _jpeg(image, round(95 - 65 * config.strength * rng.random() ** 1.5))
    return image


def _light(image: Image, rng: np.random.Generator, config: PhotometricConfig) -> Image:
    """Multiply by a smooth field with, sometimes, a shadow."""
    has_shading, has_shadow = rng.random() < config.shading, rng.random() < config.shadow
    if not has_shading and not has_shadow:
        return image
    height, width = image.shape[:2]
    rows, columns = -(-height // FIELD_STEP), -(-width // FIELD_STEP)
    y = np.linspace(-1, 1, rows, dtype=np.float32)[:, None]
    x = np.linspace(-1, 1, columns, dtype=np.float32)[None, :]
    stops = np.zeros((rows, columns), dtype=np.float32)  # log2 of the gain
    if has_shading:
        slope = rng.normal(0, 0.45 * config.strength, 2).astype(np.float32)
        falloff = np.float32(rng.uniform(0, 0.6) * config.strength)
        stops += slope[0] * x + slope[1] * y - falloff * (x * x + y * y)
    gain = np.exp2(stops)
    if has_shadow:
        gain *= _shadow(rows, columns, rng, config.strength)
    gain = cv2.resize(gain, (width, height), interpolation=cv2.INTER_LINEAR)
    return np.asarray(cv2.multiply(image, cv2.merge([gain, gain, gain]), dtype=cv2.CV_8U), dtype=np.uint8)


def _shadow(rows: int, columns: int, rng: np.random.Generator, strength: float) -> NDArray[np.float32]:
    """(rows, columns) gain: a dark polygon through the frame with a soft rim."""
    size = np.array([columns, rows])
    centre = rng.uniform(0, 1, 2) * size
    angles = np.sort(rng.uniform(0, 2 * np.pi, rng.integers(3, 7)))
    reach = rng.uniform(0.25, 0.9, len(angles)) * max(rows, columns)
    corners = centre + reach[:, None] * np.stack([np.cos(angles), np.sin(angles)], axis=1)
    gain = np.ones((rows, columns), dtype=np.float32)
    cv2.fillPoly(gain, [np.rint(corners).astype(np.int32)], float(1 - rng.uniform(0.25, 0.75) * min(strength, 1.2)))
    return np.asarray(cv2.GaussianBlur(gain, (0, 0), rng.uniform(0.4, 6)), dtype=np.float32)


def _blur(image: Image, rng: np.random.Generator, config: PhotometricConfig) -> Image:
    """Defocus or camera shake; both kernels are symmetric, so that keypoints stay where they are."""
    if rng.random() < config.gaussian_blur:
        sigma = 0.4 + rng.uniform(0, 1.4) * config.strength
        return np.asarray(cv2.GaussianBlur(image, (0, 0), sigma), dtype=np.uint8)
    if rng.random() < config.motion_blur:
        half = 1 + rng.uniform(0, 4) * config.strength
        angle = rng.uniform(0, np.pi)
        radius = int(np.ceil(half))
        kernel = np.zeros((2 * radius + 1, 2 * radius + 1), dtype=np.float32)
        tip = half * np.array([np.cos(angle), np.sin(angle)])
        one = 1 << 8  # cv2.line takes fixed-point coordinates
        start, end = np.rint((radius - tip) * one).astype(int), np.rint((radius + tip) * one).astype(int)
        cv2.line(kernel, start.tolist(), end.tolist(), 1.0, 1, cv2.LINE_8, 8)
        kernel += kernel[::-1, ::-1]
        return np.asarray(cv2.filter2D(image, -1, kernel / kernel.sum()), dtype=np.uint8)
    return image


def _tone_curve(mean: float, night: bool, rng: np.random.Generator, strength: float) -> NDArray[np.uint8]:
    """(1, 256, 3) look-up table: gamma, contrast, colour cast, exposure to a random brightness, soft highlights."""
    gamma = np.exp(rng.normal(0, 0.3 * strength))
    level = np.linspace(0, 1, 256)[:, None] ** gamma
    now = float(np.clip(mean / 255, 0.1, 0.9)) ** gamma
    level = now + np.exp(rng.normal(0, 0.3 * strength)) * (level - now)
    cast = rng.normal(0, 0.1 * strength, 3)
    wanted = mean / 255 * np.exp2(rng.normal(0, 0.4 * strength))
    if night:
        wanted = rng.uniform(0.1, 0.28)
        cast += np.array([-0.2, -0.05, 0.25]) * strength * rng.choice([-1, 1])  # moonlight or sodium lamps
    exposed = level * np.exp(cast) * np.clip(wanted, 0.14, 0.8) / now
    exposed = np.clip(exposed, 0, None)
    soft = exposed / (1 + exposed**6) ** (1 / 6)  # rolls off instead of clipping
    return np.clip(np.rint(255 * soft), 0, 255).astype(np.uint8)[None]


def _noise(image: Image, sigma: float, rng: np.random.Generator) -> Image:
    """Grey noise of the given standard deviation, sometimes with grain larger than a pixel."""
    noise = rng.standard_normal(image.shape[:2], dtype=np.float32)
    if rng.random() < 0.3:
        noise = cv2.GaussianBlur(noise, (3, 3), 0.7) * np.float32(1.7)
    noise *= np.float32(sigma)
    return np.asarray(cv2.add(image, cv2.merge([noise, noise, noise]), dtype=cv2.CV_8U), dtype=np.uint8)


def _jpeg(image: Image, quality: int) -> Image:
    _, data = cv2.imencode(".jpg", image, [cv2.IMWRITE_JPEG_QUALITY, int(np.clip(quality, 10, 98))])
    return np.asarray(cv2.imdecode(data, cv2.IMREAD_COLOR), dtype=np.uint8)  # RGB as BGR both ways: no swap needed
