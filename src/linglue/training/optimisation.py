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


def kept(average: float, step: int) -> float:
    """How much of the past an exponential average keeps at its `step`: a young one keeps less than `average`."""
    return min(average, step / (step + YOUNG))


def averaged(network: nn.Module, average: float) -> AveragedModel:
    """The exponential average of a network over the steps; the start counts as the first of them.

    Args:
        network: is copied; `update_parameters(network)` adds a step.
        average: what a grown-up average keeps of the past per step.
    """

    def mix(slow: Tensor, fast: Tensor, step: Tensor | int) -> Tensor:
        return torch.lerp(slow, fast, 1 - kept(average, int(step)))

    model = AveragedModel(network, avg_fn=mix)
    model.n_averaged.fill_(1)
    return model


@torch.no_grad()
def mix_in(slow: nn.Module, fast: nn.Module, keep: float) -> None:
    """Move all numbers of `slow` towards those of `fast`, its statistics (buffers) included; whole numbers are copied.

    Args:
        slow: an average of networks like `fast`; is changed.
        fast: the network after a step.
        keep: see `kept`.
    """
    newest = fast.state_dict()
    for name, value in slow.state_dict().items():
        if value.is_floating_point():
            value.lerp_(newest[name], 1 - keep)
        else:
            value.copy_(newest[name])
