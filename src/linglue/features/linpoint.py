"""LinPoint: LinGlue's own keypoints and descriptors, a small convolutional network made for CPUs.

Top to bottom: the network (`LinPointNet`), how its heat becomes keypoints, and the front-end around both (`LinPoint`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
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
from linglue.features.base import Extractor
from linglue.features.registry import FRONT_ENDS
from linglue.geometry.pixels import resize_points
from linglue.io.images import Image, Mask, to_grey
from linglue.types import Features, ImageSize

PACKAGED = Path(__file__).resolve().parent.parent / "weights" / "linpoint-features.safetensors"
STRIDE = 32  # of the coarsest map
DIM = 64  # length of a descriptor, the inner size of the small matching networks
WIDTHS = (24, 48, 64, 96, 128)  # channels of the maps at 1/2, 1/4, 1/8, 1/16 and 1/32 of the image
SAMPLES = 12  # places around a keypoint where its descriptor looks; learned offsets from two rings
REACH = 32.0  # pixels: the farthest such a place can lie from the keypoint
RADIUS = 2  # pixels: keypoints are maxima of squares of side 2·RADIUS + 1, and are refined within them
OVERLAP = 128  # pixels that a tile sees beyond its own area
SHARPNESS = 3.0  # of the weights around a maximum: it counts most, whichever pixel of its square begins
BORDER = 4  # pixels at the rim of an image without keypoints: half of what a descriptor needs is missing there
TIE = 1e-4  # difference of two pixels' heat under which they are equal
# The network puts keypoints to the right of and below what they are of, even in mirrored images, as its teacher does:
# nothing taught it otherwise. By so many pixels, which would move the principal point of every camera.
ASIDE = 1.5
FAINTEST = math.log(0.01 / 0.99)  # heat under which a maximum is noise: a probability of 1 %
CELL = 8  # pixels: the texture of an image is judged in squares of this side and their neighbours
FLAT = 3  # of 255 grey levels: squares with a smaller range have one colour, and a descriptor has nothing to tell


class Maps(NamedTuple):
    """What the network computes of a batch of images; descriptors are read from it at keypoints only."""

    heat: Tensor  # (B, H, W) logits: is here a keypoint?
    trust: Tensor  # (B, H/8, W/8) logits: would its descriptor find its partner?
    fine: Tensor  # (B, H/4, W/4, 48) channels last, as keypoints are gathered from it
    coarse: Tensor  # (B, H/8, W/8, 64) all scales from 1/8 to 1/32 fused


class Conv(nn.Sequential):
    """3 × 3 convolution, batch normalisation, ReLU. `fused` folds the normalisation into the convolution."""

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
        """(B, C, H, W) → (B, D, h, w)."""
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

    def forward(self, images: Tensor, sizes: Sequence[ImageSize] | None = None) -> Maps:
        """Maps of a batch; those of an image depend on nothing but the image.

        Args:
            images: (B, 1, H, W) grey in [0, 1].
            sizes: of the images without what pads them to the size of the largest; all are H × W if not given.
        """
        if sizes is None or len(set(sizes)) == 1:
            return self._maps(_whole_strides(images if sizes is None else _cut(images, sizes[0])))
        # Images of different sizes one by one: borders are where the image ends, not where its padding does.
        every = [self._maps(_whole_strides(_cut(images[b : b + 1], size))) for b, size in enumerate(sizes)]
        return Maps(*(_stack(parts) for parts in zip(*every, strict=True)))

    def _maps(self, image: Tensor) -> Maps:
        """(B, 1, H, W), H and W multiples of STRIDE → maps."""
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
        """maps, (N,) which image of the batch and (N, 2) points x, y in it → (N, 64) unit descriptors."""
        context = torch.cat([sample(maps.coarse, image, points, 8), sample(maps.fine, image, points, 4)], 1)  # (N, 112)
        moves = REACH * torch.tanh(self.offsets(context).view(-1, SAMPLES, 2) + self.rings)  # (N, 12, 2)
        places = (points[:, None] + moves).flatten(0, 1)  # (N·12, 2)
        around = sample(maps.fine, image.repeat_interleave(SAMPLES), places, 4)  # (N·12, 48)
        around = around.view(len(points), SAMPLES * around.shape[1])  # (N, 12·48)
        described = self.descriptor(torch.cat([context, around], 1))  # (N, 64)
        return F.normalize(described, dim=1)


def _rings() -> Tensor:
    """(SAMPLES, 2) where a descriptor looks before training, on two rings; the atanh of offset / REACH."""
    half = SAMPLES // 2
    angle = torch.arange(SAMPLES) * (2 * torch.pi / half) + (torch.arange(SAMPLES) >= half) * (torch.pi / half)
    radius = torch.where(torch.arange(SAMPLES) < half, 5.0, 12.0)  # pixels
    return torch.atanh(radius[:, None] * torch.stack([angle.cos(), angle.sin()], dim=1) / REACH)


def _cut(images: Tensor, size: ImageSize) -> Tensor:
    return images[..., : size.height, : size.width]


def _whole_strides(images: Tensor) -> Tensor:
    """The last row and column of (B, 1, H, W) repeated up to multiples of STRIDE."""
    height, width = images.shape[-2:]
    if height % STRIDE == 0 and width % STRIDE == 0:
        return images
    return F.pad(images, (0, -width % STRIDE, 0, -height % STRIDE), mode="replicate")


def _stack(parts: Sequence[Tensor]) -> Tensor:
    """Maps (1, h, w[, C]) of images of different sizes as one (B, h, w[, C]); their borders repeat as `sample` does."""
    height, width = (max(part.shape[axis] for part in parts) for axis in (1, 2))
    rows = [torch.arange(height, device=part.device).clamp(max=part.shape[1] - 1) for part in parts]
    columns = [torch.arange(width, device=part.device).clamp(max=part.shape[2] - 1) for part in parts]
    return torch.cat([part[:, y[:, None], x] for part, y, x in zip(parts, rows, columns, strict=True)])


def _larger(x: Tensor, factor: int) -> Tensor:
    return F.interpolate(x, scale_factor=factor, mode="bilinear", align_corners=False)


def sample(maps: Tensor, image: Tensor, points: Tensor, stride: int) -> Tensor:
    """Bilinear values (N, C) of channels-last maps (B, h, w, C) at (N, 2) pixels x, y of the images (N,).

    Entry (i, j) of a map is the centre of a cell of `stride` pixels; beyond the outermost centres the border goes on.

    Args:
        maps: (B, h, w, C) one vector per cell.
        image: (N,) which image of the batch each point is in.
        points: (N, 2) pixels x, y of the image.
        stride: pixels per cell.
    """
    _, h, w, channels = maps.shape
    place = resize_points(points, 1 / stride)
    x, y = place[:, 0].clamp(0, w - 1), place[:, 1].clamp(0, h - 1)
    x0, y0 = x.detach().floor().clamp(max=max(w - 2, 0)), y.detach().floor().clamp(max=max(h - 2, 0))
    fx, fy = x - x0, y - y0
    corner = (image * h + y0.long()) * w + x0.long()  # (N,) row of the flattened map
    right, down = min(1, w - 1), w * min(1, h - 1)
    corners = torch.stack([corner, corner + right, corner + down, corner + down + right], dim=1)  # (N, 4)
    weights = torch.stack([(1 - fx) * (1 - fy), fx * (1 - fy), (1 - fx) * fy, fx * fy], dim=1)  # (N, 4)
    # One pass that gathers and sums: twenty times faster on a CPU than to gather corners and blend them.
    return F.embedding_bag(corners, maps.reshape(-1, channels), per_sample_weights=weights, mode="sum")


def refine(heat: Tensor, image: Tensor, pixels: Tensor) -> Tensor:
    """Sub-pixel positions (N, 2): the mean of the square around each of the (N, 2) pixels, weighted by its heat.

    Differentiable; training teaches the heat to have its mean at the true place.

    Args:
        heat: (B, H, W) logits of the detector.
        image: (N,) which image of the batch each pixel is in.
        pixels: (N, 2) whole pixels x, y.
    """
    _, height, width = heat.shape
    step = torch.arange(-RADIUS, RADIUS + 1, device=heat.device)
    dy, dx = torch.meshgrid(step, step, indexing="ij")
    y = (pixels[:, 1, None] + dy.reshape(-1)).clamp(0, height - 1)  # (N, 25)
    x = (pixels[:, 0, None] + dx.reshape(-1)).clamp(0, width - 1)
    around = heat.reshape(-1)[(image[:, None] * height + y) * width + x]  # (N, 25)
    weight = (SHARPNESS * around).softmax(dim=1)  # (N, 25)
    steps = torch.stack([dx.reshape(-1), dy.reshape(-1)], dim=1).to(weight)  # (25, 2)
    return pixels + weight @ steps


def maxima(heat: Tensor) -> Tensor:
    """(H, W) → (H − 4, W − 4) bool: larger than all others in the square around it; of equals the first counts.

    The rim of RADIUS pixels, whose squares are not whole, is left out. What differs by less than TIE is equal, so that
    rounding makes no keypoints where an image has one colour.
    """
    pairs = torch.maximum(heat[:, :-1], heat[:, 1:])  # (H, W − 1): of 2 pixels beside each other
    rows = torch.maximum(torch.maximum(pairs[:, :-3], pairs[:, 2:-1]), heat[:, 4:])  # (H, W − 4): of 5
    two = torch.maximum(rows[:-1], rows[1:])  # (H − 1, W − 4): of 5 × 2
    middle = heat[2:-2, 2:-2]
    before = torch.maximum(two[:-3], pairs[2:-2, :-3])
    after = torch.maximum(two[3:], pairs[2:-2, 3:])
    return (middle - TIE > before) & (middle + TIE >= after)


def detect(maps: Maps, number: int, size: ImageSize, limit: int, mask: Mask | None = None) -> tuple[Tensor, Tensor]:
    """The `limit` strongest keypoints (K, 2) of image `number` of a batch, x and y, and their scores (K,), best first.

    `size` is the image without its padding. The score is heat times trust, both probabilities.

    Args:
        maps: what the network says of a batch.
        number: which image of the batch.
        size: the image's, without padding.
        limit: how many keypoints at most.
        mask: (H, W) bool, True where keypoints may be; None: everywhere.
    """
    if min(size) <= 2 * BORDER:
        return maps.heat.new_zeros((0, 2)), maps.heat.new_zeros(0)
    rim = BORDER - RADIUS
    heat = maps.heat[number, rim : size.height - rim, rim : size.width - rim]
    wanted = maxima(heat)  # (H − 2·BORDER, W − 2·BORDER)
    wanted &= heat[RADIUS:-RADIUS, RADIUS:-RADIUS] > FAINTEST
    if mask is not None:
        wanted &= torch.from_numpy(mask[BORDER:-BORDER, BORDER:-BORDER]).to(wanted.device)
    pixels = wanted.nonzero().flip(1) + BORDER  # (N, 2) x, y
    which = torch.full_like(pixels[:, 0], number)
    trust = sample(maps.trust[..., None], which, pixels.to(heat), 8)[:, 0].sigmoid()  # (N,)
    scores = maps.heat[number, pixels[:, 1], pixels[:, 0]].sigmoid() * trust  # (N,)
    best = scores.argsort(descending=True, stable=True)[:limit]  # (K,)
    return refine(maps.heat, which[best], pixels[best]), scores[best]


class LinPoint(Extractor):
    """LinGlue's own front-end: keypoints between pixels, 64-D descriptors of unit length; weights in the package."""

    kind = "linpoint"
    dim = DIM
    licence = FRONT_ENDS[kind].licence
    tile_overlap = OVERLAP
    default_tile = 2048

    def __init__(self, weights: str | Path | None = None, device: str = "cpu") -> None:
        if weights is None and not PACKAGED.is_file():
            raise LinGlueError(
                f"front-end linpoint has no weights in this package yet ({PACKAGED} is missing): "
                "give a file that `linglue train-features` made"
            )
        self.device = torch.device(device)
        self.net = fused(load_linpoint(weights or PACKAGED)).to(self.device)
        self.net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # faster on CPUs

    @torch.inference_mode()
    def detect(self, image: Image, max_keypoints: int, mask: Mask | None) -> Features:
        """The front-end's part of `extract`, at the size of `image`."""
        size = ImageSize(image.shape[1], image.shape[0])
        maps = self.net(to_tensor(image).to(self.device, memory_format=torch.channels_last))
        where = textured(image) if mask is None else textured(image) & mask
        keypoints, scores = detect(maps, 0, size, max_keypoints, where)
        number = torch.zeros(len(keypoints), dtype=torch.int64, device=self.device)
        return Features(
            keypoints=keypoints.cpu().numpy() - np.float32(ASIDE),
            descriptors=self.net.describe(maps, number, keypoints).cpu().numpy(),
            image_size=size,
            scores=scores.cpu().numpy(),
            kind=self.kind,
        )


def to_tensor(image: Image) -> Tensor:
    """(H, W, 3) RGB → (1, 1, H, W) grey in [0, 1]."""
    return torch.from_numpy(to_grey(image)).float()[None, None] / 255


def textured(image: Image) -> Mask:
    """Where an image (H, W, 3) has any texture, (H, W) bool; elsewhere only its borders could attract keypoints."""
    grey = to_tensor(image)
    lightest = F.max_pool2d(grey, CELL, ceil_mode=True)  # (1, 1, H/8, W/8)
    darkest = -F.max_pool2d(-grey, CELL, ceil_mode=True)
    around = F.max_pool2d(lightest, 3, 1, 1) + F.max_pool2d(-darkest, 3, 1, 1)
    cells = (around >= FLAT / 255)[0, 0].numpy()
    return cells.repeat(CELL, axis=0).repeat(CELL, axis=1)[: image.shape[0], : image.shape[1]]


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
    """Write the network in float16, atomically; `training` says in a line how it was made.

    Args:
        path: .safetensors.
        net: the network.
        training: how it was made, one line.
    """
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
