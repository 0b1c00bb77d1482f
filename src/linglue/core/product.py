"""Products of matrices on a CPU by oneDNN, which uses all of a processor's instructions, where torch's MKL may not."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

_RELU = {False: "none", True: "relu"}


def _find() -> Any:
    """oneDNN's linear layer, which torch has for its compiler; None where torch was built without."""
    return getattr(torch.ops.mkldnn, "_linear_pointwise", None) if torch.backends.mkldnn.is_available() else None


ONEDNN = _find()


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None, relu: bool = False) -> Tensor:
    """x (N, D), weight (C, D), bias (C,) → x · weightᵀ + bias (N, C), without its negative values if `relu`.

    On AMD's processors torch's own product uses half of what they have. Every new shape costs about 0.2 ms, once: for
    large products of shapes that come again. With gradients, on other devices and for other types it is torch's own.

    Args:
        x: (N, D) rows.
        weight: (C, D) as of `torch.nn.Linear`.
        bias: (C,).
        relu: whether negative values become zero.

    Example:
        >>> linear(torch.eye(2), torch.tensor([[1.0, -2.0]])).tolist()
        [[1.0], [-2.0]]
    """
    plain = x.device.type != "cpu" or x.dtype != torch.float32 or weight.dtype != torch.float32
    if plain or ONEDNN is None or torch.is_grad_enabled() or torch.is_autocast_enabled("cpu"):
        product = F.linear(x, weight, bias)
        return product.relu_() if relu and not product.requires_grad else product.relu() if relu else product
    found: Tensor = ONEDNN(x, weight, bias, _RELU[relu], [], "")
    return found
