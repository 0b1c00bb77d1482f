"""DISK (Tyszkiewicz et al., 2020) through kornia."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.nn.functional as F

from linglue.features.base import Extractor
from linglue.features.kornia import feature_module, strongest, to_tensor
from linglue.features.registry import FRONT_ENDS
from linglue.features.weights import find_weights, load_weights
from linglue.io.images import Image, Mask
from linglue.types import Features, ImageSize


class Disk(Extractor):
    """DISK (depth-supervised): keypoints on pixels, 128-D descriptors of unit length; no scale, no orientation."""

    kind = "disk"
    dim = FRONT_ENDS[kind].dim
    licence = FRONT_ENDS[kind].licence

    def __init__(self, weights: str | Path | None = None, device: str = "cpu") -> None:
        net = feature_module("DISK").DISK()
        load_weights(net, find_weights(self.kind, weights), FRONT_ENDS[self.kind].weights_source)
        self.device = torch.device(device)
        self.net = net.eval().to(self.device)

    @torch.inference_mode()
    def detect(self, image: Image, max_keypoints: int, mask: Mask | None) -> Features:
        """The front-end's part of `extract`, at the size of `image`."""
        height, width = image.shape[:2]
        tensor = to_tensor(image, self.device).contiguous()  # (1, 3, H, W)
        if max(height, width) <= 16:
            # Its coarsest level would be a single pixel, which instance normalisation refuses.
            tensor = F.pad(tensor, (0, 17 - width, 0, 0))
        found = self.net(tensor, pad_if_not_divisible=True)[0]
        inside = found.keypoints[:, 0] < width
        keypoints, descriptors, scores = (
            found.keypoints[inside],
            found.descriptors[inside],
            found.detection_scores[inside],
        )
        best = strongest(keypoints, scores, max_keypoints, mask)  # (K,)
        return Features(
            keypoints=keypoints[best],
            descriptors=descriptors[best],
            image_size=ImageSize(width, height),
            scores=scores[best],
            kind=self.kind,
        )
