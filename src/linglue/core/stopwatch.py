"""Seconds per stage."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch


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
        self._cuda = torch.device(device).type == "cuda"

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
            torch.cuda.synchronize()
        return time.perf_counter()
