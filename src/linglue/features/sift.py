"""SIFT by OpenCV with RootSIFT descriptors: exact positions, any rotation."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np

from linglue.features.base import Extractor
from linglue.features.registry import FRONT_ENDS
from linglue.io.images import Image, Mask, to_grey
from linglue.types import Features, ImageSize

# OpenCV doubles the image so that pixel x comes to 2x + ½ and takes half of that back: all keypoints lie this many
# pixels too far right and down. Its enable_precise_upscale avoids the shift but blurs: about 4 % fewer matches.
DOUBLING_SHIFT = 0.25
ORIENTATIONS = 1.5  # keypoints per place that OpenCV is asked for; most images have 1.1 to 1.3


class Sift(Extractor):
    """Difference-of-Gaussian keypoints with scale and orientation, 128-D RootSIFT descriptors of unit length.

    A place with several orientations gives a keypoint for each. `max_keypoints` counts places, as COLMAP does, so that
    there may be some more keypoints than that.
    """

    kind = "sift"
    dim = FRONT_ENDS[kind].dim
    licence = FRONT_ENDS[kind].licence

    def __init__(
        self, weights: str | Path | None = None, device: str = "cpu", contrast_threshold: float = 0.02
    ) -> None:
        super().__init__(weights, device)
        # OpenCV's default of 0.04 leaves many images below 4k keypoints; the strongest are chosen anyway.
        self.contrast_threshold = contrast_threshold

    def detect(self, image: Image, max_keypoints: int, mask: Mask | None) -> Features:
        """The front-end's part of `extract`, at the size of `image`."""
        grey, count = to_grey(image), round(ORIENTATIONS * max_keypoints)
        # OpenCV applies a mask after its choice of the strongest, so with a mask that choice is ours.
        sift = cv2.SIFT.create(nfeatures=count if mask is None else 0, contrastThreshold=self.contrast_threshold)
        if mask is None:
            found, raw = sift.detectAndCompute(grey, None)
        else:
            found = [k for k in sift.detect(grey, None) if mask[_pixel(k)]]
            found, raw = sift.compute(grey, sorted(found, key=lambda k: -k.response)[:count])
        return Features(
            keypoints=np.array([k.pt for k in found], dtype=np.float32).reshape(-1, 2) - np.float32(DOUBLING_SHIFT),
            descriptors=np.zeros((0, self.dim), np.float32) if raw is None else root_sift(raw),
            image_size=ImageSize(image.shape[1], image.shape[0]),
            scores=np.array([k.response for k in found]),
            scales=np.array([k.size for k in found]),
            oris=np.deg2rad(np.array([k.angle for k in found])),
            kind=self.kind,
        )

    def keep(self, features: Features, max_keypoints: int) -> Features:
        """All orientations of the strongest places."""
        assert features.scales is not None
        places = np.column_stack([features.keypoints, features.scales])  # (N, 3)
        _, first, place = np.unique(places, axis=0, return_index=True, return_inverse=True)
        if len(first) <= max_keypoints:
            return features
        best = np.argsort(-features.scores[first], kind="stable")[:max_keypoints]
        return features.select(np.flatnonzero(np.isin(place.reshape(-1), best)))


def _pixel(keypoint: cv2.KeyPoint) -> tuple[int, int]:
    """(row, column) of the pixel a keypoint is on."""
    x, y = keypoint.pt
    return max(0, round(y - DOUBLING_SHIFT)), max(0, round(x - DOUBLING_SHIFT))


def root_sift(raw: np.ndarray) -> np.ndarray:
    """(N, 128) SIFT histograms → unit vectors whose Euclidean distance is the Hellinger distance of the histograms."""
    total = np.abs(raw).sum(axis=1, keepdims=True)
    return np.sqrt(np.maximum(raw, 0) / np.maximum(total, 1e-8)).astype(np.float32)
