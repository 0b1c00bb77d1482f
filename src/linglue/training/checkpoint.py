"""The file from which a killed training is resumed. Read without trusting it: a damaged one is named in a line."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import nn

from linglue.core.atomic import atomic_path
from linglue.errors import LinGlueError

PARTS = ("objective", "average", "optimiser")
NUMBERS = {"step": int, "seconds": float, "best": float}


class Resumable(Protocol):
    """What a checkpoint keeps of a trainer."""

    step: int
    seconds: float
    best: float

    @property
    def objective(self) -> nn.Module:
        """What is trained, with whatever the losses learn."""
        ...

    @property
    def average(self) -> nn.Module:
        """The average of the weights, which is what is validated and shipped."""
        ...

    @property
    def optimiser(self) -> torch.optim.Optimizer:
        """With its moments."""
        ...


def checkpoint_path(output: Path) -> Path:
    """Where the checkpoint of a run is kept, by the run's output folder."""
    return output / "checkpoint.pt"


def write_checkpoint(path: Path, trainer: Resumable, settings: Mapping[str, str]) -> None:
    """Keep the state of a run, instead of the one before.

    Args:
        path: of `checkpoint_path`.
        trainer: what is kept.
        settings: what must be the same when the run is resumed, by a name for messages.
    """
    parts = {name: getattr(trainer, name).state_dict() for name in PARTS}
    numbers = {name: getattr(trainer, name) for name in NUMBERS}
    with atomic_path(path) as partial:
        torch.save({**parts, **numbers, "settings": dict(settings)}, partial)


def read_checkpoint(
    path: Path, settings: Mapping[str, str], device: torch.device | str = "cpu"
) -> dict[str, Any] | None:
    """The state of a run that was interrupted, for `restore`.

    Args:
        path: of `checkpoint_path`.
        settings: those of the run that is to be resumed.
        device: where the tensors go.

    Returns:
        None if there is no checkpoint; a damaged one, or one of other settings, is a LinGlueError.
    """
    if not path.exists():
        return None
    try:
        state = torch.load(path, map_location=device, weights_only=True)  # never runs code
    except Exception as error:  # truncated and hostile files raise nearly anything
        raise LinGlueError(f"{path}: not a readable checkpoint; remove it to start again") from error
    entries = {**dict.fromkeys((*PARTS, "settings"), dict), **NUMBERS}
    if not isinstance(state, dict) or any(not isinstance(state.get(name), kind) for name, kind in entries.items()):
        raise LinGlueError(f"{path}: not a checkpoint of a training, expected {', '.join(entries)}; remove it")
    known = state["settings"]
    different = [name for name in settings if known.get(name) != settings[name]]
    if different:
        raise LinGlueError(
            f"{path}: made with another {', '.join(different)}, expected the same configuration, or another output"
        )
    if state["step"] < 0 or not math.isfinite(state["seconds"]) or not _finite(state["objective"]):
        raise LinGlueError(f"{path}: step {state['step']} or its weights are not sound numbers; remove it")
    return state


def restore(trainer: Resumable, state: Mapping[str, Any], path: Path) -> None:
    """Put a trainer into the state of a checkpoint.

    Args:
        trainer: is changed.
        state: what `read_checkpoint` gave.
        path: where it came from, for messages.
    """
    try:
        for name in PARTS:
            getattr(trainer, name).load_state_dict(state[name])
    except Exception as error:  # torch raises several types when names, shapes or groups differ
        raise LinGlueError(f"{path}: does not fit this network; choose another output or remove it") from error
    for name in NUMBERS:
        setattr(trainer, name, state[name])


def _finite(state: dict[str, Any]) -> bool:
    return all(isinstance(v, torch.Tensor) and bool(torch.isfinite(v).all()) for v in state.values())
