"""SuperPoint v1, written from the paper (DeTone et al., 2018); users bring Magic Leap's weights or their own."""

from __future__ import annotations

import logging
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from linglue.core.fingerprint import file_sha256
from linglue.features.base import Extractor
from linglue.features.registry import FRONT_ENDS
from linglue.features.weights import find_weights, load_weights
from linglue.io.images import Image, Mask, to_grey
from linglue.types import Features, ImageSize

CELL = 8  # pixels per side of the image patch behind one position of the network's output

logger = logging.getLogger(__name__)


class SuperPointNet(nn.Module):
    """Image → score of every pixel and one descriptor per cell. Layers are named as in the official weights file."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1a, self.conv1b = _conv(1, 64), _conv(64, 64)
        self.conv2a, self.conv2b = _conv(64, 64), _conv(64, 64)
        self.conv3a, self.conv3b = _conv(64, 128), _conv(128, 128)
        self.conv4a, self.conv4b = _conv(128, 128), _conv(128, 128)
        self.convPa, self.convPb = _conv(128, 256), nn.Conv2d(256, CELL * CELL + 1, 1)
        self.convDa, self.convDb = _conv(128, 256), nn.Conv2d(256, 256, 1)

    def forward(self, image: Tensor) -> tuple[Tensor, Tensor]:
        """(B, 1, H, W) grey in [0, 1] → scores (B, 8h, 8w), descriptors (B, 256, h, w); h = H // 8, w = W // 8."""
        x = _relu(self.conv1b(_relu(self.conv1a(image))))  # (B, 64, H, W)
        x = F.max_pool2d(x, 2)  # (B, 64, H/2, W/2)
        x = F.max_pool2d(_relu(self.conv2b(_relu(self.conv2a(x)))), 2)  # (B, 64, H/4, W/4)
        x = F.max_pool2d(_relu(self.conv3b(_relu(self.conv3a(x)))), 2)  # (B, 128, h, w)
        x = _relu(self.conv4b(_relu(self.conv4a(x))))  # (B, 128, h, w)
        logits = self.convPb(_relu(self.convPa(x)))  # (B, 65, h, w): a cell's 64 pixels and "no keypoint here"
        scores = F.pixel_shuffle(logits.softmax(dim=1)[:, :-1], CELL)  # (B, 1, 8h, 8w)
        descriptors = self.convDb(_relu(self.convDa(x)))  # (B, 256, h, w)
        return scores[:, 0], F.normalize(descriptors, dim=1)


class SuperPoint(Extractor):
    """Learned corners on the pixel grid with 256-D descriptors of unit length; no scale, no orientation."""

    kind = "superpoint"
    dim = FRONT_ENDS[kind].dim
    licence = FRONT_ENDS[kind].licence

    def __init__(
        self,
        weights: str | Path | None = None,
        device: str = "cpu",
        nms_radius: int = 4,
        threshold: float = 0.0005,
        border: int = 4,
    ) -> None:
        """`weights`: the official superpoint_v1.pth or own-trained ones of that shape. Lengths are in pixels."""
        front_end = FRONT_ENDS[self.kind]
        self.device = torch.device(device)
        self.nms_radius = nms_radius  # no two keypoints are closer than this in both x and y
        self.threshold = threshold
        self.border = border  # keypoints nearer than this to the image border are dropped
        net = SuperPointNet()
        weights = find_weights(self.kind, weights)
        load_weights(net, weights, front_end.weights_source)
        assert front_end.download is not None
        if file_sha256(weights) != front_end.download.sha256:
            logger.warning("%s: not the official superpoint_v1.pth (SHA-256 differs), used as own-trained", weights)
        # Channels last makes the network a third faster on the CPU.
        self.net = net.eval().to(self.device, memory_format=torch.channels_last)  # type: ignore[call-overload]

    @torch.inference_mode()
    def detect(self, image: Image, max_keypoints: int, mask: Mask | None) -> Features:
        """The front-end's part of `extract`, at the size of `image`."""
        height, width = image.shape[:2]
        size = ImageSize(width, height)
        if min(height, width) < CELL:
            return self._empty(size)
        grey = torch.from_numpy(to_grey(image)).to(self.device).float() / 255  # (H, W)
        # Sides that are no multiples of 8 are cut by the pooling, as in the original: the last 1 to 7 pixels have no
        # keypoints. Padding would find them, but with the false edges and other descriptors that padding brings.
        scores, descriptors = (out[0] for out in self.net(grey[None, None]))  # (8h, 8w), (256, h, w)
        rows, columns = scores.shape
        allowed = local_maxima(scores, self.nms_radius) & (scores > self.threshold)  # (8h, 8w)
        inside = torch.zeros_like(allowed)
        inside[self.border : rows - self.border, self.border : columns - self.border] = True
        allowed &= inside
        if mask is not None:
            allowed &= torch.from_numpy(mask[:rows, :columns]).to(self.device)
        y, x = allowed.nonzero(as_tuple=True)  # (N,) each
        best = scores[y, x].argsort(descending=True, stable=True)[:max_keypoints]  # (K,)
        y, x = y[best], x[best]
        keypoints = torch.stack([x, y], dim=1).float()  # (K, 2)
        return Features(
            keypoints=keypoints.cpu().numpy(),
            descriptors=sample_descriptors(descriptors, keypoints).cpu().numpy(),
            image_size=size,
            scores=scores[y, x].cpu().numpy(),
            kind=self.kind,
        )


