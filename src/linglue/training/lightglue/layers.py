"""LightGlue's first layers for ALIKED's descriptors, or others translated: what they say of two images, and how.

ALIKED's LightGlue is Apache-2.0, code and weights, so learning from it is clean. It is used through kornia; none of its
code is here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from linglue.errors import LinGlueError
from linglue.matching.neighborhood import Keypoints
from linglue.training.lightglue.translate import translate
from linglue.training.sources.labels import load_lightglue

HEADS = 4
WIDTH = 256  # numbers of a keypoint
HEAD = WIDTH // HEADS

Pair = tuple[Sequence[Keypoints], Sequence[Tensor]]  # of two images: where keypoints are, and their descriptors (N, D)


@dataclass
class Record:
    """What one attention saw and made, of the keypoints (T) of both images of some pairs."""

    queries: list[Tensor] = field(default_factory=list)  # (T, HEADS, HEAD) before they are turned
    keys: list[Tensor] = field(default_factory=list)  # likewise
    messages: list[Tensor] = field(default_factory=list)  # (T, HEADS, HEAD)
    hidden: list[Tensor] = field(default_factory=list)  # (T, 2 · WIDTH) inside the update
    after: list[Tensor] = field(default_factory=list)  # (T, WIDTH) keypoints after it


class LightGlueLayers:
    """The first layers of LightGlue for ALIKED.

    Args:
        folder: with the weights, as kornia stores them.
        count: of layers, 1 to 9.
        translation: (D, 128) of `fit_translation`, for descriptors of another front-end than ALIKED.

    Example:
        >>> LightGlueLayers("checkpoints", 3)(views, descriptors)[1].shape  # doctest: +SKIP
        torch.Size([4096, 256])
    """

    def __init__(self, folder: str | Path, count: int, translation: Tensor | None = None) -> None:
        net = load_lightglue(folder)
        if not 1 <= count <= len(net.transformers):
            raise LinGlueError(f"{count} layers of LightGlue, expected 1 to {len(net.transformers)}")
        self.net, self.count, self.translation = net, count, translation

    @property
    def input_dim(self) -> int:
        """Length D of the descriptors it takes."""
        return int(self.net.input_proj.in_features if self.translation is None else len(self.translation))

    def enter(self, descriptors: Tensor) -> Tensor:
        """Keypoints (N, WIDTH) in front of all layers, of descriptors (N, D)."""
        first = self.net.input_proj
        entered: Tensor = first(translate(descriptors.to(first.weight), self.translation))
        return entered

    @property
    def output(self) -> Any:
        """The product that makes descriptors to be compared, of the last of these layers."""
        return self.net.log_assignment[self.count - 1].final_proj

    @torch.no_grad()
    def __call__(self, views: Sequence[Keypoints], descriptors: Sequence[Tensor]) -> tuple[list[Tensor], Tensor]:
        """What a pair's keypoints are after each attention, (T, WIDTH) each, and their new descriptors (T, WIDTH).

        Args:
            views: where the keypoints of both images are.
            descriptors: (N, D), (M, D).
        """
        encoded, x = self._begin(views, descriptors)
        after, x = self._layers(encoded, x, slice(self.count))
        return after, self.output(torch.cat(x))

    @torch.no_grad()
    def in_full(self, views: Sequence[Keypoints], descriptors: Sequence[Tensor]) -> tuple[list[Tensor], Tensor]:
        """What keypoints are after each attention of these layers, and (N, M) who are partners by all that follow, too.

        Args:
            views: where the keypoints of both images are.
            descriptors: (N, D), (M, D).
        """
        encoded, x = self._begin(views, descriptors)
        after, x = self._layers(encoded, x, slice(self.count))
        x = self._layers(encoded, x, slice(self.count, None))[1]
        assignment, _ = self.net.log_assignment[-1](x[0][None], x[1][None])  # (1, N + 1, M + 1) logarithms
        return after, assignment[0, :-1, :-1].float().exp()

    def _layers(self, encoded: list[Any], x: list[Tensor], which: slice) -> tuple[list[Tensor], list[Tensor]]:
        """Keypoints after each attention of some layers (T, WIDTH), and of either image after the last (N, WIDTH)."""
        after: list[Tensor] = []
        for layer in self.net.transformers[which]:
            x = [layer.self_attn(one[None], code)[0] for one, code in zip(x, encoded, strict=True)]
            after.append(torch.cat(x))
            x = [one[0] for one in layer.cross_attn(x[0][None], x[1][None])]
            after.append(torch.cat(x))
        return after, x

    @torch.no_grad()
    def record(self, pairs: Sequence[Pair]) -> list[Record]:
        """What goes on in each attention for some pairs: self, cross, self, cross, …"""
        records = [Record() for _ in range(2 * self.count)]
        for views, descriptors in pairs:
            encoded, x = self._begin(views, descriptors)
            for number, layer in enumerate(self.net.transformers[: self.count]):
                block, turned = layer.self_attn, []
                for one, code in zip(x, encoded, strict=True):
                    q, k, v = block.Wqkv(one).unflatten(-1, (HEADS, HEAD, 3)).unbind(-1)  # (N, HEADS, HEAD) each
                    angle = code[:, 0].transpose(1, 2)  # cosines and sines (2, N, 1, HEAD)
                    turned.append((q, k, _turn(q, angle), _turn(k, angle), v))
                reads = [(q, k, _attend(tq, tk, v)) for q, k, tq, tk, v in turned]
                x = [_note(records[2 * number], block.ffn, block.out_proj, *a) for a in zip(x, reads, strict=True)]
                block = layer.cross_attn
                q0, q1 = (block.to_qk(one).unflatten(-1, (HEADS, HEAD)) for one in x)
                v0, v1 = (block.to_v(one).unflatten(-1, (HEADS, HEAD)) for one in x)
                reads = [(q0, q0, _attend(q0, q1, v1)), (q1, q1, _attend(q1, q0, v0))]
                x = [_note(records[2 * number + 1], block.ffn, block.to_out, *a) for a in zip(x, reads, strict=True)]
        return records

    def _begin(self, views: Sequence[Keypoints], descriptors: Sequence[Tensor]) -> tuple[list[Any], list[Tensor]]:
        """Encoded places, and keypoints (N, WIDTH), of both images."""
        weight = self.net.input_proj.weight
        places = [(view.points - view.size / 2) / (view.size.max() / 2) for view in views]  # (N, 2)
        encoded = [self.net.posenc(place[None].to(weight)) for place in places]
        return encoded, [self.enter(x) for x in descriptors]


def _turn(x: Tensor, angle: Tensor) -> Tensor:
    """x (N, HEADS, HEAD) turned in pairs of numbers, angle (2, N, 1, HEAD) cosines and sines."""
    a, b = x.unflatten(-1, (-1, 2)).unbind(-1)
    return x * angle[0] + torch.stack([-b, a], dim=-1).flatten(-2) * angle[1]


def _attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Softmax attention; all (N, HEADS, HEAD)."""
    q, k, v = (side.transpose(0, 1)[None] for side in (query, key, value))  # (1, HEADS, N, HEAD)
    return F.scaled_dot_product_attention(q, k, v)[0].transpose(0, 1)


def _note(record: Record, ffn: Any, merge: Any, x: Tensor, read: tuple[Tensor, Tensor, Tensor]) -> Tensor:
    """Keypoints x (N, WIDTH) after their update, with all of it kept in the record."""
    query, key, message = read
    hidden = ffn[:3](torch.cat([x, merge(message.flatten(1))], dim=-1))  # (N, 2 · WIDTH)
    after = x + ffn[3](hidden)
    for name, value in (("queries", query), ("keys", key), ("messages", message), ("hidden", hidden), ("after", after)):
        getattr(record, name).append(value)
    return after
