"""Ray on two nodes of this machine: the same results as here, also when one of them is killed in the middle."""

import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from skimage import data

from linglue.core.engine import Files, Shared
from linglue.core.ray_engine import Ray
from linglue.errors import LinGlueError
from linglue.features.sift import Sift
from linglue.matcher import MatcherConfig
from linglue.sfm.match import match_pairs
from linglue.sfm.store import FeatureStore, MatchStore

ray = pytest.importorskip("ray", reason="Ray is not installed: pip install linglue[ray]")
pytestmark = [pytest.mark.ray, pytest.mark.slow]

NAMES = "abcdef"


@pytest.fixture(scope="module")
def cluster(ray_here):
    """A head node and a second one, which also claims to have a GPU."""
    from ray.cluster_utils import Cluster

    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    patch = pytest.MonkeyPatch()
    patch.setenv("PYTHONPATH", os.pathsep.join([str(Path(__file__).parent), *filter(None, sys.path)]))  # of workers
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    cluster.add_node(num_cpus=1, num_gpus=1)
    yield cluster
    ray.shutdown()
    cluster.shutdown()
    patch.undo()


@pytest.fixture
def engine(cluster):
    return Ray(address=cluster.address)


def test_every_task_gets_its_result(engine):
    assert sorted(engine.run(partial(partial, pow, 2), range(25))) == [(n, 2**n) for n in range(25)]
    assert list(engine.run(partial(partial, pow, 2), [])) == []


def test_an_error_in_a_worker_is_raised_here(engine):
    with pytest.raises(ZeroDivisionError):
        list(engine.run(partial(partial, divmod, 1), [1, 0, 2]))
    with pytest.raises(LinGlueError, match=r"^no such thing$"):
        list(engine.run(lambda: fail, [1]))


def fail(task):
    raise LinGlueError("no such thing")


