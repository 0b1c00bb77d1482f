"""Running commands in this process, with all that they print caught, C libraries' messages included."""

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from linglue.cli import main


@dataclass(frozen=True)
class Outcome:
    code: int
    out: str
    err: str


@pytest.fixture
def run(capfd) -> Callable[..., Outcome]:
    """run("match", path, …) → exit code and what went to the two outputs."""

    def call(*arguments: object) -> Outcome:
        capfd.readouterr()
        try:
            code = main([str(argument) for argument in arguments])
        except SystemExit as end:  # argparse
            code = int(end.code or 0)
        return Outcome(code, *capfd.readouterr())

    return call
