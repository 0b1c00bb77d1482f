"""The training loop: resumable to the bit, on one process or under torchrun.

Everything random follows from (seed, step), so a checkpoint needs no generator state: a run that is killed and started
again takes the same steps as one that was not.
"""

from __future__ import annotations

import copy
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from tqdm import tqdm

from linglue.core.atomic import atomic_path
from linglue.errors import LinGlueError
from linglue.features import FRONT_ENDS
from linglue.network.config import LinGlueConfig
from linglue.network.linglue import LinGlue
from linglue.network.weights import load_network, save_network
from linglue.training.cache import FeatureCache
from linglue.training.config import RunConfig
from linglue.training.data import prepare_data
from linglue.training.identity import identity_network
from linglue.training.log import append_row, plot
from linglue.training.objective import Objective
from linglue.training.scores import MatchScores, mean_scores, score_pair


def start_network(config: RunConfig, pairs: FeatureCache) -> LinGlue:
    """The network to train: given weights, or the identity start from the descriptors at hand."""
    wanted = LinGlueConfig.preset(config.network.preset, pairs.dim)
    if config.network.start is not None:
        network, info = load_network(config.network.start)
        if info.kind != pairs.kind or network.config != wanted:
            raise LinGlueError(
                f"{config.network.start}: a {info.preset!r} network for {info.kind!r} features, "
                f"expected {config.network.preset!r} for {pairs.kind!r}"
            )
        return network.train()
    step = max(1, len(pairs) // 200)
    some = [pairs.batch([i])["image0"] for i in range(0, len(pairs), step)]
    descriptors = torch.cat([entry["descriptors"][entry["mask"]] for entry in some])
    return identity_network(wanted, descriptors, config.optimiser.seed).train()


@torch.no_grad()
def validate(network: LinGlue, caches: dict[str, FeatureCache], device: torch.device) -> dict[str, MatchScores]:
    """What mutual nearest neighbours of the network's descriptors find of the true matches, per generator."""
    network.eval()
    result = {}
    for name, cache in caches.items():
        scores = []
        for index in range(len(cache)):
            batch = to_device(cache.batch([index]), device)
            encoded = network.encode(batch["image0"], batch["image1"])
            valid0, valid1 = batch["image0"]["mask"][0], batch["image1"]["mask"][0]
            scores.append(
                score_pair(
                    encoded.descriptors0[0][valid0],
                    encoded.descriptors1[0][valid1],
                    batch["matches0"][0][valid0],
                    batch["matches1"][0][valid1],
                )
            )
        result[name] = mean_scores(scores)
    network.train()
    return result


def to_device(values: Any, device: torch.device) -> Any:
    """A nested dictionary of tensors on another device."""
    if isinstance(values, dict):
        return {name: to_device(value, device) for name, value in values.items()}
    return values.to(device)


class Trainer:
    """One run: its network, optimiser and average, and the files they live in."""

    def __init__(self, config: RunConfig, pairs: FeatureCache, validation: dict[str, FeatureCache]) -> None:
        self.config, self.pairs, self.validation = config, pairs, validation
        self.rank, self.world = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
        self.device = torch.device("cuda", self.rank) if torch.cuda.is_available() else torch.device("cpu")
        o = config.optimiser
        if o.batch % (self.world * o.accumulate):
            raise LinGlueError(
                f"optimiser.batch is {o.batch}, expected a multiple of processes x accumulate "
                f"({self.world} x {o.accumulate})"
            )
        self.objective = Objective(start_network(config, pairs), o).to(self.device)
        self.average = copy.deepcopy(self.objective.network)
        self.optimiser = torch.optim.Adam((p for p in self.objective.parameters() if p.requires_grad), lr=o.rate)
        self.step, self.seconds, self.best = 0, 0.0, -1.0
        self.parallel: nn.Module = self.objective
        if self.world > 1:
            # Pairs without any seed leave the pairwise layers without a gradient.
            self.parallel = DistributedDataParallel(self.objective, find_unused_parameters=True)
        self._resume()

    @property
    def checkpoint(self) -> Path:
        return self.config.output / "checkpoint.pt"

    @property
    def weights(self) -> Path:
        return self.config.output / f"{self.pairs.kind}.safetensors"

    def run(self) -> None:
        """Train to the last step, with a progress bar; validate, log and save on the way."""
        o, losses = self.config.optimiser, []
        if self.step == 0:
            self._validate(float("nan"))
        with tqdm(total=o.steps, initial=self.step, unit="step", disable=None if self.rank == 0 else True) as bar:
            while self.step < o.steps:
                start = time.monotonic()
                losses.append(self._take_step())
                self.seconds += time.monotonic() - start
                bar.update()
                bar.set_postfix(loss=f"{np.mean(losses[-50:]):.4f}")
                if self.step % self.config.validate_every == 0 or self.step == o.steps:
                    self._validate(float(np.mean(losses)))
                    losses = []
                if self.step % self.config.checkpoint_every == 0 or self.step == o.steps:
                    self._save()

    def _take_step(self) -> float:
        o = self.config.optimiser
        rate = o.rate * min(1.0, (self.step + 1) / max(1, o.warmup)) * o.decay**self.step
        for group in self.optimiser.param_groups:
            group["lr"] = rate
        chosen = np.random.default_rng((o.seed, self.step)).integers(len(self.pairs), size=o.batch)
        mine = chosen[self.rank :: self.world]
        self.optimiser.zero_grad()
        total = 0.0
        for part in np.array_split(mine, o.accumulate):
            batch = to_device(self.pairs.batch(part.tolist()), self.device)
            with torch.autocast(self.device.type, torch.bfloat16, enabled=o.bfloat16):
                loss = self.parallel(batch) / o.accumulate
            loss.backward()
            total += float(loss.detach())
        nn.utils.clip_grad_norm_(self.objective.parameters(), o.clip)
        self.optimiser.step()
        self.step += 1
        keep = min(o.average, self.step / (self.step + 10))  # young averages forget the start quickly
        with torch.no_grad():
            for slow, fast in zip(self.average.parameters(), self.objective.network.parameters(), strict=True):
                slow.lerp_(fast, 1 - keep)
        return total

    def _validate(self, loss: float) -> None:
        """Log the averaged network's scores; the best by mean average precision becomes the run's weights."""
        if self.rank != 0:
            return
        scores = validate(self.average, self.validation, self.device)
        row = {"step": float(self.step), "pairs": float(self.step * self.config.optimiser.batch), "loss": loss}
        for name, found in scores.items():
            row.update({f"{name}/{score}": value for score, value in asdict(found).items()})
        self.config.output.mkdir(parents=True, exist_ok=True)
        append_row(self.config.output / "log.csv", row)
        plot(self.config.output / "log.csv", self.config.output / "log.png")
        quality = float(np.mean([s.average_precision for s in scores.values()]))
        text = ", ".join(f"{name} recall {s.recall:.3f} AP {s.average_precision:.3f}" for name, s in scores.items())
        tqdm.write(f"step {self.step}: {text}")
        if quality > self.best:
            self.best = quality
            seen = self.step * self.config.optimiser.batch
            kind = self.pairs.kind
            training = f"{seen} pairs seen in {self.seconds / 3600:.1f} h of {self.world} process(es); {text}"
            licence = "Apache-2.0" if kind in FRONT_ENDS else "yours"
            save_network(self.weights, self.average, kind, self.config.network.preset, licence, training)

    def _save(self) -> None:
        if self.rank != 0:
            return
        state = {
            "objective": self.objective.state_dict(),
            "average": self.average.state_dict(),
            "optimiser": self.optimiser.state_dict(),
            "step": self.step,
            "seconds": self.seconds,
            "best": self.best,
            "config": repr((self.config.network, self.config.optimiser.loss, self.config.optimiser.seed)),
        }
        with atomic_path(self.checkpoint) as partial:
            torch.save(state, partial)

    def _resume(self) -> None:
        if not self.checkpoint.is_file():
            return
        state = torch.load(self.checkpoint, map_location=self.device, weights_only=True)
        if state["config"] != repr((self.config.network, self.config.optimiser.loss, self.config.optimiser.seed)):
            raise LinGlueError(
                f"{self.checkpoint}: made with another network, loss or seed; choose another output or remove it"
            )
        self.objective.load_state_dict(state["objective"])
        self.average.load_state_dict(state["average"])
        self.optimiser.load_state_dict(state["optimiser"])
        self.step, self.seconds, self.best = state["step"], state["seconds"], state["best"]


@contextmanager
def processes() -> Iterator[None]:
    """Join the other processes if torchrun started us; nccl with GPUs, gloo without."""
    if "WORLD_SIZE" not in os.environ or int(os.environ["WORLD_SIZE"]) == 1:
        yield
        return
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    try:
        yield
    finally:
        dist.destroy_process_group()


def train(config: RunConfig) -> Path:
    """The whole of `linglue train`: data, network, loop. Returns the weights of the best validation."""
    with processes():
        if dist.is_initialized():
            if dist.get_rank() == 0:
                prepare_data(config)
            dist.barrier()  # the others open what the first one made
        pairs, validation = prepare_data(config)
        trainer = Trainer(config, pairs, validation)
        trainer.run()
        return trainer.weights