def test_a_package_that_workers_lack_is_one_line(engine, monkeypatch, tmp_path):
    (tmp_path / "only_here.py").write_text("def make():\n    return abs\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(LinGlueError, match=r"^a Ray worker could not begin \(.*No module named 'only_here'\)$"):
        list(engine.run(__import__("only_here").make, [1]))


def test_a_thing_is_loaded_once_and_is_the_same_object_for_all_tasks_of_a_worker(engine):
    loaded = []

    def load(name):
        loaded.append(name)
        return np.full(1000, ord(name))

    tasks = [(a, b) for a in "ab" for b in "cd"] * 4
    found = list(engine.run(Identities, list(enumerate(tasks)), Shared(lambda task: task[1], load)))
    assert sorted(loaded) == ["a", "b", "c", "d"]
    assert all(values == tuple(map(ord, names)) for (_, names), (values, _, _) in found)
    objects: dict[tuple[int, str], set[int]] = {
        (worker, name): set() for (_, names), (_, worker, _) in found for name in names
    }
    for (_, names), (_, worker, ids) in found:
        for name, identity in zip(names, ids, strict=True):
            objects.setdefault((worker, name), set()).add(identity)
    assert {len(ids) for ids in objects.values()} == {1}


class Identities:
    def __call__(self, task, *things):
        return tuple(int(thing[0]) for thing in things), os.getpid(), tuple(map(id, things))


def test_files_are_read_by_path_or_travel(cluster, tmp_path):
    for name in "ab":
        (tmp_path / f"{name}.txt").write_text(f"content of {name}")
    files: Files[str] = Files(lambda name: [tmp_path / f"{name}.txt"])
    by_path = dict(Ray(address=cluster.address).run(lambda: read, ["a", "b"], files))
    shipped = dict(Ray(address=cluster.address, ship_images=True).run(lambda: read, ["a", "b", "missing"], files))
    assert by_path == {name: (f"content of {name}", tmp_path / f"{name}.txt") for name in "ab"}
    assert shipped["missing"] == ("", tmp_path / "missing.txt")  # whoever reads it says what is wrong
    for name in "ab":
        text, path = shipped[name]
        assert (text, path.name) == (f"content of {name}", f"{name}.txt")
        assert not path.exists()  # gone with its task
        assert not path.is_relative_to(tmp_path)


def read(name: str, path: Path):
    return (path.read_text() if path.is_file() else ""), path


def test_a_worker_for_a_gpu_asks_for_one(cluster):
    found = dict(Ray(address=cluster.address, device="cuda").run(lambda: gpus, [1, 2]))
    assert found == {1: [0], 2: [0]}


def gpus(task):
    return ray.get_gpu_ids()


def test_little_is_in_flight(engine, tmp_path):
    run = engine.run(partial(partial, leave_mark, tmp_path), range(40))
    next(run)
    time.sleep(1)
    assert len(list(tmp_path.iterdir())) <= 5  # two nodes of one core, two tasks each, and the one that came
    run.close()


def leave_mark(folder, number):
    (folder / str(number)).touch()


def test_a_node_killed_in_the_middle_costs_nothing(cluster, engine, tmp_path):
    node = cluster.add_node(num_cpus=1)
    with FeatureStore(tmp_path / "f.db") as features, MatchStore(tmp_path / "here.db") as here:
        image = data.coffee()
        for number, name in enumerate(NAMES):
            features.put(name, name, Sift().extract(image[:, 20 * number : 20 * number + 400], 200))
        pairs = [(a, b) for a in NAMES for b in NAMES if a < b]
        match_pairs(pairs, MatcherConfig(features="sift"), features, here)
        with MatchStore(tmp_path / "there.db") as there:
            killer = Killer(engine, cluster, node, after=4)
            assert match_pairs(pairs, MatcherConfig(features="sift"), features, there, killer).made == len(pairs)
            assert killer.killed
            for pair in pairs:
                assert all(np.array_equal(a, b) for a, b in zip(here.get(*pair), there.get(*pair), strict=True))


class Killer:
    """The engine, but after so many results one node is no more."""

    threads = 1

    def __init__(self, engine, cluster, node, after):
        self.engine, self.cluster, self.node, self.after, self.killed = engine, cluster, node, after, False

    def run(self, *arguments):
        for number, result in enumerate(self.engine.run(*arguments)):
            if number == self.after:
                self.cluster.remove_node(self.node, allow_graceful=False)
                self.killed = True
            yield result


def test_a_task_that_kills_every_worker_is_one_line(engine, monkeypatch):
    monkeypatch.setattr("linglue.core.ray_engine.RETRIES", 0)
    with pytest.raises(LinGlueError, match="a task lost its worker 1 times"):
        list(engine.run(partial(partial, os._exit), [1]))


DRIVER = """
import sys, time
from functools import partial
from pathlib import Path
from linglue.core.ray_engine import Ray

def work(task):
    import os
    (Path(sys.argv[1]) / f"{task}-{os.getpid()}").touch()
    time.sleep(0 if task == 0 else 60)

if __name__ == "__main__":
    for task, _ in Ray(workers=2).run(partial(partial, partial(work)), range(3)):
        (Path(sys.argv[1]) / f"written-{task}").touch()
"""


def test_nothing_is_left_of_a_killed_driver(ray_here, tmp_path):
    script, folder = tmp_path / "script.py", tmp_path / "marks"
    script.write_text(DRIVER.replace("sys.argv[1]", repr(str(folder))))
    folder.mkdir()
    driver = subprocess.Popen([sys.executable, str(script)], env={**os.environ, "RAY_ADDRESS": ""})
    deadline = time.monotonic() + 180
    while len(list(folder.glob("[12]-*"))) < 2:
        assert driver.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.05)
    os.kill(driver.pid, signal.SIGKILL)
    driver.wait()
    assert (folder / "written-0").exists()
    workers = [int(path.name.partition("-")[2]) for path in folder.glob("[12]-*")]
    while any(Path(f"/proc/{pid}").exists() for pid in workers):
        assert time.monotonic() < deadline
        time.sleep(0.1)


@pytest.mark.parametrize("address", ["127.0.0.1:9", "nowhere", "nowhere.invalid:6379", "127.0.0.1:99999999"])
def test_a_cluster_that_is_not_there_is_one_line(address, monkeypatch):
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    with pytest.raises(LinGlueError, match=f"--address is '{address}', expected HOST:PORT of a Ray cluster"):
        Ray(address=address).connect()


def test_a_ray_that_does_not_start_is_one_line(monkeypatch):
    def too_slow(*_, **__):
        raise Exception("The current node timed out\nduring startup.")

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", too_slow)
    with pytest.raises(
        LinGlueError, match=r"^Ray could not be started here \(The current node timed out during startup"
    ):
        Ray().connect()
