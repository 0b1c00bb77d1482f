"""What a training of the front-end is: a typed, frozen configuration, read from a TOML file."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from linglue.errors import LinGlueError
from linglue.training.front_end.crops import CropConfig
from linglue.training.front_end.losses import LossWeights


@dataclass(frozen=True)
class LessonConfig:
    """Which photographs are learned from, and who teaches. Relative paths start at the configuration file."""

    photos: tuple[Path, ...] = (Path("photos"),)  # folders, with all below them
    exclude: tuple[str, ...] = ()  # names of folders below them that are left out
    held_out: float = 0.1  # share of the first folder's photographs that is validated on
    teacher: str = "aliked"  # a front-end
    teacher_weights: Path | None = None
    keypoints: int = 1536  # of a photograph
    folder: Path = Path("lessons")  # where the teacher's work is kept; may serve many runs


@dataclass(frozen=True)
class LearningConfig:
    """How it is trained."""

    steps: int = 20_000
    batch: int = 4  # pairs of crops per step
    points: int = 320  # descriptors of a crop
    rate: float = 2e-3
    warmup: int = 200  # steps until the full rate
    cooldown: int = 2_000  # last steps, over which the rate falls to nothing
    weight_decay: float = 1e-4
    clip: float = 2.0  # norm of the gradient
    average: float = 0.998  # of the weights that are validated and shipped, per step
    seed: int = 0


@dataclass(frozen=True)
class FrontEndConfig:
    """The whole file."""

    output: Path = Path("run")  # checkpoint, log, plot and the finished weights
    start: Path | None = None  # weights to go on from
    validate_every: int = 500  # steps
    checkpoint_every: int = 100
    validation_pairs: int = 40
    lessons: LessonConfig = field(default_factory=LessonConfig)
    crops: CropConfig = field(default_factory=CropConfig)
    losses: LossWeights = field(default_factory=LossWeights)
    learning: LearningConfig = field(default_factory=LearningConfig)

    def __post_init__(self) -> None:
        if self.crops.side < 96 or self.crops.side % 32:
            raise LinGlueError(f"crops.side is {self.crops.side}, expected a multiple of 32 from 96 on")
        for name in ("steps", "batch", "points"):
            if getattr(self.learning, name) < 1:
                raise LinGlueError(f"learning.{name} is {getattr(self.learning, name)}, expected at least 1")
        if not 0 < self.learning.rate < 1:
            raise LinGlueError(f"learning.rate is {self.learning.rate}, expected a number between 0 and 1")
        if min(self.validate_every, self.checkpoint_every, self.validation_pairs) < 1:
            raise LinGlueError("validate_every, checkpoint_every and validation_pairs must be at least 1")