def _relu(x: Tensor) -> Tensor:
    """In place: a second copy of the first layers' maps would cost a tenth of the time on the CPU."""
    return F.relu(x, inplace=True)


def _conv(inputs: int, outputs: int) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, 3, padding=1)


def local_maxima(scores: Tensor, radius: int) -> Tensor:
    """(H, W) scores → (H, W) bool: greedy-like non-maximum suppression in squares of side 2·radius + 1.

    A pixel survives if it is the largest of its square; twice more, what is in no survivor's square gets the same
    chance among itself. This is the published procedure: one round alone would lose the peaks that only a
    suppressed neighbour outshone.

    Args:
        scores: (H, W) of the detector.
        radius: no two keypoints lie closer along an axis.
    """
    peaks = scores == _square_max(scores, radius)
    for _ in range(2):
        covered = _square_max(peaks.float(), radius) > 0
        rest = scores.masked_fill(covered, 0)
        peaks |= (rest == _square_max(rest, radius)) & ~covered
    return peaks


def _square_max(values: Tensor, radius: int) -> Tensor:
    """(H, W) maximum over the square around each pixel; one axis after the other is several times faster."""
    side = 2 * radius + 1
    rows = F.max_pool2d(values[None, None], (1, side), stride=1, padding=(0, radius))
    return F.max_pool2d(rows, (side, 1), stride=1, padding=(radius, 0))[0, 0]


def sample_descriptors(descriptors: Tensor, keypoints: Tensor) -> Tensor:
    """(256, h, w) unit descriptors of cells, (N, 2) pixels x, y → (N, 256) unit descriptors.

    Args:
        descriptors: (256, h, w), a cell is 8 pixels wide.
        keypoints: (N, 2) pixels x, y.
    """
    h, w = descriptors.shape[1:]
    # The centre of cell i is pixel 8i + 3.5, so the exact position would be (x − 3.5) / (8w − 8) of the grid. The
    # published code divides by 8w − 4.5 instead, an error that grows from nothing at the left and top to 0.44 cells at
    # the right and bottom. Matchers were trained on descriptors sampled in this way, so it is kept (transformers does
    # the same; the exact one is what hloc calls fix_sampling).
    last = keypoints.new_tensor([w * CELL - CELL / 2 - 0.5, h * CELL - CELL / 2 - 0.5])
    grid = 2 * (keypoints - CELL / 2 + 0.5) / last - 1  # (N, 2) in [-1, 1]
    sampled = F.grid_sample(descriptors[None], grid[None, None], mode="bilinear", align_corners=True)  # (1, 256, 1, N)
    return F.normalize(sampled[0, :, 0], dim=0).T  # (N, 256)
