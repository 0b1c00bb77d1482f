"""What every training does beside its steps: a learning rate that changes, and an average of the weights."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR
from torch.optim.swa_utils import AveragedModel

YOUNG = 10  # steps: averages younger than this forget the start quickly


def schedule(optimiser: torch.optim.Optimizer, rate: float, factor: Callable[[int], float], step: int) -> LambdaLR:
    """The learning rate from `step` on.

    Args:
        optimiser: its rate is set.
        rate: the full rate.
        factor: the share of it that a step has.
        step: the number of steps taken before, by a run that is resumed.

    Example:
        >>> optimiser = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
        >>> schedule(optimiser, 0.5, lambda step: 0.1 * step, 4).get_last_lr()
        [0.2]
    """
    for group in optimiser.param_groups:
        group["initial_lr"] = rate
    return LambdaLR(optimiser, factor, last_epoch=step - 1)


def averaged(network: nn.Module, average: float) -> AveragedModel:
    """The exponential average of a network over the steps, its statistics included; the start counts as the first.

    Args:
        network: is copied; `update_parameters(network)` adds a step.
        average: what a grown-up average keeps of the past per step; a young one keeps less.
    """

    def mix(slow: Tensor, fast: Tensor, step: Tensor | int) -> Tensor:
        if not slow.is_floating_point():  # a count
            return fast
        return torch.lerp(slow, fast, 1 - min(average, int(step) / (int(step) + YOUNG)))

    model = AveragedModel(network, avg_fn=mix, use_buffers=True)
    model.n_averaged.fill_(1)
    return model
