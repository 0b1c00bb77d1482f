"""The methods to compare, in the form the pipeline matches many pairs with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from linglue.core.fingerprint import code_sha256, settings_hash
from linglue.evaluation.methods import MethodOptions, make_method
from linglue.sfm.extract import ExtractConfig
from linglue.sfm.match import Match

_FEATURE_CODE = ("features", "geometry/pixels.py", "io/images.py", "types.py")


def scene_folder(work: Path, scene: str, extract: ExtractConfig) -> Path:
    """Where the features of a scene and the matches of all methods lie, for every evaluation in a work folder."""
    return work / scene / settings_hash({**extract.settings(), "code": code_sha256(*_FEATURE_CODE)})


@dataclass(frozen=True)
class MethodRecipe:
    """A method by its name: can be sent to another process and built there."""

    name: str
    options: MethodOptions

    def settings(self) -> Mapping[str, Any]:
        return {"method": self.name, **make_method(self.name, self.options).settings}

    def build(self) -> Match:
        return make_method(self.name, self.options).match
