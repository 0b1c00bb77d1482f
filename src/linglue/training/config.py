"""What a training run is: a typed, frozen configuration read from a TOML file that knows every key it may hold."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

from linglue.errors import LinGlueError

T = TypeVar("T")
SMALLEST_SIDE = 480  # pixels: longer side of the smallest images made
LOSSES = ("hinge", "ranking", "contrastive", "transport")


@dataclass(frozen=True)
class SfmSource:
    """Real image sets, reconstructed by `python -m linglue.training.sources.sfm`."""

    share: float = 0.0  # of all pairs, relative to the other shares
    reconstructions: tuple[Path, ...] = ()
    held_out: tuple[Path, ...] = ()  # those of `reconstructions` that are for validation only


@dataclass(frozen=True)
class TeacherSource:
    """Real image sets, labelled by `python -m linglue.training.sources.teacher`."""

    share: float = 0.0
    images: tuple[Path, ...] = ()
    labels: tuple[Path, ...] = ()  # one folder for each of `images`
    held_out: tuple[Path, ...] = ()  # those of `images` that are for validation only


@dataclass(frozen=True)
class MegaDepthSource:
    """The MegaDepth data set in its usual layout."""

    share: float = 0.0
    root: Path = Path("MegaDepth")


@dataclass(frozen=True)
class DataConfig:
    """Where training pairs come from. Relative paths start at the configuration file."""

    photos: Path = Path("photos")  # folder of photographs; a tenth is held out for validation
    features: str = "sift"  # front-end
    extractor_weights: Path | None = None
    pairs: int = 10_000  # made once and kept in the run's folder
    validation_pairs: int = 120
    keypoints: int = 1024  # per image
    longer_side: int = 1024  # of the largest images made; less for front-ends that are slow
    homography: float = 0.45  # shares of the sources, relative to each other; these two are always validated on
    parallax: float = 0.55
    sfm: SfmSource = field(default_factory=SfmSource)
    teacher: TeacherSource = field(default_factory=TeacherSource)
    megadepth: MegaDepthSource = field(default_factory=MegaDepthSource)
    unrelated: float = 0.05  # share of pairs that show nothing in common
    workers: int = 2


@dataclass(frozen=True)
class NetworkConfig:
    """What is trained, and from where."""

    preset: str = "geo"
    start: Path | None = None  # weights to go on from; without, the identity start


@dataclass(frozen=True)
class OptimiserConfig:
    """How it is trained."""

    steps: int = 5_000
    batch: int = 8  # pairs per step, over all processes
    accumulate: int = 1  # parts a batch is cut into to save memory
    loss: str = "hinge"
    margin: float = 0.3  # of the hinge, in squared distance of unit descriptors
    coarse: float = 0.5  # weight of the same loss on f̂
    rate: float = 5e-4
    warmup: int = 100  # steps until the full rate
    decay: float = 0.9997  # of the rate, per step
    clip: float = 1.0  # norm of the gradient
    average: float = 0.995  # of the weights that are validated and shipped, per step
    bfloat16: bool = False  # autocast
    seed: int = 0


@dataclass(frozen=True)
class RunConfig:
    """The whole file."""

    output: Path = Path("run")  # cache, checkpoints, log, plot and the finished weights
    validate_every: int = 250  # steps
    checkpoint_every: int = 50
    data: DataConfig = field(default_factory=DataConfig)
    network: NetworkConfig = field(default_factory=NetworkConfig)
    optimiser: OptimiserConfig = field(default_factory=OptimiserConfig)

    def __post_init__(self) -> None:
        o = self.optimiser
        if o.loss not in LOSSES:
            raise LinGlueError(f"optimiser.loss is {o.loss!r}, expected {', '.join(LOSSES)}")
        if o.batch < 1 or o.accumulate < 1 or o.batch % o.accumulate:
            raise LinGlueError(f"optimiser.batch is {o.batch}, expected a multiple of accumulate ({o.accumulate})")
        if o.steps < 1 or self.validate_every < 1 or self.checkpoint_every < 1:
            raise LinGlueError("steps, validate_every and checkpoint_every must be at least 1")
        if self.data.longer_side < SMALLEST_SIDE:
            raise LinGlueError(f"data.longer_side is {self.data.longer_side}, expected at least {SMALLEST_SIDE}")
        teacher = self.data.teacher
        if len(teacher.images) != len(teacher.labels):
            raise LinGlueError(
                f"data.teacher has {len(teacher.images)} images and {len(teacher.labels)} labels, "
                "expected one folder of labels for each folder of images"
            )
        for name, source, every in (
            ("sfm", self.data.sfm, self.data.sfm.reconstructions),
            ("teacher", teacher, teacher.images),
        ):
            for folder in source.held_out:
                if folder not in every:
                    raise LinGlueError(f"data.{name}.held_out has {folder}, expected {', '.join(map(str, every))}")
            if source.share > 0 and set(every) <= set(source.held_out):
                raise LinGlueError(f"data.{name} leaves none of {len(every)} sets to learn from, expected at least 1")


def read_config(path: str | Path) -> RunConfig:
    """The configuration of a training of a network."""
    return read_toml(path, RunConfig)


def read_toml(path: str | Path, kind: type[T]) -> T:
    """The configuration in a TOML file; what it leaves out has its default, what it has too much is refused."""
    path = Path(path)
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise LinGlueError(f"{path}: cannot be read ({error.strerror})") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise LinGlueError(f"{path}: not a TOML file ({error})") from error
    found: T = _build(kind, values, path, "")
    return found


def _build(kind: type, values: dict[str, Any], path: Path, prefix: str) -> Any:
    hints = get_type_hints(kind)
    known = {f.name: hints[f.name] for f in fields(kind)}
    arguments: dict[str, Any] = {}
    for name, value in values.items():
        if name not in known:
            raise LinGlueError(f"{path}: unknown entry {prefix}{name}, expected {', '.join(known)}")
        wanted = known[name]
        if is_dataclass(wanted):
            if not isinstance(value, dict):
                raise LinGlueError(f"{path}: {prefix}{name} is {value!r}, expected a table [{prefix}{name}]")
            arguments[name] = _build(wanted, value, path, f"{prefix}{name}.")  # type: ignore[arg-type]
        elif wanted == tuple[Path, ...]:
            names = _checked(value, list, path, prefix + name)
            arguments[name] = tuple(path.parent / _checked(n, str, path, prefix + name) for n in names)
        elif wanted in (Path, Path | None):
            arguments[name] = path.parent / _checked(value, str, path, prefix + name)
        elif wanted == tuple[str, ...]:
            arguments[name] = tuple(
                _checked(n, str, path, prefix + name) for n in _checked(value, list, path, prefix + name)
            )
        elif wanted == tuple[float, float]:
            numbers = _checked(value, list, path, prefix + name)
            low, high = (float(_checked(n, (int, float), path, prefix + name)) for n in numbers)
            arguments[name] = (low, high)
        elif wanted is float:
            arguments[name] = float(_checked(value, (int, float), path, prefix + name))
        else:
            arguments[name] = _checked(value, wanted, path, prefix + name)
    try:
        return kind(**arguments)
    except LinGlueError as error:
        raise LinGlueError(f"{path}: {error}") from error


def _checked(value: Any, wanted: Any, path: Path, name: str) -> Any:
    if not isinstance(value, wanted) or (isinstance(value, bool) and wanted is not bool):
        words = {str: "text", int: "a whole number", bool: "true or false", list: "a list"}.get(wanted, "a number")
        raise LinGlueError(f"{path}: {name} is {value!r}, expected {words}")
    return value
