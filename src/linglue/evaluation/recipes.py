"""The methods to compare, in the form the pipeline matches many pairs with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from linglue.evaluation.methods import MethodOptions, make_method
from linglue.pipeline.match import Match


@dataclass(frozen=True)
class MethodRecipe:
    """A method by its name: can be sent to another process and built there."""

    name: str
    options: MethodOptions

    def settings(self) -> Mapping[str, Any]:
        return {"method": self.name, **make_method(self.name, self.options).settings}

    def build(self) -> Match:
        return make_method(self.name, self.options).match
