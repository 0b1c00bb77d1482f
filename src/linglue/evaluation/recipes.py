"""The methods to compare, in the form the pipeline matches many pairs with."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from linglue.core.fingerprint import code_sha256, settings_hash
from linglue.evaluation.methods import Method, MethodOptions, make_method
from linglue.matcher import MatcherConfig, PairMatcher
from linglue.sfm.extract import ExtractConfig
from linglue.types import Features, Matches

_FEATURE_CODE = ("features", "geometry/pixels.py", "io/images.py", "types.py")


def scene_folder(work: Path, scene: str, extract: ExtractConfig) -> Path:
    """Where the features of a scene and the matches of all methods lie, for every evaluation in a work folder."""
    return work / scene / settings_hash({**extract.settings(), "code": code_sha256(*_FEATURE_CODE)})


class MethodRecipe(MatcherConfig):
    """A method by its name: can be sent to another process and built there."""

    def __init__(self, name: str, options: MethodOptions) -> None:
        super().__init__(name, options.features, options.weights, options.device)

    def build(self) -> PairMatcher:
        return _BuiltMethod(self.name, make_method(self.name, MethodOptions(self.features, self.weights, self.device)))


class _BuiltMethod:
    """A method as a matcher of pairs."""

    def __init__(self, name: str, method: Method) -> None:
        self.method = method
        self.settings: Mapping[str, Any] = {"method": name, **method.settings}

    def match(self, features0: Features, features1: Features) -> Matches:
        return Matches.of(features0, features1, *self.method.match(features0, features1))
