"""Which networks there are: typed configurations, named presets, and files, safetensors that say what they hold."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from linglue.core.atomic import atomic_path
from linglue.errors import LinGlueError
from linglue.features.registry import FRONT_ENDS
from linglue.matching.voting import VotingConfig
from linglue.network.context import ContextConfig

PACKAGED = Path(__file__).resolve().parent.parent / "weights"


@dataclass(frozen=True)
class LinGlueConfig:
    """Everything that decides the shape and the arithmetic of a network.

    Example:
        >>> LinGlueConfig(input_dim=128, pairwise_layers=0).dim
        64
    """

    input_dim: int = 256  # D, length of the front-end's descriptors
    dim: int = 64  # C', length inside the network and of the new descriptors
    heads: int = 8
    first_layer: bool = True  # a self-attention layer in front of the linear blocks
    linear_blocks: int = 8  # L1, each one self- and one cross-attention layer
    pairwise_layers: int = 2  # L2
    geometry: bool = False  # keypoint geometry encoder after the first layer
    separation: bool = True  # seeds must be the most distinctive match within R
    select_from_input: bool = False  # neighborhoods from the raw descriptors instead of f̂
    expansion: float = 2.0  # λ, reach of the pairwise neighborhoods in units of R; the paper's 3 for localization
    input_scale: float = 1.0  # of descriptors, where no projection brings unit ones to the size of messages
    sinkhorn: bool = False  # optimal transport with a dustbin instead of distance matching and filter
    context: ContextConfig | None = None  # layers of softmax attention to few keypoints, instead of all layers above
    voting: VotingConfig | None = None  # a learned consensus comes with it

    def __post_init__(self) -> None:
        if self.input_dim < 1 or self.dim < 1 or self.dim % self.heads:
            raise LinGlueError(
                f"input_dim is {self.input_dim}, dim {self.dim}, heads {self.heads}: "
                "expected positive sizes with dim a multiple of heads"
            )
        linear = self.first_layer or self.linear_blocks > 0
        if self.context is not None:
            if linear or self.pairwise_layers or self.geometry or self.sinkhorn:
                raise LinGlueError("the network has context and layers of linear attention, expected one of them")
        elif not linear and (self.dim != self.input_dim or self.pairwise_layers):
            raise LinGlueError(
                f"a network without a first layer and linear blocks has dim {self.dim} and {self.pairwise_layers} "
                f"pairwise layers, expected dim {self.input_dim} as its input and none: it changes nothing"
            )

    @classmethod
    def preset(cls, name: str, input_dim: int = 256) -> LinGlueConfig:
        """A named configuration for descriptors of length `input_dim`.

        Args:
            name: one of PRESETS.
            input_dim: length of the descriptors.

        Returns:
            The configuration.

        Example:
            >>> LinGlueConfig.preset("geo", input_dim=128).geometry
            True
        """
        if name not in PRESETS:
            raise LinGlueError(f"preset is {name!r}, expected {', '.join(PRESETS)}")
        own: dict[str, Any] = {"dim": input_dim} if name == "raw" else {}
        if name == "geo" and input_dim == cls.dim:
            own["input_scale"] = float(cls.dim**0.5)
        return cls(input_dim=input_dim, **PRESETS[name], **own)

    def to_json(self) -> str:
        """As one line of text, which weights carry.

        Returns:
            JSON.

        Example:
            >>> LinGlueConfig.from_json(LinGlueConfig().to_json()) == LinGlueConfig()
            True
        """
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> LinGlueConfig:
        """Read what `to_json` wrote.

        Args:
            text: of `to_json`.

        Returns:
            The configuration.

        Example:
            >>> LinGlueConfig.from_json('{"dim": 32}').dim
            32
        """
        values = json.loads(text)
        if not isinstance(values, dict):
            raise TypeError("expected an object")
        unknown = set(values) - {f.name for f in fields(cls)}
        if unknown:
            raise LinGlueError(f"network configuration has unknown entries {sorted(unknown)}: made by a newer LinGlue?")
        voting = values.pop("voting", None)
        context = values.pop("context", None)
        return cls(
            **values,
            context=None if context is None else ContextConfig(**context),
            voting=None if voting is None else VotingConfig(**voting),
        )


PRESETS: dict[str, dict[str, Any]] = {
    "pair": {},
    "pair-wo-sep": {"separation": False},
    "pair-wo-sep-inp": {"separation": False, "select_from_input": True},
    "linear": {"linear_blocks": 10, "pairwise_layers": 0},
    "pair-large": {"dim": 256},
    "linear-sinkhorn": {"dim": 256, "first_layer": False, "pairwise_layers": 0, "sinkhorn": True},
    "geo": {"geometry": True},
    # Softmax attention to few keypoints; starts from LightGlue's first layers (`linglue.training.lightglue`).
    "context": {
        "first_layer": False,
        "linear_blocks": 0,
        "pairwise_layers": 0,
        "heads": 1,
        "context": ContextConfig(),
    },
    # No layers: descriptors go to the learned consensus as they are.
    "raw": {"first_layer": False, "linear_blocks": 0, "pairwise_layers": 0, "heads": 1},
}


@dataclass(frozen=True)
class WeightsInfo:
    """What a weights file says about itself."""

    kind: str  # features it was made for; others are refused
    preset: str  # name of its configuration
    licence: str
    training: str  # one line: how it was made
    config: LinGlueConfig


def packaged_weights(name: str) -> Path:
    """Path of the weights that come with the package for front-end `name`; it may not exist."""
    return PACKAGED / f"{name}.safetensors"


def require_weights(name: str) -> Path:
    """The packaged weights for front-end `name`, or an error that says what there is."""
    path = packaged_weights(name)
    if not path.is_file():
        there = ", ".join(sorted(p.stem for p in PACKAGED.glob("*.safetensors")))
        raise LinGlueError(
            f"no network for {name!r} features is packaged (there are: {there}), expected your own with --weights"
        )
    return path


def write_weights(path: str | Path, tensors: Mapping[str, Tensor], info: WeightsInfo) -> None:
    """Write the tensors of a network in float16 to the file `path`, with its `info`, atomically."""
    path = Path(path)
    halves = {name: value.detach().half().contiguous().cpu() for name, value in tensors.items()}
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_path(path) as temporary:
        save_file(halves, temporary, {**vars(info), "config": info.config.to_json()})


def read_info(path: str | Path) -> WeightsInfo:
    """The header of a weights file, without its tensors."""
    path = Path(path)
    if not path.is_file():
        raise LinGlueError(f"{path}: no such weights file")
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
    except SafetensorError as error:
        raise LinGlueError(f"{path}: not a safetensors file ({error})") from error
    missing = {"config", "kind", "preset", "licence", "training"} - set(metadata)
    if missing:
        raise LinGlueError(f"{path}: not LinGlue weights, its header lacks {', '.join(sorted(missing))}")
    try:
        config = LinGlueConfig.from_json(metadata["config"])
    except (ValueError, TypeError) as error:  # no JSON, values of the wrong type, sizes that do not go together
        raise LinGlueError(f"{path}: the network configuration in its header cannot be used ({error})") from error
    return WeightsInfo(metadata["kind"], metadata["preset"], metadata["licence"], metadata["training"], config)


def read_weights(path: str | Path, wanted: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of a weights file in float32.

    Args:
        path: the file.
        wanted: those of the network that its configuration describes; every one must fit.
    """
    with safe_open(path, framework="pt") as file:
        state = {name: file.get_tensor(name).float() for name in file.keys()}  # noqa: SIM118 (not a dict)
    want, have = ({name: tuple(v.shape) for name, v in tensors.items()} for tensors in (wanted, state))
    for name in sorted(want.keys() | have.keys()):
        if want.get(name) != have.get(name):
            raise LinGlueError(
                f"{path}: {name} has shape {have.get(name, 'none (missing)')}, "
                f"expected {want.get(name, 'no such tensor')} for the configuration in its header"
            )
    broken = next((name for name, value in state.items() if not value.isfinite().all()), None)
    if broken is not None:
        raise LinGlueError(f"{path}: {broken} holds NaN or infinite values, expected finite weights")
    return state


def presets() -> list[dict[str, object]]:
    """Names, descriptor sizes, licences and networks of what `Matcher.from_pretrained` can load.

    Returns:
        One dictionary per front-end with a network in the package.

    Example:
        >>> [found["name"] for found in presets() if not found["needs_extractor_weights"]]
        ['linpoint', 'sift']
    """
    found: list[dict[str, object]] = []
    for name, front_end in FRONT_ENDS.items():
        path = packaged_weights(name)
        if path.is_file():
            info = read_info(path)
            found.append(
                {
                    "name": name,
                    "dim": info.config.input_dim,
                    "network": info.preset,
                    "network_dim": info.config.dim,
                    "training": info.training,
                    "network_licence": info.licence,
                    "features_licence": front_end.licence,
                    "needs_extractor_weights": front_end.needs_weights,
                    "weights_source": front_end.weights_source,
                }
            )
    return found
