"""ALIKED and DISK through kornia. Weights come from a file or from kornia's cache; nothing is ever downloaded here."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import torch
import torch.nn.functional as F
from torch import Tensor

from linglue.errors import LinGlueError
from linglue.features import FRONT_ENDS
from linglue.features.base import Extractor, load_weights
from linglue.io.images import Image, Mask
from linglue.types import Features, ImageSize


class Aliked(Extractor):
    """ALIKED-N16: keypoints between pixels, 128-D descriptors of unit length; no scale, no orientation."""

    kind = "aliked"
    dim = FRONT_ENDS[kind].dim
    licence = FRONT_ENDS[kind].licence

    def __init__(self, weights: str | Path | None = None, device: str = "cpu") -> None:
        # No limit inside kornia: the mask must come before the choice of the strongest.
        net = _kornia_feature("ALIKED").ALIKED("aliked-n16", max_num_keypoints=sys.maxsize)
        # The published file lacks this constant grid of pixel offsets.
        fill = {"dkd.hw_grid": net.dkd.hw_grid}
        load_weights(
            net, _weights_path(self.kind, weights, "aliked-n16.pth"), FRONT_ENDS[self.kind].weights_source, fill
        )
        self.device = torch.device(device)
        # Channels last makes ALIKED a third faster on the CPU, where normalising its dense map dominates.
        self.net = net.eval().to(self.device, memory_format=torch.channels_last)

    @torch.inference_mode()
    def detect(self, image: Image, max_keypoints: int, mask: Mask | None) -> Features:
        height, width = image.shape[:2]
        descriptor_map, score_map = self.net.extract_dense_map(_to_tensor(image, self.device))  # (1, 128 | 1, H, W)
        found, found_scores, _ = self.net.dkd(score_map)
        # kornia's [-1, 1] spans the centres of the first and the last pixel, which are 0 and W − 1 for us as well.
        last = found[0].new_tensor([width - 1, height - 1])
        keypoints = (found[0] + 1) / 2 * last  # (N, 2)
        best = _choose(keypoints, found_scores[0], max_keypoints, mask)  # (K,)
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


class Disk(Extractor):
    """DISK (depth-supervised): keypoints on pixels, 128-D descriptors of unit length; no scale, no orientation."""

    kind = "disk"
    dim = FRONT_ENDS[kind].dim
    licence = FRONT_ENDS[kind].licence

    def __init__(self, weights: str | Path | None = None, device: str = "cpu") -> None:
        net = _kornia_feature("DISK").DISK()
        load_weights(net, _weights_path(self.kind, weights, "depth-save.pth"), FRONT_ENDS[self.kind].weights_source)
        self.device = torch.device(device)
        self.net = net.eval().to(self.device)

    @torch.inference_mode()
    def detect(self, image: Image, max_keypoints: int, mask: Mask | None) -> Features:
        height, width = image.shape[:2]
        tensor = _to_tensor(image, self.device).contiguous()  # (1, 3, H, W)
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
        best = _choose(keypoints, scores, max_keypoints, mask)  # (K,)
        return Features(
            keypoints=keypoints[best],
            descriptors=descriptors[best],
            image_size=ImageSize(width, height),
            scores=scores[best],
            kind=self.kind,
        )


def _kornia_feature(name: str) -> ModuleType:
    """The module kornia.feature, imported this late because it is optional and slow to import."""
    try:
        import kornia.feature
    except ImportError as error:
        raise LinGlueError(f"{name} needs kornia, which is not installed: pip install linglue[kornia]") from error
    if not hasattr(kornia.feature, name):
        raise LinGlueError(f"kornia {kornia.__version__} has no {name}: pip install -U linglue[kornia]")
    module: ModuleType = kornia.feature
    return module


def _weights_path(kind: str, weights: str | Path | None, file_name: str) -> Path:
    """The given weights file, else the one that kornia has downloaded earlier."""
    if weights is not None:
        return Path(weights)
    cached = Path(torch.hub.get_dir()) / "checkpoints" / file_name
    if not cached.is_file():
        raise LinGlueError(
            f"front-end {kind} needs a weights file: get {FRONT_ENDS[kind].weights_source} "
            f"and give its path or put it at {cached}"
        )
    return cached


def _to_tensor(image: Image, device: torch.device) -> Tensor:
    """(H, W, 3) RGB uint8 → (1, 3, H, W) float in [0, 1], the range both networks were trained on; channels last."""
    return torch.tensor(image, device=device).permute(2, 0, 1)[None].float() / 255


def _choose(keypoints: Tensor, scores: Tensor, max_keypoints: int, mask: Mask | None) -> Tensor:
    """Indices of the strongest keypoints (N, 2) whose pixel the mask allows, best first."""
    order = scores.argsort(descending=True, stable=True)  # (N,)
    if mask is not None:
        x, y = keypoints[order].round().long().T
        order = order[torch.from_numpy(mask).to(order.device)[y, x]]
    return order[:max_keypoints]
