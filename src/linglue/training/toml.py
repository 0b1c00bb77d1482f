"""Reads a configuration, any dataclass, from a TOML file: unknown entries are refused, errors are one line."""

from __future__ import annotations

import json
import tomllib
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

from pydantic import ConfigDict, ValidationError, create_model

from linglue.errors import LinGlueError

T = TypeVar("T")
WORDS = {
    "int_type": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "string_type": "text",
    "path_type": "a path",
    "tuple_type": "a list",
}
ROOT = "file"  # the name under which pydantic sees the whole file


def read_toml(path: str | Path, kind: type[T]) -> T:
    """The configuration in a TOML file.

    Args:
        path: the file. Relative paths in it start at its folder.
        kind: a dataclass; its fields may be dataclasses, numbers, text, paths, and tuples of these.

    Returns:
        A `kind`; what the file leaves out has its default, what it has too much is refused.
    """
    path = Path(path)
    try:
        if path.exists() and not path.is_file():
            raise LinGlueError(f"{path}: not a regular file, expected a TOML file")
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise LinGlueError(f"{path}: cannot be read ({error.strerror})") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise LinGlueError(f"{path}: not a TOML file ({error})") from error
    # As JSON a list may be a tuple and text a path; nothing else is converted.
    strict = ConfigDict(extra="forbid", strict=True)
    model: Any = create_model("File", __config__=strict, **{ROOT: (kind, ...)})  # type: ignore[call-overload]
    try:
        read = getattr(model.model_validate_json(json.dumps({ROOT: values}, default=_refuse)), ROOT)
        found: T = _rebased(read, values, path.parent)
        return found
    except ValidationError as error:
        raise LinGlueError(f"{path}: {_line(error, kind)}") from error
    except LinGlueError as error:
        raise LinGlueError(f"{path}: {error}") from error


def _refuse(value: Any) -> None:
    raise LinGlueError(f"{value} is a date or time, expected numbers, text, true, false, lists and tables")


def _rebased(value: Any, given: Any, folder: Path) -> Any:
    """The configuration with the paths that were given relative to `folder`; defaults stay as they are."""
    if isinstance(given, dict):
        return replace(value, **{name: _rebased(getattr(value, name), part, folder) for name, part in given.items()})
    if isinstance(value, tuple):
        return tuple(_rebased(v, g, folder) for v, g in zip(value, given, strict=True))
    return folder / value if isinstance(value, Path) else value


def _line(error: ValidationError, kind: type) -> str:
    """The first of pydantic's complaints in our words: entry, value, expectation."""
    first = error.errors(include_url=False)[0]
    where = [str(part) for part in first["loc"][1:]]
    name, reason = ".".join(where), str(first["type"])
    if reason in ("unexpected_keyword_argument", "extra_forbidden"):
        return f"unknown entry {name}, expected {', '.join(_known(kind, where[:-1]))}"
    if reason in ("dataclass_type", "dataclass_exact_type"):
        return f"{name} is {first['input']!r}, expected a table [{name}]"
    if reason == "value_error":  # ours: it says all
        return str(first["ctx"]["error"])
    words = WORDS.get(reason) or first["msg"].removeprefix("Input should be ").replace("'", "")
    return f"{name} is {first['input']!r}, expected {words}"


def _known(kind: type, where: list[str]) -> list[str]:
    """The entries of the table at `where`."""
    for name in where:
        kind = get_type_hints(kind).get(name, kind)
        if not is_dataclass(kind):
            return []
    return [f.name for f in fields(kind)]
