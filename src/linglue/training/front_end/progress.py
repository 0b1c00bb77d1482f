"""How far a long run is: a bar in a terminal, lines where output goes to a file or a pipe; both on standard error."""

from __future__ import annotations

import sys
import time

from tqdm import tqdm

SECONDS = 20.0  # between two lines


class Progress:
    """Counts towards a total; a context manager.

    Args:
        label: what is being done, e.g. "lessons".
        total: how much there is to do.
        done: how much was done before.

    Example:
        >>> with Progress("lessons", 2) as progress:
        ...     for image in ("a.jpg", "b.jpg"):
        ...         progress.advance()
    """

    def __init__(self, label: str, total: int, done: int = 0) -> None:
        self._label, self._total, self._done = label, total, done
        self._bar = tqdm(total=total, initial=done, desc=label, disable=None)
        self._next_line = time.monotonic() + SECONDS

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *error: object) -> None:
        self._bar.close()

    def advance(self, note: str = "") -> None:
        """One more is done; `note` says how it goes."""
        self._done += 1
        self._bar.set_postfix_str(note, refresh=False)
        self._bar.update()
        if self._bar.disable and (time.monotonic() >= self._next_line or self._done == self._total):
            self._next_line = time.monotonic() + SECONDS
            print(f"{self._label}: {self._done} of {self._total}{note and ', '}{note}", file=sys.stderr, flush=True)

    def line(self, text: str) -> None:
        """Something that stays in sight."""
        self._bar.write(text, file=sys.stderr)
