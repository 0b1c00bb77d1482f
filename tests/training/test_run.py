"""What happens around the loop: everything is checked before the first pair is made, processes wait for the pairs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import pytest
import skimage.data
import torch
import torch.distributed as dist

from linglue.errors import LinGlueError
from linglue.network.weights import require_weights
from linglue.training import run
from linglue.training.config import DataConfig, NetworkConfig, OptimiserConfig, RunConfig
from linglue.training.identity import identity_network
from linglue.training.objective import Objective
from linglue.training.run import check, own_device, train


@pytest.fixture
def config(tmp_path) -> RunConfig:
    (tmp_path / "images").mkdir()
    image = skimage.data.coffee()[..., ::-1]
    for number in range(40):
        cv2.imwrite(str(tmp_path / "images" / f"{number}.png"), image[number : number + 64, :64])
    data = DataConfig(images=tmp_path / "images", pairs=4, validation_pairs=1, keypoints=128, workers=1)
    return RunConfig(output=tmp_path / "run", data=data, optimiser=OptimiserConfig(steps=1, batch=2))


def wrong(config: RunConfig, tmp_path: Path, what: str) -> RunConfig:
    (tmp_path / "junk.safetensors").write_bytes(b"junk")
    data, network = config.data, config.network
    return {
        "no images": lambda: replace(config, data=replace(data, images=tmp_path / "none")),
        "no front-end": lambda: replace(config, data=replace(data, features="magic")),
        "no weights": lambda: replace(
            config, data=replace(data, features="superpoint", extractor_weights=tmp_path / "none.pth")
        ),
        "no start": lambda: replace(config, network=replace(network, start=tmp_path / "none.safetensors")),
        "junk start": lambda: replace(config, network=replace(network, start=tmp_path / "junk.safetensors")),
        "start of other features": lambda: replace(config, network=NetworkConfig("geo", require_weights("superpoint"))),
        "start of another preset": lambda: replace(config, network=NetworkConfig("pair", require_weights("sift"))),
    }[what]()


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("no images", "none"),
        ("no front-end", "magic"),
        ("no weights", r"none\.pth"),
        ("no start", r"none\.safetensors"),
        ("junk start", r"junk\.safetensors"),
        ("start of other features", "'superpoint' features, expected 'geo' for 'sift'"),
        ("start of another preset", "'geo' network for 'sift' features, expected 'pair'"),
    ],
)
def test_everything_is_checked_before_the_first_pair(config, tmp_path, what, words):
    with pytest.raises(LinGlueError, match=words) as caught:
        train(wrong(config, tmp_path, what))
    assert "\n" not in str(caught.value)
    assert not config.output.exists()


def test_a_damaged_checkpoint_is_noticed_before_the_first_pair(config):
    config.output.mkdir()
    (config.output / "checkpoint.pt").write_bytes(b"PK\x03\x04 cut off")
    with pytest.raises(LinGlueError, match=r"checkpoint\.pt"):
        train(config)
    assert [p.name for p in config.output.iterdir()] == ["checkpoint.pt"]


@pytest.mark.parametrize("name", ["log.csv", "log.png", "sift.safetensors"])
def test_files_of_others_are_not_replaced(config, name):
    config.output.mkdir()
    (config.output / name).write_text("mine\n")
    with pytest.raises(LinGlueError, match=f"{name}: was not made by this training, expected another output"):
        train(config)
    assert (config.output / name).read_text() == "mine\n" and len(list(config.output.iterdir())) == 1
    (config.output / "log.csv").write_text("step,loss\n0,1\n")  # of a run that was killed before its first checkpoint
    check(config)


def test_a_batch_must_fit_the_processes(config, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "3")
    with pytest.raises(LinGlueError, match=r"batch is 2, expected a multiple of .* \(3 x 1\)"):
        check(config)


def test_pairs_are_made_before_the_process_group_is_opened(config, monkeypatch):
    happened = []
    monkeypatch.setenv("WORLD_SIZE", "2")

    def prepare(config, engine):
        happened.append("pairs")
        return None, {}

    monkeypatch.setattr(run, "prepare_data", prepare)
    monkeypatch.setattr(dist, "init_process_group", lambda backend: happened.append(backend))
    monkeypatch.setattr(dist, "destroy_process_group", lambda: happened.append("closed"))

    class Nothing:
        weights = Path("w")

        def __init__(self, *given) -> None: ...

        def run(self) -> None:
            happened.append("run")

    monkeypatch.setattr(run, "Trainer", Nothing)
    train(config)
    assert happened == ["pairs", "gloo", "run", "closed"]


def test_the_local_rank_picks_the_gpu(monkeypatch):
    assert own_device() == torch.device("cpu")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setenv("RANK", "5")
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert own_device() == torch.device("cuda", 1)


def test_bfloat16_reaches_neither_neighbours_nor_losses(monkeypatch):
    """The layers compute in it; what compares descriptors must not."""
    from linglue.network import linglue as network_module
    from linglue.network.weights import LinGlueConfig
    from linglue.training import losses, objective

    seen: dict[str, set[bool]] = {"nearest": set(), "loss": set(), "layer": set()}

    def spy(name, function):
        def call(*arguments, **options):
            seen[name].add(torch.is_autocast_enabled("cpu"))
            return function(*arguments, **options)

        return call

    monkeypatch.setattr(network_module, "nearest_both_ways", spy("nearest", network_module.nearest_both_ways))
    monkeypatch.setattr(objective, "distances", spy("loss", losses.distances))
    rng = np.random.default_rng(0)
    descriptors = torch.nn.functional.normalize(torch.from_numpy(rng.normal(size=(1, 40, 32))).float(), dim=-1)
    network = identity_network(LinGlueConfig.preset("pair", 32), descriptors[0])
    monkeypatch.setattr(network.first, "forward", spy("layer", network.first.forward))
    image = {
        "keypoints": torch.from_numpy(rng.uniform(0, 100, (1, 40, 2))).float(),
        "descriptors": descriptors,
        "image_size": torch.tensor([[100.0, 100.0]]),
        "mask": torch.ones(1, 40, dtype=torch.bool),
    }
    truth = torch.arange(40)[None]
    batch = {"image0": image, "image1": image, "matches0": truth, "matches1": truth}
    loss = Objective(network, OptimiserConfig(bfloat16=True))(batch)
    assert torch.isfinite(loss) and loss.dtype == torch.float32
    assert seen == {"nearest": {False}, "loss": {False}, "layer": {True}}
