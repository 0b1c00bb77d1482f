"""The engine of many machines: Ray. Things travel once per node, results stream back, what a dead node had is redone.

Workers need the same LinGlue as the driver, which is checked; they write nothing, so that a killed driver resumes from
what it has written itself.
"""

from __future__ import annotations

import logging
import os
import pickle
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

import cv2
import torch

from linglue.core.engine import IN_FLIGHT, SHARED_KEPT, Files, Make, Shared, Task
from linglue.core.fingerprint import code_sha256
from linglue.core.optional import need
from linglue.core.signals import own_sigterm
from linglue.errors import LinGlueError

RETRIES = 5  # of a task whose worker or node died
PATIENCE = 15.0  # seconds until a cluster must have answered
RECOUNT = 5.0  # seconds between two looks at how many workers the cluster has now
BUDGET = 0.5  # share of the driver's object store for shared things; beyond it the least recently used travel again


@dataclass(frozen=True)
class Ray:
    """A Ray cluster, or a Ray of this machine's own for as long as this process lives.

    Args:
        workers: tasks at a time; None: as many as the cluster has cores, or GPUs.
        address: HOST:PORT of the head node, of a cluster that this machine has joined; "auto": the one that runs here;
            None: no cluster.
        device: each worker asks for a GPU of its own unless it is "cpu".
        ship_images: files travel to the workers; else they are read by path, from storage that all nodes share.

    Example:
        >>> sorted(Ray(workers=2).run(lambda: abs, [-2, 1]))  # doctest: +SKIP
        [(-2, 2), (1, 1)]
    """

    workers: int | None = None
    address: str | None = None
    device: str = "cpu"
    ship_images: bool = False

    def __post_init__(self) -> None:
        if self.workers is not None and self.workers < 1:
            raise LinGlueError(f"workers is {self.workers}, expected at least 1")

    @property
    def threads(self) -> int:
        """Of each worker."""
        return 1

    def run(
        self, make: Make, tasks: Sequence[Task], inputs: Shared[Task] | Files[Task] | None = None
    ) -> Iterator[tuple[Task, Any]]:
        """Do all tasks; see `Engine.run`."""
        if not tasks:
            return
        ray = self.connect()
        submit = self._submitter(ray, make, inputs)
        waiting = iter(tasks)
        running: dict[Any, Task] = {}
        places, counted = self._places(ray), time.monotonic()
        try:
            while True:
                for task in islice(waiting, max(0, places - len(running))):
                    running[submit(task)] = task
                if not running:
                    return
                done, _ = ray.wait(list(running), timeout=RECOUNT)
                for job in done:
                    yield running.pop(job), _result(ray, job)
                if time.monotonic() - counted > RECOUNT:  # nodes come and go
                    places, counted = self._places(ray), time.monotonic()
        finally:
            for job in running:  # interrupted, or not asked for the rest
                ray.cancel(job, force=True)

    def connect(self) -> Any:
        """The package `ray`, connected to the cluster; what is wrong with it is a LinGlueError."""
        os.environ["RAY_USAGE_STATS_ENABLED"] = "0"  # no telemetry
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # what Ray warns about otherwise
        ray = need("ray", "--engine ray")
        if not ray.is_initialized():
            quiet = {"log_to_driver": False, "logging_level": logging.ERROR}
            if self.address is None:
                _start(ray, {"num_cpus": self.workers, "include_dashboard": False, **quiet})
            else:
                self._join(ray, self.address, quiet)
        kind = "CPU" if self.device == "cpu" else "GPU"
        if ray.cluster_resources().get(kind, 0) < 1:
            raise LinGlueError(
                f"the Ray cluster has no {kind}, expected at least one for --device {self.device} to run on"
            )
        return ray

    def _join(self, ray: Any, address: str, quiet: dict[str, Any]) -> None:
        wrong = f"--address is {address!r}, expected HOST:PORT of a Ray cluster that this machine has joined"
        if address != "auto":
            _check_reachable(address, wrong)
        try:
            with own_sigterm():
                ray.init(address, **quiet)
        except (ConnectionError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
            raise LinGlueError(f"{wrong} ({' '.join(str(error).split())[:200]})") from error

    def _places(self, ray: Any) -> int:
        """How many tasks may be in flight now."""
        if self.workers is not None and self.address is not None:
            return self.workers
        kind = "CPU" if self.device == "cpu" else "GPU"
        return max(1, IN_FLIGHT * int(ray.cluster_resources().get(kind, 0)))

    def _submitter(self, ray: Any, make: Make, inputs: Shared[Task] | Files[Task] | None) -> Callable[[Task], Any]:
        """What hands out one task and gives a handle of its result."""
        job = _Job(uuid.uuid4().hex, (ray.put(make),), _own_code())
        gpus = 0 if self.device == "cpu" else 1
        work_on = ray.remote(_work_on).options(num_cpus=1, num_gpus=gpus, max_retries=RETRIES)
        if inputs is None:
            return lambda task: work_on.remote(job, task, ())
        if isinstance(inputs, Files):
            files = inputs.paths
            pack = _Shipped.of if self.ship_images else Path
            return lambda task: work_on.remote(job, task, (), *map(pack, files(task)))
        names, shared = inputs.names, _SharedStore(ray, inputs.load)

        def submit(task: Task) -> Any:
            read = names(task)
            return work_on.remote(job, task, tuple(read), *map(shared.put, read))

        return submit


class _SharedStore:
    """Shared things in the driver's object store, each put once as long as they fit."""

    def __init__(self, ray: Any, load: Callable[[Any], Any]) -> None:
        self._ray, self._load = ray, load
        here = ray.get_runtime_context().get_node_id()
        node = next(node for node in ray.nodes() if node["NodeID"] == here)
        self._room = BUDGET * node["Resources"].get("object_store_memory", 0)
        self._there: OrderedDict[Hashable, tuple[Any, int]] = OrderedDict()  # handle and bytes, oldest use first

    def put(self, name: Hashable) -> Any:
        """The handle of a thing, which every node fetches once."""
        if name in self._there:
            self._there.move_to_end(name)
            return self._there[name][0]
        thing = self._load(name)
        handle, size = self._ray.put(thing), _bytes_of(thing)
        self._there[name] = handle, size
        self._room -= size
        while self._room < 0 and len(self._there) > 1:
            self._room += self._there.popitem(last=False)[1][1]  # tasks in flight keep what they need
        return handle


def _bytes_of(thing: Any) -> int:
    """What it takes when it is sent; arrays are not copied to find out."""
    buffers: list[pickle.PickleBuffer] = []
    return len(pickle.dumps(thing, 5, buffer_callback=buffers.append)) + sum(b.raw().nbytes for b in buffers)


@dataclass(frozen=True)
class _Shipped:
    """A file that travels: its name and content."""

    name: str
    content: bytes

    @classmethod
    def of(cls, path: Path) -> _Shipped | Path:
        try:
            return cls(path.name, path.read_bytes())
        except OSError:  # whoever reads it says what is wrong
            return path


def _check_reachable(address: str, wrong: str) -> None:
    """Ray itself tries for minutes and says what it finds over many lines."""
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host, int(port)), PATIENCE):
            pass
    except (OSError, ValueError, OverflowError) as error:
        raise LinGlueError(f"{wrong} ({getattr(error, 'strerror', None) or error})") from error
    check = [sys.executable, "-m", "ray.scripts.scripts", "health-check", "--address", address]
    try:
        subprocess.run(check, capture_output=True, timeout=PATIENCE, check=True)
    except (subprocess.TimeoutExpired, subprocess.CalledProcessError) as error:
        raise LinGlueError(f"{wrong} (what listens there is no head node of Ray)") from error


