"""Attention against double loops over its equation."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from linglue.matching import neighborhood as module
from linglue.matching.nearest import nearest_both_ways
from linglue.matching.neighborhood import Keypoints, Selection, all_groups, select
from linglue.network.layers import pairwise_attention, positive, remember

SIZE = torch.tensor([300.0, 200.0])


def phi(x):
    return F.elu(x) + 1


def naive(query, key, value, allowed):
    """One query (d,) over the keys (M, d) whose index is in `allowed`."""
    top, bottom = torch.zeros(value.shape[1], dtype=query.dtype), torch.zeros((), dtype=query.dtype)
    for j in sorted(allowed):
        weight = phi(query) @ phi(key[j])
        top, bottom = top + weight * value[j], bottom + weight
    return top / bottom if allowed else top


def random_tensors(*shapes, seed=0):
    random = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=random) for shape in shapes]


def test_positive_is_elu_plus_one():
    x = torch.linspace(-30, 30, 1001)
    torch.testing.assert_close(positive(x), phi(x))
    assert (positive(x) > 0).all()


def test_positive_has_the_derivative_of_elu():
    x = torch.linspace(-5, 5, 41, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(positive, (x,))


def same_head(heads, size):
    """(C, C) one where two channels are of the same head."""
    head = torch.arange(heads).repeat_interleave(size)
    return (head[:, None] == head).float()


def linear_attention(query, key, value):
    """query (N, H, d), key and value (M, H, d) → (N, H, d)."""
    memory = remember(positive(key.flatten(1)), value.flatten(1), same_head(*query.shape[1:]))
    return memory.read(positive(query.flatten(1)), torch.zeros(query.shape[1:].numel())).unflatten(1, query.shape[1:])


def pairwise(query, key, value, chosen):
    """The same within neighborhoods, with the queries and the keys as the two images of a pair."""
    n, m = len(query), len(key)
    images = [slice(0, n), slice(n, n + m)]
    none = torch.zeros(m, *query.shape[1:])
    tokens = [torch.cat(two).flatten(1) for two in ((query, none), (none[:1].expand(n, -1, -1), key))]
    tokens.append(torch.cat([none[:1].expand(n, -1, -1), value]).flatten(1))
    groups = all_groups([chosen], images, [1])
    heads = same_head(*query.shape[1:])
    message = pairwise_attention(positive(tokens[0]), positive(tokens[1]), tokens[2], groups, heads)
    assert not message[n:].any()
    return message[:n].unflatten(1, query.shape[1:])


@pytest.mark.parametrize(("heads", "size"), [(1, 8), (4, 2), (8, 8)])
def test_linear_attention_equals_equation(heads, size):
    query, key, value = random_tensors((7, heads, size), (9, heads, size), (9, heads, size))
    found = linear_attention(query, key, value)
    for h in range(heads):
        for i in range(7):
            expected = naive(query[i, h], key[:, h], value[:, h], set(range(9)))
            torch.testing.assert_close(found[i, h], expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("shape", [(0, 5), (5, 0), (0, 0)])
def test_nothing_to_read_gives_zero(shape):
    query, key = torch.randn(shape[0], 2, 4), torch.zeros(shape[1], 2, 4)
    assert torch.equal(linear_attention(query, key, key), torch.zeros_like(query))


def selection(count: int = 60, targets: int = 45, separation: bool = True) -> Selection:
    """Neighborhoods of random matches: more keypoints here than there, so that targets are shared."""
    points0, points1, x0, x1 = random_tensors((count, 2), (targets, 2), (count, 6), (targets, 6), seed=2)
    points0, points1 = points0.abs() * 60, points1.abs() * 60
    nearest = nearest_both_ways(x0, x1)
    return select(Keypoints(points0, SIZE), Keypoints(points1, SIZE), *nearest, 6.0, separation)


def naive_pairwise(query, key, value, chosen):
    """V = Σ_p V^p over the seeds, each within its two index sets."""
    message = torch.zeros_like(query)
    for p in chosen.seeds.tolist():
        source, target = set(), set()
        for i in range(len(query)):
            near0 = (chosen.points0[i] - chosen.points0[p]).norm() <= chosen.reach0
            if near0 and (chosen.matched[i] - chosen.matched[p]).norm() <= chosen.reach1:
                source.add(i)
                target.add(int(chosen.index[i]))
        for i in source:
            for h in range(query.shape[1]):
                message[i, h] += naive(query[i, h], key[:, h], value[:, h], target)
    return message


@pytest.mark.parametrize("separation", [True, False])
def test_pairwise_attention_equals_equation(separation):
    chosen = selection(30, 20, separation)
    query, key, value = random_tensors((30, 2, 4), (20, 2, 4), (20, 2, 4))
    shared = [len(set(b.target.tolist())) < len(set(b.source.tolist())) for b in chosen.neighborhoods()]
    assert any(shared), "the case of several sources with one target is covered"
    expected = naive_pairwise(query, key, value, chosen)
    torch.testing.assert_close(pairwise(query, key, value, chosen), expected, atol=1e-4, rtol=1e-4)


def test_keypoints_in_no_neighborhood_receive_zero():
    chosen = selection()
    inside = {i for block in chosen.neighborhoods() for i in block.source.tolist()}
    outside = [i for i in range(60) if i not in inside]
    assert inside and outside
    query, key, value = random_tensors((60, 2, 4), (45, 2, 4), (45, 2, 4))
    message = pairwise(query, key, value, chosen)
    assert not message[outside].any()
    assert message[sorted(inside)].abs().sum((1, 2)).min() > 0


@pytest.mark.parametrize("tokens", [1, 50, 300])
def test_chunks_change_neither_result_nor_gradients(tokens, monkeypatch):
    chosen = selection(separation=False)
    results = []
    for size in (1 << 16, tokens):
        monkeypatch.setattr(module, "PADDED_TOKENS", size)
        monkeypatch.setattr(module, "SPREAD", 1e9 if size > tokens else 1.1)
        inputs = [x.requires_grad_() for x in random_tensors((60, 2, 4), (45, 2, 4), (45, 2, 4))]
        query, key, value = inputs
        message = pairwise(query, key, value, chosen)
        (message * torch.linspace(-1, 1, message.numel()).reshape(message.shape)).sum().backward()
        results.append([message.detach(), *(x.grad for x in inputs)])
    for whole, cut in zip(*results, strict=True):
        assert torch.isfinite(whole).all()
        assert whole.abs().sum() > 0
        torch.testing.assert_close(cut, whole, atol=1e-4, rtol=1e-4)


def test_no_seeds_no_message():
    empty = torch.zeros(0, dtype=torch.int64)
    full = selection()
    chosen = Selection(full.points0, full.matched, full.index, empty, full.reach0, full.reach1)
    query, key, value = random_tensors((60, 2, 4), (45, 2, 4), (45, 2, 4))
    message = pairwise(query, key, value, chosen)
    assert torch.equal(message, torch.zeros(60, 2, 4))
