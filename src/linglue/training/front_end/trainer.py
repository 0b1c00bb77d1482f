"""The front-end's training loop: resumable to the bit, on one CPU core.

Everything random follows from (seed, step), so a checkpoint needs no generator state.
"""

from __future__ import annotations

import hashlib
import math
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from functools import lru_cache, partial
from pathlib import Path
from typing import cast

import numpy as np
import torch
from torch import nn

from linglue.core.fingerprint import file_sha256
from linglue.core.progress import progress
from linglue.errors import LinGlueError
from linglue.features import FRONT_ENDS, make_extractor
from linglue.features.linpoint import LinPointNet, load_linpoint, save_linpoint
from linglue.features.weights import find_weights
from linglue.io.images import IMAGE_SUFFIXES, Image, read_image, shrink
from linglue.training.checkpoint import checkpoint_path, read_checkpoint, restore, write_checkpoint
from linglue.training.front_end.config import FrontEndConfig, LearningConfig, LessonConfig
from linglue.training.front_end.crops import Crop, draw_crops
from linglue.training.front_end.lessons import LONGER_SIDE, Lesson, Lessons
from linglue.training.front_end.objective import Batch, FrontEndObjective, collate
from linglue.training.front_end.real_pairs import RealPairs
from linglue.training.front_end.validation import Scores, make_validation, validate
from linglue.training.log import check_output, log_row
from linglue.training.optimisation import averaged, schedule
from linglue.training.sources.interface import ImagePair
from linglue.types import IndexArray

LENGTH = ("steps", "cooldown")  # settings of the learning that may differ when a run is resumed
KEPT = 1024  # images and lessons in memory; images take 1.4 MB each
FITTED = 12  # batches by which a student that has learned before gets its way to the teacher's descriptors
FEWEST = 40  # matches a pair of crops must have in common to be learned from


def find_images(config: LessonConfig) -> tuple[list[Path], list[Path]]:
    """(training, held-out) images; the side a file of the first folder falls on depends on its name alone."""
    train: list[Path] = []
    held_out: list[Path] = []
    for number, folder in enumerate(config.images):
        if not folder.is_dir():
            raise LinGlueError(f"{folder}: no such folder, expected a folder of images")
        for path in sorted(folder.rglob("*")):
            below = path.relative_to(folder)
            if path.suffix.lower() in IMAGE_SUFFIXES and not set(below.parts[:-1]) & set(config.exclude):
                share = int(hashlib.sha256(path.name.encode()).hexdigest()[:8], 16) / 2**32
                (held_out if number == 0 and share < config.held_out else train).append(path)
    if not train or not held_out:
        raise LinGlueError(
            f"{config.images[0]}: {len(train)} images to learn from and {len(held_out)} to validate on, "
            "expected some of both: about 30 at least"
        )
    return train, held_out


def learning_rate(config: LearningConfig, step: int) -> float:
    """The share of the full rate at a step: a linear warm-up, and at the end a cosine down to nothing.

    Args:
        config: of the run.
        step: the number of steps taken before.
    """
    warm = min(1.0, (step + 1) / max(1, config.warmup))
    left = (config.steps - step) / max(1, config.cooldown)
    return warm * (0.5 - 0.5 * math.cos(math.pi * left)) if left < 1 else warm


