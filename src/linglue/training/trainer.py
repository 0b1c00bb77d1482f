"""The training loop: resumable to the bit, on one process or under torchrun.

Everything random follows from (seed, step), so a checkpoint needs no generator state: a run that is killed and started
again takes the same steps as one that was not.
"""

from __future__ import annotations

import time
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from tqdm import tqdm

from linglue.core.progress import progress
from linglue.errors import LinGlueError
from linglue.features import FRONT_ENDS
from linglue.matching.match import MatchingConfig, match_descriptors
from linglue.matching.voting import Voting, VotingConfig
from linglue.network.entries import matchable
from linglue.network.linglue import LinGlue
from linglue.network.weights import LinGlueConfig, read_info
from linglue.training.cache.store import FeatureCache
from linglue.training.calibration import fit_calibration, known_matches
from linglue.training.checkpoint import checkpoint_path, read_checkpoint, restore, write_checkpoint
from linglue.training.config import OptimiserConfig, RunConfig
from linglue.training.identity import identity_network
from linglue.training.log import log_row
from linglue.training.objective import Objective
from linglue.training.optimisation import averaged, schedule
from linglue.training.scores import MatchScores, mean_scores, score_pair

SYNTHETIC = frozenset({"homography", "parallax"})  # sources of pairs that are made; all others are real


def given_network(config: RunConfig, kind: str, dim: int) -> LinGlue | None:
    """The network that the configuration starts from, None if it starts from nothing; of the right kind or refused.

    Args:
        config: the run's; `network.start` names the weights.
        kind: of the features.
        dim: of their descriptors.
    """
    if config.network.start is None:
        return None
    network, info = LinGlue.load(config.network.start), read_info(config.network.start)
    if info.kind != kind or replace(network.config, voting=None) != LinGlueConfig.preset(config.network.preset, dim):
        raise LinGlueError(
            f"{config.network.start}: a {info.preset!r} network for {info.kind!r} features, "
            f"expected {config.network.preset!r} for {kind!r}"
        )
    return network


def start_network(config: RunConfig, pairs: FeatureCache) -> LinGlue:
    """The network to train: given weights, or the identity start from the descriptors at hand.

    Args:
        config: the run's.
        pairs: those to learn from.
    """
    given = given_network(config, pairs.kind, pairs.dim)
    network = identity_start(config, pairs) if given is None else given
    known = given_voting(config)
    if config.network.consensus and (known is not None or network.config.voting != VotingConfig()):
        network = with_voting(network, config.optimiser.seed, known or network.voting)
    return network.train()


def given_voting(config: RunConfig) -> Voting | None:
    """The learned consensus that `network.consensus_start` names: it knows nothing of descriptors but similarities."""
    path = config.network.consensus_start
    if path is None:
        return None
    voting = LinGlue.load(path).voting
    if voting is None:
        raise LinGlueError(f"{path}: has no learned consensus, expected one for network.consensus_start")
    return voting


