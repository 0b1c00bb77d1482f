"""The engine of one machine: several processes, of which none is left behind."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import cv2
import torch

from linglue.core.engine import IN_FLIGHT, SHARED_KEPT, Files, Make, Shared, Task
from linglue.errors import LinGlueError

MOST_WORKERS = 8  # by default: each holds a network and some features


def default_workers(device: str) -> int:
    """As many as there are cores; one for a GPU, which it keeps busy."""
    return 1 if device != "cpu" else min(MOST_WORKERS, os.cpu_count() or 1)


@dataclass(frozen=True)
class Pool:
    """Processes of this machine; the cores are shared out among them.

    With several of them a script needs the usual `if __name__ == "__main__"`.

    Args:
        workers: processes; with one, everything happens in this process.

    Example:
        >>> sorted(Pool().run(lambda: abs, [-2, 1]))
        [(-2, 2), (1, 1)]
    """

    workers: int = 1

    def __post_init__(self) -> None:
        if self.workers < 1:
            raise LinGlueError(f"workers is {self.workers}, expected at least 1")

    @property
    def threads(self) -> int:
        """Of each worker."""
        return torch.get_num_threads() if self.workers == 1 else max(1, (os.cpu_count() or 1) // self.workers)

    def run(
        self, make: Make, tasks: Sequence[Task], inputs: Shared[Task] | Files[Task] | None = None
    ) -> Iterator[tuple[Task, Any]]:
        """Do all tasks; see `Engine.run`."""
        workers = min(self.workers, len(tasks))
        load = inputs.load if isinstance(inputs, Shared) else None
        read = (inputs.names if isinstance(inputs, Shared) else inputs.paths) if inputs else _nothing
        if workers > 1:
            yield from _run_processes(_Worker(make, load), tasks, read, workers)
        elif tasks:
            work = _Worker(make, load)()
            for task in tasks:
                yield task, work(task, read(task))


def _nothing(task: Any) -> Sequence[Any]:
    return ()


@dataclass(frozen=True)
class _Worker:
    """Builds the function that does a task with what it reads: things by name, files where they are."""

    make: Make
    load: Callable[[Any], Any] | None

    def __call__(self) -> Callable[[Any, Sequence[Any]], Any]:
        work = self.make()
        if self.load is None:
            return lambda task, paths: work(task, *paths)
        load = lru_cache(SHARED_KEPT)(self.load)
        return lambda task, names: work(task, *map(load, names))


def _run_processes(
    make: _Worker, tasks: Sequence[Task], read: Callable[[Task], Sequence[Any]], workers: int
) -> Iterator[tuple[Task, Any]]:
    threads = max(1, (os.cpu_count() or 1) // workers)
    # Forked children of a process that has used OpenMP can hang, hence spawn.
    context = multiprocessing.get_context("spawn")
    before = set(multiprocessing.active_children())
    with ProcessPoolExecutor(workers, context, _start_worker, (make, threads)) as pool:
        waiting = iter(tasks)
        running: dict[Future[Any], Task] = {}
        try:
            while True:
                with _without_interrupts():  # workers are started here
                    for task in waiting:
                        running[pool.submit(_work_on, task, read(task))] = task
                        if len(running) >= IN_FLIGHT * workers:
                            break
                if not running:
                    return
                for job in wait(running, return_when=FIRST_COMPLETED).done:
                    yield running.pop(job), job.result()
        except BrokenProcessPool as error:
            raise LinGlueError(
                "a worker process was killed, perhaps for want of memory; expected fewer --workers"
            ) from error
        finally:
            pool.shutdown(wait=not running, cancel_futures=True)
            if running:  # interrupted, or not asked for the rest
                for worker in set(multiprocessing.active_children()) - before:
                    worker.terminate()


@contextmanager
def _without_interrupts() -> Iterator[None]:
    """Ctrl-C reaches all processes of a terminal. Those started in the block never see it: their parent ends them."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    previous = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, previous)


_work: Callable[[Any, Sequence[Any]], Any] | None = None


def _start_worker(make: _Worker, threads: int) -> None:
    global _work
    threading.Thread(target=_die_with_parent, daemon=True).start()
    cv2.setNumThreads(threads)
    torch.set_num_threads(threads)
    _work = make()


def _die_with_parent() -> None:
    """A parent that is killed cannot tell its workers to stop."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _work_on(task: Any, reads: Sequence[Any]) -> Any:
    assert _work is not None
    return _work(task, reads)
