"""Weights files of learned front-ends: where they are found and how they are loaded. Nothing is downloaded here."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import torch
from torch import nn

from linglue.errors import LinGlueError
from linglue.features.registry import FRONT_ENDS


def cache_folder() -> Path:
    """Where torch keeps downloaded weights, ours and kornia's: below TORCH_HOME or XDG_CACHE_HOME if they are set."""
    return Path(torch.hub.get_dir()) / "checkpoints"


def find_weights(name: str, given: str | Path | None) -> Path:
    """The weights file of a front-end that needs one.

    Args:
        name: one of FRONT_ENDS, with a download.
        given: the file the user named, if any; without, the one fetched earlier by us or by kornia.

    Raises:
        LinGlueError: there is none; says how to get it.
    """
    if given is not None:
        return Path(given)
    front_end = FRONT_ENDS[name]
    assert front_end.download is not None
    cached = cache_folder() / front_end.download.file
    if not cached.is_file():
        raise LinGlueError(
            f"front-end {name} needs a weights file: `linglue models --fetch {name}` puts it at {cached}, "
            f"or say --extractor-weights (in Python extractor_weights=) with {front_end.weights_source}"
        )
    return cached


def load_weights(
    net: nn.Module, path: Path, expected: str, fill: Mapping[str, torch.Tensor] = MappingProxyType({})
) -> None:
    """Load a state dict from `path` into `net`, every name and shape as the net's own, or say in one line what differs.

    `expected` names the right file and where users get it; `fill` adds constants that the file may lack.
    """
    if not path.is_file():
        raise LinGlueError(f"{path}: no such weights file, expected {expected}")
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch.load raises many unrelated types on files that are no checkpoints
        raise LinGlueError(f"{path}: not a PyTorch weights file, expected {expected}") from error
    # DISK's authors wrap the state dict.
    state = state.get("extractor", state) if isinstance(state, dict) else None
    if not isinstance(state, dict) or not all(
        isinstance(k, str) and isinstance(v, torch.Tensor) for k, v in state.items()
    ):
        raise LinGlueError(f"{path}: holds no state dict, expected {expected}")
    state = {**fill, **state}
    want = {name: tuple(value.shape) for name, value in net.state_dict().items()}
    have = {name: tuple(value.shape) for name, value in state.items()}
    for name in sorted(want.keys() | have.keys()):
        if want.get(name) != have.get(name):
            raise LinGlueError(
                f"{path}: {name} has shape {have.get(name, 'none (missing)')}, "
                f"expected {want.get(name, 'no such tensor')}; expected {expected}"
            )
        if not state[name].isfinite().all():
            raise LinGlueError(f"{path}: {name} holds NaN or infinite values, expected {expected}")
    net.load_state_dict(state, strict=True)
