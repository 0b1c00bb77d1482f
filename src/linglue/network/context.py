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
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from linglue.errors import LinGlueError
from linglue.matching.nearest import linear, nearest_k
from linglue.matching.together import slices, together
from linglue.network.groups import NeighborGroups, group, turned

BLOCK = 512  # keypoints that go through a layer at a time, so that what lies between stays in the cache
MOST = 4096  # of anything in a ContextConfig
NOTHING = -1e4  # how well a candidate fits that is not there
FUSED = getattr(torch.ops.aten, "_scaled_dot_product_flash_attention_for_cpu", None)  # torch's own attention on CPUs


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


def rotate(x: Tensor, turns: Tensor) -> Tensor:
    """Pairs of numbers of x (N, I), which are complex ones, turned.

    Args:
        x: (N, I).
        turns: (N, I/2) complex numbers of length 1.
    """
    turned = torch.view_as_complex(x.float().unflatten(-1, (-1, 2))) * turns  # (N, I/2)
    return torch.view_as_real(turned).flatten(-2).to(x.dtype)


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
        hidden = linear(x, self.own.weight, self.own.bias)  # (b, H)
        hidden += linear(message, self.message.weight)
        return x + linear(F.gelu(self.norm(hidden)), self.last.weight, self.last.bias)


