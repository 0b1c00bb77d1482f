"""LoFTR (Sun et al., 2021) through kornia: it matches images, not keypoints. Measured when its weights are given."""

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
from linglue.geometry.pixels import pixel_from_corner, resize_points
from linglue.io.images import Image, read_image, shrink, to_grey
from linglue.types import Features, FloatArray, Matches

if TYPE_CHECKING:
    from linglue.matcher import MatcherConfig

FILE = "loftr_outdoor.ckpt"


class LoFTR:
    """Matcher `loftr`, with the outdoor weights and kornia's default settings.

    Args:
        config: its device is used; weights come from its `weights`, LINGLUE_PEERS or torch's cache.
        untrained: keep random weights, where only its time is asked.
    """

    def __init__(self, config: MatcherConfig, untrained: bool = False) -> None:
        self.path: Path | None = None
        if not untrained:
            self.path = find_peer_file(FILE, "matcher loftr") if config.weights is None else Path(config.weights)
        self._kornia = need("kornia", "matcher loftr")
        net = need("kornia.feature", "matcher loftr").LoFTR(pretrained=None)
        try:
            if self.path is not None:
                net.load_state_dict(torch.load(self.path, map_location="cpu", weights_only=True)["state_dict"])
        except (KeyError, RuntimeError) as error:
            raise LinGlueError(f"{self.path}: no weights of LoFTR, expected {FILE} of its authors") from error
        self.net = net.eval().to(config.device)
        self.device = config.device

    @property
    def settings(self) -> Mapping[str, Any]:
        """All that decides its matches, as JSON."""
        return {
            "weights_sha256": file_sha256(self.path) if self.path else None,
            "kornia": self._kornia.__version__,
            "code": code_sha256("evaluation/peers/loftr.py"),
        }

    def match(self, features0: Features, features1: Features) -> Matches:
        """Refused: there are no keypoints to match."""
        raise LinGlueError("matcher loftr matches images, expected only in eval homography and eval pose")

    @torch.inference_mode()
    def match_images(self, image0: Path, image1: Path, resize: int | None) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Matches between two images, best first.

        Args:
            image0: file of image 0.
            image1: file of image 1.
            resize: longer side to work at; None: original.

        Returns:
            points0 (K, 2) and points1 (K, 2) in pixels of the originals, and scores (K,).
        """
        originals = [read_image(path) for path in (image0, image1)]
        works = [shrink(original, resize) for original in originals]
        found = self.forward(*works)
        order = torch.argsort(found["confidence"], descending=True, stable=True)
        points = []
        for i, (original, work) in enumerate(zip(originals, works, strict=True)):
            scale = [original.shape[1] / work.shape[1], original.shape[0] / work.shape[0]]
            corner = found[f"keypoints{i}"][order].float().cpu().numpy()  # (K, 2), from the corner of a pixel
            points.append(resize_points(pixel_from_corner(corner), scale))
        return points[0], points[1], found["confidence"][order].float().cpu().numpy()

    @torch.inference_mode()
    def forward(self, image0: Image, image1: Image) -> dict[str, Tensor]:
        """What the network finds, in pixels of these images.

        Args:
            image0: its sides should be multiples of 8.
            image1: the same.
        """
        found: dict[str, Tensor] = self.net(
            {f"image{i}": self._tensor(work) for i, work in enumerate((image0, image1))}
        )
        return found

    def _tensor(self, image: Image) -> Tensor:
        return torch.tensor(to_grey(image), device=self.device)[None, None].float() / 255  # (1, 1, H, W)