def _start(ray: Any, options: dict[str, Any]) -> None:
    """A Ray of this machine's own."""
    try:
        with own_sigterm():
            ray.init("local", **options)
    except Exception as error:  # Ray raises that very type when a busy machine is too slow for it
        raise LinGlueError(f"Ray could not be started here ({' '.join(str(error).split())[:200]})") from error


def _result(ray: Any, job: Any) -> Any:
    """The result of a finished task, or the error that its work raised."""
    try:
        return ray.get(job)
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, ray.exceptions.RayError):  # e.g. a package that only the driver has
            raise LinGlueError(f"a Ray worker could not begin ({str(error.cause).splitlines()[0]})") from error
        raise error.cause from error
    except ray.exceptions.RayError as error:
        raise LinGlueError(
            f"a task lost its worker {RETRIES + 1} times ({str(error).splitlines()[0]}); what was finished is kept"
        ) from error


@dataclass(frozen=True)
class _Job:
    """What every task of one run has in common."""

    run: str
    make: tuple[Any]  # its handle, fetched once per process
    code: str  # fingerprint of the driver's LinGlue


@dataclass(frozen=True)
class _Process:
    """What a worker process keeps between the tasks of a run."""

    work: Callable[..., Any]
    shared: OrderedDict[Hashable, Any]


@cache
def _own_code() -> str:
    return code_sha256(".")


_process: tuple[str, _Process] | None = None


def _begin(job: _Job) -> _Process:
    """The worker's state of this run, made at its first task."""
    global _process
    if _process is None or _process[0] != job.run:
        import ray

        if _own_code() != job.code:
            node = socket.gethostname()
            raise LinGlueError(f"node {node} has another LinGlue than the driver, expected the same on all nodes")
        cv2.setNumThreads(1)
        torch.set_num_threads(1)
        _process = job.run, _Process(ray.get(job.make[0])(), OrderedDict())
    return _process[1]


def _work_on(job: _Job, task: Any, names: Sequence[Hashable], *inputs: Any) -> Any:
    """One task, in a worker: with the shared things of these names, or with files."""
    process = _begin(job)
    if names:
        return process.work(task, *(_kept(process, *item) for item in zip(names, inputs, strict=True)))
    if not any(isinstance(item, _Shipped) for item in inputs):
        return process.work(task, *inputs)
    with tempfile.TemporaryDirectory(prefix="linglue-") as folder:
        return process.work(task, *(_unpack(Path(folder) / str(i), item) for i, item in enumerate(inputs)))


def _kept(process: _Process, name: Hashable, thing: Any) -> Any:
    """The same object for the same name, as matchers remember what they computed of it."""
    thing = process.shared.setdefault(name, thing)
    process.shared.move_to_end(name)
    if len(process.shared) > SHARED_KEPT:
        process.shared.popitem(last=False)
    return thing


def _unpack(folder: Path, item: _Shipped | Path) -> Path:
    if isinstance(item, Path):
        return item
    folder.mkdir()
    path = folder / item.name
    path.write_bytes(item.content)
    return path
