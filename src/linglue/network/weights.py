"""Networks on disk: safetensors with the configuration and the kind of features inside."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from linglue.core.atomic import atomic_path
from linglue.errors import LinGlueError
from linglue.network.config import LinGlueConfig
from linglue.network.linglue import LinGlue

PACKAGED = Path(__file__).resolve().parent.parent / "weights"


@dataclass(frozen=True)
class WeightsInfo:
    """What a weights file says about itself."""

    kind: str  # features it was made for; others are refused
    preset: str  # name of its configuration
    licence: str
    training: str  # one line: how it was made
    config: LinGlueConfig


def packaged_weights(name: str) -> Path:
    """Path of the weights that come with the package for front-end `name`; it may not exist."""
    return PACKAGED / f"{name}.safetensors"


def find_weights(name: str) -> Path:
    """The packaged weights for front-end `name`, or an error that says what there is."""
    path = packaged_weights(name)
    if not path.is_file():
        there = ", ".join(sorted(p.stem for p in PACKAGED.glob("*.safetensors")))
        raise LinGlueError(
            f"no network for {name!r} features is packaged (there are: {there}), expected your own with --weights"
        )
    return path


def save_network(path: str | Path, network: LinGlue, kind: str, preset: str, licence: str, training: str) -> None:
    """Write the network in float16, atomically."""
    path = Path(path)
    tensors = {name: value.detach().half().contiguous().cpu() for name, value in network.state_dict().items()}
    metadata = {
        "config": network.config.to_json(),
        "kind": kind,
        "preset": preset,
        "licence": licence,
        "training": training,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_path(path) as temporary:
        save_file(tensors, temporary, metadata)


def read_info(path: str | Path) -> WeightsInfo:
    """The header of a weights file, without its tensors."""
    path = Path(path)
    if not path.is_file():
        raise LinGlueError(f"{path}: no such weights file")
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
    except SafetensorError as error:
        raise LinGlueError(f"{path}: not a safetensors file ({error})") from error
    missing = {"config", "kind", "preset", "licence", "training"} - set(metadata)
    if missing:
        raise LinGlueError(f"{path}: not LinGlue weights, its header lacks {', '.join(sorted(missing))}")
    try:
        config = LinGlueConfig.from_json(metadata["config"])
    except (ValueError, TypeError) as error:  # no JSON, values of the wrong type, sizes that do not go together
        raise LinGlueError(f"{path}: the network configuration in its header cannot be used ({error})") from error
    return WeightsInfo(metadata["kind"], metadata["preset"], metadata["licence"], metadata["training"], config)


def load_network(path: str | Path, device: torch.device | str = "cpu") -> tuple[LinGlue, WeightsInfo]:
    """The network in a weights file, in float32 and evaluation mode; every tensor must fit."""
    info = read_info(path)
    network = LinGlue(info.config)
    with safe_open(path, framework="pt") as file:
        state = {name: file.get_tensor(name).float() for name in file.keys()}  # noqa: SIM118 (not a dict)
    want, have = ({name: tuple(v.shape) for name, v in tensors.items()} for tensors in (network.state_dict(), state))
    for name in sorted(want.keys() | have.keys()):
        if want.get(name) != have.get(name):
            raise LinGlueError(
                f"{path}: {name} has shape {have.get(name, 'none (missing)')}, "
                f"expected {want.get(name, 'no such tensor')} for the configuration in its header"
            )
    broken = next((name for name, value in state.items() if not value.isfinite().all()), None)
    if broken is not None:
        raise LinGlueError(f"{path}: {broken} holds NaN or infinite values, expected finite weights")
    network.load_state_dict(state)
    return network.to(device).eval(), info
