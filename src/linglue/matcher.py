"""Matchers: images or features in, matches out. `Matcher` is LinGlue; `MATCHERS` are all of them by name."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Protocol
from weakref import WeakKeyDictionary

import torch

from linglue.core.fingerprint import code_sha256
from linglue.core.progress import Stopwatch
from linglue.core.registry import Registry
from linglue.errors import LinGlueError
from linglue.features import DEFAULT_FEATURES, MAX_KEYPOINTS, RESIZE, make_extractor
from linglue.features.base import Extractor
from linglue.io.images import Image, ImageSource, Mask, as_image
from linglue.matching.baselines import MutualNearest, RatioTest
from linglue.matching.match import MatchingConfig, match_descriptors, match_if_settled
from linglue.matching.together import team
from linglue.network.entries import collate, matchable
from linglue.network.linglue import LinGlue
from linglue.network.weights import packaged_weights, read_info, require_weights
from linglue.types import Features, Matches

_CODE = ("matching", "network", "matcher.py", "types.py")  # what decides the matches of given features


class PairMatcher(Protocol):
    """Anything that matches the features of two images.

    Example:
        >>> matcher: PairMatcher = MatcherConfig("mnn").build()
    """

    @property
    def settings(self) -> Mapping[str, Any]:
        """JSON values of all that decides its matches: other settings, other matches."""

    def match(self, features0: Features, features1: Features, /) -> Matches:
        """One-to-one matches between the features of two images, best first.

        Args:
            features0: of image 0.
            features1: of image 1.

        Returns:
            The matches, best first.

        Example:
            >>> MatcherConfig("mnn").build().match(features0, features1)  # doctest: +SKIP
        """


@dataclass(frozen=True)
class MatcherConfig:
    """Which matcher, and how: can be sent to another process and built there.

    Example:
        >>> MatcherConfig("mnn").build().settings.keys()
        dict_keys(['code'])
    """

    name: str = "linglue"  # of MATCHERS, or package:Name of a callable that makes a PairMatcher of a MatcherConfig
    features: str = DEFAULT_FEATURES  # kind of the features to match
    weights: Path | None = None  # your own network; None: the one in the package
    device: str = "cpu"
    matching: MatchingConfig = field(default_factory=MatchingConfig)

    def build(self) -> PairMatcher:
        """The matcher itself, or a LinGlueError that says what it lacks.

        Returns:
            Something that matches; each call makes a new one.

        Example:
            >>> type(MatcherConfig("ratio").build()).__name__
            'RatioTest'
        """
        make = MATCHERS.get(self.name)
        try:
            matcher: PairMatcher = make(self)
        except TypeError as error:
            if ":" not in self.name:
                raise
            raise LinGlueError(f"matcher {self.name!r} cannot be made of a MatcherConfig ({error})") from error
        if not hasattr(matcher, "match"):
            raise LinGlueError(f"matcher {self.name!r} made a {type(matcher).__name__}, expected a PairMatcher")
        return matcher


class Matcher:
    """LinGlue: a front-end, the network made for it, and the matching of the network's descriptors.

    Where it has a `first` network, without layers, pairs that are easy or clearly unrelated are matched by the learned
    consensus on descriptors as they are, and the other ones go through the network.

    Example:
        >>> matcher = Matcher.from_pretrained()
        >>> matcher.match("a.jpg", "b.jpg").draw("matches.png")  # doctest: +SKIP
    """

    def __init__(
        self,
        extractor: Extractor | None,
        network: LinGlue,
        kind: str,
        device: str = "cpu",
        matching: MatchingConfig | None = None,
        first: LinGlue | None = None,
    ) -> None:
        """A matcher of its parts; `from_pretrained` is the usual way.

        Args:
            extractor: the front-end. Without one only `Features` can be matched.
            network: moved to `device` and set to evaluation.
            kind: features the network was made for; others are refused.
            device: where the network runs.
            matching: how the network's descriptors become matches.
            first: of no layers, with a learned consensus; tried first unless `matching.effort` is "full".
        """
        self.extractor = extractor
        self.network = network.to(device).eval()
        self.kind = kind
        self.device = torch.device(device)
        self.matching = matching or MatchingConfig()
        adaptive = self.matching.learned and self.matching.effort == "adaptive"
        self.first = first.to(device).eval() if first is not None and adaptive else None
        self._encoded: WeakKeyDictionary[Features, torch.Tensor] = WeakKeyDictionary()

    @classmethod
    def from_pretrained(
        cls,
        name: str = DEFAULT_FEATURES,
        extractor_weights: str | Path | None = None,
        weights: str | Path | None = None,
        device: str | None = None,
        matching: MatchingConfig | None = None,
    ) -> Matcher:
        """A front-end with the network that comes with the package, or with your own. Nothing is downloaded.

        Args:
            name: of the front-end, or your own as package.module:Class.
            extractor_weights: the front-end's own file where it needs one (superpoint, aliked, disk).
            weights: file of your own network; None: the one in the package.
            device: "cuda" where there is one, unless given.
            matching: how the network's descriptors become matches.

        Returns:
            A matcher that takes images as well as features.

        Example:
            >>> Matcher.from_pretrained("sift", device="cpu").kind
            'sift'
        """
        device = device or ("cuda" if torch.cuda.is_available() else "cpu")
        extractor = make_extractor(name, extractor_weights, device)
        matcher = cls.for_features(extractor.kind, weights, device, matching)
        matcher.extractor = extractor
        return matcher

    @classmethod
    def for_features(
        cls,
        kind: str | None,
        weights: str | Path | None = None,
        device: str = "cpu",
        matching: MatchingConfig | None = None,
    ) -> Matcher:
        """A matcher without front-end, for features that were extracted before.

        Args:
            kind: of the features; None: whatever the network in `weights` was made for.
            weights: file of your own network; None: the one in the package for `kind`.
            device: where the network runs.
            matching: how the network's descriptors become matches.

        Returns:
            A matcher that takes features only.

        Example:
            >>> Matcher.for_features("sift").kind
            'sift'
        """
        if weights is None and kind is None:
            raise LinGlueError("neither kind nor weights is given, expected one of them")
        path = require_weights(str(kind)) if weights is None else Path(weights)
        made_for = read_info(path).kind
        if kind not in (None, made_for):
            raise LinGlueError(f"{path}: network was made for {made_for!r} features, expected one for {kind!r}")
        fast = packaged_weights(f"{made_for}-fast")
        first = LinGlue.load(fast, device) if weights is None and fast.is_file() else None
        return cls(None, LinGlue.load(path, device), made_for, device, matching, first)

    @cached_property
    def settings(self) -> Mapping[str, Any]:
        """JSON values of all that decides the matches of given features."""
        first = None if self.first is None else self.first.sha256()
        matching, code = self.matching.settings(), code_sha256(*_CODE)
        return {"network_sha256": self.network.sha256(), "first_sha256": first, "matching": matching, "code": code}

    def extract(
        self,
        source: ImageSource,
        max_keypoints: int = MAX_KEYPOINTS,
        resize: int | None = RESIZE,
        mask: Mask | None = None,
        tile: int | None = None,
    ) -> Features:
        """Features of an image in pixels of the original; see `Extractor.extract`.

        Args:
            source: a path, a numpy array (H, W[, C]) uint8 or a torch tensor ([C,] H, W) float in [0, 1].
            max_keypoints: strongest kept.
            resize: work at this longer side, never enlarges; None: original.
            mask: (H, W) of the original; keypoints are found only where it is True.
            tile: cut larger images into tiles of this side.

        Returns:
            The features of the image.

        Example:
            >>> len(Matcher.from_pretrained().extract("a.jpg", max_keypoints=100))
            100
        """
        if self.extractor is None:
            raise LinGlueError(f"this matcher has no front-end: it matches ready {self.kind!r} Features only")
        return self.extractor.extract(source, max_keypoints, resize, mask, tile)

    def match(
        self,
        image0: ImageSource | Features,
        image1: ImageSource | Features,
        max_keypoints: int = MAX_KEYPOINTS,
        resize: int | None = RESIZE,
        tile: int | None = None,
    ) -> Matches:
        """Matches between two images, or between features that were extracted before.

        Args:
            image0: path, numpy or torch image, or Features.
            image1: the same for the other image.
            max_keypoints: strongest kept per image.
            resize: work at this longer side, never enlarges; None: original.
            tile: cut larger images into tiles of this side.

        Returns:
            The matches, best first, with the images for drawing.

        Example:
            >>> Matcher.from_pretrained().match("a.jpg", "b.jpg", max_keypoints=300).draw("matches.png")
        """
        watch = Stopwatch(self.device)
        sources = (image0, image1)
        with watch.stage("extract"):
            features = [
                s if isinstance(s, Features) else self.extract(s, max_keypoints, resize, tile=tile) for s in sources
            ]
        found = self._match_batch([(features[0], features[1])], watch)[0]
        return replace(found, image0=_drawable(image0), image1=_drawable(image1))

    def match_batch(self, pairs: Sequence[tuple[Features, Features]], batch_size: int | None = None) -> list[Matches]:
        """Matches of many pairs with any numbers of keypoints; the same as matching one by one.

        On a CPU pairs run one after the other, which is as fast and gives bit-identical results. On a GPU `batch_size`
        pairs (default 8) are padded and run together; padding never enters the arithmetic, sums may round differently.

        Args:
            pairs: features of image 0 and image 1 of each.
            batch_size: pairs that run together; None: 1 on a CPU, 8 on a GPU.

        Returns:
            The matches of every pair, in their order.

        Example:
            >>> Matcher.for_features("sift").match_batch([])
            []
        """
        batch_size = (1 if self.device.type == "cpu" else 8) if batch_size is None else batch_size
        if batch_size < 1:
            raise LinGlueError(f"batch_size is {batch_size}, expected at least 1")
        results: list[Matches] = []
        for start in range(0, len(pairs), batch_size):
            results += self._match_batch(pairs[start : start + batch_size], Stopwatch(self.device))
        return results

    @torch.inference_mode()
    def _match_batch(self, pairs: Sequence[tuple[Features, Features]], watch: Stopwatch) -> list[Matches]:
        for features in itertools.chain(*pairs):
            self._check(features)
        tried = {number: self._first_pass(*pair, watch) for number, pair in enumerate(pairs)}
        found = {number: matches for number, matches in tried.items() if matches is not None}
        if hard := sorted(tried.keys() - found.keys()):
            found.update(zip(hard, self._by_network([pairs[number] for number in hard], watch), strict=True))
        return [found[number] for number in tried]

    def _first_pass(self, features0: Features, features1: Features, watch: Stopwatch) -> Matches | None:
        """The matches of a pair that needs no network, None of one that does."""
        if self.first is None or self.first.voting is None:
            return None
        with watch.stage("first pass"), team(self.device):
            entry0, entry1 = features0.tensors(self.device), features1.tensors(self.device)
            encoded = self.first.encode(entry0, entry1)
            (seen,) = matchable(entry0, entry1, encoded.descriptors0, encoded.descriptors1)
            found = match_if_settled(*seen, self.matching, self.first.voting)
        return None if found is None else Matches.of(features0, features1, *found, timing=dict(watch.seconds))

    def _by_network(self, pairs: Sequence[tuple[Features, Features]], watch: Stopwatch) -> list[Matches]:
        """The matches of pairs that need the network."""
        with team(self.device), watch.stage("network"):
            sides = [[self._entry(features) for features in side] for side in zip(*pairs, strict=True)]
            entry0, entry1 = (side[0] if len(side) == 1 else collate(side) for side in sides)  # one needs no padding
            encoded = self.network.encode(entry0, entry1)
        results, found = [], matchable(entry0, entry1, encoded.descriptors0, encoded.descriptors1)
        for pair, encoded_pair in zip(pairs, found, strict=True):
            matches = match_descriptors(*encoded_pair, self.matching, self.network.dustbin, self.network.voting, watch)
            results.append(Matches.of(*pair, *matches, timing=dict(watch.seconds)))
        return results

    def _entry(self, features: Features) -> dict[str, torch.Tensor]:
        """The network's input, with what it knows of this image from earlier pairs, as long as the features live."""
        entry = features.tensors(self.device)
        if features not in self._encoded:
            self._encoded[features] = self.network.encode_image(entry)
        return {**entry, "encoded": self._encoded[features]}

    def _check(self, features: Features) -> None:
        if features.kind != self.kind:
            raise LinGlueError(f"features are of kind {features.kind!r}, this network was made for {self.kind!r}")
        dim = self.network.config.input_dim
        if features.dim != dim:
            raise LinGlueError(f"descriptors have {features.dim} entries, this network takes {dim}")


