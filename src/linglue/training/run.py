"""The whole of `linglue train`: checks, data, network, loop; on one process or on those that torchrun started."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
import torch.distributed as dist

from linglue.core.engine import Engine
from linglue.core.lock import locked
from linglue.errors import LinGlueError
from linglue.features import make_extractor
from linglue.training.cache.store import FeatureCache
from linglue.training.checkpoint import checkpoint_path, read_checkpoint
from linglue.training.config import RunConfig
from linglue.training.data import prepare_data, split_images
from linglue.training.log import check_output
from linglue.training.trainer import Trainer, given_network, given_voting, run_settings


def train(config: RunConfig, engine: Engine | None = None) -> Path:
    """Make the pairs of a run, train on them, and return the weights of the best validation.

    Args:
        config: of the run.
        engine: where pairs are made; None: `data.workers` processes.

    Returns:
        The weights file.

    Example:
        >>> train(read_config("configs/small.toml"))  # doctest: +SKIP
    """
    check(config)
    pairs, validation = _make_pairs(config, engine)
    with processes():
        trainer = Trainer(config, pairs, validation, own_device())
        trainer.run()
        return trainer.weights


def check(config: RunConfig) -> None:
    """Find what is wrong with a run before anything is made; what `RunConfig` itself cannot know."""
    o, world = config.optimiser, int(os.environ.get("WORLD_SIZE", 1))
    if o.batch % (world * o.accumulate):
        raise LinGlueError(
            f"optimiser.batch is {o.batch}, expected a multiple of processes x accumulate ({world} x {o.accumulate})"
        )
    split_images(config.data)
    extractor = make_extractor(config.data.features, config.data.extractor_weights)
    given_network(config, extractor.kind, extractor.dim)
    given_voting(config)
    checkpoint = checkpoint_path(config.output)
    read_checkpoint(checkpoint, run_settings(config))
    check_output(config.output, config.output / f"{extractor.kind}.safetensors", checkpoint)


def _make_pairs(config: RunConfig, engine: Engine | None) -> tuple[FeatureCache, dict[str, FeatureCache]]:
    """One process makes the pairs, however long that takes; the others wait for its lock and open what it made.

    Before the process group is opened: its barriers give up after some minutes.
    """
    if int(os.environ.get("WORLD_SIZE", 1)) == 1:
        return prepare_data(config, engine)
    config.output.mkdir(parents=True, exist_ok=True)
    with locked(config.output):
        return prepare_data(config, engine)


def own_device() -> torch.device:
    """The GPU of this process, by its number on this machine, or the CPU."""
    if not torch.cuda.is_available():
        return torch.device("cpu")
    return torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)))


@contextmanager
def processes() -> Iterator[None]:
    """Join the other processes if torchrun started us; nccl with GPUs, gloo without."""
    if int(os.environ.get("WORLD_SIZE", 1)) == 1:
        yield
        return
    device = own_device()
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    try:
        yield
    finally:
        dist.destroy_process_group()
