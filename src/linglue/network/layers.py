"""The layers: attention linear in the number of keypoints, over whole images and within matching neighborhoods.

Per head: V'_i = φ(Q_i)ᵀ (Σ_j φ(K_j) V_jᵀ) / φ(Q_i)ᵀ (Σ_j φ(K_j)), φ(u) = elu(u) + 1. The two sums over j do not
depend on i: they are computed once, whatever the number of queries.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import islice
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from linglue.matching.nearest import linear
from linglue.matching.neighborhood import Groups
from linglue.matching.together import together

EPSILON = 1e-6  # denominator of a query that attends to nothing
Affine = tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]
BLOCK = 1024  # tokens that go through a layer at a time, so that what lies between stays in the cache


class _Positive(torch.autograd.Function):
    """exp(min(x, 0)) + max(x, 0), whose derivative is its own value cut off at 1: nothing else need be remembered."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        y = _positive(x)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        (y,) = ctx.saved_tensors
        return gradients[0] * y.clamp(max=1)


def positive(x: Tensor) -> Tensor:
    """φ(x) = elu(x) + 1, the feature map that replaces softmax attention's exponential; faster than torch's elu."""
    return cast(Tensor, _Positive.apply(x)) if x.requires_grad else _positive(x)


def _positive(x: Tensor) -> Tensor:
    return x.exp().clamp_(max=1).add_(x.clamp(min=0))


@dataclass(frozen=True)
class Memory:
    """All that queries need to know of the keys and values they attend to."""

    content: Tensor  # (C, C) Σ_j φ(K_j) V_jᵀ within heads, zero between them
    total: Tensor  # (C, C) Σ_j φ(K_j) of a head in each of its columns, zero between heads

    def read(self, query: Tensor, bias: Tensor) -> Tensor:
        """φ(Q) (N, C), bias (C,) → messages (N, C), with the bias added."""
        return linear(query / linear(query, self.total.T).add_(EPSILON), self.content.T, bias)


def remember(key: Tensor, value: Tensor, heads: Tensor) -> Memory:
    """The memory of key φ(K) and value V (M, C); heads (C, C) is one where two channels are of one head, else zero."""
    return Memory((key.T @ value) * heads, key.sum(0)[:, None] * heads)


def pairwise_attention(query: Tensor, key: Tensor, value: Tensor, groups: Iterable[Groups], heads: Tensor) -> Tensor:
    """Linear attention inside each neighborhood, summed over seeds: query φ(Q), key φ(K), value V (T, C) → (T, C).

    Tokens that none of the groups contains receive zero. heads: see `remember`.
    """
    message = torch.zeros_like(query)
    for group in groups:
        local = []
        for source, target, mask in group.tables:
            keys = _take(key, target) * mask  # (S, m, C): a masked key has no weight
            content = (keys.mT @ _take(value, target)) * heads  # (S, C, C)
            queries = _take(query, source)  # (S, n, C)
            # Totals of heads by one large product instead of one per neighborhood.
            total = (queries * keys.sum(1, keepdim=True)).flatten(0, 1) @ heads  # (S·n, C)
            local.append(((queries / total.add_(EPSILON).view_as(queries)) @ content).flatten(0, 1))  # (S·n, C)
        # A bag is the sum of some rows; torch sums bags much faster than it adds to indexed rows.
        message = message + F.embedding_bag(group.slots, torch.cat(local), group.starts, mode="sum")
    return message


def _take(rows: Tensor, index: Tensor) -> Tensor:
    return rows.index_select(0, index.flatten()).unflatten(0, index.shape)


