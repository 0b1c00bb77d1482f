"""Teaches a context network what LightGlue's first layers do with the same keypoints.

    python -m linglue.training.lightglue.distil CACHE -o DIR --weights WEIGHTS
        [--images IMAGES] [--validation SETS] [--start FILE]

CACHE is a folder of pairs of features (`linglue train` makes one below its output, and SETS beside it), WEIGHTS that of
LightGlue's and ALIKED's files. Features of another front-end than ALIKED are translated for LightGlue, by a map that is
fitted on IMAGES (`linglue.training.lightglue.translate`). The network starts narrowed (`…start`), or from FILE. Then,
pair by pair, its keypoints are to be after each attention what LightGlue's are, seen in the directions that it has, and
its new descriptors are to find the partners that all of LightGlue's layers find, and the labelled ones. Killed? The
same command resumes. DIR gets checkpoint.pt, the network as a safetensors file named after the front-end, and with SETS
curves of recall and precision (log.csv, .png).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from linglue.core.atomic import atomic_path
from linglue.core.progress import progress
from linglue.errors import LinGlueError, exit_code
from linglue.features import make_extractor
from linglue.features.aliked import Aliked
from linglue.matching.baselines import mutual_matches
from linglue.matching.nearest import nearest_both_ways
from linglue.network.context import Context
from linglue.network.entries import unpad, view
from linglue.network.linglue import LinGlue
from linglue.network.weights import LinGlueConfig
from linglue.training.cache.store import FeatureCache
from linglue.training.images.image_set import image_names
from linglue.training.lightglue.layers import LightGlueLayers, Pair
from linglue.training.lightglue.start import Start, learned, narrowed, told
from linglue.training.lightglue.translate import fit_translation
from linglue.training.log import log_row
from linglue.training.losses import contrastive_loss
from linglue.training.optimisation import averaged
from linglue.training.scores import mean_scores, score_pair
from linglue.training.sources.labels import ALIKED_FILE, scene_folders

TEMPERATURE = 0.03  # of InfoNCE, at the start
WARMUP = 100  # steps
CHECKPOINT = "checkpoint.pt"
TRANSLATION = "translation.npy"
IMAGES = 64  # that are enough for it


@dataclass(frozen=True)
class DistilConfig:
    """How a network is taught."""

    steps: int = 3000
    batch: int = 2  # pairs
    rate: float = 7e-4  # falls to nothing over the second half
    labels: float = 0.5  # weight of labelled partners (InfoNCE) against what LightGlue's keypoints are
    choices: float = 1.0  # weight of the partners that LightGlue finds in the end; 0 saves the time of its later layers
    average: float = 0.99  # of the past per step, kept by the average of the weights that is validated and saved
    keypoints: tuple[int, int] = (640, 1400)  # of each image, from, to
    start_pairs: int = 14  # to narrow the network by
    save_every: int = 50  # steps
    validate_every: int = 250  # steps
    validation_pairs: int = 40  # of each set
    seed: int = 0


class Pupil(nn.Module):
    """The network, and how far it is from its teacher."""

    def __init__(self, start: Start, teacher: LightGlueLayers, labels: float, choices: float) -> None:
        super().__init__()
        self.context: Context = start.network.context  # type: ignore[assignment]
        self.log_temperature = nn.Parameter(torch.tensor(TEMPERATURE).log())
        self.inside: Tensor
        self.register_buffer("inside", start.inside)
        self.teacher, self.labels, self.choices = teacher, labels, choices

    def forward(self, pair: Pair, truths: Sequence[Tensor]) -> Tensor:
        """() of a pair with its true matches (N,), (M,): differences relative to the teacher, choices, and InfoNCE."""
        views, descriptors = pair
        with torch.autocast("cpu", torch.bfloat16):
            if self.choices:
                wanted, partners = self.teacher.in_full(views, descriptors)
            else:
                wanted, partners = self.teacher(views, descriptors)[0], None
            seen, output = told(self.context, pair)
        lost = [_difference(x, want.float() @ self.inside) for x, want in zip(seen, wanted, strict=True)]
        x0, x1 = F.normalize(output.float(), dim=-1).split([len(x) for x in descriptors])
        found = contrastive_loss(x0, x1, truths[0], truths[1], self.log_temperature.exp())
        total = torch.stack(lost).mean() + self.labels * found
        if partners is not None:
            total = total + self.choices * choice_loss(x0 @ x1.T / self.log_temperature.exp(), partners)
        return total


def choice_loss(similarity: Tensor, partners: Tensor) -> Tensor:
    """() cross entropy of the partners that a similarity (N, M) chooses, from both sides.

    Args:
        similarity: of the pupil.
        partners: (N, M) probabilities of the teacher; a keypoint that it finds no partner for counts for nothing.
    """
    chosen = similarity.log_softmax(0) + similarity.log_softmax(1)  # (N, M)
    return -(partners * chosen).sum() / (2 * partners.sum().clamp(min=1))


def _difference(x: Tensor, wanted: Tensor) -> Tensor:
    return (x.float() - wanted).square().mean() / wanted.square().mean()


def read_pair(cache: FeatureCache, number: int, keypoints: int) -> tuple[Pair, tuple[Tensor, Tensor]]:
    """A pair of a cache with its strongest keypoints, and its true matches (N,), (M,)."""
    batch = cache.batch([number], keypoints)
    images = [unpad(batch[f"image{side}"])[0] for side in (0, 1)]
    truth0, truth1 = (batch[f"matches{side}"][0][batch[f"image{side}"]["mask"][0]] for side in (0, 1))
    return ([view(image) for image in images], [image["descriptors"] for image in images]), (truth0, truth1)


@torch.no_grad()
def found_by(network: LinGlue, cache: FeatureCache, pairs: int) -> tuple[float, float]:
    """Recall and precision of the mutual nearest neighbours of new descriptors, means over the first pairs of a cache.

    Args:
        network: whose descriptors.
        cache: pairs with their truth.
        pairs: at most.
    """
    scores = []
    for number in range(min(pairs, len(cache))):
        batch = cache.batch([number])
        encoded, masks = (
            network.encode(batch["image0"], batch["image1"]),
            [batch[f"image{k}"]["mask"][0] for k in (0, 1)],
        )
        x0, x1 = encoded.descriptors0[0][masks[0]], encoded.descriptors1[0][masks[1]]  # (N, C), (M, C)
        truths = [batch[f"matches{k}"][0][mask] for k, mask in enumerate(masks)]  # (N,), (M,)
        scores.append(score_pair(mutual_matches(*nearest_both_ways(x0, x1))[0], *truths))
    means = mean_scores(scores)
    return means.recall, means.precision


def distil(
    cache: FeatureCache,
    folder: Path,
    weights: Path,
    config: DistilConfig | None = None,
    images: Path | None = None,
    sets: Mapping[str, FeatureCache] | None = None,
    begin: Path | None = None,
) -> Path:
    """Teach a network, or go on; returns the file of its weights.

    Args:
        cache: pairs of features.
        folder: where checkpoint and weights are kept.
        weights: folder of LightGlue's and ALIKED's files.
        config: how.
        images: folder of images to translate features of another front-end than ALIKED by.
        sets: pairs to validate with, by name.
        begin: weights of a network that has learned before, to go on from.
    """
    config, sets = config or DistilConfig(), sets or {}
    shape = LinGlueConfig.preset("context", cache.dim)
    translation = None if cache.kind == "aliked" else _translation(cache, folder, weights, images)
    teacher = LightGlueLayers(weights, shape.context.layers if shape.context else 1, translation)
    related = [n for n in range(len(cache)) if cache.sources[cache[n]["source"]] != "unrelated"]
    some = np.random.default_rng(config.seed).permutation(related)[: config.start_pairs]
    pairs = [read_pair(cache, int(n), 1024)[0] for n in some]
    start = learned(teacher, pairs, LinGlue.load(begin)) if begin else narrowed(teacher, pairs, shape)
    pupil = Pupil(start, teacher, config.labels, config.choices).train()
    optimiser = torch.optim.Adam(pupil.parameters(), lr=config.rate)
    average = averaged(start.network, config.average)
    shipped = cast(LinGlue, average.module)
    done = _resume(folder / CHECKPOINT, pupil, optimiser, average)
    folder.mkdir(parents=True, exist_ok=True)
    losses: list[float] = []
    for step in progress(range(done, config.steps), desc="distil", unit="step"):
        rng = np.random.default_rng((config.seed, step))
        for group in optimiser.param_groups:
            group["lr"] = config.rate * min(1.0, (step + 1) / WARMUP, max(0.02, 2 * (1 - step / config.steps)))
        optimiser.zero_grad()
        for number in rng.choice(related, size=config.batch):
            pair, truths = read_pair(cache, int(number), int(rng.integers(*config.keypoints)))
            loss = pupil(pair, truths) / config.batch
            loss.backward()
            losses.append(config.batch * float(loss.detach()))
        nn.utils.clip_grad_norm_(pupil.parameters(), 1.0)
        optimiser.step()
        average.update_parameters(start.network)
        if (step + 1) % config.save_every == 0 or step + 1 == config.steps:
            state = {name: part.state_dict() for name, part in _parts(pupil, optimiser, average).items()}
            with atomic_path(folder / CHECKPOINT) as partial:
                torch.save({**state, "step": step + 1}, partial)
        if sets and ((step + 1) % config.validate_every == 0 or step + 1 == config.steps):
            scores = _validate(shipped, sets, config.validation_pairs)
            log_row(folder, {"step": step + 1.0, "loss": float(np.mean(losses)), **scores})
            losses = []
    target = folder / f"{cache.kind}.safetensors"
    story = f"LightGlue's first layers, narrowed, and taught by them for {config.steps} steps of {config.batch} pairs"
    shipped.save(target, cache.kind, "context", "Apache-2.0", story)
    return target


def _validate(network: LinGlue, sets: Mapping[str, FeatureCache], pairs: int) -> dict[str, float]:
    """Recall and precision of each set."""
    scores = {}
    for name, held_out in sets.items():
        scores[f"{name}/recall"], scores[f"{name}/precision"] = found_by(network.eval(), held_out, pairs)
    return scores


def _translation(cache: FeatureCache, folder: Path, weights: Path, images: Path | None) -> Tensor:
    """(D, 128) for the cache's descriptors, kept in the folder."""
    path = folder / TRANSLATION
    if path.is_file():
        try:
            return torch.from_numpy(np.load(path)).view(cache.dim, -1)
        except Exception as error:  # damaged files raise nearly anything
            raise LinGlueError(f"{path}: not a translation of {cache.kind}; remove it to fit it again") from error
    if images is None:
        raise LinGlueError(f"{cache.folder}: features of {cache.kind}, expected --images to translate them by")
    names = image_names(images, 1)
    chosen = [images / names[k] for k in np.linspace(0, len(names) - 1, min(IMAGES, len(names))).astype(int)]
    found = fit_translation(make_extractor(cache.kind), Aliked(weights / ALIKED_FILE), chosen)
    folder.mkdir(parents=True, exist_ok=True)
    with atomic_path(path) as partial, partial.open("wb") as file:
        np.save(file, found.numpy())
    return found


