"""What is timed against the number of keypoints: our presets, the packaged networks and the peers, in their parts.

Presets without weights run as the identity start, so that as many matches as in a real image reach the matching; peers
without weights run with random ones, which take as long.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import isqrt

import numpy as np
import torch

from linglue.core.progress import Stopwatch
from linglue.evaluation.peers import NoWeights
from linglue.evaluation.peers.lightglue import LightGlue
from linglue.evaluation.peers.loftr import LoFTR
from linglue.evaluation.peers.superglue import SuperGlue, superglue_10
from linglue.io.images import Image
from linglue.matcher import MatcherConfig, PairMatcher
from linglue.matching.match import MatchingConfig, match_descriptors
from linglue.network.entries import matchable
from linglue.network.linglue import LinGlue
from linglue.network.weights import PRESETS, LinGlueConfig, require_weights
from linglue.types import Features

DIMS = {"sift": 128, "superpoint": 256, "aliked": 128, "disk": 128, "xfeat": 64, "linpoint": 64}
PEERS: dict[str, Callable[..., PairMatcher]] = {  # which can do without weights
    "superglue": SuperGlue,
    "superglue-10": superglue_10,
    "lightglue": LightGlue,
    "loftr": LoFTR,
}
CELL = 8  # pixels: LoFTR matches squares of this side, which stand for keypoints

Run = Callable[[Features, Features, Stopwatch], int]  # matches a pair, puts its parts into stages, returns the number


@dataclass(frozen=True)
class Subject:
    """What is timed: a preset of ours, the packaged network of a front-end, or any matcher by name.

    Args:
        name: of `network.weights.PRESETS` or of `matcher.MATCHERS`; "linglue": the packaged network for `features`,
            with full effort.
        features: kind of the features it gets.
        label: what tables call it, where that is not its name.
    """

    name: str
    features: str = "superpoint"
    label: str = ""

    @property
    def shown(self) -> str:
        """What tables call it."""
        return self.label or self.name

    @property
    def dim(self) -> int:
        """Length of the descriptors."""
        return DIMS[self.features]


def build(subject: Subject) -> tuple[Run, bool]:
    """A function that matches a pair and says which part is running; and whether its weights are random.

    Args:
        subject: a preset of ours or a matcher by name.

    Raises:
        LinGlueError: it is unknown.
    """
    if subject.name in PRESETS:
        return _parts_of(_preset(subject)), False
    if subject.name == "linglue":
        return _parts_of(LinGlue.load(require_weights(subject.features)).eval()), False
    config = MatcherConfig(subject.name, subject.features)
    try:
        return _run(config.build()), False
    except NoWeights:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return _run(PEERS[subject.name](config, untrained=True)), True


def _run(matcher: PairMatcher) -> Run:
    """Its own parts where it has any, else all of it as one."""
    if isinstance(matcher, LoFTR):
        return _run_on_images(matcher)
    parts = getattr(matcher, "match_in_parts", None)
    if parts is not None:
        return lambda zero, one, watch: len(parts(zero, one, watch))
    part = "network" if hasattr(matcher, "net") else "matching"

    def whole(features0: Features, features1: Features, watch: Stopwatch) -> int:
        with watch.stage(part):
            return len(matcher.match(features0, features1))

    return whole


def _run_on_images(matcher: LoFTR) -> Run:
    """Two images with as many cells as there are keypoints."""

    def whole(features0: Features, features1: Features, watch: Stopwatch) -> int:
        images = _noise(len(features0), 0), _noise(len(features1), 1)
        with watch.stage("network"):
            return len(matcher.forward(*images)["confidence"])

    return whole


def _noise(cells: int, seed: int) -> Image:
    """(H, W, 3), nearly square."""
    rows = isqrt(cells)
    shape = (CELL * rows, CELL * round(cells / rows), 3)
    return np.random.default_rng(seed).integers(256, size=shape, dtype=np.uint8)


def _preset(subject: Subject) -> LinGlue:
    """The identity start of a preset: the network keeps the directions that carry most of the descriptors."""
    config = LinGlueConfig.preset(subject.name, subject.dim)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = LinGlue(config).eval()
    network.initialise_identity(torch.eye(subject.dim, config.dim))
    return network


def _parts_of(network: LinGlue) -> Run:
    """What a `Matcher` does with a pair, as two parts; nothing is remembered from one pair to the next."""

    def run(features0: Features, features1: Features, watch: Stopwatch) -> int:
        entry0, entry1 = features0.tensors(), features1.tensors()
        with watch.stage("network"):
            encoded = network.encode(entry0, entry1)
        (pair,) = matchable(entry0, entry1, encoded.descriptors0, encoded.descriptors1)
        with watch.stage("matching"):
            return len(match_descriptors(*pair, MatchingConfig(effort="full"), network.dustbin, network.voting)[0])

    return run
