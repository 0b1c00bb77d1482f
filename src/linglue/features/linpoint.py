"""LinPoint: LinGlue's own keypoints and descriptors, a small convolutional network made for CPUs.

Top to bottom: the network (`LinPointNet`), how its heat becomes keypoints, and the front-end around both (`LinPoint`).
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from linglue.core.atomic import atomic_path
from linglue.errors import LinGlueError
from linglue.features import FRONT_ENDS
from linglue.features.base import Extractor
from linglue.geometry.pixels import resize_points
from linglue.io.images import Image, Mask, to_grey
from linglue.types import Features, ImageSize

PACKAGED = Path(__file__).resolve().parent.parent / "weights" / "linpoint-features.safetensors"
STRIDE = 32  # of the coarsest map; images are padded to multiples of it
DIM = 64  # length of a descriptor, the inner size of the small matching networks
WIDTHS = (24, 48, 64, 96, 128)  # channels of the maps at 1/2, 1/4, 1/8, 1/16 and 1/32 of the image
SAMPLES = 12  # places around a keypoint where its descriptor looks; learned offsets from two rings
REACH = 32.0  # pixels: the farthest such a place can lie from the keypoint
RADIUS = 2  # pixels: keypoints are maxima of squares of side 2·RADIUS + 1, and are refined within them
BORDER = 4  # pixels at the rim of an image without keypoints: half of what a descriptor needs is missing there
FAINTEST = 0.01  # heat under which a maximum is noise


class Maps(NamedTuple):
    """What the network computes of a batch of images; descriptors are read from it at keypoints only."""

    heat: Tensor  # (B, H, W) logits: is here a keypoint?
    trust: Tensor  # (B, H/8, W/8) logits: would its descriptor find its partner?
    fine: Tensor  # (B, H/4, W/4, 48) channels last, as keypoints are gathered from it
    coarse: Tensor  # (B, H/8, W/8, 64) all scales from 1/8 to 1/32 fused


class Conv(nn.Sequential):
    """3 × 3 convolution, batch normalisation, ReLU. `fuse` folds the normalisation into the convolution."""

    def __init__(self, inputs: int, outputs: int, stride: int = 1) -> None:
        super().__init__(
            nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU(inplace=True)
        )


class Residual(nn.Module):
    """x + two convolutions of x."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second = Conv(width, width), Conv(width, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.second(self.first(x))


class LinPointNet(nn.Module):
    """Grey image → maps of heat, trust and features; `describe` reads descriptors from them at given points."""

    def __init__(self) -> None:
        super().__init__()
        w2, w4, w8, w16, w32 = WIDTHS
        self.stage2 = nn.Sequential(Conv(4, w2), Conv(w2, w2))
        self.stage4 = nn.Sequential(Conv(w2, w4, 2), Conv(w4, w4))
        self.stage8 = nn.Sequential(Conv(w4, w8, 2), Residual(w8))
        self.stage16 = nn.Sequential(Conv(w8, w16, 2), Residual(w16))
        self.stage32 = nn.Sequential(Conv(w16, w32, 2), Residual(w32))
        self.lateral16, self.lateral32 = nn.Conv2d(w16, w8, 1), nn.Conv2d(w32, w8, 1)
        self.fuse8 = Conv(w8, w8)
        self.trust = nn.Conv2d(w8, 1, 1)
        # Heat is decided at half resolution, from edges there and from the context of 1/4 and 1/8.
        self.heat2, self.heat4, self.heat8 = (nn.Conv2d(w, w2, 1) for w in (w2, w4, w8))
        self.heat = nn.Sequential(nn.ReLU(inplace=True), Conv(w2, w2), nn.Conv2d(w2, 4, 1))
        # The descriptor looks at SAMPLES places around its keypoint; where exactly, the context says.
        self.offsets = nn.Sequential(nn.Linear(w8 + w4, 64), nn.ReLU(), nn.Linear(64, 2 * SAMPLES))
        self.descriptor = nn.Sequential(nn.Linear(w8 + w4 + SAMPLES * w4, 128), nn.ReLU(), nn.Linear(128, DIM))
        self.register_buffer("rings", _rings(), persistent=False)
        last, heat = self.offsets[2], self.heat[2]
        assert isinstance(last, nn.Linear) and isinstance(heat, nn.Conv2d) and heat.bias is not None
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)
        nn.init.constant_(heat.bias, -4.0)  # keypoints are rare

    def forward(self, image: Tensor) -> Maps:
        """(B, 1, H, W) grey in [0, 1], H and W multiples of STRIDE → maps."""
        x2 = self.stage2(F.pixel_unshuffle(4 * image - 2, 2))  # (B, 24, H/2, W/2)
        x4 = self.stage4(x2)  # (B, 48, H/4, W/4)
        x8 = self.stage8(x4)  # (B, 64, H/8, W/8)
        x16 = self.stage16(x8)  # (B, 96, H/16, W/16)
        x32 = self.stage32(x16)  # (B, 128, H/32, W/32)
        context = self.lateral16(x16) + _larger(self.lateral32(x32), 2)  # (B, 64, H/16, W/16)
        coarse = self.fuse8(x8 + _larger(context, 2))  # (B, 64, H/8, W/8)
        at4 = self.heat4(x4) + _larger(self.heat8(coarse), 2)  # (B, 24, H/4, W/4)
        heat = self.heat(self.heat2(x2) + _larger(at4, 2))  # (B, 4, H/2, W/2)
        return Maps(
            heat=F.pixel_shuffle(heat, 2)[:, 0],
            trust=self.trust(coarse)[:, 0],
            fine=x4.permute(0, 2, 3, 1),
            coarse=coarse.permute(0, 2, 3, 1),
        )

    def describe(self, maps: Maps, image: Tensor, points: Tensor) -> Tensor:
        """(N,) which image of the batch and (N, 2) pixels x, y in it → (N, 64) unit descriptors."""
        context = torch.cat([sample(maps.coarse, image, points, 8), sample(maps.fine, image, points, 4)], 1)  # (N, 112)
        moves = REACH * torch.tanh(self.offsets(context).view(-1, SAMPLES, 2) + self.rings)  # (N, 12, 2)
        places = (points[:, None] + moves).flatten(0, 1)  # (N·12, 2)
        around = sample(maps.fine, image.repeat_interleave(SAMPLES), places, 4)  # (N·12, 48)
        described = self.descriptor(torch.cat([context, around.view(len(points), -1)], 1))  # (N, 64)
        return F.normalize(described, dim=1)


