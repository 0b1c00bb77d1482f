"""What a training of the front-end is: a typed, frozen configuration, read from a TOML file."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path

from linglue.errors import LinGlueError
from linglue.training.front_end.crops import CropConfig
from linglue.training.front_end.losses import LossWeights
from linglue.training.front_end.real_pairs import RealConfig


@dataclass(frozen=True)
class LessonConfig:
    """Which images are learned from, and who teaches. Relative paths start at the configuration file."""

    images: tuple[Path, ...] = (Path("images"),)  # folders, with all below them
    exclude: tuple[str, ...] = ()  # names of folders below them that are left out
    held_out: float = 0.1  # share of the first folder's images that is validated on
    teacher: str = "aliked"  # a front-end
    teacher_weights: Path | None = None
    aside: float = 0.0  # pixels by which the teacher puts keypoints right of and below what they are of
    steady: Path | None = None  # weights of a student: keypoints are where it sees them from all sides
    keypoints: int = 1536  # of an image
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
    bfloat16: bool = False  # the maps by autocast; losses and descriptors stay in float32
    seed: int = 0


@dataclass(frozen=True)
class FrontEndConfig:
    """The whole file."""

    output: Path = Path("run")  # checkpoint, log, plot and the finished weights
    start: Path | None = None  # weights to start from
    kept: Path | None = None  # weights whose descriptors `losses.keep` is about: those that matchers were trained on
    validate_every: int = 500  # steps
    checkpoint_every: int = 100
    validation_pairs: int = 40
    lessons: LessonConfig = field(default_factory=LessonConfig)
    real: RealConfig = field(default_factory=RealConfig)
    crops: CropConfig = field(default_factory=CropConfig)
    losses: LossWeights = field(default_factory=LossWeights)
    learning: LearningConfig = field(default_factory=LearningConfig)

    def __post_init__(self) -> None:
        crops, learning, lessons = self.crops, self.learning, self.lessons
        _check("crops.side", crops.side, crops.side >= 96 and crops.side % 32 == 0, "a multiple of 32 from 96 on")
        for name in ("magnification", "strength"):
            low, high = getattr(crops, name)
            _check(f"crops.{name}", [low, high], 0 < low <= high, "two positive numbers, the smaller first")
        for name in ("scale", "stretch"):
            _check(f"crops.{name}", getattr(crops, name), getattr(crops, name) >= 1, "at least 1")
        _check("crops.rotation", crops.rotation, 0 <= crops.rotation <= 180, "0 to 180 degrees")
        shares = crops.any_rotation, crops.upright
        _check("crops.any_rotation and upright", shares, min(shares) >= 0 and sum(shares) <= 1, "shares of 1 together")
        _check("crops.perspective", crops.perspective, 0 <= crops.perspective < 1, "at least 0 and below 1")
        for name, weight in asdict(self.losses).items():
            _check(f"losses.{name}", weight, weight >= 0, "at least 0")
        both = (self.losses.keep > 0) == (self.kept is not None)
        _check("losses.keep", self.losses.keep, both, "more than 0 if and only if `kept` names weights")
        for name in ("steps", "batch", "points"):
            _check(f"learning.{name}", getattr(learning, name), getattr(learning, name) >= 1, "at least 1")
        _check("learning.rate", learning.rate, 0 < learning.rate < 1, "a number between 0 and 1")
        for name in ("warmup", "cooldown", "weight_decay", "seed"):
            _check(f"learning.{name}", getattr(learning, name), getattr(learning, name) >= 0, "at least 0")
        _check("learning.clip", learning.clip, learning.clip > 0, "more than 0")
        _check("learning.average", learning.average, 0 <= learning.average < 1, "at least 0 and below 1")
        _check("real.share", self.real.share, 0 <= self.real.share < 1, "at least 0 and below 1")
        _check("real.radius", self.real.radius, self.real.radius > 0, "more than 0")
        _check("lessons.images", list(lessons.images), len(lessons.images) > 0, "at least one folder")
        _check("lessons.held_out", lessons.held_out, 0 < lessons.held_out < 1, "a share between 0 and 1")
        _check("lessons.keypoints", lessons.keypoints, lessons.keypoints >= 1, "at least 1")
        for name in ("validate_every", "checkpoint_every", "validation_pairs"):
            _check(name, getattr(self, name), getattr(self, name) >= 1, "at least 1")


def _check(name: str, value: object, good: bool, expected: str) -> None:
    if not good:
        raise LinGlueError(f"{name} is {value}, expected {expected}")
