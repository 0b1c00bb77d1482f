"""Context: keypoints read both images in groups, and the most similar keypoints of the other, by softmax attention.

descriptors → C numbers → layers × (self attention, cross attention) → new descriptors

Every keypoint reads a fixed number of others, so that time is linear in the number of keypoints once candidates are
known. In its own image it reads groups of neighbours, by means of their keys and values. In the other image it reads
its candidates, the most similar keypoints by the descriptors they came with, and landmarks, of each group of neighbours
one that stands for it: what softmax attention to all keypoints would read, as peaks and background. In its own image,
where one keypoint lies from another turns queries and keys (rotary positions); no position is read itself.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from linglue.errors import LinGlueError
from linglue.matching.nearest import linear, nearest_k
from linglue.matching.together import together

BLOCK = 512  # keypoints that go through a layer at a time, so that what lies between stays in the cache
MOST = 4096  # of anything in a ContextConfig
NOTHING = -1e4  # how well a candidate fits that is not there
AWAY = 1e9  # where padding lies, beyond all images


@dataclass(frozen=True)
class ContextConfig:
    """The shape of the layers."""

    dim: int = 160  # C, numbers that a keypoint carries through the layers
    inner: int = 128  # I, length of queries, keys and values of all heads
    hidden: int = 384  # H, inside the update of a keypoint
    heads: int = 4
    layers: int = 3
    groups: int = 256  # of neighbours in an image, at most
    candidates: int = 8  # keypoints of the other image that each one reads, beside the groups

    def __post_init__(self) -> None:
        """Files may say anything."""
        for name, value in asdict(self).items():
            if not isinstance(value, int) or not 1 <= value <= MOST:
                raise LinGlueError(f"{name} of the context is {value!r}, expected 1 to {MOST}")
        if self.inner % (2 * self.heads):
            raise LinGlueError(f"inner is {self.inner}, expected an even number of each of {self.heads} heads")


def leaves(points: Tensor, most: float) -> Tensor:
    """(L, s) keypoints (N, 2) in groups of neighbours of equal size, at most `most`; −1 for padding.

    Groups are halved across their longer side, all of them at once.

    Args:
        points: (N, 2), at least one.
        most: keypoints in a group.

    Example:
        >>> leaves(torch.tensor([[0.0, 0.0], [9.0, 0.0], [1.0, 0.0], [8.0, 0.0]]), 2).tolist()
        [[0, 2], [3, 1]]
    """
    depth = max(0, math.ceil(math.log2(len(points) / most)))
    size = -(-len(points) // 2**depth)
    padded = F.pad(points, (0, 0, 0, size * 2**depth - len(points)), value=AWAY)
    index = torch.arange(len(padded), device=points.device)[None]  # (1, 2^depth·s)
    for _ in range(depth):
        places = padded[index]  # (G, n, 2)
        far = places.masked_fill(places >= AWAY, -AWAY).amax(1)  # (G, 2)
        axis = (far - places.amin(1)).argmax(1)  # (G,)
        along = places.gather(2, axis[:, None, None].expand(-1, places.shape[1], 1))[..., 0]  # (G, n)
        index = index.gather(1, along.argsort(dim=1, stable=True)).view(2 * len(index), -1)  # (2G, n/2)
    return index.masked_fill(index >= len(points), -1)


@dataclass(frozen=True, eq=False)
class NeighborGroups:
    """The keypoints of an image in groups of neighbours."""

    order: Tensor  # (N,) the keypoints, group by group
    starts: Tensor  # (G,) where each group begins
    landmarks: Tensor  # (G,) of each group the keypoint nearest to its centre

    def mean(self, rows: Tensor) -> Tensor:
        """(G, X) means over the groups, of rows (N, X)."""
        return F.embedding_bag(self.order, rows.float(), self.starts, mode="mean").to(rows)


def group(points: Tensor, count: int) -> NeighborGroups:
    """Keypoints (N, 2) in at most `count` groups of neighbours; each alone where there are no more.

    Args:
        points: (N, 2).
        count: of groups.

    Example:
        >>> found = group(torch.tensor([[0.0, 0.0], [9.0, 0.0], [1.0, 0.0], [8.0, 0.0]]), 2)
        >>> found.order.tolist(), found.starts.tolist(), found.landmarks.tolist()
        ([0, 2, 3, 1], [0, 2], [0, 3])
    """
    if len(points) <= count:
        every = torch.arange(len(points), device=points.device)
        return NeighborGroups(every, every, every)
    table = leaves(points, -(-len(points) // 2 ** math.floor(math.log2(count))))  # (L, s)
    there = table >= 0
    table, there = table[there.any(1)], there[there.any(1)]  # (G, s)
    sizes, places = there.sum(1), points[table.clamp(min=0)]  # (G,), (G, s, 2)
    centre = (places * there[..., None]).sum(1) / sizes[:, None]  # (G, 2)
    off = (places - centre[:, None]).square().sum(-1).masked_fill(~there, torch.inf)  # (G, s)
    return NeighborGroups(table[there], sizes.cumsum(0) - sizes, table.gather(1, off.argmin(1, keepdim=True))[:, 0])


def turned(points: Tensor) -> Tensor:
    """The same points (N, 2) in an image that is turned by 45°: other groups of neighbours."""
    x, y = points.unbind(1)
    return torch.stack([x - y, x + y], dim=1) * math.sqrt(0.5)


def rotate(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Pairs of numbers of x (N, I) turned by angles.

    Args:
        x: (N, I).
        cosine: (N, I/2) of the angles.
        sine: (N, I/2).
    """
    a, b = x.unflatten(-1, (-1, 2)).unbind(-1)  # (N, I/2) each
    return torch.stack([a * cosine - b * sine, a * sine + b * cosine], dim=-1).flatten(-2)


