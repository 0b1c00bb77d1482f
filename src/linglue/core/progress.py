"""What people see of a long run: a bar on a terminal, a line now and then in logs, and seconds per stage."""

from __future__ import annotations

import io
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from enum import IntEnum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from tqdm import tqdm


class Verbosity(IntEnum):
    """How much a command says beside its result."""

    QUIET = 0
    NORMAL = 1
    VERBOSE = 2


INTERVALS = {Verbosity.NORMAL: 30.0, Verbosity.VERBOSE: 5.0}  # seconds between two lines where there is no terminal
_LINE = "{desc}: {n_fmt} of {total_fmt}, {elapsed} so far, {remaining} left{postfix}"

_verbosity = Verbosity.NORMAL


def set_verbosity(verbosity: Verbosity) -> None:
    """For all that this process does from now on."""
    global _verbosity
    _verbosity = verbosity


def verbosity() -> Verbosity:
    """What `set_verbosity` said."""
    return _verbosity


def progress(items: Iterable[Any] | None = None, **options: Any) -> tqdm:
    """Like `tqdm`, for anything that may take long.

    Args:
        items: to go through; None: the caller says `update()`.
        options: tqdm's, such as `desc`, `unit` and `total`.

    Example:
        >>> [number for number in progress(range(3), desc="count", unit="number")]
        [0, 1, 2]
    """
    from tqdm import tqdm  # here: usage errors and --help need no progress bars

    if _verbosity is Verbosity.QUIET:
        return tqdm(items, **{**options, "disable": True})
    if sys.stderr.isatty():
        return tqdm(items, **options)
    every = INTERVALS[_verbosity]
    lines = {"file": _Lines(), "bar_format": _LINE, "delay": every, "mininterval": every, "miniters": 1, "leave": False}
    return tqdm(items, **{**options, **lines})


class _Lines(io.TextIOBase):
    """What tqdm draws over and over, as lines of standard error."""

    def write(self, text: str) -> int:
        line = text.strip("\r\n ")
        if line:
            sys.stderr.write(f"{line}\n")
            sys.stderr.flush()
        return len(text)


class Stopwatch:
    """Adds up the wall-clock seconds of named stages.

    Args:
        device: where the work is done; on a GPU, a stage ends when its kernels have.

    Example:
        >>> watch = Stopwatch()
        >>> with watch.stage("sum"):
        ...     total = sum(range(1000))
        >>> list(watch.seconds)
        ['sum']
    """

    def __init__(self, device: torch.device | str = "cpu") -> None:
        self.seconds: dict[str, float] = {}
        self._cuda = str(device).startswith("cuda")

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Add the seconds until the `with` block ends to those of this stage."""
        start = self._now()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + self._now() - start

    def _now(self) -> float:
        if self._cuda:  # kernels run on after their launch returned
            import torch

            torch.cuda.synchronize()
        return time.perf_counter()