def _drawable(source: ImageSource | Features) -> Path | Image | None:
    """What can be opened again for drawing."""
    if isinstance(source, Features):
        return None
    return Path(source) if isinstance(source, str | Path) else as_image(source)


def _linglue(config: MatcherConfig, weights: Path | None = None, matching: MatchingConfig | None = None) -> Matcher:
    made = weights or config.weights
    return Matcher.for_features(config.features, made, config.device, matching or config.matching)


def _linglue_full(config: MatcherConfig) -> Matcher:
    return _linglue(config, matching=replace(config.matching, effort="full"))


def _linglue_fast(config: MatcherConfig) -> Matcher:
    path = packaged_weights(f"{config.features}-fast")
    return _linglue(config, path if config.weights is None and path.is_file() else None)


def _linglue_nofilter(config: MatcherConfig) -> Matcher:
    return _linglue(config, matching=replace(MatchingConfig.unfiltered(), min_score=config.matching.min_score))


def _linglue_paper(config: MatcherConfig) -> Matcher:
    return _linglue(config, matching=replace(MatchingConfig.paper(), min_score=config.matching.min_score))


def _mnn(config: MatcherConfig) -> MutualNearest:
    return MutualNearest(config.device)


def _ratio(config: MatcherConfig, one_way: bool = False) -> RatioTest:
    return RatioTest(config.device, one_way)


