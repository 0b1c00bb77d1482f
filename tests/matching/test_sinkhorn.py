"""Optimal transport against the textbook iteration."""

from __future__ import annotations

import pytest
import torch

from linglue.matching.sinkhorn import log_optimal_transport, transport_matches


def naive_plan(similarity, dustbin, iterations):
    n, m = similarity.shape
    kernel = torch.full((n + 1, m + 1), float(dustbin), dtype=torch.float64)
    kernel[:n, :m] = similarity
    kernel = kernel.exp()
    rows = torch.tensor([1.0] * n + [float(m)], dtype=torch.float64)
    columns = torch.tensor([1.0] * m + [float(n)], dtype=torch.float64)
    b = torch.ones(m + 1, dtype=torch.float64)
    for _ in range(iterations):
        a = rows / (kernel @ b)
        b = columns / (kernel.T @ a)
    return a[:, None] * kernel * b


@pytest.mark.parametrize("shape", [(1, 1), (1, 4), (5, 3), (6, 6)])
@pytest.mark.parametrize("iterations", [1, 3, 100])
def test_equals_textbook(shape, iterations):
    similarity = 3 * torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))
    plan = log_optimal_transport(similarity, torch.tensor(0.7), iterations).exp()
    torch.testing.assert_close(plan.double(), naive_plan(similarity.double(), 0.7, iterations), atol=1e-5, rtol=1e-4)


def test_marginals_hold():
    similarity = 5 * torch.randn(30, 20, generator=torch.Generator().manual_seed(0))
    plan = log_optimal_transport(similarity, torch.tensor(1.0), 200).exp()
    torch.testing.assert_close(plan[:-1].sum(1), torch.ones(30), atol=1e-3, rtol=0)
    torch.testing.assert_close(plan[:, :-1].sum(0), torch.ones(20), atol=1e-3, rtol=0)
    torch.testing.assert_close(plan[-1].sum(), torch.tensor(20.0), atol=1e-2, rtol=0)
    torch.testing.assert_close(plan[:, -1].sum(), torch.tensor(30.0), atol=1e-2, rtol=0)


def test_large_similarities_stay_finite():
    similarity = 1000 * torch.randn(10, 10, generator=torch.Generator().manual_seed(0))
    assert torch.isfinite(log_optimal_transport(similarity, torch.tensor(1.0))).all()


def test_finds_the_permutation_and_leaves_strangers():
    random = torch.Generator().manual_seed(0)
    x0 = 8 * torch.nn.functional.normalize(torch.randn(25, 64, generator=random), dim=1)
    order = torch.randperm(20, generator=random)
    x1 = torch.cat([x0[order], 8 * torch.nn.functional.normalize(torch.randn(5, 64, generator=random), dim=1)])
    pairs, scores = transport_matches(x0, x1, torch.tensor(3.0))
    assert {(int(order[j]), j) for j in range(20)} == {tuple(p) for p in pairs.tolist()}
    assert torch.equal(scores, scores.sort(descending=True).values)
    assert ((scores > 0.2) & (scores <= 1)).all()


@pytest.mark.parametrize("shape", [(0, 0), (0, 3), (3, 0)])
def test_empty(shape):
    pairs, scores = transport_matches(torch.zeros(shape[0], 8), torch.zeros(shape[1], 8), torch.tensor(1.0))
    assert pairs.shape == (0, 2)
    assert scores.shape == (0,)
