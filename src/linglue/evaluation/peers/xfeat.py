"""XFeat (Potje et al., 2024) through kornia: a front-end to compare with."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import torch

from linglue.core.optional import need
from linglue.evaluation.peers import find_peer_file
from linglue.features.base import Extractor
from linglue.features.weights import load_weights
from linglue.io.images import Image, Mask
from linglue.types import Features, ImageSize


class XFeat(Extractor):
    """Keypoints on the pixels of a slightly smaller image, 64-D descriptors of unit length; no scale, no orientation.

    Args:
        weights: xfeat.pt; None: from LINGLUE_PEERS or torch's cache.
        device: where to compute.
    """

    kind = "xfeat"
    dim = 64
    licence = "Apache-2.0 (XFeat and kornia)"

    def __init__(self, weights: str | Path | None = None, device: str = "cpu") -> None:
        net = need("kornia.feature", "front-end xfeat").XFeat(top_k=sys.maxsize)
        path = find_peer_file("xfeat.pt", "front-end xfeat") if weights is None else Path(weights)
        load_weights(net.net, path, "xfeat.pt from https://github.com/verlab/accelerated_features")
        self.device = torch.device(device)
        self.net = net.eval().to(self.device)

    @torch.inference_mode()
    def detect(self, image: Image, max_keypoints: int, mask: Mask | None) -> Features:
        """See `Extractor.detect`."""
        height, width = image.shape[:2]
        tensor = torch.tensor(image, device=self.device).permute(2, 0, 1)[None].float() / 255  # (1, 3, H, W)
        found = self.net.detectAndCompute(tensor)[0]
        keypoints = found["keypoints"].cpu().numpy().astype(np.float32)  # (N, 2), best first
        # kornia multiplies by the ratio of the sizes; pixel centres at integers need half of what it adds besides.
        ratio = np.array([width / max(32, width // 32 * 32), height / max(32, height // 32 * 32)], np.float32)
        keypoints = keypoints + (ratio - 1) / 2
        keep = np.arange(len(keypoints))
        if mask is not None:
            x, y = np.rint(keypoints).astype(np.int64).T
            keep = keep[mask[y.clip(0, height - 1), x.clip(0, width - 1)]]
        keep = keep[:max_keypoints]
        return Features(
            keypoints=keypoints[keep],
            descriptors=found["descriptors"].cpu().numpy()[keep],
            image_size=ImageSize(width, height),
            scores=found["scores"].cpu().numpy()[keep],
            kind=self.kind,
        )
