"""AdaLAM (Cavalli et al., 2020) through kornia, with its default settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from linglue.core.fingerprint import code_sha256
from linglue.core.optional import need
from linglue.types import Features, Matches

if TYPE_CHECKING:
    from linglue.matcher import MatcherConfig


class AdaLam:
    """Matcher `adalam`. Its matches are one-way: two keypoints of image 0 may share a partner in image 1."""

    def __init__(self, config: MatcherConfig) -> None:
        self._kornia = need("kornia", "matcher adalam")
        self._feature = need("kornia.feature", "matcher adalam")
        self._defaults = need("kornia.feature.adalam", "matcher adalam").get_adalam_default_config
        self.device = config.device

    @property
    def settings(self) -> Mapping[str, Any]:
        """All that decides its matches, as JSON."""
        return {"kornia": self._kornia.__version__, "code": code_sha256("evaluation/peers/adalam.py")}

    @torch.inference_mode()
    def match(self, features0: Features, features1: Features) -> Matches:
        """Matches between the features of two images, most confident first.

        Args:
            features0: of image 0.
            features1: of image 1.
        """
        if min(len(features0), len(features1)) < 2:  # it needs a second nearest neighbour
            return Matches.of(features0, features1, torch.zeros(0, 2, dtype=torch.int64), torch.zeros(0))
        config = self._defaults()
        config["device"] = torch.device(self.device)
        if features0.oris is None or features1.oris is None:
            config["orientation_difference_threshold"] = None
        if features0.scales is None or features1.scales is None:
            config["scale_rate_threshold"] = None
        torch.manual_seed(0)  # it samples from the global generator
        quality, indices = self._feature.match_adalam(
            *(torch.as_tensor(f.descriptors, device=self.device) for f in (features0, features1)),
            self._frames(features0),
            self._frames(features1),
            config=config,
            hw1=features0.image_size[::-1],
            hw2=features1.image_size[::-1],
        )
        quality = quality.reshape(-1)  # (K,) inverse confidence
        order = torch.argsort(quality, stable=True)
        return Matches.of(features0, features1, indices.reshape(-1, 2)[order], 1 - quality[order])

    def _frames(self, features: Features) -> Tensor:
        """(1, N, 2, 3) local affine frames; kornia's angle increases the other way than ours."""
        n = len(features)
        scales = np.ones(n, np.float32) if features.scales is None else features.scales / 2
        oris = np.zeros(n, np.float32) if features.oris is None else features.oris
        frames: Tensor = self._feature.laf_from_center_scale_ori(
            torch.as_tensor(features.keypoints, device=self.device)[None],
            torch.as_tensor(scales, device=self.device).reshape(1, n, 1, 1),
            torch.as_tensor(np.degrees(-oris), device=self.device).reshape(1, n, 1),
        )
        return frames