class EncoderLayer(nn.Module):
    """x ← x + LayerNorm(MLP([x, LayerNorm(merge(attention(x, y)))])), the layer of LoFTR.

    With `input_dim` it is the network's first layer: three projections input_dim → dim go in front, and the projected
    x is what the residual adds to.
    """

    heads: Tensor  # (C, C) one where two channels are of the same head, else zero

    def __init__(self, dim: int, heads: int, input_dim: int | None = None) -> None:
        super().__init__()
        head = torch.arange(heads).repeat_interleave(dim // heads)  # (C,)
        self.register_buffer("heads", (head[:, None] == head).float(), persistent=False)  # (C, C)
        self.project_query: nn.Module = nn.Identity()
        self.project_key: nn.Module = nn.Identity()
        self.project_value: nn.Module = nn.Identity()
        if input_dim is not None:
            self.project_query = nn.Linear(input_dim, dim)
            self.project_key = nn.Linear(input_dim, dim)
            self.project_value = nn.Linear(input_dim, dim)
        self.query = nn.Linear(dim, dim)
        self.key = nn.Linear(dim, dim)
        self.value = nn.Linear(dim, dim)
        self.merge = nn.Linear(dim, dim)
        self.norm_message = nn.LayerNorm(dim)
        self.mlp = nn.Sequential(nn.Linear(2 * dim, 2 * dim), nn.ReLU(inplace=True), nn.Linear(2 * dim, dim))
        self.norm_update = nn.LayerNorm(dim)

    def forward(self, x: Tensor, images: Sequence[slice], reads: Sequence[int]) -> Tensor:
        """Linear attention over whole images.

        Args:
            x: (T, D) tokens of all images.
            images: the tokens of each image, one behind the other.
            reads: for each image, the number of the image that it reads.

        Returns:
            (T, C) updated tokens.
        """
        weights = self._key_value_weights()
        if torch.is_grad_enabled():
            return self._forward_whole(x, images, reads, weights)
        blocks = [(block, read) for image, read in zip(images, reads, strict=True) for block in x[image].split(BLOCK)]
        parts = iter(together(lambda part: self._remember(*self._key_value(part[0], weights)), blocks))
        counts = [len(x[image].split(BLOCK)) for image in images]
        memories = [self._merge(list(islice(parts, count))) for count in counts]

        def update(part: tuple[Tensor, int]) -> Tensor:
            block, read = part
            residual = self.project_query(block)  # (b, C)
            query = self._query(residual)  # (b, C)
            with exact(x):
                message = memories[read].read(query, self.merge.bias)  # (b, C)
            return self._update(residual, message)

        return torch.cat(together(update, blocks))

    def _forward_whole(self, x: Tensor, images: Sequence[slice], reads: Sequence[int], weights: Affine) -> Tensor:
        """The same without blocks, each of which would cost a step of its own in backward."""
        key, value = self._key_value(x, weights)  # (T, C) each
        residual = self.project_query(x)  # (T, C)
        query = self._query(residual)  # (T, C)
        memories = [self._merge([self._remember(key[image], value[image])]) for image in images]
        with exact(x):
            found = [memories[r].read(query[i], self.merge.bias) for i, r in zip(images, reads, strict=True)]
        return self._update(residual, torch.cat(found))

    def forward_within(self, x: Tensor, groups: Iterable[Groups]) -> Tensor:
        """Pairwise neighborhood attention: tokens x (T, C) read others within the same neighborhoods → (T, C)."""
        query, (key, value) = self._query(x), self._key_value(x, self._key_value_weights())
        with exact(x):
            message = pairwise_attention(query, key, value, groups, self.heads)  # (T, C)
        size = max(1, len(x)) if torch.is_grad_enabled() else BLOCK
        parts = zip(x.split(size), message.split(size), strict=True)
        return torch.cat([self._update(block, self.merge(part)) for block, part in parts])

    def _query(self, x: Tensor) -> Tensor:
        """φ(Q) (b, C)."""
        return positive(linear(x, self.query.weight, self.query.bias).float())

    def _key_value_weights(self) -> Affine:
        """Weight (C, D) and bias (C,) of the product that gives keys, and of the one that gives values."""
        weights: list[Tensor] = [self.key.weight, self.value.weight]
        biases: list[Tensor] = [self.key.bias, self.value.bias]
        for part, project in enumerate((self.project_key, self.project_value)):
            if isinstance(project, nn.Linear):  # two linear layers in a row are one
                with exact(self.heads):
                    biases[part] = torch.addmv(biases[part], weights[part], project.bias)  # (C,)
                    weights[part] = weights[part] @ project.weight  # (C, D)
        return (weights[0], biases[0]), (weights[1], biases[1])

    def _key_value(self, x: Tensor, weights: Affine) -> tuple[Tensor, Tensor]:
        """φ(K) and V (b, C); two products, as one would leave both with gaps between their rows."""
        key, value = weights
        return positive(linear(x, *key).float()), linear(x, *value).float()

    def _remember(self, key: Tensor, value: Tensor) -> Memory:
        """The memory of φ(K) and V (b, C)."""
        with exact(self.heads):
            return remember(key, value, self.heads)

    def _merge(self, blocks: Sequence[Memory]) -> Memory:
        """The memory of one image, from those of its blocks, with the merging of heads applied to its content."""
        with exact(self.heads):
            content, total = blocks[0].content, blocks[0].total
            for memory in blocks[1:]:
                content, total = content + memory.content, total + memory.total
            return Memory(content @ self.merge.weight.T, total)

    def _update(self, x: Tensor, message: Tensor) -> Tensor:
        message = self.norm_message(message)  # (b, C)
        first, _, last = cast(tuple[nn.Linear, nn.ReLU, nn.Linear], tuple(self.mlp))
        hidden = linear(torch.cat([x, message], dim=-1), first.weight, first.bias, relu=True)  # (b, 2C)
        update = linear(hidden, last.weight, last.bias)  # (b, C)
        return self.norm_update(update).add_(x)  # (b, C)


def exact(x: Tensor) -> Any:
    """No autocast in attention: sums over tens of thousands of keys leave float16's range."""
    device = x.device.type
    return torch.autocast(device, enabled=False) if torch.is_autocast_enabled(device) else nullcontext()


class GeometryEncoder(nn.Module):
    """A small MLP of where a keypoint is, how large and how it is rotated; zero until it has learned something.

    Scale and orientation may be missing: a flag says so, and their inputs are zero.
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.mlp = nn.Sequential(
            nn.Linear(7, 32), nn.ReLU(), nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU()
        )
        self.output = nn.Linear(64, dim)
        nn.init.zeros_(self.output.weight)
        nn.init.zeros_(self.output.bias)

    def forward(self, keypoints: Tensor, image_size: Tensor, scales: Tensor | None, oris: Tensor | None) -> Tensor:
        """keypoints (..., N, 2) pixels, image_size (..., 2), scales (..., N) pixels, oris (..., N) radians →
        (..., N, C)."""
        half = image_size.amax(-1)[..., None, None] / 2  # (..., 1, 1): one unit for x and y keeps the aspect
        position = (keypoints - (image_size[..., None, :] - 1) / 2) / half  # centre 0, longer side −1..1
        zero, one = torch.zeros_like(position[..., 0]), torch.ones_like(position[..., 0])  # (..., N)
        size = zero if scales is None else (scales / half[..., 0]).clamp(min=1e-6).log() / 4 + 1  # about −1..1
        rotation = [zero, zero] if oris is None else [oris.sin(), oris.cos()]
        flags = [zero if scales is None else one, zero if oris is None else one]
        return self.output(self.mlp(torch.stack([*position.unbind(-1), size, *rotation, *flags], dim=-1)))
