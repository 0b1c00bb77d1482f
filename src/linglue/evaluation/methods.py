"""The methods to compare: from names to front-ends and matchers, and which of them can run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from linglue.errors import LinGlueError
from linglue.evaluation.peers import FRONT_END_FILES, PEER_FRONT_ENDS, NoWeights, find_peer_file
from linglue.features import EXTRACTORS
from linglue.matcher import MATCHERS, MatcherConfig
from linglue.sfm.extract import ExtractConfig


@dataclass(frozen=True)
class Method:
    """A front-end and the matcher of its features.

    Args:
        extract: how features are taken.
        matcher: how they are matched.
    """

    extract: ExtractConfig
    matcher: MatcherConfig


Methods = Sequence[str | MatcherConfig] | Mapping[str, MatcherConfig | Method]


@dataclass(frozen=True)
class Prepared:
    """The methods of an evaluation.

    Args:
        ready: by the name that tables show.
        settings: all that decides the results of each.
        missing: those whose weights are not at hand, and what they lack.
    """

    ready: dict[str, Method]
    settings: dict[str, dict[str, Any]]
    missing: dict[str, str]

    def by_front_end(self) -> list[tuple[ExtractConfig, dict[str, MatcherConfig]]]:
        """The matchers by name, together with those that see the same features."""
        groups: dict[ExtractConfig, dict[str, MatcherConfig]] = {}
        for name, method in self.ready.items():
            groups.setdefault(method.extract, {})[name] = method.matcher
        return list(groups.items())


def parse_method(text: str, extract: ExtractConfig) -> Method:
    """A method from its name.

    Args:
        text: MATCHER, FRONT_END:MATCHER or FRONT_END:MATCHER@WEIGHTS; a matcher may also be package:Name. MATCHER/N is
            given at most N keypoints, for peers that cannot take all.
        extract: number of keypoints, image size and device of all methods, and the front-end of those that name none.

    Example:
        >>> method = parse_method("sift:ratio/1024", ExtractConfig("aliked"))
        >>> method.extract.features, method.matcher.name, method.extract.max_keypoints
        ('sift', 'ratio', 1024)
    """
    text, _, weights = text.partition("@")
    text, slash, count = text.partition("/")
    if slash:
        if not count.isdecimal():
            raise LinGlueError(f"method is {text}/{count}, expected a number of keypoints after the slash")
        extract = replace(extract, max_keypoints=min(extract.max_keypoints, int(count)))
    front_end, colon, matcher = text.partition(":")
    if not colon or front_end not in (*EXTRACTORS.names(), *PEER_FRONT_ENDS):
        front_end, matcher = extract.features, text
    if front_end != extract.features:
        own = find_front_end_file(front_end)
        extract = replace(extract, features=PEER_FRONT_ENDS.get(front_end, front_end), weights=own)
    return Method(extract, MatcherConfig(matcher, extract.features, Path(weights) if weights else None, extract.device))


def find_front_end_file(name: str) -> Path | None:
    """The peers' weights of a front-end, where they are at hand; None: it finds its own.

    Args:
        name: of the front-end.
    """
    try:
        return find_peer_file(FRONT_END_FILES[name], f"front-end {name}") if name in FRONT_END_FILES else None
    except NoWeights:
        return None


def prepare(methods: Methods, extract: ExtractConfig) -> Prepared:
    """Build every method once, so that what one lacks is said before any work.

    Args:
        methods: names (see `parse_method`), configurations, or configurations by the name to show.
        extract: how features are taken, unless a method says otherwise.

    Raises:
        LinGlueError: a method is unknown or cannot be used with its features, or none is left.
    """
    ready: dict[str, Method] = {}
    settings: dict[str, dict[str, Any]] = {}
    missing: dict[str, str] = {}
    for name, method in _named(methods, extract).items():
        try:
            kind = _kind(method.extract, own=method.extract == extract)
            if ":" in method.matcher.features:  # the class of a front-end, whose kind is known only now
                method = replace(method, matcher=replace(method.matcher, features=kind))
            settings[name] = {**method.matcher.build().settings, "front_end": method.extract.settings()}
            ready[name] = method
        except NoWeights as error:
            missing[name] = str(error)
    if not ready:
        lacking = "".join(f"; {line}" for line in missing.values())
        raise LinGlueError(f"no method to measure, expected some of {', '.join(MATCHERS.names())}{lacking}")
    return Prepared(ready, settings, missing)


def _kind(extract: ExtractConfig, own: bool) -> str:
    """The kind of the features; the common front-end must be there, that of one method may lack its weights."""
    try:
        return extract.extractor().kind
    except LinGlueError as error:
        if own:
            raise
        raise NoWeights(str(error)) from error


def _named(methods: Methods, extract: ExtractConfig) -> dict[str, Method]:
    if isinstance(methods, Mapping):
        return {name: m if isinstance(m, Method) else Method(extract, m) for name, m in methods.items()}
    found = {}
    for method in methods:
        if isinstance(method, MatcherConfig):
            found[method.name] = Method(extract, method)
        else:
            found[method] = parse_method(method, extract)
    return found