class FrontEndTrainer:
    """A student on its way; resumes from the checkpoint in the output folder if there is one.

    Args:
        config: the run. What is wrong with it, or with what it names, is said before anything is written.
    """

    def __init__(self, config: FrontEndConfig) -> None:
        self.config = config
        train, held_out = find_images(config.lessons)
        teacher = make_extractor(config.lessons.teacher, config.lessons.teacher_weights)
        torch.manual_seed(config.learning.seed)
        net = load_linpoint(config.start) if config.start is not None else LinPointNet()
        kept = load_linpoint(config.kept) if config.kept is not None else None
        self.objective = FrontEndObjective(net, config.losses, teacher.dim, config.learning.bfloat16, kept)
        self.objective.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.average = averaged(net, config.learning.average).eval()
        self.optimiser = torch.optim.AdamW(
            self.objective.parameters(), lr=config.learning.rate, weight_decay=config.learning.weight_decay
        )
        self.step, self.seconds, self.best = 0, 0.0, -1.0
        taught = config.lessons
        self.lessons = Lessons(
            taught.folder, train, teacher_sha256(taught), taught.keypoints, taught.aside, taught.steady
        )
        self.real = RealPairs(config.real, self.lessons)
        check_output(config.output, self.weights, checkpoint_path(config.output))
        self._resume()
        self.rate = schedule(self.optimiser, config.learning.rate, partial(learning_rate, config.learning), self.step)
        config.output.mkdir(parents=True, exist_ok=True)
        self.lessons.prepare(teacher)
        self.validation: Sequence[ImagePair] = make_validation(held_out, config.validation_pairs)
        self.image = lru_cache(maxsize=KEPT)(self._image)
        self.lesson = lru_cache(maxsize=KEPT)(self._lesson)
        if config.start is not None and self.step == 0:
            self.objective.fit_teacher([self.make_batch(config.learning.steps + n) for n in range(FITTED)])

    @property
    def weights(self) -> Path:
        """Where the weights of the best validation are kept."""
        return self.config.output / "linpoint-features.safetensors"

    def run(self) -> None:
        """Train to the last step; validate, log and save on the way."""
        o = self.config.learning
        recent: dict[str, list[float]] = {}
        with progress(total=o.steps, initial=self.step, desc="train", unit="step") as bar:
            while self.step < o.steps:
                start = time.monotonic()
                losses = self._take_step()
                for name, value in losses.items():
                    recent.setdefault(name, []).append(value)
                self.seconds += time.monotonic() - start
                bar.set_postfix_str(f"loss {sum(losses.values()):.3f}", refresh=False)
                bar.update()
                if self.step % self.config.validate_every == 0 or self.step == o.steps:
                    means = {name: float(np.mean(values)) for name, values in recent.items()}
                    bar.write(self._validate(means), file=sys.stderr)
                    recent = {}
                if self.step % self.config.checkpoint_every == 0 or self.step == o.steps:
                    self._save()

    def make_batch(self, step: int) -> Batch:
        """The crops of a step; the same ones whenever it is asked for."""
        o = self.config.learning
        rng = np.random.default_rng((o.seed, step))
        samples: list[tuple[Crop, Crop, IndexArray]] = []
        taught = []
        same = []
        while len(samples) < o.batch:
            zero, one, matches = self._draw(rng)
            if len(matches) < FEWEST:
                continue
            lessons = (self.lesson(zero), self.lesson(one))
            sample = draw_crops((self.image(zero), self.image(one)), lessons, matches, self.config.crops, rng)
            if len(sample[2]) >= (FEWEST if zero == one else FEWEST // 2):
                samples.append(sample)
                taught.append((lessons[0].descriptors, lessons[1].descriptors))
                same.append(zero == one)
        return collate(samples, taught, same, o.points, rng)

    def _draw(self, rng: np.random.Generator) -> tuple[int, int, IndexArray]:
        """Two images, mostly one twice, and (K, 2) which keypoints of their lessons match."""
        share = self.config.real.share
        if share > 0 and rng.random() < share:
            return self.real.draw(rng)
        index = int(rng.integers(len(self.lessons)))
        count = len(self.lesson(index).keypoints)
        return index, index, np.repeat(np.arange(count)[:, None], 2, axis=1)

    def _image(self, index: int) -> Image:
        return shrink(read_image(self.lessons.images[index]), LONGER_SIDE)

    def _lesson(self, index: int) -> Lesson:
        return self.lessons[index]

    def _take_step(self) -> dict[str, float]:
        o = self.config.learning
        self.objective.train()
        losses = self.objective(self.make_batch(self.step))
        self.optimiser.zero_grad()
        torch.stack(list(losses.values())).sum().backward()
        nn.utils.clip_grad_norm_(self.objective.parameters(), o.clip)
        self.optimiser.step()
        self.rate.step()
        self.step += 1
        self.average.update_parameters(self.objective.net)
        return {name: float(value.detach()) for name, value in losses.items()}

    def _validate(self, losses: dict[str, float]) -> str:
        """Log the mean losses since the last time and the scores; keep the best weights. Returns a line about it."""
        net = cast(LinPointNet, self.average.module)
        scores: Scores = validate(net, self.validation)
        row = {"step": float(self.step), "loss": sum(losses.values())}
        row |= {f"loss_{name}": value for name, value in losses.items()}
        row |= {f"validation/{name}": value for name, value in scores._asdict().items()}
        log_row(self.config.output, row)
        text = ", ".join(f"{name} {value:.3f}" for name, value in scores._asdict().items())
        if scores.recall > self.best:
            self.best = scores.recall
            seen = self.step * self.config.learning.batch
            save_linpoint(self.weights, net, f"{seen} pairs of crops, {self.seconds / 3600:.1f} h; {text}")
        return f"step {self.step}, {self.seconds / 3600:.2f} h: {text}"

    def _save(self) -> None:
        write_checkpoint(checkpoint_path(self.config.output), self, self._settings())

    def _resume(self) -> None:
        path = checkpoint_path(self.config.output)
        state = read_checkpoint(path, self._settings())
        if state is not None:
            restore(self, state, path)

    def _settings(self) -> dict[str, str]:
        """What must stay the same when a run is resumed, as text; only its length may change."""
        learning = {name: value for name, value in asdict(self.config.learning).items() if name not in LENGTH}
        start = self.config.start
        return {
            "lessons": self.lessons.fingerprint,
            "crops": repr(self.config.crops),
            "losses": repr(self.config.losses),
            "learning": repr(learning),
            "start": "" if start is None else file_sha256(start),
            "kept": "" if self.config.kept is None else file_sha256(self.config.kept),
            "real": f"{self.config.real.share} {self.config.real.radius} {self.real.fingerprint}",
        }


def teacher_sha256(config: LessonConfig) -> str:
    """Of the teacher's weights, or of its name if it has none."""
    facts = FRONT_ENDS.get(config.teacher)
    if config.teacher_weights is not None or (facts is not None and facts.needs_weights):
        return file_sha256(find_weights(config.teacher, config.teacher_weights))
    return hashlib.sha256(config.teacher.encode()).hexdigest()


def train_features(config: FrontEndConfig) -> Path:
    """The whole of `linglue train-features`.

    Args:
        config: the run; `linglue.training.config.read_toml(path, FrontEndConfig)` reads one.

    Returns:
        The file with the weights of the best validation, for `make_extractor("linpoint", file)`.

    Example:
        >>> train_features(read_toml("my-features.toml", FrontEndConfig))  # doctest: +SKIP
    """
    trainer = FrontEndTrainer(config)
    trainer.run()
    return trainer.weights
