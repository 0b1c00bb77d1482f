"""What a training run is: a typed, frozen configuration that pydantic reads from a TOML file and checks."""

from __future__ import annotations

from dataclasses import field
from pathlib import Path
from typing import Annotated, Literal

from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass

from linglue.errors import LinGlueError
from linglue.network.weights import LinGlueConfig
from linglue.training.toml import read_toml

SMALLEST_SIDE = 480  # pixels: longer side of the smallest images made
MOST_KEYPOINTS = 32767  # the cache numbers them by 16 bits

STRICT = ConfigDict(extra="forbid", strict=True)
Count = Annotated[int, Field(ge=1)]
Share = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Fraction = Annotated[float, Field(ge=0, lt=1, allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Seed = Annotated[int, Field(ge=0)]


@dataclass(frozen=True, config=STRICT)
class SfmPairs:
    """Real scenes, reconstructed by `python -m linglue.training.sources.sfm`."""

    share: Share = 0.0  # of all pairs, relative to the other shares
    reconstructions: Path = Path("reconstructions")  # a folder for each scene
    held_out: tuple[str, ...] = ()  # names of scenes that are only validated on; patterns such as "oxf_*"
    exclude: tuple[str, ...] = ()  # names of scenes that are not used at all; patterns, too


@dataclass(frozen=True, config=STRICT)
class TeacherPairs:
    """Real scenes, labelled by `python -m linglue.training.sources.labels`."""

    share: Share = 0.0
    images: Path = Path("images")  # a folder for each scene
    labels: Path = Path("labels")  # likewise; scenes without labels are not used
    held_out: tuple[str, ...] = ()  # names of scenes that are only validated on; patterns such as "oxf_*"
    exclude: tuple[str, ...] = ()  # names of scenes that are not used at all; patterns, too


@dataclass(frozen=True, config=STRICT)
class MegaDepthPairs:
    """The MegaDepth data set in its usual layout. Lists are text files, one name of a scene per line."""

    share: Share = 0.0
    root: Path = Path("MegaDepth")
    training: Path | None = None  # list of scenes to learn from; all that no other list names if not given
    validation: Path | None = None  # list of scenes to validate on
    test: Path | None = None  # list of scenes that are never drawn from


@dataclass(frozen=True, config=STRICT)
class DataConfig:
    """Where training pairs come from. Relative paths start at the configuration file."""

    images: Path = Path("images")  # folder of images; a tenth is held out for validation
    features: str = "sift"  # front-end
    extractor_weights: Path | None = None
    pairs: Count = 10_000  # made once and kept in the run's folder
    validation_pairs: Count = 120
    views: Annotated[int, Field(ge=2, le=16)] = 2  # of a synthetic scene; all pairs of them that overlap are used
    keypoints: Annotated[int, Field(ge=16, le=MOST_KEYPOINTS)] = 1024  # per image
    fewest_keypoints: Annotated[int, Field(ge=16)] | None = None  # each batch draws its own number from here on
    most_keypoints: Annotated[int, Field(ge=16)] | None = None  # up to here; without, up to `keypoints`
    min_matches: Count = 50  # pairs with fewer true matches are drawn again
    longer_side: Annotated[int, Field(ge=SMALLEST_SIDE)] = 1024  # of the largest images made; less for slow front-ends
    homography: Share = 0.45  # shares of the sources, relative to each other; these two are always validated on
    parallax: Share = 0.55
    sfm: SfmPairs = field(default_factory=SfmPairs)
    teacher: TeacherPairs = field(default_factory=TeacherPairs)
    megadepth: MegaDepthPairs = field(default_factory=MegaDepthPairs)
    unrelated: Fraction = 0.05  # share of pairs that show nothing in common
    workers: Count = 2


@dataclass(frozen=True, config=STRICT)
class NetworkConfig:
    """What is trained, and from where."""

    preset: str = "geo"
    start: Path | None = None  # weights to start from; without, the identity start
    consensus: bool = False  # it gets a learned consensus if it has none, which is trained, too
    consensus_start: Path | None = None  # weights, of any front-end, whose consensus it starts from
    frozen: bool = False  # nothing but the consensus is trained

    def __post_init__(self) -> None:
        config = LinGlueConfig.preset(self.preset)  # raises if there is none
        if self.frozen and not self.consensus:
            raise LinGlueError("network.frozen is true without a consensus, expected something to train")
        if self.consensus_start is not None and not self.consensus:
            raise LinGlueError("network.consensus_start is given, expected consensus to be true as well")
        if self.consensus and config.sinkhorn:
            raise LinGlueError(
                f"network.consensus is true for {self.preset!r}, expected a preset without Sinkhorn's head"
            )
        if self.preset == "raw" and not self.frozen:
            raise LinGlueError("network.preset is 'raw', expected consensus and frozen to be true: it has no layers")


@dataclass(frozen=True, config=STRICT)
class OptimiserConfig:
    """How it is trained."""

    steps: Count = 5_000
    batch: Count = 8  # pairs per step, over all processes
    accumulate: Count = 1  # parts a batch is cut into to save memory
    loss: Literal["hinge", "ranking", "contrastive", "transport"] = "hinge"
    margin: Share = 0.3  # of the hinge, in squared distance of unit descriptors
    coarse: Share = 0.5  # weight of the same loss on f̂
    rate: Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)] = 5e-4
    warmup: Annotated[int, Field(ge=0)] = 100  # steps until the full rate
    decay: Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)] = 0.9997  # of the rate, per step
    clip: Positive = 1.0  # norm of the gradient
    average: Fraction = 0.995  # of the weights that are validated and shipped, per step
    bfloat16: bool = False  # autocast
    seed: Seed = 0


@dataclass(frozen=True, config=STRICT)
class RunConfig:
    """The whole file.

    Example:
        >>> RunConfig(output=Path("runs/mine")).optimiser.loss
        'hinge'
    """

    output: Path = Path("run")  # cache, checkpoints, log, plot and the finished weights
    validate_every: Count = 250  # steps
    checkpoint_every: Count = 50
    data: DataConfig = field(default_factory=DataConfig)
    network: NetworkConfig = field(default_factory=NetworkConfig)
    optimiser: OptimiserConfig = field(default_factory=OptimiserConfig)

    def __post_init__(self) -> None:
        """What entries must be true of each other."""
        o, data, preset = self.optimiser, self.data, self.network.preset
        if o.batch % o.accumulate:
            raise LinGlueError(f"optimiser.batch is {o.batch}, expected a multiple of accumulate ({o.accumulate})")
        if o.loss == "transport" and not LinGlueConfig.preset(preset).sinkhorn:
            raise LinGlueError(f"optimiser.loss is 'transport', expected a preset with a Sinkhorn head, not {preset!r}")
        if not data.homography and not data.parallax:
            raise LinGlueError("data.homography and data.parallax are both 0, expected at least one positive share")
        fewest, most = data.fewest_keypoints, data.most_keypoints
        if most is not None and (fewest is None or most > data.keypoints):
            raise LinGlueError(
                f"data.most_keypoints is {most}, expected fewest_keypoints, and at most {data.keypoints}"
            )
        if fewest is not None and fewest > (most or data.keypoints):
            raise LinGlueError(f"data.fewest_keypoints is {fewest}, expected at most {most or data.keypoints}")


def read_config(path: str | Path) -> RunConfig:
    """The configuration of a training of a network.

    Args:
        path: of the TOML file; relative paths in it start at its folder.

    Returns:
        The configuration, checked.

    Example:
        >>> read_config("configs/small.toml").data.pairs  # doctest: +SKIP
        240
    """
    return read_toml(path, RunConfig)
