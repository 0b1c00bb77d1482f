"""The whole of `linglue train` on a handful of images: learning, killing, going on, several processes."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import pytest
import skimage.data
import torch

from linglue.cli import main
from linglue.errors import LinGlueError
from linglue.features.sift import Sift
from linglue.matcher import Matcher
from linglue.matching.voting import VotingConfig
from linglue.network.linglue import LinGlue
from linglue.network.weights import LinGlueConfig, packaged_weights, read_info
from linglue.training.config import RunConfig, read_config
from linglue.training.data import prepare_data
from linglue.training.log import read_rows
from linglue.training.trainer import Trainer, given_voting
from training.killed import ENVIRONMENT, kill_at_first_checkpoint

SETTINGS = """
output = "run"
validate_every = 4
checkpoint_every = 2
[data]
images = "images"
pairs = 12
validation_pairs = 2
keypoints = 512
workers = 1
parallax = 0.0
homography = 1.0
unrelated = 0.1
[network]
preset = "geo"
[optimiser]
steps = 8
batch = 2
warmup = 1
rate = 1e-3
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Images cut from those of scikit-image, and the features of a small run made from them."""
    base = tmp_path_factory.mktemp("train")
    (base / "images").mkdir()
    for name in ("astronaut", "coffee", "chelsea", "rocket", "brick", "grass", "gravel"):
        image = getattr(skimage.data, name)()
        image = image if image.ndim == 3 else cv2.cvtColor(image, cv2.COLOR_GRAY2RGB)
        for number, part in enumerate((image[:, :380], image[:, -380:], image[:300], image[-300:])):
            cv2.imwrite(str(base / "images" / f"{name}{number}.png"), part[..., ::-1])
    (base / "run.toml").write_text(SETTINGS)
    prepare_data(read_config(base / "run.toml"))
    return base


def config_of(folder: Path, output: str, **optimiser) -> RunConfig:
    """The run of the folder with its own output, sharing the features."""
    config = read_config(folder / "run.toml")
    target = folder / output
    target.mkdir(exist_ok=True)
    for name in ("pairs", "validation"):
        link = target / name
        if not link.exists():
            link.symlink_to(folder / "run" / name)
    return replace(config, output=target, optimiser=replace(config.optimiser, **optimiser))


def trained(config: RunConfig) -> Trainer:
    torch.set_num_threads(1)
    trainer = Trainer(config, *prepare_data(config))
    trainer.run()
    return trainer


def same(a: torch.nn.Module, b: torch.nn.Module) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a.state_dict().values(), b.state_dict().values(), strict=True))


@pytest.fixture(scope="module")
def finished(folder) -> Trainer:
    return trained(config_of(folder, "whole"))


def test_a_run_leaves_log_plot_checkpoint_and_loadable_weights(finished):
    output = finished.config.output
    rows = read_rows(output / "log.csv")
    assert [r["step"] for r in rows] == [0, 4, 8]
    assert all(0 <= r["homography/recall"] <= 1 for r in rows)
    assert cv2.imread(str(output / "log.png")) is not None
    network, info = LinGlue.load(finished.weights), read_info(finished.weights)
    assert info.kind == "sift" and info.preset == "geo"
    assert network.config.input_dim == 128


def test_the_loss_falls_on_pairs_seen_again_and_again(folder):
    config = config_of(folder, "overfit", steps=16, rate=2e-3)
    torch.set_num_threads(1)
    trainer = Trainer(config, *prepare_data(config))
    losses = [trainer._take_step() for _ in range(16)]
    assert np.mean(losses[-6:]) < 0.9 * np.mean(losses[:6])


def test_same_seed_same_network(folder, finished):
    assert same(trained(config_of(folder, "again")).average, finished.average)


def test_going_on_after_a_stop_gives_the_same_bits(folder, finished):
    first = config_of(folder, "halves", steps=4)
    trained(first)
    second = trained(replace(first, optimiser=replace(first.optimiser, steps=8)))
    assert same(second.average, finished.average) and same(second.objective, finished.objective)
    assert [r["step"] for r in read_rows(first.output / "log.csv")] == [0, 4, 8]


def assert_same_but_for_rounding(state, expected):
    """Adam makes full steps of vanishing gradients, whose sign is rounding: few elements may have gone elsewhere."""
    for name, value in expected.items():
        far = ~torch.isclose(state[name], value, atol=1e-3, rtol=1e-2)
        assert far.double().mean() < 0.01, name


def test_accumulating_parts_of_a_batch_changes_nothing_but_rounding(folder, finished):
    parts = trained(config_of(folder, "parts", accumulate=2))
    assert_same_but_for_rounding(parts.average.state_dict(), finished.average.state_dict())


def test_kill_9_at_any_moment_then_the_same_result(folder, finished):
    config_of(folder, "killed")
    text = SETTINGS.replace('output = "run"', 'output = "killed"')
    (folder / "killed.toml").write_text(text)
    command = [sys.executable, "-m", "linglue", "train", str(folder / "killed.toml")]
    checkpoint = folder / "killed" / "checkpoint.pt"
    kill_at_first_checkpoint(command, checkpoint)
    assert subprocess.run(command, env=ENVIRONMENT, capture_output=True).returncode == 0
    last = torch.load(checkpoint, weights_only=True)
    assert last["step"] == 8
    for name, value in finished.average.state_dict().items():
        torch.testing.assert_close(last["average"][name], value)


def test_two_processes_share_the_work(folder, finished):
    config_of(folder, "two")
    (folder / "two.toml").write_text(SETTINGS.replace('output = "run"', 'output = "two"'))
    command = [
        *(sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"),
        *("-m", "linglue", "train", str(folder / "two.toml")),
    ]
    done = subprocess.run(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    last = torch.load(folder / "two" / "checkpoint.pt", weights_only=True)
    assert_same_but_for_rounding(last["average"], finished.average.state_dict())


@pytest.mark.parametrize(
    ("preset", "loss"), [("linear-sinkhorn", "transport"), ("pair", "ranking"), ("linear", "contrastive")]
)
def test_every_loss_trains_its_network(folder, preset, loss):
    config = config_of(folder, preset)
    network, optimiser = replace(config.network, preset=preset), replace(config.optimiser, loss=loss)
    config = replace(config, network=network, optimiser=optimiser)
    trainer = Trainer(config, *prepare_data(config))
    before = [p.clone() for p in trainer.objective.network.parameters()]
    assert np.isfinite(trainer._take_step())
    assert any(not torch.equal(x, y) for x, y in zip(before, trainer.objective.network.parameters(), strict=True))


def test_a_consensus_is_learned_alone_and_resumes_to_the_bit(folder):
    def run(output: str, steps: int) -> RunConfig:
        config = config_of(folder, output, steps=steps, rate=5e-3)
        return replace(config, network=replace(config.network, preset="raw", consensus=True, frozen=True))

    whole = trained(run("consensus", 8))
    trained(run("consensus-parts", 4))
    assert same(trained(run("consensus-parts", 8)).average.module, whole.average.module)
    rows = read_rows(whole.config.output / "log.csv")
    assert rows[-1]["homography/average_precision"] > rows[0]["homography/average_precision"]
    matcher = Matcher.for_features("sift", whole.weights)
    assert matcher.network.voting is not None
    pair = [Sift().extract(folder / "images" / f"astronaut{k}.png", 300) for k in (0, 1)]
    found = matcher.match(*pair)
    offset = found.points0 - found.points1
    assert len(found) > 10 and np.median(np.abs(offset - [132, 0]).max(axis=1)) < 2
    assert "consensus" in found.timing


def test_a_frozen_network_keeps_its_weights(folder, finished):
    config = config_of(folder, "frozen", steps=2)
    network = replace(config.network, start=finished.weights, consensus=True, frozen=True)
    trainer = trained(replace(config, network=network))
    start = LinGlue.load(finished.weights)
    kept = trainer.objective.network.state_dict()
    assert all(torch.equal(kept[name], value) for name, value in start.state_dict().items())


def test_a_checkpoint_of_another_run_is_refused(folder, finished):
    config = config_of(folder, "whole")
    other = replace(config, network=replace(config.network, preset="pair"))
    with pytest.raises(LinGlueError, match=r"checkpoint\.pt"):
        Trainer(other, *prepare_data(config))


def test_bad_configurations_end_in_one_line(tmp_path, capsys):
    (tmp_path / "empty").mkdir()
    (tmp_path / "run.toml").write_text('[data]\nimages = "empty"\n')
    assert main(["train", str(tmp_path / "run.toml")]) == 1
    assert len(capsys.readouterr().err.strip().splitlines()) == 1
    assert not (tmp_path / "run").exists()


def test_the_consensus_of_another_front_end_is_a_start(folder):
    config, path = config_of(folder, "other-consensus"), packaged_weights("linpoint")
    network = replace(config.network, preset="raw", consensus=True, frozen=True, consensus_start=path)
    config = replace(config, network=network)
    known, found = LinGlue.load(path).voting, Trainer(config, *prepare_data(config)).objective.network.voting
    assert known is not None and found is not None and found.config == VotingConfig()
    assert torch.equal(found.looks[1].similarity.weight, known.looks[1].similarity.weight)
    without = folder / "without.safetensors"
    LinGlue(LinGlueConfig.preset("raw", 64)).save(without, "linpoint", "raw", "MIT", "none")
    with pytest.raises(LinGlueError, match="no learned consensus"):
        given_voting(replace(config, network=replace(network, consensus_start=without)))
