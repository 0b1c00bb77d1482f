"""Several things at a time: parts of the work that do not depend on each other, by as many threads as torch has.

Most tensors of a match are too small to be worth several threads each, and threads that wait for each other in every
operation cost more than they give. Whole steps are worth it: the two images of a pair, blocks of descriptors, parts of
the candidates. torch, OpenCV and SciPy let other threads run while they compute. What comes out does not depend on the
number of threads: each part is computed by one.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from functools import cache
from typing import TypeVar

import torch

Part = TypeVar("Part")
Result = TypeVar("Result")


class _Team(threading.local):
    size = 1  # threads that the parts of this thread's work are shared out among


_TEAM = _Team()


@contextmanager
def team(device: torch.device) -> Iterator[None]:
    """Inside, torch's threads do not share operations, but the parts of `together`.

    Nothing changes on a GPU, and with gradients: backward knows nothing of parts.

    Args:
        device: where the work is done.
    """
    threads = torch.get_num_threads()
    if threads < 2 or device.type != "cpu" or torch.is_grad_enabled():  # inside another team, too
        yield
        return
    torch.set_num_threads(1)
    _TEAM.size = threads
    try:
        yield
    finally:
        _TEAM.size = 1
        torch.set_num_threads(threads)


def hands() -> int:
    """How many parts `together` does at a time."""
    return _TEAM.size


def together(work: Callable[[Part], Result], parts: Iterable[Part]) -> list[Result]:
    """The same as [work(part) for part in parts], in a `team` several at a time.

    Each thread takes the next part when it is done with one.

    Args:
        work: does a part; must not change what the others read.
        parts: largest first, where they differ.

    Example:
        >>> together(abs, [-2, 1])
        [2, 1]
    """
    parts = list(parts)
    workers = min(hands(), len(parts))
    if workers < 2:
        return [work(part) for part in parts]
    todo, found = deque(enumerate(parts)), dict[int, Result]()
    inference = torch.is_inference_mode_enabled()  # each thread has its own mode

    def help_out() -> None:
        while todo:
            try:
                number, part = todo.popleft()
            except IndexError:  # another one was faster
                return
            found[number] = work(part)

    def help_from_outside() -> None:
        torch.set_num_threads(1)  # each thread has its own number
        with torch.inference_mode(inference), torch.no_grad():
            help_out()

    size, _TEAM.size = _TEAM.size, 1  # a part is done by one thread
    others = [_helpers(os.getpid()).submit(help_from_outside) for _ in range(workers - 1)]
    try:
        help_out()
    finally:
        todo.clear()
        wait(others)
        _TEAM.size = size
    for other in others:
        other.result()  # what went wrong there goes wrong here
    return [found[number] for number in range(len(parts))]


def slices(count: int, size: int) -> Iterator[slice]:
    """Slices of at most `size` things that cover `count`."""
    return (slice(start, min(start + size, count)) for start in range(0, count, size))


@cache
def _helpers(process: int) -> ThreadPoolExecutor:
    """Threads of a process; a forked one has none of its parent's."""
    return ThreadPoolExecutor(os.cpu_count(), thread_name_prefix="together")
