"""The whole of `linglue train-features` on a handful of images: learning, killing, resuming, refusing."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch

from linglue.cli import main
from linglue.errors import LinGlueError
from linglue.features import make_extractor
from linglue.features.sift import Sift
from linglue.io.images import read_image
from linglue.training.config import read_toml
from linglue.training.front_end.config import FrontEndConfig
from linglue.training.front_end.lessons import Lessons
from linglue.training.front_end.trainer import FrontEndTrainer, find_images, train_features
from linglue.training.log import read_rows
from training.killed import ENVIRONMENT, kill_at_first_checkpoint


def config_of(folder: Path, output: str, **learning) -> FrontEndConfig:
    config = read_toml(folder / "run.toml", FrontEndConfig)
    return replace(config, output=folder / output, learning=replace(config.learning, **learning))


def trained(config: FrontEndConfig) -> FrontEndTrainer:
    torch.set_num_threads(1)
    trainer = FrontEndTrainer(config)
    trainer.run()
    return trainer


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


@pytest.fixture(scope="module")
def finished(folder) -> FrontEndTrainer:
    return trained(config_of(folder, "whole"))


def test_a_run_leaves_log_plot_checkpoint_and_weights_that_extract(finished, folder):
    output = finished.config.output
    rows = read_rows(output / "log.csv")
    assert [row["step"] for row in rows] == [4, 6]
    assert all(0 <= row["validation/recall"] <= 1 and np.isfinite(row["loss"]) for row in rows)
    assert cv2.imread(str(output / "log.png")) is not None
    found = make_extractor("linpoint", finished.weights).extract(folder / "images" / "coffee0.png", 100)
    assert found.kind == "linpoint" and found.dim == 64


def test_the_loss_falls(folder, monkeypatch):
    torch.set_num_threads(1)
    trainer = FrontEndTrainer(config_of(folder, "learning", steps=100, warmup=1, cooldown=1))
    batch = trainer.make_batch(0)
    monkeypatch.setattr(trainer, "make_batch", lambda step: batch)
    losses = [sum(trainer._take_step().values()) for _ in range(12)]
    assert losses[-1] < 0.85 * losses[0]


def test_batches_follow_from_seed_and_step(finished):
    a, b, c = (finished.make_batch(step) for step in (3, 3, 4))
    assert torch.equal(a.images, b.images) and torch.equal(a.matches, b.matches)
    assert not torch.equal(a.images, c.images)


def test_resuming_after_a_stop_gives_the_same_bits(folder, finished):
    whole = config_of(folder, "halves")
    trainer = FrontEndTrainer(whole)
    torch.set_num_threads(1)
    for _ in range(3):
        trainer._take_step()
    trainer._save()
    resumed = trained(whole)
    assert same(resumed.average.state_dict(), finished.average.state_dict())
    assert same(resumed.objective.state_dict(), finished.objective.state_dict())


def test_kill_9_at_any_moment_then_the_same_result(folder, finished):
    text = (folder / "run.toml").read_text().replace('output = "run"', 'output = "killed"')
    (folder / "killed.toml").write_text(text)
    command = [sys.executable, "-m", "linglue", "train-features", str(folder / "killed.toml"), "--json"]
    checkpoint = folder / "killed" / "checkpoint.pt"
    kill_at_first_checkpoint(command, checkpoint)
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["weights"] == str(folder / "killed" / "linpoint-features.safetensors")
    assert "step 6" in done.stderr and "\r" not in done.stderr  # piped: lines, no bar
    last = torch.load(checkpoint, weights_only=True)
    assert last["step"] == 6 and same(last["average"], finished.average.state_dict())


def test_a_checkpoint_of_another_configuration_is_refused(folder, finished):
    config = finished.config
    longer = FrontEndTrainer(replace(config, learning=replace(config.learning, steps=20)))
    assert longer.step == 6
    others = {
        "learning": replace(config, learning=replace(config.learning, rate=1e-3)),
        "crops": replace(config, crops=replace(config.crops, side=160)),
        "losses": replace(config, losses=replace(config.losses, repeat=0.0)),
        "lessons": replace(config, lessons=replace(config.lessons, keypoints=400)),
        "start": replace(config, start=finished.weights),
    }
    for name, other in others.items():
        with pytest.raises(LinGlueError, match=rf"checkpoint\.pt: made with another {name}"):
            FrontEndTrainer(other)


def test_a_damaged_checkpoint_is_named(folder):
    config = config_of(folder, "damaged")
    config.output.mkdir()
    (config.output / "checkpoint.pt").write_bytes(b"no checkpoint")
    with pytest.raises(LinGlueError, match=r"checkpoint\.pt: not a readable"):
        FrontEndTrainer(config)


def test_a_run_may_start_from_weights(folder, finished):
    """With the best way to the teacher's descriptors, so that what was learned is not undone while one is found."""
    config = replace(config_of(folder, "second", steps=1), start=finished.weights)
    trainer = FrontEndTrainer(config)
    batch = trainer.make_batch(0)
    begun = trainer.objective(batch)["distil"]
    trainer.objective.to_teacher.reset_parameters()
    assert begun < trainer.objective(batch)["distil"]
    assert train_features(config).is_file()


