"""Context: whom keypoints read, attention against naive loops, invariances, and networks that have it."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from linglue.errors import LinGlueError
from linglue.matching.together import team
from linglue.network import context
from linglue.network.context import Context, ContextConfig, most_similar, rotate
from linglue.network.entries import collate
from linglue.network.groups import NeighborGroups
from linglue.network.linglue import LinGlue
from linglue.network.weights import LinGlueConfig

SMALL = ContextConfig(dim=24, inner=16, hidden=20, heads=2, layers=2, groups=8, candidates=3)


def network(**changes: int) -> LinGlue:
    torch.manual_seed(1)
    config = replace(LinGlueConfig.preset("context", 12), dim=10, context=replace(SMALL, **changes))
    return LinGlue(config).eval()


def layers_of(net: LinGlue) -> Any:
    """Its layers, whose own methods are tested."""
    return net.context


def entry(count: int, seed: int, dim: int = 12) -> dict[str, Tensor]:
    draw = torch.Generator().manual_seed(seed)
    return {
        "keypoints": torch.rand(1, count, 2, generator=draw) * 99,
        "descriptors": F.normalize(torch.randn(1, count, dim, generator=draw), dim=-1),
        "image_size": torch.tensor([[100.0, 80.0]]),
    }


def test_turned_queries_and_keys_know_only_where_one_lies_from_the_other() -> None:
    x, y = torch.randn(2, 1, 16, generator=torch.Generator().manual_seed(0)).unbind(0)
    frequency = torch.randn(8, 2, generator=torch.Generator().manual_seed(1))

    def product(here: list[float], there: list[float]) -> float:
        angles = [torch.tensor([place]) @ frequency.T for place in (here, there)]
        turned = [
            rotate(z, torch.polar(torch.ones_like(angle), angle)) for z, angle in zip((x, y), angles, strict=True)
        ]
        return float((turned[0] * turned[1]).sum())

    assert product([0.1, 0.2], [0.4, -0.3]) == pytest.approx(product([0.6, 1.2], [0.9, 0.7]), abs=1e-5)


@pytest.mark.parametrize("fused", [True, False])
def test_cross_attention_is_softmax_over_candidates_and_landmarks_by_what_they_stand_for(
    fused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not fused:
        monkeypatch.setattr(context, "FUSED", None)
    layer = layers_of(network()).crosses[0]
    draw = torch.Generator().manual_seed(5)
    x, theirs = torch.randn(4, 24, generator=draw), torch.randn(9, 24, generator=draw)
    candidates = torch.tensor([[0, 3, 8], [1, -1, -1], [-1, -1, -1], [2, 4, 5]])
    chosen = torch.tensor([6, 1])
    with torch.no_grad():
        query, keys, values = layer.queries(x), layer.queries(theirs), layer.values(theirs)
        memory = tuple(part[chosen].unflatten(1, (2, -1)).transpose(0, 1) for part in (keys, values))
        found = layer(x, query, candidates, (keys, values), memory, 4.5)
        for i in range(4):
            message = []
            for head in (slice(0, 8), slice(8, 16)):
                read = [(j, 1.0) for j in candidates[i].tolist() if j >= 0] + [(j, 4.5) for j in chosen.tolist()]
                weight = [w * math.exp(float(query[i, head] @ keys[j, head]) / math.sqrt(8)) for j, w in read]
                message.append(sum(w / sum(weight) * values[j, head] for w, (j, _) in zip(weight, read, strict=True)))
            assert torch.allclose(found[i], layer.update(x[i], torch.cat(message)), atol=1e-5)


def test_weights_add_up_to_one_in_bfloat16_too() -> None:
    layer = layers_of(network()).crosses[0]
    draw = torch.Generator().manual_seed(7)
    query, keys = 12 * torch.randn(6, 16, generator=draw), 12 * torch.randn(9, 16, generator=draw)
    ones, candidates, chosen = torch.ones(9, 16), torch.randint(0, 9, (6, 3), generator=draw), torch.tensor([6, 1])
    memory = tuple(part[chosen].unflatten(1, (2, -1)).transpose(0, 1) for part in (keys, ones))
    heard: list[Tensor] = []
    del layer.update
    layer.update = lambda x, message: heard.append(message) or x  # type: ignore[func-returns-value]
    with torch.autocast("cpu", torch.bfloat16):  # with gradients, as in training
        layer(torch.zeros(6, 24), query.bfloat16(), candidates, (keys.bfloat16(), ones.bfloat16()), memory, 4.5)
    assert torch.allclose(heard[0].float(), torch.ones(6, 16), atol=0.02)  # whoever is read says 1


def _turned(x: torch.Tensor, angle: torch.Tensor) -> torch.Tensor:
    found = x.clone()
    for i in range(angle.shape[1]):
        a, b, c, s = x[:, 2 * i], x[:, 2 * i + 1], angle[:, i].cos(), angle[:, i].sin()
        found[:, 2 * i], found[:, 2 * i + 1] = a * c - b * s, a * s + b * c
    return found


def test_self_attention_is_softmax_over_means_of_groups() -> None:
    layer = layers_of(network()).selves[0]
    draw = torch.Generator().manual_seed(6)
    x, places = torch.randn(5, 24, generator=draw), torch.rand(5, 2, generator=draw)
    groups = NeighborGroups(torch.tensor([4, 0, 1, 3, 2]), torch.tensor([0, 2]), torch.tensor([0, 1]))
    members = [4, 0], [1, 3, 2]
    with torch.no_grad():
        turns = layer.turns(places)
        found = layer(x, turns, layer.remember(x, layer.keys(x, turns), groups))
        angle = places @ layer.frequency.T
        query, key = (_turned(z(x), angle) for z in (layer.query, layer.key))
        for i in range(5):
            message = []
            for head in (slice(0, 8), slice(8, 16)):
                fit = [query[i, head] @ key[own, head].mean(0) / math.sqrt(8) for own in members]
                weight = torch.stack(fit).softmax(0)
                message.append(
                    sum(w * layer.value(x)[own, head].mean(0) for w, own in zip(weight, members, strict=True))
                )
            assert torch.allclose(found[i], layer.update(x[i], torch.cat(message)), atol=1e-5)


def test_most_similar_lists_nobody_where_there_are_too_few() -> None:
    there, back = most_similar(torch.eye(3), torch.eye(3)[1:2], 2)
    assert there.tolist() == [[0, -1]] * 3
    assert back[0, 0] == 1
    assert most_similar(torch.eye(3), torch.zeros(0, 3), 2)[0].tolist() == [[-1, -1]] * 3


@torch.no_grad()
def test_swapped_images_swap_the_descriptors() -> None:
    net, one, two = network(), entry(40, 1), entry(33, 2)
    there, back = net.encode(one, two), net.encode(two, one)
    assert torch.allclose(there.descriptors0, back.descriptors1, atol=1e-6)
    assert torch.allclose(there.descriptors1, back.descriptors0, atol=1e-6)


@torch.no_grad()
def test_the_order_of_keypoints_does_not_matter() -> None:
    net, one, two = network(), entry(40, 1), entry(33, 2)
    order = torch.randperm(40, generator=torch.Generator().manual_seed(0))
    other = {**one, "keypoints": one["keypoints"][:, order], "descriptors": one["descriptors"][:, order]}
    found, again = net.encode(one, two), net.encode(other, two)
    assert torch.allclose(found.descriptors0[:, order], again.descriptors0, atol=1e-5)
    assert torch.allclose(found.descriptors1, again.descriptors1, atol=1e-5)


@torch.no_grad()
def test_pairs_of_a_batch_are_what_they_are_alone() -> None:
    net = network()
    pairs = [(entry(40, 1), entry(33, 2)), (entry(2, 3), entry(20, 4)), (entry(0, 5), entry(9, 6))]
    batch = net.encode(collate([a for a, _ in pairs]), collate([b for _, b in pairs]))
    for number, (one, two) in enumerate(pairs):
        alone = net.encode(one, two)
        count0, count1 = one["keypoints"].shape[1], two["keypoints"].shape[1]
        assert torch.allclose(batch.descriptors0[number, :count0], alone.descriptors0[0], atol=1e-6)
        assert torch.allclose(batch.descriptors1[number, :count1], alone.descriptors1[0], atol=1e-6)


@torch.no_grad()
def test_what_is_known_of_an_image_gives_the_same() -> None:
    net, one, two = network(), entry(40, 1), entry(33, 2)
    known = {**one, "encoded": net.encode_image(one)}
    assert torch.equal(net.encode(known, two).descriptors0, net.encode(one, two).descriptors0)


@pytest.mark.parametrize("counts", [(0, 0), (0, 5), (5, 0), (1, 1), (1, 30), (600, 2)])
@torch.no_grad()
def test_few_or_no_keypoints(counts: tuple[int, int]) -> None:
    found = network().encode(entry(counts[0], 1), entry(counts[1], 2))
    for descriptors, count in zip((found.descriptors0, found.descriptors1), counts, strict=True):
        assert descriptors.shape == (1, count, 10)
        assert torch.allclose(descriptors.norm(dim=-1), torch.ones(1, count))


def test_blocks_and_gradients_change_nothing() -> None:
    net, one, two = network(), entry(1300, 1), entry(700, 2)
    whole = net.encode(one, two)
    with torch.no_grad():
        blocks = net.encode(one, two)
    assert torch.allclose(whole.descriptors0, blocks.descriptors0, atol=1e-5)
    whole.descriptors0.sum().backward()
    missing = [name for name, p in net.named_parameters() if p.grad is None]
    assert not missing


@torch.no_grad()
def test_the_layers_tell_what_they_saw_although_they_work_in_one_memory() -> None:
    layers, one, two = layers_of(network()), entry(600, 1), entry(20, 2)
    descriptors, images = torch.cat([one["descriptors"][0], two["descriptors"][0]]), [slice(0, 600), slice(600, 620)]
    points = [each["keypoints"][0] / 50 - 1 for each in (one, two)]
    candidates = most_similar(one["descriptors"][0], two["descriptors"][0], 3)
    start = layers.start(descriptors, images, points)
    seen: list[Tensor] = []
    found = layers(start.clone(), images, points, candidates, [1, 0], seen)
    with torch.enable_grad():
        told: list[Tensor] = []
        wanted = layers(start, images, points, candidates, [1, 0], told)
    assert len(seen) == 3
    for mine, theirs in zip([found, *seen], [wanted, *told], strict=True):
        assert torch.allclose(mine, theirs, atol=1e-5)


def test_several_threads_give_the_same_bits() -> None:
    net, one, two = network(), entry(1300, 1), entry(700, 2)
    threads = torch.get_num_threads()
    found = []
    try:
        for count in (1, 2):
            torch.set_num_threads(count)
            with torch.inference_mode(), team(torch.device("cpu")):
                found.append(net.encode(one, two).descriptors0)
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(*found)


@torch.no_grad()
def test_identity_start_returns_the_projected_descriptors() -> None:
    net, one = network(), entry(30, 1)
    projection = torch.linalg.qr(torch.randn(12, 12, generator=torch.Generator().manual_seed(0))).Q[:, :10]
    net.initialise_identity(projection)
    wanted = F.normalize(one["descriptors"] @ projection, dim=-1)
    assert torch.allclose(net.encode(one, entry(20, 2)).descriptors0, wanted, atol=1e-5)
    with pytest.raises(LinGlueError, match="expected a projection"):
        Context(SMALL, 12, 10).initialise_identity()


def test_files_keep_the_shape(tmp_path: Path) -> None:
    net = network()
    net.save(tmp_path / "mine.safetensors", "mine", "context", "MIT", "not trained")
    assert LinGlue.load(tmp_path / "mine.safetensors").config == net.config


@pytest.mark.parametrize("changes", [{"layers": 0}, {"groups": -1}, {"inner": 30}, {"dim": 2.5}])
def test_shapes_that_make_no_sense_are_refused(changes: dict[str, int]) -> None:
    with pytest.raises(LinGlueError, match="expected"):
        replace(SMALL, **changes)


def test_context_stands_alone() -> None:
    with pytest.raises(LinGlueError, match="one of them"):
        LinGlueConfig(context=SMALL)
