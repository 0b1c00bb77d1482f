"""Whose signals they are: packages that put handlers of their own in the place of ours do not keep them."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def own_sigterm() -> Iterator[None]:
    """After the block SIGTERM does what it did before, whatever a package has installed in it (Ray, COLMAP's log)."""
    handler = signal.getsignal(signal.SIGTERM)
    if handler is None or threading.current_thread() is not threading.main_thread():  # not ours to set
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, handler)