class _Update(nn.Module):
    """x + MLP(x, message)."""

    def __init__(self, config: ContextConfig) -> None:
        super().__init__()
        self.own = nn.Linear(config.dim, config.hidden)
        self.message = nn.Linear(config.inner, config.hidden, bias=False)
        self.norm = nn.LayerNorm(config.hidden)
        self.last = nn.Linear(config.hidden, config.dim)

    def forward(self, x: Tensor, message: Tensor) -> Tensor:
        """x (b, C), message (b, I) → (b, C)."""
        hidden = linear(x, self.own.weight, self.own.bias) + linear(message, self.message.weight)  # (b, H)
        return x + linear(F.gelu(self.norm(hidden)), self.last.weight, self.last.bias)


class _SelfAttention(nn.Module):
    """Keypoints read the groups of their own image."""

    def __init__(self, config: ContextConfig) -> None:
        super().__init__()
        self.heads = config.heads
        self.query, self.key, self.value = (nn.Linear(config.dim, config.inner) for _ in range(3))
        self.frequency = nn.Parameter(torch.randn(config.inner // 2, 2))  # of half the image's longer side
        self.update = _Update(config)

    def keys(self, x: Tensor, places: Tensor) -> Tensor:
        """(b, I) of keypoints x (b, C) at places (b, 2)."""
        return rotate(linear(x, self.key.weight, self.key.bias), *self._angles(places))

    def remember(self, x: Tensor, keys: Tensor, groups: NeighborGroups) -> tuple[Tensor, Tensor]:
        """Keys and values (heads, G, I/heads) of the groups of an image's keypoints x (N, C) with keys (N, I)."""
        value = linear(groups.mean(x), self.value.weight, self.value.bias)  # the mean of values
        return self._split(groups.mean(keys)), self._split(value)

    def forward(self, x: Tensor, places: Tensor, memory: tuple[Tensor, Tensor]) -> Tensor:
        """x (b, C) at places (b, 2), which read what `remember` gave → (b, C)."""
        query = rotate(linear(x, self.query.weight, self.query.bias), *self._angles(places))  # (b, I)
        key, value = memory
        message = F.scaled_dot_product_attention(self._split(query)[None], key[None], value[None])[0]
        return self.update(x, message.transpose(0, 1).flatten(1))

    def _angles(self, places: Tensor) -> tuple[Tensor, Tensor]:
        angle = places @ self.frequency.T  # (b, I/2)
        return angle.cos(), angle.sin()

    def _split(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.heads, -1)).transpose(0, 1)


class _CrossAttention(nn.Module):
    """Keypoints read the other image; one product makes queries and keys, as both images play one part."""

    def __init__(self, config: ContextConfig) -> None:
        super().__init__()
        self.heads = config.heads
        self.both, self.value = (nn.Linear(config.dim, config.inner) for _ in range(2))
        self.update = _Update(config)

    def offer(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Queries, which are keys, too, and values (b, I) of keypoints x (b, C)."""
        return linear(x, self.both.weight, self.both.bias), linear(x, self.value.weight, self.value.bias)

    def forward(
        self,
        x: Tensor,
        query: Tensor,
        candidates: Tensor,
        offer: tuple[Tensor, Tensor],
        memory: tuple[Tensor, Tensor],
        share: float,
    ) -> Tensor:
        """One block of keypoints.

        Args:
            x: (b, C) keypoints.
            query: (b, I) theirs.
            candidates: (b, k) whom they read, −1 for nobody.
            offer: keys and values (M, I) of the other image's keypoints.
            memory: those of its landmarks, (heads, G, I/heads) each.
            share: how many keypoints a landmark stands for.

        Returns:
            (b, C).
        """
        shape = (*candidates.shape, self.heads, query.shape[1] // self.heads)  # b, k, heads, I/heads
        own, scale = query.view(-1, 1, *shape[2:]), shape[3] ** -0.5
        far = (own[:, 0].transpose(0, 1) @ memory[0].mT) * scale + math.log(share)  # (heads, b, G)
        flat = candidates.clamp(min=0).flatten()  # (b·k,)
        key, value = (part.index_select(0, flat).view(shape) for part in offer)
        near = ((key * own).sum(-1) * scale).masked_fill(candidates[..., None] < 0, NOTHING)  # (b, k, heads)
        weight = torch.cat([far, near.permute(2, 0, 1)], dim=2).softmax(2)  # (heads, b, G + k)
        wide, peaks = weight.split([far.shape[2], shape[1]], dim=2)
        message = (wide @ memory[1]).transpose(0, 1) + (value * peaks.permute(1, 2, 0)[..., None]).sum(1)
        return self.update(x, message.flatten(1))  # of (b, heads, I/heads)


class Context(nn.Module):
    """The layers, for the keypoints of all images, one behind the other in one matrix.

    Args:
        config: the shape.
        input_dim: length of the descriptors.
        output_dim: length of the new ones.

    Example:
        >>> sum(p.numel() for p in Context(ContextConfig(), 64, 64).parameters())
        1370272
    """

    def __init__(self, config: ContextConfig, input_dim: int, output_dim: int) -> None:
        super().__init__()
        self.config = config
        self.input = nn.Linear(input_dim, config.dim)
        self.selves = nn.ModuleList(_SelfAttention(config) for _ in range(config.layers))
        self.crosses = nn.ModuleList(_CrossAttention(config) for _ in range(config.layers))
        self.output = nn.Linear(config.dim, output_dim)

    def start(self, descriptors: Tensor, images: Sequence[slice], points: Sequence[Tensor]) -> Tensor:
        """Tokens (T, C) in front of the first cross attention: each image by itself.

        Args:
            descriptors: (T, D) of all images.
            images: which rows are whose.
            points: (N, 2) per image, in halves of its longer side from its centre.
        """
        x = torch.cat(together(self._enter, _split(descriptors)))  # (T, C)
        return self._read_own(0, x, images, points, self._groups(0, points))

    def forward(
        self,
        x: Tensor,
        images: Sequence[slice],
        points: Sequence[Tensor],
        candidates: Sequence[Tensor],
        other: Sequence[int],
        seen: list[Tensor] | None = None,
    ) -> Tensor:
        """New descriptors (T, C'), not of unit length.

        Args:
            x: (T, C) of `start`.
            images: which rows are whose.
            points: as for `start`.
            candidates: (N, k) per image: which keypoints of the other image each one reads, −1 for none.
            other: for each image the number of the other one of its pair.
            seen: gets what x is after each attention but the first, for those who learn from it.
        """
        groups = [self._groups(turn, points) for turn in (0, 1)]
        for number in range(len(self.crosses)):
            if number:
                x = self._read_own(number, x, images, points, groups[number % 2])
                if seen is not None:
                    seen.append(x)
            x = self._read_other(number, x, images, candidates, other, groups[(number + 1) % 2])
            if seen is not None:
                seen.append(x)
        return torch.cat(together(self._leave, _split(x)))

    @property
    def candidates(self) -> int:
        """How many keypoints of the other image each one reads."""
        return self.config.candidates

    @torch.no_grad()
    def initialise_identity(self, projection: Tensor | None = None) -> None:
        """Make the new descriptors the old ones, projected: no layer adds anything until it is trained.

        Args:
            projection: (D, C') of orthonormal columns; None: their lengths are equal.
        """
        into = torch.eye(self.config.dim, self.input.in_features)  # (C, D)
        wanted = torch.eye(self.input.in_features) if projection is None else projection.T  # (C', D)
        if min(into.shape) < self.input.in_features or wanted.shape != (self.output.out_features, into.shape[1]):
            raise LinGlueError(
                f"descriptors of {self.input.in_features} numbers become {self.output.out_features} through "
                f"{self.config.dim}, expected a projection between them and no less in between"
            )
        self.input.weight.copy_(into.shape[1] ** 0.5 * into)
        self.output.weight.copy_(wanted @ into.T)
        for linear_layer in (self.input, self.output):
            nn.init.zeros_(linear_layer.bias)
        for module in self.modules():
            if isinstance(module, _Update):
                nn.init.zeros_(module.last.weight)
                nn.init.zeros_(module.last.bias)

    def _enter(self, descriptors: Tensor) -> Tensor:
        return linear(descriptors, self.input.weight, self.input.bias)

    def _leave(self, x: Tensor) -> Tensor:
        return linear(x, self.output.weight, self.output.bias)

    def _groups(self, turn: int, points: Sequence[Tensor]) -> list[NeighborGroups]:
        """Of every image, in its turn 0 or 1; layers take turns."""
        return together(lambda places: group(turned(places) if turn else places, self.config.groups), points)

    def _read_own(
        self,
        number: int,
        x: Tensor,
        images: Sequence[slice],
        points: Sequence[Tensor],
        groups: Sequence[NeighborGroups],
    ) -> Tensor:
        """One self attention of x (T, C)."""
        layer, work = cast(_SelfAttention, self.selves[number]), []
        everywhere = torch.cat(list(points))  # (T, 2)
        parts = zip(_split(x), _split(everywhere), strict=True)
        keys = torch.cat(together(lambda part: layer.keys(*part), parts))  # (T, I)
        for image, places, own in zip(images, points, groups, strict=True):
            memory = layer.remember(x[image], keys[image], own)
            work += [(*block, memory) for block in zip(_split(x[image]), _split(places), strict=True)]
        return torch.cat(together(lambda part: layer(*part), work))

    def _read_other(
        self,
        number: int,
        x: Tensor,
        images: Sequence[slice],
        candidates: Sequence[Tensor],
        other: Sequence[int],
        groups: Sequence[NeighborGroups],
    ) -> Tensor:
        """One cross attention of x (T, C)."""
        layer, work = cast(_CrossAttention, self.crosses[number]), []
        parts = together(layer.offer, _split(x))
        query, value = (torch.cat(part) for part in zip(*parts, strict=True))  # (T, I) each
        for image, listed, k in zip(images, candidates, other, strict=True):
            offer = _some(query[images[k]]), _some(value[images[k]])  # (M, I) each
            chosen = groups[k].landmarks  # (G,)
            memory = tuple(part[chosen].unflatten(1, (layer.heads, -1)).transpose(0, 1) for part in offer)
            share = len(offer[0]) / max(1, len(chosen))  # at least 1
            blocks = zip(_split(x[image]), _split(query[image]), _split(listed), strict=True)
            work += [(*block, offer, memory, share) for block in blocks]
        return torch.cat(together(lambda part: layer(*part), work))


def _some(rows: Tensor) -> Tensor:
    """The rows, or one of zeros, which nobody reads, where there are none."""
    return rows if len(rows) else rows.new_zeros(1, rows.shape[1])


def _split(rows: Tensor) -> Sequence[Tensor]:
    """Blocks of rows; one block with gradients, as each would cost a step of its own in backward."""
    return [rows] if torch.is_grad_enabled() else rows.split(BLOCK)


@torch.no_grad()
def most_similar(descriptors0: Tensor, descriptors1: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """(N, count) the most similar keypoints of image 1, −1 where there are fewer, and (M, count) the other way round.

    Args:
        descriptors0: (N, D) of image 0.
        descriptors1: (M, D) of image 1.
        count: how many.

    Example:
        >>> [found.tolist() for found in most_similar(torch.eye(2), torch.eye(2)[1:], 2)]
        [[[0, -1], [0, -1]], [[1, 0]]]
    """
    x0, x1 = (F.normalize(x.float(), dim=-1) for x in (descriptors0, descriptors1))
    found = nearest_k(x0, x1, count)
    there, back = (F.pad(side.index, (0, count - side.index.shape[1]), value=-1) for side in found)
    return there, back
