"""What the front-ends from kornia share: the late import, images as tensors, the choice of the strongest."""

from __future__ import annotations

from types import ModuleType

import torch
from torch import Tensor

from linglue.errors import LinGlueError
from linglue.io.images import Image, Mask


def feature_module(name: str) -> ModuleType:
    """The module kornia.feature, imported this late because it is optional and slow to import."""
    try:
        import kornia.feature
    except ImportError as error:
        raise LinGlueError(f"{name} needs kornia, which is not installed: pip install linglue[kornia]") from error
    if not hasattr(kornia.feature, name):
        raise LinGlueError(f"kornia {kornia.__version__} has no {name}: pip install -U linglue[kornia]")
    module: ModuleType = kornia.feature
    return module


def to_tensor(image: Image, device: torch.device) -> Tensor:
    """(H, W, 3) RGB uint8 → (1, 3, H, W) float in [0, 1], the range both networks were trained on; channels last.

    Args:
        image: RGB uint8.
        device: where the network is.
    """
    return torch.tensor(image, device=device).permute(2, 0, 1)[None].float() / 255


def strongest(keypoints: Tensor, scores: Tensor, max_keypoints: int, mask: Mask | None) -> Tensor:
    """Indices of the strongest keypoints (N, 2) whose pixel the mask allows, best first.

    Args:
        keypoints: (N, 2) pixels x, y.
        scores: (N,) of the detector.
        max_keypoints: how many are kept.
        mask: (H, W) bool, True where keypoints may be; None: everywhere.
    """
    order = scores.argsort(descending=True, stable=True)  # (N,)
    if mask is not None:
        x, y = keypoints[order].round().long().T
        order = order[torch.from_numpy(mask).to(order.device)[y, x]]
    return order[:max_keypoints]