def with_voting(network: LinGlue, seed: int, known: Voting | None = None) -> LinGlue:
    """The same network with a learned consensus of the present shape.

    Args:
        network: of any kind.
        seed: of what the consensus does not know yet.
        known: a consensus from which it takes what fits.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        larger = LinGlue(replace(network.config, voting=VotingConfig()))
    own = {name: tensor for name, tensor in network.state_dict().items() if not name.startswith("voting.")}
    larger.load_state_dict(own, strict=False)
    if known is not None and larger.voting is not None:
        shapes = {name: tensor.shape for name, tensor in larger.voting.state_dict().items()}
        fits = {name: tensor for name, tensor in known.state_dict().items() if shapes.get(name) == tensor.shape}
        larger.voting.load_state_dict(fits, strict=False)
    return larger


def identity_start(config: RunConfig, pairs: FeatureCache) -> LinGlue:
    """A network that changes nothing yet, made for the descriptors at hand.

    Args:
        config: the run.
        pairs: cached pairs, whose descriptors it is made for.
    """
    step = max(1, len(pairs) // 200)
    some = [pairs.batch([i])["image0"] for i in range(0, len(pairs), step)]
    descriptors = torch.cat([entry["descriptors"][entry["mask"]] for entry in some])
    wanted = LinGlueConfig.preset(config.network.preset, pairs.dim)
    return identity_network(wanted, descriptors, config.optimiser.seed)


@torch.no_grad()
def validate(network: LinGlue, caches: dict[str, FeatureCache], device: torch.device) -> dict[str, MatchScores]:
    """What the learned consensus, or mutual nearest neighbours without one, finds of the true matches, per source.

    The scores of the consensus are made honest on the way: on real pairs, or on all where there are none.

    Args:
        network: is put into evaluation mode meanwhile; the calibration of its consensus is set.
        caches: pairs by the name of their source.
        device: where the network is.
    """
    network.eval()
    if network.voting is not None:
        network.voting.calibration.copy_(torch.tensor([1.0, 0.0]))
    result: dict[str, MatchScores] = {}
    judged: dict[str, list[tuple[Any, Any]]] = {}  # scores and whether they are right, of every pair
    for name, cache in caches.items():
        scores = []
        judged[name] = []
        for index in range(len(cache)):
            batch = to_device(cache.batch([index]), device)
            encoded = network.encode(batch["image0"], batch["image1"])
            (pair,) = matchable(batch["image0"], batch["image1"], encoded.descriptors0, encoded.descriptors1)
            learned = MatchingConfig(min_score=0, effort="full")
            matching = learned if network.voting is not None else MatchingConfig.unfiltered()
            found, confidence = match_descriptors(*pair, matching, None, network.voting)
            truths = [batch[f"matches{k}"][0][batch[f"image{k}"]["mask"][0]] for k in (0, 1)]
            scores.append(score_pair(found, *truths))
            right, known = known_matches(found, truths, batch["fundamental"][0], pair[:2])
            judged[name].append((confidence[known].cpu().numpy(), right[known].cpu().numpy()))
        result[name] = mean_scores(scores)
    if network.voting is not None:
        used = [name for name in judged if name not in SYNTHETIC] or list(judged)
        parts = [np.concatenate(part) for part in zip(*(pair for name in used for pair in judged[name]), strict=True)]
        network.voting.calibration.copy_(torch.tensor(fit_calibration(*parts)))
    network.train()
    return result


def overall(scores: dict[str, MatchScores]) -> float:
    """The number by which weights are chosen: mean average precision; real pairs together count as much as others."""
    kinds = [
        [s.average_precision for name, s in scores.items() if (name in SYNTHETIC) == made] for made in (True, False)
    ]
    return float(np.mean([np.mean(values) for values in kinds if values]))


def to_device(values: Any, device: torch.device) -> Any:
    """A nested dictionary of tensors on another device."""
    if isinstance(values, dict):
        return {name: to_device(value, device) for name, value in values.items()}
    return values.to(device)


def learning_rate(config: OptimiserConfig, step: int) -> float:
    """The share of the full rate at a step: a linear warm-up, then an exponential decay.

    Args:
        config: of the run.
        step: the number of steps taken before.
    """
    return float(min(1.0, (step + 1) / max(1, config.warmup)) * config.decay**step)


def run_settings(config: RunConfig) -> dict[str, str]:
    """What must not change when a run is resumed."""
    return {"network, loss or seed": repr((config.network, config.optimiser.loss, config.optimiser.seed))}


class Trainer:
    """One run: its network, optimiser and average, and the files they live in.

    Example:
        >>> Trainer(config, *prepare_data(config)).run()  # doctest: +SKIP
    """

    def __init__(
        self,
        config: RunConfig,
        pairs: FeatureCache,
        validation: dict[str, FeatureCache],
        device: torch.device | str = "cpu",
    ) -> None:
        self.config, self.pairs, self.validation = config, pairs, validation
        self.device = torch.device(device)
        self.rank, self.world = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
        o = config.optimiser
        self.objective = Objective(start_network(config, pairs), o, config.network.frozen).to(self.device)
        self.average = averaged(self.objective.network, o.average)
        self.optimiser = torch.optim.Adam((p for p in self.objective.parameters() if p.requires_grad), lr=o.rate)
        self.step, self.seconds, self.best = 0, 0.0, -1.0
        self.parallel: nn.Module = self.objective
        if self.world > 1:
            # Pairs without any seed leave the pairwise layers without a gradient.
            self.parallel = DistributedDataParallel(self.objective, find_unused_parameters=True)
        self._resume()
        self.rate = schedule(self.optimiser, o.rate, partial(learning_rate, o), self.step)

    @property
    def weights(self) -> Path:
        """Where the weights of the best validation are kept."""
        return self.config.output / f"{self.pairs.kind}.safetensors"

    def run(self) -> None:
        """Train to the last step, with a progress bar; validate, log and save on the way."""
        o, losses = self.config.optimiser, []
        if self.step == 0:
            self._validate(float("nan"))
        with progress(total=o.steps, initial=self.step, desc="train", unit="step", disable=self.rank != 0) as bar:
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
        rng = np.random.default_rng((o.seed, self.step))
        chosen = rng.integers(len(self.pairs), size=o.batch)
        fewest, most = self.config.data.fewest_keypoints, self.pairs.keypoints
        most = min(most, self.config.data.most_keypoints or most)
        keypoints = None if fewest is None else int(rng.integers(fewest, most + 1))
        mine = chosen[self.rank :: self.world]
        self.optimiser.zero_grad()
        total = 0.0
        for part in np.array_split(mine, o.accumulate):
            batch = to_device(self.pairs.batch(part.tolist(), keypoints), self.device)
            loss = self.parallel(batch) / o.accumulate
            loss.backward()
            total += float(loss.detach())
        nn.utils.clip_grad_norm_(self.objective.parameters(), o.clip)
        self.optimiser.step()
        self.rate.step()
        self.step += 1
        self.average.update_parameters(self.objective.network)
        return total

    def _validate(self, loss: float) -> None:
        """Log the averaged network's scores; the best becomes the run's weights."""
        if self.rank != 0:
            return
        network = cast(LinGlue, self.average.module)
        scores = validate(network, self.validation, self.device)
        row = {"step": float(self.step), "pairs": float(self.step * self.config.optimiser.batch), "loss": loss}
        for name, found in scores.items():
            row.update({f"{name}/{score}": value for score, value in asdict(found).items()})
        self.config.output.mkdir(parents=True, exist_ok=True)
        log_row(self.config.output, row)
        quality = overall(scores)
        text = ", ".join(f"{name} recall {s.recall:.3f} AP {s.average_precision:.3f}" for name, s in scores.items())
        tqdm.write(f"step {self.step}: {text}")
        if quality > self.best:
            self.best = quality
            seen = self.step * self.config.optimiser.batch
            kind = self.pairs.kind
            training = f"{seen} pairs seen in {self.seconds / 3600:.1f} h of {self.world} process(es); {text}"
            licence = "Apache-2.0" if kind in FRONT_ENDS else "yours"
            network.save(self.weights, kind, self.config.network.preset, licence, training)

    def _save(self) -> None:
        if self.rank == 0:
            write_checkpoint(checkpoint_path(self.config.output), self, run_settings(self.config))

    def _resume(self) -> None:
        path = checkpoint_path(self.config.output)
        state = read_checkpoint(path, run_settings(self.config), self.device)
        if state is not None:
            restore(self, state, path)
