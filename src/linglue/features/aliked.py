"""ALIKED-N16 (Zhao et al., 2023) through kornia."""

from __future__ import annotations

import sys
from pathlib import Path

import torch

from linglue.features.base import Extractor
from linglue.features.kornia import feature_module, strongest, to_tensor
from linglue.features.registry import FRONT_ENDS
from linglue.features.weights import find_weights, load_weights
from linglue.io.images import Image, Mask
from linglue.types import Features, ImageSize


class Aliked(Extractor):
    """ALIKED-N16: keypoints between pixels, 128-D descriptors of unit length; no scale, no orientation."""

    kind = "aliked"
    dim = FRONT_ENDS[kind].dim
    licence = FRONT_ENDS[kind].licence

    def __init__(self, weights: str | Path | None = None, device: str = "cpu") -> None:
        # No limit inside kornia: the mask must come before the choice of the strongest.
        net = feature_module("ALIKED").ALIKED("aliked-n16", max_num_keypoints=sys.maxsize)
        # The published file lacks this constant grid of pixel offsets.
        fill = {"dkd.hw_grid": net.dkd.hw_grid}
        load_weights(net, find_weights(self.kind, weights), FRONT_ENDS[self.kind].weights_source, fill)
        self.device = torch.device(device)
        # Channels last makes ALIKED a third faster on the CPU, where normalising its dense map dominates.
        self.net = net.eval().to(self.device, memory_format=torch.channels_last)

    @torch.inference_mode()
    def detect(self, image: Image, max_keypoints: int, mask: Mask | None) -> Features:
        """The front-end's part of `extract`, at the size of `image`."""
        height, width = image.shape[:2]
        descriptor_map, score_map = self.net.extract_dense_map(to_tensor(image, self.device))  # (1, 128 | 1, H, W)
        found, found_scores, _ = self.net.dkd(score_map)
        # kornia's [-1, 1] spans the centres of the first and the last pixel, which are 0 and W − 1 for us as well.
        last = found[0].new_tensor([width - 1, height - 1])
        keypoints = (found[0] + 1) / 2 * last  # (N, 2)
        best = strongest(keypoints, found_scores[0], max_keypoints, mask)  # (K,)
        if len(best) == 0:
            return self._empty(ImageSize(width, height))
        descriptors, _ = self.net.desc_head(descriptor_map, [found[0][best]])
        return Features(
            keypoints=keypoints[best],
            descriptors=descriptors[0],
            image_size=ImageSize(width, height),
            scores=found_scores[0][best],
            kind=self.kind,
        )