class _SelfAttention(nn.Module):
    """Keypoints read the groups of their own image."""

    def __init__(self, config: ContextConfig) -> None:
        super().__init__()
        self.heads = config.heads
        self.query, self.key, self.value = (nn.Linear(config.dim, config.inner) for _ in range(3))
        self.frequency = nn.Parameter(torch.randn(config.inner // 2, 2))  # of half the image's longer side
        self.update = _Update(config)

    def turns(self, places: Tensor) -> Tensor:
        """(b, I/2) complex numbers of length 1, for queries and keys at places (b, 2)."""
        (x, y), (along, across) = places[..., None].unbind(1), self.frequency.unbind(1)  # (b, 1) each, (I/2,) each
        angle = x * along + y * across  # (b, I/2); faster than a product of matrices with 2 columns
        return torch.complex(angle.cos(), angle.sin())

    def keys(self, x: Tensor, turns: Tensor) -> Tensor:
        """(b, I) of keypoints x (b, C) with `turns` (b, I/2)."""
        return rotate(linear(x, self.key.weight, self.key.bias), turns)

    def remember(self, x: Tensor, keys: Tensor, groups: NeighborGroups) -> tuple[Tensor, Tensor]:
        """Keys and values (heads, G, I/heads) of the groups of an image's keypoints x (N, C) with keys (N, I)."""
        value = linear(groups.mean(x), self.value.weight, self.value.bias)  # the mean of values
        return self._split(groups.mean(keys)), self._split(value)

    def forward(self, x: Tensor, turns: Tensor, memory: tuple[Tensor, Tensor]) -> Tensor:
        """x (b, C) with `turns` (b, I/2), which read what `remember` gave → (b, C)."""
        query = rotate(linear(x, self.query.weight, self.query.bias), turns)  # (b, I)
        key, value = memory
        message = F.scaled_dot_product_attention(self._split(query)[None], key[None], value[None])[0]
        return self.update(x, message.transpose(0, 1).flatten(1))

    def _split(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.heads, -1)).transpose(0, 1)


class _CrossAttention(nn.Module):
    """Keypoints read the other image; one product makes queries and keys, as both images play one part."""

    def __init__(self, config: ContextConfig) -> None:
        super().__init__()
        self.heads = config.heads
        self.both, self.value = (nn.Linear(config.dim, config.inner) for _ in range(2))
        self.update = _Update(config)

    def queries(self, x: Tensor) -> Tensor:
        """(b, I) of keypoints x (b, C); keys, too."""
        return linear(x, self.both.weight, self.both.bias)

    def values(self, x: Tensor) -> Tensor:
        """(b, I) of keypoints x (b, C)."""
        return linear(x, self.value.weight, self.value.bias)

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
        count, size = candidates.shape[1], query.shape[1] // self.heads  # k, I/heads
        flat = candidates.clamp(min=0)  # (b, k)
        key = offer[0].index_select(0, flat.flatten()).view(-1, count, self.heads, size)  # (b, k, heads, I/heads)
        own = query.view(-1, 1, self.heads, size)
        fits = key * own if torch.is_grad_enabled() else key.mul_(own)  # (b, k, heads, I/heads)
        fit = fits.float().sum(-1) * size**-0.5  # (b, k, heads); of bfloat16, weights would not add up to 1
        near = fit.masked_fill(candidates[..., None] < 0, NOTHING)
        far, total = _read_all(own.permute(1, 2, 0, 3), *memory)  # (heads, b, I/heads), (heads, b)
        total = total.T + math.log(share)  # (b, heads) logarithm of the sum of weights, as near ones are
        both = torch.logaddexp(total, near.logsumexp(1))  # (b, heads)
        peaks = (near - both[:, None]).exp().transpose(1, 2)  # (b, heads, k)
        row = flat[:, None] * self.heads + torch.arange(self.heads, device=flat.device)[:, None]  # (b, heads, k)
        value = offer[1].reshape(-1, size).to(peaks)  # (M·heads, I/heads)
        listed = F.embedding_bag(row.flatten(0, 1), value, per_sample_weights=peaks.flatten(0, 1), mode="sum")
        message = far.transpose(0, 1) * (total - both).exp()[..., None] + listed.view(-1, self.heads, size)
        return self.update(x, message.flatten(1))  # of (b, heads, I/heads)


def _read_all(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """Softmax attention (heads, b, d) of queries (1, heads, b, d), and (heads, b) the logarithm of its denominator.

    Args:
        query: (1, heads, b, d).
        key: (heads, G, d).
        value: (heads, G, d).
    """
    some = len(query[0, 0]) and key.shape[1]  # it stops the process where there is nothing
    if FUSED is not None and some and query.device.type == "cpu" and not torch.is_grad_enabled():
        message, total = FUSED(query, key[None], value[None])
        return message[0], total[0]
    fit = (query[0] @ key.mT).float() * key.shape[2] ** -0.5  # (heads, b, G)
    return fit.softmax(2) @ value.float(), fit.logsumexp(2)


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
        x = _by_blocks(self._enter, descriptors.new_empty(len(descriptors), self.config.dim), descriptors)  # (T, C)
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
            x: (T, C) of `start`; without gradients the layers work in its memory.
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
                    seen.append(x.clone())
            x = self._read_other(number, x, images, candidates, other, groups[(number + 1) % 2])
            if seen is not None:
                seen.append(x.clone())
        return _by_blocks(self._leave, x.new_empty(len(x), self.output.out_features), x)

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
        places, inner = torch.cat(list(points)), self.config.inner  # (T, 2)
        turns = _by_blocks(layer.turns, places.new_empty(len(x), inner // 2, dtype=torch.complex64), places)
        keys = _by_blocks(layer.keys, x.new_empty(len(x), inner), x, turns)  # (T, I)
        for image, own in zip(images, groups, strict=True):
            memory = layer.remember(x[image], keys[image], own)
            work += [(*block, memory) for block in zip(_split(x[image]), _split(turns[image]), strict=True)]
        del keys
        return _renewed(layer, x, work)

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
        query, value = (
            _by_blocks(make, x.new_empty(len(x), self.config.inner), x) for make in (layer.queries, layer.values)
        )  # (T, I) each
        for image, listed, k in zip(images, candidates, other, strict=True):
            offer = _some(query[images[k]]), _some(value[images[k]])  # (M, I) each
            chosen = groups[k].landmarks  # (G,)
            memory = tuple(part[chosen].unflatten(1, (layer.heads, -1)).transpose(0, 1) for part in offer)
            share = len(offer[0]) / max(1, len(chosen))  # at least 1
            blocks = zip(_split(x[image]), _split(query[image]), _split(listed), strict=True)
            work += [(*block, offer, memory, share) for block in blocks]
        return _renewed(layer, x, work)


def _some(rows: Tensor) -> Tensor:
    """The rows, or one of zeros, which nobody reads, where there are none."""
    return rows if len(rows) else rows.new_zeros(1, rows.shape[1])


def _split(rows: Tensor) -> Sequence[Tensor]:
    """Blocks of rows; one block with gradients, as each would cost a step of its own in backward."""
    return [rows] if torch.is_grad_enabled() else rows.split(BLOCK)


def _by_blocks(make: Callable[..., Tensor], into: Tensor, *rows: Tensor) -> Tensor:
    """What `make` makes of rows (T, ·), some at a time.

    Args:
        make: one row of each of `rows` → one row.
        into: (T, ·) takes what comes out; with gradients it is not used.
        rows: (T, ·) each.
    """
    if torch.is_grad_enabled():
        return make(*rows)

    def fill(part: slice) -> None:
        into[part] = make(*(row[part] for row in rows))

    together(fill, slices(len(into), BLOCK))
    return into


def _renewed(layer: Callable[..., Tensor], x: Tensor, work: Sequence[tuple[Tensor, *tuple[Any, ...]]]) -> Tensor:
    """The next x (T, C): what a layer makes of its blocks; without gradients in its own memory.

    Args:
        layer: of a block and what belongs to it, which is not the rest of x.
        x: (T, C).
        work: all blocks of x, in their order, each with what belongs to it.
    """
    if torch.is_grad_enabled():
        return torch.cat([layer(*part) for part in work])
    together(lambda part: part[0].copy_(layer(*part)), work)
    return x


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
