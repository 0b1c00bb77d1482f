"""Teaches a context network what LightGlue's first layers do with the same keypoints.

    python -m linglue.training.lightglue.distil CACHE -o DIR --weights WEIGHTS [--steps N]

CACHE is a folder of pairs of ALIKED's features (`linglue train` makes one below its output), WEIGHTS that of
LightGlue's file. The network starts narrowed (`linglue.training.lightglue.start`). Then, pair by pair, its keypoints
are to be after each attention what LightGlue's are, seen in the directions that it has, and its new descriptors are to
find their partners (InfoNCE). Killed? The same command resumes. DIR gets checkpoint.pt and aliked.safetensors.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from linglue.core.atomic import atomic_path
from linglue.core.progress import progress
from linglue.errors import LinGlueError, exit_code
from linglue.network.context import Context, most_similar
from linglue.network.entries import centred, unpad, view
from linglue.network.weights import LinGlueConfig
from linglue.training.cache.store import FeatureCache
from linglue.training.lightglue.layers import LightGlueLayers, Pair
from linglue.training.lightglue.start import Start, narrowed
from linglue.training.losses import contrastive_loss

TEMPERATURE = 0.07  # of InfoNCE, at the start
WARMUP = 100  # steps
CHECKPOINT = "checkpoint.pt"


@dataclass(frozen=True)
class DistilConfig:
    """How a network is taught."""

    steps: int = 3000
    batch: int = 2  # pairs
    rate: float = 7e-4  # falls to nothing over the second half
    labels: float = 0.5  # weight of InfoNCE against what LightGlue does
    keypoints: tuple[int, int] = (640, 1400)  # of each image, from, to
    start_pairs: int = 14  # to narrow the network by
    save_every: int = 50  # steps
    seed: int = 0


class Pupil(nn.Module):
    """The network, and how far it is from its teacher."""

    def __init__(self, start: Start, teacher: LightGlueLayers, labels: float) -> None:
        super().__init__()
        self.context: Context = start.network.context  # type: ignore[assignment]
        self.log_temperature = nn.Parameter(torch.tensor(TEMPERATURE).log())
        self.inside: Tensor
        self.outside: Tensor
        self.register_buffer("inside", start.inside)
        self.register_buffer("outside", start.outside)
        self.teacher, self.labels = teacher, labels

    def forward(self, pair: Pair, truths: Sequence[Tensor]) -> Tensor:
        """() of a pair with its true matches (N,), (M,): differences relative to the teacher, and InfoNCE."""
        views, descriptors = pair
        with torch.autocast("cpu", torch.bfloat16):
            wanted, wanted_output = self.teacher(views, descriptors)
            seen, output = self._encode(pair)
        lost = [_difference(x, want.float() @ self.inside) for x, want in zip(seen, wanted, strict=True)]
        told = _difference(output, wanted_output.float() @ self.outside)
        x0, x1 = F.normalize(output.float(), dim=-1).split([len(x) for x in descriptors])
        found = contrastive_loss(x0, x1, truths[0], truths[1], self.log_temperature.exp())
        return torch.stack(lost).mean() + told + self.labels * found

    def _encode(self, pair: Pair) -> tuple[list[Tensor], Tensor]:
        """Keypoints after each attention (T, C), and new descriptors (T, C')."""
        views, descriptors = pair
        count = len(descriptors[0])
        images = [slice(0, count), slice(count, count + len(descriptors[1]))]
        points = [centred(v) for v in views]
        with torch.autocast("cpu", enabled=False):
            candidates = most_similar(descriptors[0], descriptors[1], self.context.candidates)
        seen = [self.context.start(torch.cat(list(descriptors)), images, points)]
        output = self.context(seen[0], images, points, candidates, [1, 0], seen)
        return seen, output


def _difference(x: Tensor, wanted: Tensor) -> Tensor:
    return (x.float() - wanted).square().mean() / wanted.square().mean()


def read_pair(cache: FeatureCache, number: int, keypoints: int) -> tuple[Pair, tuple[Tensor, Tensor]]:
    """A pair of a cache with its strongest keypoints, and its true matches (N,), (M,)."""
    batch = cache.batch([number], keypoints)
    images = [unpad(batch[f"image{side}"])[0] for side in (0, 1)]
    truth0, truth1 = (batch[f"matches{side}"][0][batch[f"image{side}"]["mask"][0]] for side in (0, 1))
    return ([view(image) for image in images], [image["descriptors"] for image in images]), (truth0, truth1)


def distil(cache: FeatureCache, folder: Path, weights: Path, config: DistilConfig | None = None) -> Path:
    """Teach a network, or go on; returns the file of its weights.

    Args:
        cache: pairs of ALIKED's features.
        folder: where checkpoint and weights are kept.
        weights: folder of LightGlue's file.
        config: how.
    """
    config = config or DistilConfig()
    if cache.kind != "aliked":
        raise LinGlueError(f"{cache.folder}: holds features of {cache.kind}, expected those of aliked")
    shape = LinGlueConfig.preset("context", cache.dim)
    teacher = LightGlueLayers(weights, shape.context.layers if shape.context else 1)
    related = [n for n in range(len(cache)) if cache.sources[cache[n]["source"]] != "unrelated"]
    some = np.random.default_rng(config.seed).permutation(related)[: config.start_pairs]
    start = narrowed(teacher, [read_pair(cache, int(n), 1024)[0] for n in some], shape)
    pupil = Pupil(start, teacher, config.labels).train()
    optimiser = torch.optim.Adam(pupil.parameters(), lr=config.rate)
    done = _resume(folder / CHECKPOINT, pupil, optimiser)
    for step in progress(range(done, config.steps), desc="distil", unit="step"):
        rng = np.random.default_rng((config.seed, step))
        for group in optimiser.param_groups:
            group["lr"] = config.rate * min(1.0, (step + 1) / WARMUP, max(0.02, 2 * (1 - step / config.steps)))
        optimiser.zero_grad()
        for number in rng.choice(related, size=config.batch):
            pair, truths = read_pair(cache, int(number), int(rng.integers(*config.keypoints)))
            (pupil(pair, truths) / config.batch).backward()
        nn.utils.clip_grad_norm_(pupil.parameters(), 1.0)
        optimiser.step()
        if (step + 1) % config.save_every == 0 or step + 1 == config.steps:
            state = {"pupil": pupil.state_dict(), "optimiser": optimiser.state_dict(), "step": step + 1}
            folder.mkdir(parents=True, exist_ok=True)
            with atomic_path(folder / CHECKPOINT) as partial:
                torch.save(state, partial)
    target = folder / "aliked.safetensors"
    told = f"LightGlue's first layers, narrowed, and taught by them for {config.steps} steps of {config.batch} pairs"
    start.network.save(target, "aliked", "context", "Apache-2.0", told)
    return target


def _resume(path: Path, pupil: Pupil, optimiser: torch.optim.Optimizer) -> int:
    """The step to go on from."""
    if not path.is_file():
        return 0
    try:
        state: dict[str, Any] = torch.load(path, weights_only=True)
        pupil.load_state_dict(state["pupil"])
        optimiser.load_state_dict(state["optimiser"])
        return int(state["step"])
    except Exception as error:  # damaged files raise nearly anything
        raise LinGlueError(f"{path}: not a checkpoint of this network; remove it to start again") from error


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m linglue.training.lightglue.distil", description="Teach a network.")
    parser.add_argument("cache", type=Path, metavar="CACHE", help="pairs of ALIKED's features")
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="DIR")
    parser.add_argument("--weights", type=Path, required=True, metavar="WEIGHTS", help="folder of LightGlue's file")
    parser.add_argument("--steps", type=int, default=DistilConfig.steps, metavar="N")
    options = parser.parse_args(arguments)

    def work() -> None:
        if options.steps < 1:
            raise LinGlueError(f"--steps is {options.steps}, expected at least 1")
        found = distil(FeatureCache(options.cache), options.output, options.weights, DistilConfig(steps=options.steps))
        print(found)

    return exit_code(work)


if __name__ == "__main__":
    sys.exit(main())
