"""LightGlue (Lindenberger et al., 2023) for ALIKED and DISK, and LighterGlue for XFeat, through kornia."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from linglue.core.fingerprint import code_sha256, file_sha256
from linglue.core.optional import need
from linglue.errors import LinGlueError
from linglue.evaluation.peers import find_peer_file
from linglue.types import Features, Matches

if TYPE_CHECKING:
    from linglue.matcher import MatcherConfig

FILES = {
    "aliked": "aliked_lightglue_v0-1_arxiv-pth",
    "disk": "disk_lightglue_v0-1_arxiv-pth",
    "xfeat": "xfeat-lighterglue.pt",
}


class LightGlue:
    """Matcher `lightglue`, with kornia's default settings.

    Args:
        config: its features must be aliked, disk or xfeat. Weights come from LINGLUE_PEERS or torch's cache.
        untrained: keep random weights, where only its time is asked.
    """

    def __init__(self, config: MatcherConfig, untrained: bool = False) -> None:
        features = config.features
        if features not in FILES:
            raise LinGlueError(
                f"matcher lightglue has no weights for {features!r} features, expected {', '.join(FILES)}"
            )
        self.path = None if untrained else find_peer_file(FILES[features], "matcher lightglue")
        self._kornia = need("kornia", "matcher lightglue")
        kind = need("kornia.feature", "matcher lightglue").LightGlue
        net = kind(None, **{k: v for k, v in kind.features[features].items() if k != "weights"})
        if self.path is not None:
            net.load_state_dict(_renamed(self.path, net.conf.n_layers), strict=False)
        self.net = net.eval().to(config.device)
        self.features = features
        self.device = config.device

    @property
    def settings(self) -> Mapping[str, Any]:
        """All that decides its matches, as JSON."""
        return {
            "features": self.features,
            "weights_sha256": file_sha256(self.path) if self.path else None,
            "kornia": self._kornia.__version__,
            "code": code_sha256("evaluation/peers/lightglue.py"),
        }

    @torch.inference_mode()
    def match(self, features0: Features, features1: Features) -> Matches:
        """Matches between the features of two images, best first.

        Args:
            features0: of image 0.
            features1: of image 1.
        """
        found = self.net({"image0": self._entry(features0), "image1": self._entry(features1)})
        scores = found["scores"][0]
        order = torch.argsort(scores, descending=True, stable=True)
        return Matches.of(features0, features1, found["matches"][0][order], scores[order])

    def _entry(self, features: Features) -> dict[str, Tensor]:
        tensors = features.tensors(self.device)
        # kornia refuses keypoints outside the image; an upscaled one may lie half a pixel beyond its border.
        tensors["keypoints"] = torch.minimum(tensors["keypoints"].clamp(min=0), tensors["image_size"][:, None])
        return tensors


def _renamed(path: Path, layers: int) -> dict[str, Tensor]:
    """The state dict of a published file under kornia's names, as kornia itself renames it."""
    state = torch.load(path, map_location="cpu", weights_only=True)
    state = {name.removeprefix("matcher."): value for name, value in state.items()}
    for kind in ("self_attn", "cross_attn"):
        for i in range(layers):
            state = {name.replace(f"{kind}.{i}", f"transformers.{i}.{kind}"): value for name, value in state.items()}
    return state
