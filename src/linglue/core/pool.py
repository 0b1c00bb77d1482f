"""Many tasks on several processes: results as they come, little in flight, no process left behind."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from typing import Any, TypeVar

import cv2
import torch

from linglue.errors import LinGlueError

Task = TypeVar("Task")
Result = TypeVar("Result")

MOST_WORKERS = 8  # by default: each holds a network and some features
IN_FLIGHT = 2  # tasks per worker handed out at a time, so that finished results never pile up


def default_workers(device: str) -> int:
    """As many as there are cores; one for a GPU, which it keeps busy."""
    return 1 if device != "cpu" else min(MOST_WORKERS, os.cpu_count() or 1)


def run_all(
    make: Callable[[], Callable[[Task], Result]], tasks: Sequence[Task], workers: int
) -> Iterator[tuple[Task, Result]]:
    """Do all tasks; the cores are shared out among the workers.

    With several workers `make` and all tasks and results must be picklable, and a script needs the usual
    `if __name__ == "__main__"`.

    Args:
        make: builds the function that does one task, once per process.
        tasks: what is to be done.
        workers: processes; with one, everything happens in this process.

    Returns:
        Each task with its result, as they come, in any order.

    Example:
        >>> sorted(run_all(lambda: abs, [-2, 1], workers=1))
        [(-2, 2), (1, 1)]
    """
    if workers < 1:
        raise LinGlueError(f"workers is {workers}, expected at least 1")
    workers = min(workers, len(tasks))
    if workers <= 1:
        if tasks:
            work = make()
            for task in tasks:
                yield task, work(task)
        return
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
                        running[pool.submit(_work_on, task)] = task
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


_work: Callable[[Any], Any] | None = None


def _start_worker(make: Callable[[], Callable[[Any], Any]], threads: int) -> None:
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


def _work_on(task: Any) -> Any:
    assert _work is not None
    return _work(task)
