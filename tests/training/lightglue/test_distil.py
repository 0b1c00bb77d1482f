"""A network that learns from LightGlue: it gets nearer, resumes, and refuses what cannot be meant."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from linglue.errors import LinGlueError
from linglue.network.linglue import LinGlue
from linglue.network.weights import LinGlueConfig
from linglue.training.cache.store import FeatureCache
from linglue.training.lightglue.distil import (
    CHECKPOINT,
    TRANSLATION,
    DistilConfig,
    Pupil,
    choice_loss,
    distil,
    found_by,
    main,
    read_pair,
)
from linglue.training.lightglue.layers import LightGlueLayers
from linglue.training.lightglue.start import narrowed
from linglue.training.log import read_rows
from training.lightglue.conftest import write_cache

FEW = DistilConfig(steps=4, batch=1, keypoints=(30, 40), start_pairs=3, save_every=2)


def test_the_pupil_gets_nearer_to_its_teacher(weights: Path, cache: FeatureCache) -> None:
    teacher = LightGlueLayers(weights, 3)
    pair, truths = read_pair(cache, 0, 40)
    pupil = Pupil(narrowed(teacher, [pair], LinGlueConfig.preset("context", 128)), teacher, 0.5, 0.5).train()
    optimiser = torch.optim.Adam(pupil.parameters(), lr=1e-4)
    losses = []
    for _ in range(10):
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


def test_other_features_are_translated_and_the_curve_is_kept(weights: Path, tmp_path: Path) -> None:
    cache, folder = FeatureCache(write_cache(tmp_path / "pairs", "linpoint", 64)), tmp_path / "out"
    folder.mkdir()
    np.save(folder / TRANSLATION, np.random.default_rng(0).normal(size=(64, 128)).astype(np.float32))
    config = replace(FEW, save_every=4, validate_every=2, validation_pairs=3)
    found = distil(cache, folder, weights, config, sets={"same": cache})
    network = LinGlue.load(found)
    assert found.name == "linpoint.safetensors"
    assert network.config.input_dim == 64
    rows = read_rows(folder / "log.csv")
    assert [row["step"] for row in rows] == [2, 4]
    assert rows[-1]["same/recall"] == pytest.approx(found_by(network.eval(), cache, 3)[0], abs=0.05)
    assert (folder / "log.png").is_file()


def test_partners_are_chosen_from_both_sides() -> None:
    generator = torch.Generator().manual_seed(0)
    similarity, partners = torch.randn(4, 5, generator=generator), torch.rand(4, 5, generator=generator)
    total = 0.0
    for i, row in enumerate(similarity.tolist()):
        for j, here in enumerate(row):
            there = similarity[:, j].tolist()
            total -= float(partners[i, j]) * (2 * here - np.log(np.exp(row).sum()) - np.log(np.exp(there).sum()))
    assert float(choice_loss(similarity, partners)) == pytest.approx(total / 2 / float(partners.sum()), rel=1e-5)
    assert float(choice_loss(similarity, torch.zeros(4, 5))) == 0
    one = torch.eye(4, 5)
    assert choice_loss(9 * one, one) < choice_loss(similarity, one)


def test_weights_that_have_learned_are_gone_on_from(weights: Path, cache: FeatureCache, tmp_path: Path) -> None:
    first = distil(cache, tmp_path / "first", weights, FEW)
    second = distil(cache, tmp_path / "second", weights, replace(FEW, rate=1e-9), begin=first)
    ours, theirs = LinGlue.load(first).state_dict(), LinGlue.load(second).state_dict()
    assert all(torch.allclose(ours[name], theirs[name], atol=1e-4) for name in ours)


def test_recall_and_precision_count_mutual_neighbours(cache: FeatureCache) -> None:
    network = LinGlue(LinGlueConfig.preset("raw", 128)).eval()
    right, judged, true = 0, 0, 0
    pair = cache[0]
    x0, x1 = (pair[f"image{k}"]["descriptors"].astype(np.float32) for k in (0, 1))
    similar = x0 @ x1.T
    for i in range(len(x0)):
        j = int(similar[i].argmax())
        if similar[:, j].argmax() == i:
            judged += pair["matches0"][i] != -2
            right += pair["matches0"][i] == j
        true += pair["matches0"][i] >= 0
    assert found_by(network, cache, 1) == pytest.approx((right / true, right / judged))


def test_what_cannot_be_used_is_one_line(
    weights: Path, cache: FeatureCache, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = FeatureCache(write_cache(tmp_path / "other", "sift"))
    with pytest.raises(LinGlueError, match="features of sift, expected --images to translate"):
        distil(other, tmp_path / "out", weights, FEW)
    with pytest.raises(LinGlueError, match="no such folder"):
        distil(other, tmp_path / "out", weights, FEW, tmp_path / "photographs")
    assert not (tmp_path / "out").exists()
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / TRANSLATION).write_bytes(b"no translation")
    with pytest.raises(LinGlueError, match="remove it to fit it again"):
        distil(other, tmp_path / "out", weights, FEW)
    (tmp_path / "out" / CHECKPOINT).write_bytes(b"no checkpoint")
    with pytest.raises(LinGlueError, match="remove it to start again"):
        distil(cache, tmp_path / "out", weights, FEW)
    command = [str(cache.folder), "-o", str(tmp_path / "new"), "--weights", str(weights)]
    assert main([*command, "--steps", "0"]) == 1
    assert capsys.readouterr().err == "error: --steps is 0, expected at least 1\n"
    assert main([*command, "--rate", "nan"]) == 1
    assert capsys.readouterr().err == "error: --rate is nan, expected at least 1e-09\n"
    assert not (tmp_path / "new").exists()
