"""The file from which a killed training is resumed. Read without trusting it: a damaged one is named in a line."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch

from linglue.core.atomic import atomic_path
from linglue.errors import LinGlueError
from linglue.training.config import RunConfig

ENTRIES = {
    "run": str,
    "step": int,
    "seconds": float,
    "best": float,
    "objective": dict,
    "average": dict,
    "optimiser": dict,
}


def checkpoint_path(config: RunConfig) -> Path:
    """Where the checkpoint of a run is kept."""
    return config.output / "checkpoint.pt"


def identity(config: RunConfig) -> str:
    """What must not change when a run is resumed."""
    return repr((config.network, config.optimiser.loss, config.optimiser.seed))


def write_checkpoint(config: RunConfig, state: dict[str, Any]) -> None:
    """Keep the state of a run, instead of the one before."""
    with atomic_path(checkpoint_path(config)) as partial:
        torch.save({"run": identity(config), **state}, partial)


def read_checkpoint(config: RunConfig, device: torch.device | str = "cpu") -> dict[str, Any] | None:
    """The state of a run that was interrupted; None if there is none."""
    path = checkpoint_path(config)
    if not path.exists():
        return None
    try:
        state = torch.load(path, map_location=device, weights_only=True)  # never runs code
    except Exception as error:  # truncated and hostile files raise nearly anything
        raise LinGlueError(f"{path}: not a readable checkpoint; remove it to start again") from error
    if not isinstance(state, dict) or any(not isinstance(state.get(name), kind) for name, kind in ENTRIES.items()):
        raise LinGlueError(f"{path}: not a checkpoint of a training, expected {', '.join(ENTRIES)}; remove it")
    if state["run"] != identity(config):
        raise LinGlueError(f"{path}: made with another network, loss or seed; choose another output or remove it")
    if state["step"] < 0 or not math.isfinite(state["seconds"]) or not _finite(state["objective"]):
        raise LinGlueError(f"{path}: step {state['step']} or its weights are not sound numbers; remove it")
    return state


def _finite(state: dict[str, Any]) -> bool:
    return all(isinstance(v, torch.Tensor) and bool(torch.isfinite(v).all()) for v in state.values())
