"""A network that learns from LightGlue: it gets nearer, resumes, and refuses what cannot be meant."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from linglue.errors import LinGlueError
from linglue.network.linglue import LinGlue
from linglue.network.weights import LinGlueConfig
from linglue.training.cache.store import FeatureCache
from linglue.training.lightglue.distil import CHECKPOINT, DistilConfig, Pupil, distil, main, read_pair
from linglue.training.lightglue.layers import LightGlueLayers
from linglue.training.lightglue.start import narrowed
from training.lightglue.conftest import write_cache

FEW = DistilConfig(steps=4, batch=1, keypoints=(30, 40), start_pairs=3, save_every=2)


def test_the_pupil_gets_nearer_to_its_teacher(weights: Path, cache: FeatureCache) -> None:
    teacher = LightGlueLayers(weights, 3)
    pair, truths = read_pair(cache, 0, 40)
    pupil = Pupil(narrowed(teacher, [pair], LinGlueConfig.preset("context", 128)), teacher, 0.5).train()
    optimiser = torch.optim.Adam(pupil.parameters(), lr=3e-4)
    losses = []
    for _ in range(6):
        optimiser.zero_grad()
        loss = pupil(pair, truths)
        loss.backward()
        optimiser.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.9 * losses[0]


def test_a_run_that_was_stopped_ends_where_one_that_was_not_does(
    weights: Path, cache: FeatureCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = distil(cache, tmp_path / "whole", weights, FEW)
    forward, count = Pupil.forward, 0

    def stop(self, pair, truths):
        nonlocal count
        count += 1
        if count > 3:
            raise KeyboardInterrupt
        return forward(self, pair, truths)

    monkeypatch.setattr(Pupil, "forward", stop)
    with pytest.raises(KeyboardInterrupt):
        distil(cache, tmp_path / "parts", weights, FEW)
    monkeypatch.setattr(Pupil, "forward", forward)
    parts = distil(cache, tmp_path / "parts", weights, FEW)
    ours, theirs = LinGlue.load(whole).state_dict(), LinGlue.load(parts).state_dict()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_what_cannot_be_used_is_one_line(
    weights: Path, cache: FeatureCache, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = write_cache(tmp_path / "other", "sift")
    with pytest.raises(LinGlueError, match="expected those of aliked"):
        distil(FeatureCache(other), tmp_path / "out", weights, FEW)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / CHECKPOINT).write_bytes(b"no checkpoint")
    with pytest.raises(LinGlueError, match="remove it to start again"):
        distil(cache, tmp_path / "out", weights, FEW)
    command = [str(cache.folder), "-o", str(tmp_path / "new"), "--weights", str(weights)]
    assert main([*command, "--steps", "0"]) == 1
    assert capsys.readouterr().err == "error: --steps is 0, expected at least 1\n"
    assert not (tmp_path / "new").exists()
