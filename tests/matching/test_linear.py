"""Products by oneDNN against torch's own."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from linglue.matching import nearest
from linglue.matching.nearest import ROWS, linear


def counted(monkeypatch) -> list[int]:
    """The numbers of rows that oneDNN is asked for from now on."""
    rows: list[int] = []
    original = nearest.ONEDNN

    def remember(x, *others):
        rows.append(len(x))
        return original(x, *others)

    if original is not None:
        monkeypatch.setattr(nearest, "ONEDNN", remember)
    return rows


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("rows", [ROWS, 2 * ROWS, 7, 0])
def test_equals_torch(rows, biased, relu, monkeypatch):
    asked = counted(monkeypatch)
    random = torch.Generator().manual_seed(rows)
    x, weight = torch.randn(rows, 66, generator=random), torch.randn(40, 66, generator=random)
    bias = torch.randn(40, generator=random) if biased else None
    wanted = F.linear(x, weight, bias)
    with torch.no_grad():
        found = linear(x, weight, bias, relu)
    torch.testing.assert_close(found, wanted.clamp(min=0) if relu else wanted, atol=1e-4, rtol=1e-4)
    if nearest.ONEDNN is not None:
        assert asked == ([rows] if rows % ROWS == 0 else []), "new shapes cost time: only blocks are its business"


def test_views_are_multiplied_as_what_they_show():
    x, weight = torch.randn(ROWS, 128)[:, :64], torch.randn(64, 32).T
    with torch.no_grad():
        torch.testing.assert_close(linear(x, weight), x @ weight.T, atol=1e-4, rtol=1e-4)


def test_gradients_and_other_types_are_torch_s_own(monkeypatch):
    asked = counted(monkeypatch)
    x = torch.randn(ROWS, 8, requires_grad=True)
    linear(x, torch.randn(4, 8), relu=True).sum().backward()
    assert x.grad is not None
    with torch.no_grad():
        assert linear(torch.ones(ROWS, 8).double(), torch.ones(4, 8).double()).dtype == torch.float64
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert linear(x, torch.randn(4, 8)).dtype == torch.bfloat16
    assert not asked


def test_without_onednn(monkeypatch):
    monkeypatch.setattr(nearest, "ONEDNN", None)
    with torch.no_grad():
        assert linear(torch.ones(ROWS, 2), torch.tensor([[1.0, -3.0]]), relu=True).sum() == 0
