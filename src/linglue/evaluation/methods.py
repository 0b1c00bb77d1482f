"""Matchers to compare, all on the very same features: LinGlue, what people use, and learned peers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from linglue.core.fingerprint import code_sha256, file_sha256
from linglue.core.optional import need
from linglue.errors import LinGlueError
from linglue.matcher import MatcherConfig
from linglue.network.weights import packaged_weights
from linglue.types import Features, FloatArray, IndexArray

Found = tuple[IndexArray, FloatArray]  # (K, 2) indices into the two feature sets, (K,) scores, higher is better
Match = Callable[[Features, Features], Found]

_HERE = "evaluation/methods.py"
_LIGHTGLUE_FILES = {"aliked": "aliked_lightglue_v0-1_arxiv-pth", "disk": "disk_lightglue_v0-1_arxiv-pth"}


@dataclass(frozen=True)
class MethodOptions:
    """What a user can choose for the methods."""

    features: str = "sift"  # kind of the features to match
    weights: Path | None = None  # LinGlue's network; None: the one in the package
    device: str = "cpu"


@dataclass(frozen=True)
class Method:
    """A matcher ready to run, and all that decides its results."""

    name: str
    match: Match
    settings: Mapping[str, Any]  # JSON values; different settings mean different predictions


def make_method(name: str, options: MethodOptions) -> Method:
    """The method of that name; a LinGlueError lists the allowed names, or says what the method lacks."""
    if name not in METHODS:
        raise LinGlueError(f"method is {name!r}, expected {', '.join(METHODS)}")
    return METHODS[name](options)


def has_network(options: MethodOptions) -> bool:
    """Whether LinGlue can run at all: the user's weights, or some in the package for these features."""
    return options.weights is not None or packaged_weights(options.features).is_file()


def _numpy(indices: torch.Tensor, scores: torch.Tensor) -> Found:
    return indices.cpu().numpy().astype(np.int64).reshape(-1, 2), scores.cpu().numpy().astype(np.float32).reshape(-1)


def _descriptors(features: Features, device: str) -> torch.Tensor:
    return torch.as_tensor(features.descriptors, device=device)


def _built_in(name: str) -> Callable[[MethodOptions], Method]:
    """The matcher of that name in `linglue.matcher.MATCHERS`."""

    def make(options: MethodOptions) -> Method:
        matcher = MatcherConfig(name, options.features, options.weights, options.device).build()

        def match(features0: Features, features1: Features) -> Found:
            found = matcher.match(features0, features1)
            return found.indices, found.scores

        return Method(name, match, matcher.settings)

    return make


def _adalam(options: MethodOptions) -> Method:
    """AdaLAM as kornia has it, with its default settings.

    Its matches are one-way: two keypoints of image 0 may share a partner in image 1.
    """
    kornia = need("kornia", "method adalam")
    feature = need("kornia.feature", "method adalam")
    defaults = need("kornia.feature.adalam", "method adalam").get_adalam_default_config

    def lafs(features: Features) -> torch.Tensor:
        """(1, N, 2, 3) local affine frames; kornia's angle turns the other way than ours."""
        n = len(features)
        scales = np.ones(n, np.float32) if features.scales is None else features.scales / 2
        oris = np.zeros(n, np.float32) if features.oris is None else features.oris
        points = torch.as_tensor(features.keypoints, device=options.device)[None]
        frames: torch.Tensor = feature.laf_from_center_scale_ori(
            points,
            torch.as_tensor(scales, device=options.device).reshape(1, n, 1, 1),
            torch.as_tensor(np.degrees(-oris), device=options.device).reshape(1, n, 1),
        )
        return frames

    @torch.inference_mode()
    def match(features0: Features, features1: Features) -> Found:
        if min(len(features0), len(features1)) < 2:  # it needs a second nearest neighbour
            return np.zeros((0, 2), np.int64), np.zeros(0, np.float32)
        config = defaults()
        config["device"] = torch.device(options.device)
        if features0.oris is None or features1.oris is None:
            config["orientation_difference_threshold"] = None
        if features0.scales is None or features1.scales is None:
            config["scale_rate_threshold"] = None
        quality, indices = feature.match_adalam(
            _descriptors(features0, options.device),
            _descriptors(features1, options.device),
            lafs(features0),
            lafs(features1),
            config=config,
            hw1=features0.image_size[::-1],
            hw2=features1.image_size[::-1],
        )
        quality = quality.reshape(-1)  # inverse confidence
        order = torch.argsort(quality, stable=True)
        return _numpy(indices.reshape(-1, 2)[order], 1 - quality[order])

    return Method("adalam", match, {"kornia": kornia.__version__, "code": code_sha256(_HERE)})


def _lightglue(options: MethodOptions) -> Method:
    """LightGlue through kornia with its default settings; its weights must lie in torch's cache (TORCH_HOME)."""
    if options.features not in _LIGHTGLUE_FILES:
        allowed = ", ".join(_LIGHTGLUE_FILES)
        raise LinGlueError(f"method lightglue has no weights for {options.features!r} features, expected {allowed}")
    weights = Path(torch.hub.get_dir()) / "checkpoints" / _LIGHTGLUE_FILES[options.features]
    if not weights.is_file():  # kornia would download it
        raise LinGlueError(f"{weights}: method lightglue needs this weights file (folder: set TORCH_HOME)")
    kornia = need("kornia", "method lightglue")
    net = need("kornia.feature", "method lightglue").LightGlue(options.features).eval().to(options.device)

    def entry(features: Features) -> dict[str, torch.Tensor]:
        tensors = features.tensors(options.device)
        # kornia refuses keypoints outside the image; an upscaled one may lie half a pixel beyond its border.
        tensors["keypoints"] = torch.minimum(tensors["keypoints"].clamp(min=0), tensors["image_size"][:, None])
        return tensors

    @torch.inference_mode()
    def match(features0: Features, features1: Features) -> Found:
        found = net({"image0": entry(features0), "image1": entry(features1)})
        return _numpy(found["matches"][0], found["scores"][0])

    settings = {"weights_sha256": file_sha256(weights), "kornia": kornia.__version__, "code": code_sha256(_HERE)}
    return Method("lightglue", match, settings)


METHODS: dict[str, Callable[[MethodOptions], Method]] = {
    "mnn": _built_in("mnn"),
    "ratio": _built_in("ratio"),
    "adalam": _adalam,
    "linglue": _built_in("linglue"),
    "linglue-nofilter": _built_in("linglue-nofilter"),
    "lightglue": _lightglue,
}