def test_descriptors_that_are_kept_stay_what_they_were(folder, finished):
    config = config_of(folder, "kept", steps=100, warmup=1)
    config = replace(config, start=finished.weights, kept=finished.weights, losses=replace(config.losses, keep=1.0))
    moved = []
    for weight in (1e-6, 50.0):
        trainer = FrontEndTrainer(replace(config, losses=replace(config.losses, keep=weight)))
        for _ in range(4):
            trainer._take_step()
        objective = trainer.objective.eval()
        moved.append(float(objective(trainer.make_batch(9))["keep"].detach()) / weight)
    assert moved[1] < 0.7 * moved[0]
    for other in (replace(config.losses, keep=0.0), config.losses):
        with pytest.raises(LinGlueError, match=r"losses\.keep is [01]\.0, expected more than 0 if and only if `kept`"):
            replace(config, kept=None if other.keep else config.kept, losses=other)


def test_maps_may_be_computed_in_bfloat16(folder):
    trainer = FrontEndTrainer(config_of(folder, "bfloat16", steps=100, warmup=1, bfloat16=True))
    plain = FrontEndTrainer(config_of(folder, "float32", steps=100, warmup=1))
    batch = trainer.make_batch(0)
    low, full = trainer.objective(batch), plain.objective(batch)
    for name, value in full.items():
        assert value.dtype == low[name].dtype == torch.float32
        assert float((low[name] - value).abs().detach()) < 0.1 * float(value.abs().detach()) + 0.01, name
    losses = [sum(trainer._take_step().values()) for _ in range(3)]
    assert np.isfinite(losses).all()


def test_lessons_are_where_things_are_not_where_the_teacher_puts_them(folder, tmp_path):
    image = sorted((folder / "images").iterdir())[:1]
    plain, moved = (Lessons(tmp_path / "lessons", image, "0" * 64, 100, aside) for aside in (0.0, 1.5))
    plain.prepare(Sift())
    np.testing.assert_allclose(moved[0].keypoints, plain[0].keypoints - 1.5)
    assert plain.fingerprint != moved.fingerprint


def test_lessons_are_made_once_and_an_interrupted_class_resumes(folder, tmp_path):
    images = sorted((folder / "images").iterdir())[:3]
    seen = []

    class Counting(Sift):
        def extract(self, source, *arguments, **options):
            seen.append(source.shape)
            if len(seen) == 2:
                raise KeyboardInterrupt
            return super().extract(source, *arguments, **options)

    lessons = Lessons(tmp_path / "lessons", images, "0" * 64, keypoints=100)
    with pytest.raises(KeyboardInterrupt):
        lessons.prepare(Counting())
    assert len(list((tmp_path / "lessons").iterdir())) == 1
    lessons.prepare(Counting())
    assert len(seen) == 4  # one, the interrupted one, two more
    Lessons(tmp_path / "lessons", images, "0" * 64, keypoints=100).prepare(Counting())
    assert len(seen) == 4
    expected = Sift().extract(read_image(images[2]), 100)
    np.testing.assert_array_equal(lessons[2].keypoints, expected.keypoints)
    np.testing.assert_allclose(lessons[2].descriptors, expected.descriptors, atol=1e-3)
    assert Lessons(tmp_path, images, "1" * 64, 100).fingerprint != lessons.fingerprint


def test_which_images_are_held_out_depends_on_names_alone(folder):
    config = read_toml(folder / "run.toml", FrontEndConfig).lessons
    train, held_out = find_images(replace(config, held_out=0.3))
    assert len(train) + len(held_out) == 24 and 0 < len(held_out) < 16
    fewer = find_images(replace(config, held_out=0.2))[1]
    assert set(fewer) <= set(held_out)


BAD = {
    'images = ["images"]': ('images = ["nowhere"]', "nowhere: no such folder"),
    'teacher = "sift"': ('teacher = "surf"', "front-end is 'surf', expected linpoint, sift"),
    "keypoints = 500": ('teacher_weights = "x.pth"', "got the weights file"),
    "steps = 6": ("steps = 0", "learning.steps is 0, expected at least 1"),
    "side = 128": ("side = 100", "crops.side is 100, expected a multiple of 32"),
    "points = 64": ("rate = 0.0", "learning.rate is 0.0, expected"),
    "validation_pairs = 1": ("validation_pairs = 0", "validation_pairs is 0, expected at least 1"),
    "[crops]": ("[crops]\nscale = 0.5", "crops.scale is 0.5, expected at least 1"),
    "warmup = 2": ("warm = 2", "unknown entry learning.warm"),
    "checkpoint_every = 2": ('start = "none.safetensors"', "none.safetensors: "),
}


@pytest.mark.parametrize("line", BAD)
def test_bad_configurations_end_in_one_line_before_any_work(folder, line, tmp_path, capsys):
    replacement, says = BAD[line]
    text = (folder / "run.toml").read_text().replace(line, replacement)
    (tmp_path / "run.toml").write_text(text)
    (tmp_path / "images").symlink_to(folder / "images")
    assert main(["train-features", str(tmp_path / "run.toml")]) == 1
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and says in error
    assert {path.name for path in tmp_path.iterdir()} == {"run.toml", "images"}


def test_unreadable_weights_of_a_teacher_end_in_one_line_before_any_work(folder, tmp_path, capsys):
    pytest.importorskip("kornia.feature")
    (tmp_path / "aliked.pth").write_bytes(b"no weights")
    text = (folder / "run.toml").read_text()
    text = text.replace('teacher = "sift"', 'teacher = "aliked"\nteacher_weights = "aliked.pth"')
    (tmp_path / "run.toml").write_text(text)
    (tmp_path / "images").symlink_to(folder / "images")
    assert main(["train-features", str(tmp_path / "run.toml")]) == 1
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and str(tmp_path / "aliked.pth") in error
    assert not (tmp_path / "run").exists()
