"""docs/api.md lists what others may build on; each of it says what it takes, what it returns, and shows one use."""

import inspect
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import linglue

API = Path(__file__).parents[1] / "docs" / "api.md"
CONSTANTS = {"linglue": {"__version__"}, "linglue.features": {"DEFAULT_FEATURES", "EXTRACTORS", "FRONT_ENDS"}}
CONSTANTS["linglue.features"] |= {"MAX_KEYPOINTS", "RESIZE"}


def listed() -> dict[str, list[str]]:
    """Names by module, as the table has them."""
    rows = re.findall(r"^\| `(linglue[\w.]*)` \| (.*) \|$", API.read_text(encoding="utf-8"), re.M)
    return {module: re.findall(r"`(\w+)`", names) for module, names in rows}


def public() -> Iterator[tuple[str, Any]]:
    """All that is listed, and the methods of what `linglue` itself exports."""
    for module, names in listed().items():
        for name in names:
            thing = getattr(import_module(module), name)
            yield f"{module}.{name}", thing
            if module == "linglue" and inspect.isclass(thing):
                own = {key: value for key, value in vars(thing).items() if not key.startswith("_")}
                for key, value in own.items():
                    method = value.__func__ if isinstance(value, classmethod | staticmethod) else value
                    if inspect.isfunction(method):
                        yield f"{module}.{name}.{key}", method


PUBLIC = dict(public())


@pytest.mark.parametrize("module", [name for name in listed() if hasattr(import_module(name), "__all__")])
def test_the_list_is_what_is_exported(module: str) -> None:
    assert {*listed()[module], *CONSTANTS.get(module, set())} == set(import_module(module).__all__)


def test_the_list_is_of_every_room_that_users_call() -> None:
    rooms = {module.split(".")[1] for module in listed() if "." in module}
    package = Path(linglue.__file__).parent
    every = {path.parent.name for path in package.glob("*/__init__.py")}
    # Commands; tools of our own; pure functions behind MatchingConfig; the network behind LinGlue.
    assert every - rooms == {"cli", "core", "matching", "network"}


@pytest.mark.parametrize("name", PUBLIC)
def test_it_says_what_it_takes_and_returns_and_shows_one_use(name: str) -> None:
    thing = PUBLIC[name]
    text = inspect.getdoc(thing) or ""
    assert ">>> " in text, "one example is expected"
    if inspect.isclass(thing):
        return  # fields have comments, a constructor of its own has Args
    signature = inspect.signature(thing)
    described = text.partition("Args:")[2]
    for parameter in signature.parameters:
        if parameter not in ("self", "cls"):
            assert re.search(rf"^\s+{parameter}: ", described, re.M), f"{parameter} is not described"
    if signature.return_annotation not in (None, "None"):
        assert "Returns:" in text
