"""SIFT by OpenCV with RootSIFT descriptors: the licence-clean default."""

from __future__ import annotations

import cv2
import numpy as np

from linglue.features.base import Extractor
from linglue.io.images import Image, Mask, to_grey
from linglue.types import Features, ImageSize


class Sift(Extractor):
    """Difference-of-Gaussian keypoints with scale and orientation, 128-D RootSIFT descriptors of unit length."""

    kind = "sift"
    dim = 128
    licence = "Apache-2.0 (OpenCV; the SIFT patent has expired)"

    def __init__(self, contrast_threshold: float = 0.02) -> None:
        # OpenCV's default of 0.04 leaves many photographs below 4k keypoints; the strongest are chosen anyway.
        self.contrast_threshold = contrast_threshold

    def detect(self, image: Image, max_keypoints: int, mask: Mask | None) -> Features:
        sift = cv2.SIFT_create(nfeatures=max_keypoints, contrastThreshold=self.contrast_threshold)
        allowed = None if mask is None else mask.astype(np.uint8)
        found, raw = sift.detectAndCompute(to_grey(image), allowed)
        size = ImageSize(image.shape[1], image.shape[0])
        if not found:
            return Features(
                keypoints=np.zeros((0, 2)),
                descriptors=np.zeros((0, self.dim)),
                image_size=size,
                scales=np.zeros(0),
                oris=np.zeros(0),
                kind=self.kind,
            )
        return Features(
            keypoints=np.array([k.pt for k in found]),
            descriptors=root_sift(raw),
            image_size=size,
            scores=np.array([k.response for k in found]),
            scales=np.array([k.size for k in found]),
            oris=np.deg2rad(np.array([k.angle for k in found])),
            kind=self.kind,
        )


def root_sift(raw: np.ndarray) -> np.ndarray:
    """(N, 128) SIFT histograms → unit vectors whose Euclidean distance is the Hellinger distance of the histograms."""
    total = np.abs(raw).sum(axis=1, keepdims=True)
    return np.sqrt(np.maximum(raw, 0) / np.maximum(total, 1e-8)).astype(np.float32)
