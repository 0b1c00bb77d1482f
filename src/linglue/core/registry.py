"""One way to plug in: named things, built in, from other packages' entry points, or given as `package:Name`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.metadata import entry_points
from inspect import signature
from typing import Any

from linglue.errors import LinGlueError


class Registry:
    """Classes or functions of one kind by name; nothing is imported until it is asked for.

    Args:
        kind: what they are, for messages, e.g. "front-end".
        group: entry-point group in which other packages offer more, e.g. "linglue.front_ends".
        built_in: name → "module:attribute" of what comes with LinGlue.
        takes: what they are called with, if they are functions of one argument.

    Example:
        >>> Registry("function", "linglue.functions", {"root": "math:sqrt"}).get("root")(9)
        3.0
    """

    def __init__(self, kind: str, group: str, built_in: Mapping[str, str], takes: str | None = None) -> None:
        self.kind = kind
        self.takes = takes
        self.group = group
        self._built_in = dict(built_in)

    def names(self) -> list[str]:
        """All names that `get` knows, the built-in ones first; `package:Name` works besides."""
        return [*self._built_in, *sorted({e.name for e in entry_points(group=self.group)} - set(self._built_in))]

    def get(self, name: str) -> Any:
        """The thing itself.

        Args:
            name: one of `names()`, or "package.module:Attribute" of something importable.

        Raises:
            LinGlueError: no such thing, or its module cannot be imported.
        """
        if name in self._built_in:
            return _load(self.kind, self._built_in[name])
        for entry in entry_points(group=self.group):
            if entry.name == name:
                return _load(self.kind, entry.value)
        if ":" in name:
            found = _load(self.kind, name)
            if self.takes is not None and not _takes_one(found):
                raise LinGlueError(f"{self.kind} {name!r} takes other arguments, expected a function of a {self.takes}")
            return found
        raise LinGlueError(f"{self.kind} is {name!r}, expected {', '.join(self.names())}, or package:Name")


def _takes_one(function: Callable[..., Any]) -> bool:
    """Whether it can be called with a single argument, as far as can be told."""
    try:
        signature(function).bind(None)
    except TypeError:
        return False
    except ValueError:  # some functions in C do not say
        return True
    return True


def _load(kind: str, target: str) -> Any:
    """The attribute behind "module:attribute"."""
    module, _, attribute = target.partition(":")
    try:
        found = getattr(import_module(module), attribute)
    except Exception as error:  # another's module may raise anything while it is imported
        why = " ".join(str(error).split()) or type(error).__name__
        raise LinGlueError(f"{kind} {target!r} cannot be loaded ({why}), expected an importable module:Name") from error
    if not callable(found):
        raise LinGlueError(f"{kind} {target!r} is of type {type(found).__name__}, expected a class or function")
    return found
