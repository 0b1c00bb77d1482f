"""The encoder layer all attention sits in, and the keypoint geometry encoder of the `geo` preset."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

Attention = Callable[[Tensor, Tensor, Tensor], Tensor]  # query, key, value (B, N, H, d) → message (B, N, H, d)


class EncoderLayer(nn.Module):
    """x ← x + LayerNorm(MLP([x, LayerNorm(merge(attention(x, y)))])), the layer of LoFTR.

    With `input_dim` it is the network's first layer: three projections input_dim → dim go in front, and the projected
    x is what the residual adds to.
    """

    def __init__(self, dim: int, heads: int, input_dim: int | None = None) -> None:
        super().__init__()
        self.heads = heads
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
        self.mlp = nn.Sequential(nn.Linear(2 * dim, 2 * dim), nn.ReLU(), nn.Linear(2 * dim, dim))
        self.norm_update = nn.LayerNorm(dim)

    def forward(self, x: Tensor, y: Tensor, attend: Attention) -> Tensor:
        """x (B, N, D) reads from y (B, M, D) by `attend` → (B, N, C)."""
        projected = self.project_query(x)  # (B, N, C)
        query = self.query(projected).unflatten(-1, (self.heads, -1))  # (B, N, H, d)
        key = self.key(self.project_key(y)).unflatten(-1, (self.heads, -1))  # (B, M, H, d)
        value = self.value(self.project_value(y)).unflatten(-1, (self.heads, -1))  # (B, M, H, d)
        message = attend(query, key, value).flatten(-2)  # (B, N, C)
        message = self.norm_message(self.merge(message))  # (B, N, C)
        update = self.mlp(torch.cat([projected, message], dim=-1))  # (B, N, C)
        return projected + self.norm_update(update)  # (B, N, C)


class GeometryEncoder(nn.Module):
    """A small MLP of where a keypoint is, how large and how it is turned; zero until it has learned something.

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
        """keypoints (B, N, 2) pixels, image_size (B, 2), scales (B, N) pixels, oris (B, N) radians → (B, N, C)."""
        half = image_size.amax(-1)[:, None, None] / 2  # (B, 1, 1): one unit for x and y keeps the aspect
        position = (keypoints - (image_size[:, None] - 1) / 2) / half  # (B, N, 2), centre 0, longer side −1..1
        zero, one = torch.zeros_like(position[..., 0]), torch.ones_like(position[..., 0])  # (B, N)
        size = zero if scales is None else (scales / half[..., 0]).clamp(min=1e-6).log() / 4 + 1  # about −1..1
        turn = [zero, zero] if oris is None else [oris.sin(), oris.cos()]
        flags = [zero if scales is None else one, zero if oris is None else one]
        return self.output(self.mlp(torch.stack([*position.unbind(-1), size, *turn, *flags], dim=-1)))