def _rings() -> Tensor:
    """(SAMPLES, 2) where a descriptor looks before training, on two rings; the atanh of offset / REACH."""
    half = SAMPLES // 2
    angle = torch.arange(SAMPLES) * (2 * torch.pi / half) + (torch.arange(SAMPLES) >= half) * (torch.pi / half)
    radius = torch.where(torch.arange(SAMPLES) < half, 5.0, 12.0)  # pixels
    return torch.atanh(radius[:, None] * torch.stack([angle.cos(), angle.sin()], dim=1) / REACH)


def _larger(x: Tensor, factor: int) -> Tensor:
    return F.interpolate(x, scale_factor=factor, mode="bilinear", align_corners=False)


def sample(maps: Tensor, image: Tensor, points: Tensor, stride: int) -> Tensor:
    """Bilinear values (N, C) of channels-last maps (B, h, w, C) at (N, 2) pixels x, y of the images (N,).

    Entry (i, j) of a map is the centre of a cell of `stride` pixels; beyond the outermost centres the border goes on.
    """
    _, h, w, channels = maps.shape
    place = resize_points(points, 1 / stride)
    x = place[:, 0].clamp(0, w - 1)
    y = place[:, 1].clamp(0, h - 1)
    x0, y0 = x.detach().floor().clamp(max=max(w - 2, 0)), y.detach().floor().clamp(max=max(h - 2, 0))
    fx, fy = (x - x0)[:, None], (y - y0)[:, None]
    corner = (image * h + y0.long()) * w + x0.long()  # (N,) row of the flattened map
    right, down = min(1, w - 1), w * min(1, h - 1)
    flat = maps.reshape(-1, channels)
    top = torch.lerp(flat.index_select(0, corner), flat.index_select(0, corner + right), fx)
    bottom = torch.lerp(flat.index_select(0, corner + down), flat.index_select(0, corner + down + right), fx)
    return torch.lerp(top, bottom, fy)


def refine(heat: Tensor, image: Tensor, pixels: Tensor) -> Tensor:
    """Sub-pixel positions (N, 2): the mean of the square around each of the (N, 2) pixels, weighted by its heat.

    `heat` are logits (B, H, W). Differentiable; training teaches the heat to have its mean at the true place.
    """
    _, height, width = heat.shape
    step = torch.arange(-RADIUS, RADIUS + 1, device=heat.device)
    dy, dx = torch.meshgrid(step, step, indexing="ij")
    y = (pixels[:, 1, None] + dy.reshape(-1)).clamp(0, height - 1)  # (N, 25)
    x = (pixels[:, 0, None] + dx.reshape(-1)).clamp(0, width - 1)
    weight = heat[image[:, None], y, x].softmax(dim=1)  # (N, 25)
    around = torch.stack([dx.reshape(-1), dy.reshape(-1)], dim=1).to(weight)  # (25, 2)
    return pixels + weight @ around


