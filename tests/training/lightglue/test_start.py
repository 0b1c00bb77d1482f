"""A narrowed network against LightGlue itself."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from linglue.errors import LinGlueError
from linglue.network.context import ContextConfig
from linglue.network.weights import LinGlueConfig
from linglue.training.cache.store import FeatureCache
from linglue.training.lightglue.distil import read_pair
from linglue.training.lightglue.layers import LightGlueLayers
from linglue.training.lightglue.start import learned, narrowed, principal, told

WHOLE = ContextConfig(dim=256, inner=256, hidden=512, heads=4, layers=2, groups=64, candidates=1)


def config(shape: ContextConfig) -> LinGlueConfig:
    return replace(LinGlueConfig.preset("context", 128), dim=shape.dim, context=shape)


def test_layers_say_the_same_when_they_are_recorded(weights: Path, cache: FeatureCache) -> None:
    layers = LightGlueLayers(weights, 2)
    pair, _ = read_pair(cache, 0, 40)
    after, output = layers(*pair)
    records = layers.record([pair])
    assert len(after) == len(records) == 4
    for one, record in zip(after, records, strict=True):
        assert torch.allclose(one, torch.cat(record.after), atol=1e-4)
    assert output.shape == (80, 256)


def test_layers_are_kornias_own(weights: Path, cache: FeatureCache) -> None:
    layers = LightGlueLayers(weights, 9)
    (views, descriptors), _ = read_pair(cache, 1, 48)
    _, output = layers(views, descriptors)
    entries = [
        {"keypoints": v.points[None], "descriptors": d[None], "image_size": v.size[None]}
        for v, d in zip(views, descriptors, strict=True)
    ]
    layers.net.conf.depth_confidence = layers.net.conf.width_confidence = -1
    with torch.no_grad():
        theirs = layers.net({"image0": entries[0], "image1": entries[1]})["log_assignment"][0]
    x0, x1 = output.split(48)
    similarity = x0 @ x1.T / 16
    double = similarity.log_softmax(0) + similarity.log_softmax(1)
    added = theirs[:-1, :-1] - double  # for whether keypoints can be matched at all: of each row and of each column
    rest = added - added.mean(0) - added.mean(1, keepdim=True) + added.mean()
    assert rest.abs().max() < 1e-4 < double.std()


def test_at_full_width_next_to_nothing_is_lost(weights: Path, cache: FeatureCache) -> None:
    layers = LightGlueLayers(weights, 2)
    pairs = [read_pair(cache, number, 40)[0] for number in range(4)]
    start = narrowed(layers, pairs, config(WHOLE))
    context: Any = start.network.context.eval()  # type: ignore[union-attr]
    (views, descriptors), images = pairs[0], [slice(0, 40), slice(40, 80)]
    points = [(v.points - (v.size - 1) / 2) / (v.size.max() / 2) for v in views]
    wanted, _ = layers(views, descriptors)
    with torch.no_grad():
        found = context.start(torch.cat(list(descriptors)), images, points)
    seen = wanted[0] @ start.inside
    assert (found - seen).norm() < 0.03 * seen.norm()  # what is fitted is fitted to few keypoints


def test_narrower_is_nearly_the_same(weights: Path, cache: FeatureCache) -> None:
    layers = LightGlueLayers(weights, 2)
    pairs = [read_pair(cache, number, 40)[0] for number in range(6)]
    shape = replace(WHOLE, dim=200, inner=128, hidden=384)
    start = narrowed(layers, pairs, replace(config(shape), dim=64))
    (views, descriptors) = pairs[0]
    entries = [
        {"keypoints": v.points[None], "descriptors": d[None], "image_size": v.size[None]}
        for v, d in zip(views, descriptors, strict=True)
    ]
    with torch.no_grad():
        found = start.network.eval().encode(*entries).descriptors0[0]
    wanted = F.normalize(layers(views, descriptors)[1][:40] @ start.outside, dim=-1)
    assert (found * wanted).sum(1).mean() > 0.8


def test_a_network_that_has_learned_sees_what_it_saw(weights: Path, cache: FeatureCache) -> None:
    layers = LightGlueLayers(weights, 2)
    pairs = [read_pair(cache, number, 40)[0] for number in range(6)]
    start = narrowed(layers, pairs, replace(config(replace(WHOLE, dim=40)), dim=16))
    again = learned(layers, pairs, start.network)
    assert again.network is start.network
    context: Any = start.network.context
    seen, _ = told(context, pairs[0])
    stream = layers(*pairs[0])[0][-1]
    fitted, narrow = ((stream @ inside - seen[-1]).norm() for inside in (again.inside, start.inside))
    assert fitted < narrow < seen[-1].norm()
    with pytest.raises(LinGlueError, match="expected context of 3 layers"):
        learned(LightGlueLayers(weights, 3), pairs, start.network)


def test_principal_directions_keep_most() -> None:
    rows = torch.randn(100, 3, generator=torch.Generator().manual_seed(0)) * torch.tensor([1.0, 9.0, 0.1])
    assert principal(rows, 1).abs().argmax() == 1


def test_what_does_not_go_together_is_refused(weights: Path, tmp_path: Path) -> None:
    with pytest.raises(LinGlueError, match="expected 1 to 9"):
        LightGlueLayers(weights, 10)
    with pytest.raises(LinGlueError, match="no such"):
        LightGlueLayers(tmp_path, 2)
    with pytest.raises(LinGlueError, match="expected context of 3 layers"):
        narrowed(LightGlueLayers(weights, 3), [], config(WHOLE))