def _parts(pupil: Pupil, optimiser: torch.optim.Optimizer, average: AveragedModel) -> dict[str, Any]:
    """All that a run has learned, by name."""
    return {"pupil": pupil, "optimiser": optimiser, "average": average}


def _resume(path: Path, pupil: Pupil, optimiser: torch.optim.Optimizer, average: AveragedModel) -> int:
    """The step to go on from."""
    if not path.is_file():
        return 0
    try:
        state: dict[str, Any] = torch.load(path, weights_only=True)
        for name, part in _parts(pupil, optimiser, average).items():
            part.load_state_dict(state[name])
        return int(state["step"])
    except Exception as error:  # damaged files raise nearly anything
        raise LinGlueError(f"{path}: not a checkpoint of this network; remove it to start again") from error


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m linglue.training.lightglue.distil", description="Teach a network.")
    parser.add_argument("cache", type=Path, metavar="CACHE", help="pairs of features")
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="DIR")
    parser.add_argument(
        "--weights", type=Path, required=True, metavar="WEIGHTS", help="folder of LightGlue's and ALIKED's files"
    )
    parser.add_argument(
        "--images", type=Path, metavar="IMAGES", help="folder to translate other features than ALIKED's by"
    )
    parser.add_argument("--validation", type=Path, metavar="SETS", help="folder of folders of pairs")
    parser.add_argument("--start", type=Path, metavar="FILE", help="weights to go on from, of preset context")
    parser.add_argument("--steps", type=int, default=DistilConfig.steps, metavar="N")
    parser.add_argument("--rate", type=float, default=DistilConfig.rate, metavar="R", help="of learning")
    parser.add_argument("--labels", type=float, default=DistilConfig.labels, metavar="W", help="weight of labels")
    parser.add_argument(
        "--choices",
        type=float,
        default=DistilConfig.choices,
        metavar="W",
        help="weight of the partners LightGlue finds",
    )
    options = parser.parse_args(arguments)

    def work() -> None:
        for name, least in (("steps", 1), ("rate", 1e-9), ("labels", 0), ("choices", 0)):
            if not getattr(options, name) >= least:
                raise LinGlueError(f"--{name} is {getattr(options, name)}, expected at least {least:g}")
        cache = FeatureCache(options.cache)
        folders = scene_folders(options.validation) if options.validation else []
        sets = {folder.name: FeatureCache(folder) for folder in folders}
        config = DistilConfig(steps=options.steps, rate=options.rate, labels=options.labels, choices=options.choices)
        print(distil(cache, options.output, options.weights, config, options.images, sets, options.start))

    return exit_code(work)


if __name__ == "__main__":
    sys.exit(main())