def maxima(heat: Tensor) -> Tensor:
    """(B, H, W) → (B, H, W) bool: the largest of the square around it; the first of equals is found by its caller."""
    side = 2 * RADIUS + 1
    rows = F.max_pool2d(heat[:, None], (1, side), stride=1, padding=(0, RADIUS))
    return heat == F.max_pool2d(rows, (side, 1), stride=1, padding=(RADIUS, 0))[:, 0]


def detect(maps: Maps, number: int, size: ImageSize, limit: int, mask: Mask | None = None) -> tuple[Tensor, Tensor]:
    """The `limit` strongest keypoints (K, 2) of image `number` of a batch, x and y, and their scores (K,), best first.

    `size` is the image without its padding. The score is heat times trust, both probabilities.
    """
    heat = maps.heat[number : number + 1, : size.height, : size.width]  # (1, H, W)
    wanted = maxima(heat)[0] & (heat[0] > float(np.log(FAINTEST / (1 - FAINTEST))))  # (H, W)
    rim = torch.zeros_like(wanted)
    rim[BORDER : size.height - BORDER, BORDER : size.width - BORDER] = True
    wanted &= rim
    if mask is not None:
        wanted &= torch.from_numpy(mask).to(wanted.device)
    y, x = wanted.nonzero(as_tuple=True)  # (N,)
    pixels = torch.stack([x, y], dim=1)  # (N, 2)
    which = torch.full_like(x, number)
    trust = sample(maps.trust[..., None], which, pixels.to(heat), 8)[:, 0].sigmoid()
    scores = heat[0, y, x].sigmoid() * trust  # (N,)
    best = scores.argsort(descending=True, stable=True)[:limit]
    return refine(maps.heat, which[best], pixels[best]), scores[best]


class LinPoint(Extractor):
    """LinGlue's own front-end: keypoints between pixels, 64-D descriptors of unit length; weights in the package."""

    kind = "linpoint"
    dim = DIM
    licence = FRONT_ENDS[kind].licence

    def __init__(self, weights: str | Path | None = None, device: str = "cpu") -> None:
        self.device = torch.device(device)
        self.net = fused(load_linpoint(weights or PACKAGED)).to(self.device)
        self.net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # faster on CPUs

    @torch.inference_mode()
    def detect(self, image: Image, max_keypoints: int, mask: Mask | None) -> Features:
        size = ImageSize(image.shape[1], image.shape[0])
        maps = self.net(to_padded(image).to(self.device, memory_format=torch.channels_last))
        keypoints, scores = detect(maps, 0, size, max_keypoints, mask)
        number = torch.zeros(len(keypoints), dtype=torch.int64, device=self.device)
        return Features(
            keypoints=keypoints.cpu().numpy(),
            descriptors=self.net.describe(maps, number, keypoints).cpu().numpy(),
            image_size=size,
            scores=scores.cpu().numpy(),
            kind=self.kind,
        )


def to_padded(image: Image) -> Tensor:
    """(H, W, 3) RGB → (1, 1, H', W') grey in [0, 1], its last row and column repeated up to multiples of STRIDE."""
    height, width = image.shape[:2]
    grey = torch.from_numpy(to_grey(image)).float()[None, None] / 255
    return F.pad(grey, (0, -width % STRIDE, 0, -height % STRIDE), mode="replicate")


def fused(net: LinPointNet) -> LinPointNet:
    """The same network for inference: every batch normalisation folded into the convolution before it."""
    net = net.eval()
    for module in net.modules():
        if isinstance(module, Conv):
            convolution, normalisation = module[0], module[1]
            assert isinstance(convolution, nn.Conv2d) and isinstance(normalisation, nn.BatchNorm2d)
            module[0] = nn.utils.fuse_conv_bn_eval(convolution, normalisation)
            module[1] = nn.Identity()
    return net


def save_linpoint(path: Path, net: LinPointNet, training: str) -> None:
    """Write the network in float16, atomically; `training` says in a line how it was made."""
    tensors = {name: value.detach().half().contiguous().cpu() for name, value in net.state_dict().items()}
    with atomic_path(path) as temporary:
        save_file(tensors, temporary, {"kind": "linpoint-features", "licence": "Apache-2.0", "training": training})


def load_linpoint(path: str | Path) -> LinPointNet:
    """The network in a file of `save_linpoint`, in float32; every tensor must fit."""
    net = LinPointNet()
    try:
        with safe_open(path, framework="pt") as file:
            state = {name: file.get_tensor(name).float() for name in file.keys()}  # noqa: SIM118 (not a dict)
        net.load_state_dict(state)
    except (OSError, SafetensorError, RuntimeError) as error:
        reason = " ".join(str(error).split())[:200]
        raise LinGlueError(f"{path}: not the weights of a linpoint front-end ({reason})") from error
    return net
