"""The matchers to compare: from names to configurations, and which of them can run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from linglue.errors import LinGlueError
from linglue.evaluation.peers import NoWeights
from linglue.matcher import MATCHERS, MatcherConfig
from linglue.sfm.extract import ExtractConfig

Methods = Sequence[str | MatcherConfig] | Mapping[str, MatcherConfig]


@dataclass(frozen=True)
class Prepared:
    """The matchers of an evaluation."""

    ready: dict[str, MatcherConfig]  # by the name that tables show
    settings: dict[str, dict[str, Any]]  # all that decides the results of each
    missing: dict[str, str]  # peers whose weights are not at hand, and what they lack


def prepare(methods: Methods, extract: ExtractConfig) -> Prepared:
    """Build every matcher once, so that what one lacks is said before any work.

    Args:
        methods: names of `linglue.matcher.MATCHERS`, configurations, or configurations by the name to show.
        extract: how features are taken; names get matchers for its front-end.

    Raises:
        LinGlueError: a matcher is unknown or cannot be used with these features, or none is left.
    """
    ready: dict[str, MatcherConfig] = {}
    settings: dict[str, dict[str, Any]] = {}
    missing: dict[str, str] = {}
    kind = extract.extractor().kind
    for name, config in _named(methods, kind, extract.device).items():
        try:
            settings[name] = dict(config.build().settings)
            ready[name] = config
        except NoWeights as error:
            missing[name] = str(error)
    if not ready:
        lacking = "".join(f"; {line}" for line in missing.values())
        raise LinGlueError(f"no method to measure, expected some of {', '.join(MATCHERS.names())}{lacking}")
    return Prepared(ready, settings, missing)


def _named(methods: Methods, kind: str, device: str) -> dict[str, MatcherConfig]:
    if isinstance(methods, Mapping):
        return dict(methods)
    configs = [MatcherConfig(m, kind, device=device) if isinstance(m, str) else m for m in methods]
    return {config.name: config for config in configs}
