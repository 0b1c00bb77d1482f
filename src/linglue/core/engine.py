"""Where tasks run: one interface, which the process pool and Ray implement; stages do not know which of them it is."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

Task = TypeVar("Task")
Result = TypeVar("Result")
Make = Callable[[], Callable[..., Any]]  # builds the function that does one task, once per process

IN_FLIGHT = 2  # tasks per worker handed out at a time, so that finished results never pile up
SHARED_KEPT = 16  # shared things that a worker keeps in memory


@dataclass(frozen=True)
class Shared(Generic[Task]):
    """What many tasks read, such as the features of an image: the work gets the things themselves.

    Args:
        names: what a task reads.
        load: reads one of them; the pool calls it in its workers, Ray in the driver, once per image and node.
    """

    names: Callable[[Task], Sequence[Hashable]]
    load: Callable[[Any], Any]


@dataclass(frozen=True)
class Files(Generic[Task]):
    """Files that tasks read: the work gets paths at which it finds them, which need not be the original ones.

    Args:
        paths: the files of a task.
    """

    paths: Callable[[Task], Sequence[Path]]


class Engine(Protocol):
    """Does many tasks: results as they come, little in flight, one process that writes them."""

    @property
    def threads(self) -> int:
        """Of each worker."""

    def run(
        self, make: Make, tasks: Sequence[Task], inputs: Shared[Task] | Files[Task] | None = None
    ) -> Iterator[tuple[Task, Any]]:
        """Do all tasks. What `make` makes, and tasks and results, must be picklable.

        Args:
            make: builds the function that does one task, called as `work(task, *inputs)`; once per process.
            tasks: what is to be done.
            inputs: what they read beside themselves.

        Returns:
            Each task with its result, as they come, in any order.
        """
