"""The checkpoint of a run: damaged and hostile files end in one line, and run nothing."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
import torch

from linglue.errors import LinGlueError
from linglue.training.checkpoint import checkpoint_path, identity, read_checkpoint, write_checkpoint
from linglue.training.config import NetworkConfig, RunConfig

STATE = {
    "step": 3,
    "seconds": 1.5,
    "best": 0.4,
    "objective": {"w": torch.ones(3)},
    "average": {"w": torch.ones(3)},
    "optimiser": {"state": {}},
}


class Hostile:
    def __reduce__(self):
        return (Path.touch, (Path("/tmp/linglue-hostile-checkpoint"),))


@pytest.fixture
def config(tmp_path) -> RunConfig:
    return RunConfig(output=tmp_path)


def test_what_is_written_is_read(config):
    assert read_checkpoint(config) is None
    write_checkpoint(config, STATE)
    assert read_checkpoint(config)["step"] == 3


def test_hostile_files_run_nothing(config):
    checkpoint_path(config).write_bytes(pickle.dumps(Hostile()))
    with pytest.raises(LinGlueError, match=r"checkpoint\.pt: not a readable checkpoint"):
        read_checkpoint(config)
    assert not Path("/tmp/linglue-hostile-checkpoint").exists()


@pytest.mark.parametrize("keep", [0, 10, 200, -5])
def test_truncated_files(config, keep):
    write_checkpoint(config, STATE)
    path = checkpoint_path(config)
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(LinGlueError, match=r"checkpoint\.pt: ") as caught:
        read_checkpoint(config)
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
    ],
)
def test_odd_contents(config, change, words):
    torch.save({"run": identity(config), **STATE, **change}, checkpoint_path(config))
    with pytest.raises(LinGlueError, match=words) as caught:
        read_checkpoint(config)
    assert "\n" not in str(caught.value)


def test_no_dictionary_and_another_run(config, tmp_path):
    torch.save([1, 2], checkpoint_path(config))
    with pytest.raises(LinGlueError, match="not a checkpoint"):
        read_checkpoint(config)
    write_checkpoint(RunConfig(output=tmp_path, network=NetworkConfig("pair")), STATE)
    with pytest.raises(LinGlueError, match="another network, loss or seed"):
        read_checkpoint(config)
