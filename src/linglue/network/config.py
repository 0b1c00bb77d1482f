"""Typed description of a network and the named presets."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from typing import Any

from linglue.errors import LinGlueError


@dataclass(frozen=True)
class LinGlueConfig:
    """Everything that decides the shape and the arithmetic of a network."""

    input_dim: int = 256  # D, length of the front-end's descriptors
    dim: int = 64  # C', length inside the network and of the new descriptors
    heads: int = 8
    first_layer: bool = True  # a self-attention layer in front of the linear blocks
    linear_blocks: int = 8  # L1, each one self- and one cross-attention layer
    pairwise_layers: int = 2  # L2
    geometry: bool = False  # keypoint geometry encoder after the first layer
    separation: bool = True  # seeds must be the most distinctive match within R
    select_from_input: bool = False  # neighborhoods from the raw descriptors instead of f̂
    expansion: float = 2.0  # λ, reach of the pairwise neighborhoods in units of R; the paper's 3 for localization
    sinkhorn: bool = False  # optimal transport with a dustbin instead of distance matching and filter

    def __post_init__(self) -> None:
        if self.input_dim < 1 or self.dim < 1 or self.dim % self.heads:
            raise LinGlueError(
                f"input_dim is {self.input_dim}, dim {self.dim}, heads {self.heads}: "
                "expected positive sizes with dim a multiple of heads"
            )
        if not self.first_layer and not self.linear_blocks:
            raise LinGlueError("a network needs a first layer or at least one linear block")

    @classmethod
    def preset(cls, name: str, input_dim: int = 256) -> LinGlueConfig:
        """A named configuration for descriptors of length `input_dim`."""
        if name not in PRESETS:
            raise LinGlueError(f"preset is {name!r}, expected {', '.join(PRESETS)}")
        return cls(input_dim=input_dim, **PRESETS[name])

    def to_json(self) -> str:
        """As one line of text, which weights carry."""
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> LinGlueConfig:
        """Read what `to_json` wrote."""
        values = json.loads(text)
        unknown = set(values) - {f.name for f in fields(cls)}
        if unknown:
            raise LinGlueError(f"network configuration has unknown entries {sorted(unknown)}: made by a newer LinGlue?")
        return cls(**values)


PRESETS: dict[str, dict[str, Any]] = {
    "pair": {},
    "pair-wo-sep": {"separation": False},
    "pair-wo-sep-inp": {"separation": False, "select_from_input": True},
    "linear": {"linear_blocks": 10, "pairwise_layers": 0},
    "pair-large": {"dim": 256},
    "linear-sinkhorn": {"dim": 256, "first_layer": False, "pairwise_layers": 0, "sinkhorn": True},
    "geo": {"geometry": True},
}