_ratio_oneway = partial(_ratio, one_way=True)


MATCHERS = Registry(
    "matcher",
    "linglue.matchers",
    {
        "linglue": "linglue.matcher:_linglue",  # as users get it
        "linglue-full": "linglue.matcher:_linglue_full",  # every pair through the network, as `--effort full`
        "linglue-fast": "linglue.matcher:_linglue_fast",  # the consensus alone, on descriptors as they are
        "linglue-nofilter": "linglue.matcher:_linglue_nofilter",  # mutual nearest neighbours of its descriptors
        "linglue-paper": "linglue.matcher:_linglue_paper",  # the paper's filter, whatever else the network comes with
        "mnn": "linglue.matcher:_mnn",  # mutual nearest neighbours of the raw descriptors
        "ratio": "linglue.matcher:_ratio",  # the same with Lowe's ratio test
        "ratio-oneway": "linglue.matcher:_ratio_oneway",  # Lowe's test alone, as in many published tables
        "adalam": "linglue.evaluation.peers.adalam:AdaLam",
        "lightglue": "linglue.evaluation.peers.lightglue:LightGlue",
        "superglue": "linglue.evaluation.peers.superglue:SuperGlue",
        "superglue-10": "linglue.evaluation.peers.superglue:superglue_10",
        "colmap-sift": "linglue.evaluation.peers.colmap:ColmapSift",
        "loftr": "linglue.evaluation.peers.loftr:LoFTR",
    },
)
