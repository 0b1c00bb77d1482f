"""The checkpoint of a run: damaged and hostile files end in one line, and run nothing."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
import torch
from torch import nn

from linglue.errors import LinGlueError
from linglue.training.checkpoint import checkpoint_path, read_checkpoint, restore, write_checkpoint

SETTINGS = {"loss": "hinge", "seed": "0"}


class Run:
    """The part of a trainer that is kept."""

    def __init__(self, weight: float = 0.0) -> None:
        self.objective, self.average = nn.Linear(2, 1), nn.Linear(2, 1)
        nn.init.constant_(self.objective.weight, weight)
        self.optimiser = torch.optim.SGD(self.objective.parameters(), lr=0.1)
        self.step, self.seconds, self.best = 3, 1.5, 0.4


def state() -> dict:
    run = Run()
    parts = {name: getattr(run, name).state_dict() for name in ("objective", "average", "optimiser")}
    return {**parts, "step": 3, "seconds": 1.5, "best": 0.4, "settings": SETTINGS}


class Hostile:
    def __reduce__(self):
        return (Path.touch, (Path("/tmp/linglue-hostile-checkpoint"),))


@pytest.fixture
def path(tmp_path) -> Path:
    return checkpoint_path(tmp_path)


def test_what_is_written_is_restored(path):
    assert read_checkpoint(path, SETTINGS) is None
    write_checkpoint(path, Run(0.7), SETTINGS)
    found, fresh = read_checkpoint(path, SETTINGS), Run()
    assert found is not None
    fresh.step = 0
    restore(fresh, found, path)
    assert fresh.step == 3 and fresh.objective.weight[0, 0].item() == pytest.approx(0.7)


def test_a_checkpoint_of_another_network_does_not_fit(path):
    other = Run()
    other.objective = nn.Linear(3, 1)
    write_checkpoint(path, other, SETTINGS)
    found = read_checkpoint(path, SETTINGS)
    with pytest.raises(LinGlueError, match="does not fit"):
        restore(Run(), found, path)


def test_hostile_files_run_nothing(path):
    path.write_bytes(pickle.dumps(Hostile()))
    with pytest.raises(LinGlueError, match=r"checkpoint\.pt: not a readable checkpoint"):
        read_checkpoint(path, SETTINGS)
    assert not Path("/tmp/linglue-hostile-checkpoint").exists()


@pytest.mark.parametrize("keep", [0, 10, 200, -5])
def test_truncated_files(path, keep):
    write_checkpoint(path, Run(), SETTINGS)
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(LinGlueError, match=r"checkpoint\.pt: ") as caught:
        read_checkpoint(path, SETTINGS)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"step": "many"}, "not a checkpoint"),
        ({"step": -1}, "step -1"),
        ({"seconds": float("nan")}, "not sound"),
        ({"objective": {"w": torch.tensor([float("nan")])}}, "not sound"),
        ({"objective": {"w": "text"}}, "not sound"),
        ({"optimiser": None}, "not a checkpoint"),
        ({"settings": {"loss": "hinge", "seed": "1"}}, "made with another seed"),
        ({"settings": {}}, "made with another loss, seed"),
        ({"settings": "text"}, "not a checkpoint"),
    ],
)
def test_odd_contents(path, change, words):
    torch.save({**state(), **change}, path)
    with pytest.raises(LinGlueError, match=words) as caught:
        read_checkpoint(path, SETTINGS)
    assert "\n" not in str(caught.value)


def test_no_dictionary(path):
    torch.save([1, 2], path)
    with pytest.raises(LinGlueError, match="not a checkpoint"):
        read_checkpoint(path, SETTINGS)
