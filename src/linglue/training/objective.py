"""One number to minimise: the network and its loss as one module, so that gradients can be shared by processes."""

from __future__ import annotations

from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn

from linglue.matching.motion import epipolar_distance
from linglue.matching.neighborhood import Keypoints
from linglue.network.entries import matchable
from linglue.network.linglue import Encoded, LinGlue
from linglue.training.config import OptimiserConfig
from linglue.training.losses import (
    contrastive_loss,
    distances,
    hinge_loss,
    ranking_loss,
    transport_loss,
    voting_loss,
)

OFF_LINE = 12.0  # pixels


class Objective(nn.Module):
    """Mean loss of a batch of pairs: on x̂, on f̂ as deep supervision, and of the learned consensus where there is one.

    Args:
        network: what is trained.
        config: which loss.
        frozen: only the consensus learns.
    """

    def __init__(self, network: LinGlue, config: OptimiserConfig, frozen: bool = False) -> None:
        super().__init__()
        self.network = network
        self.config, self.frozen = config, frozen
        learned = config.loss == "contrastive" and not frozen
        self.log_temperature = nn.Parameter(torch.tensor(0.05).log(), requires_grad=learned)
        for name, parameter in network.named_parameters():
            parameter.requires_grad_(not frozen or name.startswith("voting."))

    def forward(self, batch: dict[str, Any]) -> Tensor:
        """Mean loss () of a batch of a feature cache; only the network's layers compute in bfloat16, if at all."""
        device = batch["matches0"].device.type
        gradients = torch.set_grad_enabled(torch.is_grad_enabled() and not self.frozen)
        with gradients, torch.autocast(device, torch.bfloat16, enabled=self.config.bfloat16):
            encoded = self.network.encode(batch["image0"], batch["image1"])
        with torch.autocast(device, enabled=False):
            return self._mean_loss(encoded, batch)

    def _mean_loss(self, encoded: Encoded, batch: dict[str, Any]) -> Tensor:
        losses = []
        pairs = matchable(batch["image0"], batch["image1"], encoded.descriptors0, encoded.descriptors1)
        for b in range(len(batch["matches0"])):
            valid0, valid1 = batch["image0"]["mask"][b], batch["image1"]["mask"][b]
            # Padding lies behind all keypoints, so indices stay true when it is cut off.
            truth0, truth1 = batch["matches0"][b][valid0], batch["matches1"][b][valid1]
            final = encoded.descriptors0[b][valid0], encoded.descriptors1[b][valid1]
            coarse = encoded.coarse0[b][valid0], encoded.coarse1[b][valid1]
            if not self.frozen:
                losses.append(self._loss(*final, truth0, truth1, *coarse))
                if self.config.coarse > 0 and self.network.pairwise:
                    losses.append(self.config.coarse * self._loss(*coarse, truth0, truth1, *coarse))
            if self.network.voting is not None:
                view0, view1, x0, x1 = pairs[b]
                places = view0.points, view1.points
                if b % 2:  # what is left and what is right must not matter
                    view0, view1 = _mirrored(view0), _mirrored(view1)
                looks = self.network.voting(view0, view1, x0, x1)
                losses.append(voting_loss(looks, truth0, truth1, partial(_off_line, batch["fundamental"][b], *places)))
        return torch.stack(losses).sum() / len(batch["matches0"])

    def _loss(self, x0: Tensor, x1: Tensor, truth0: Tensor, truth1: Tensor, coarse0: Tensor, coarse1: Tensor) -> Tensor:
        if self.config.loss == "transport":
            return transport_loss(x0, x1, truth0, truth1, cast(Tensor, self.network.dustbin))
        if not (truth0 >= 0).any():  # unrelated images: nothing to rank
            return (x0.sum() + x1.sum()) * 0
        if self.config.loss == "contrastive":
            return contrastive_loss(x0, x1, truth0, truth1, self.log_temperature.exp())
        found = distances(x0, x1, truth0, truth1)
        if self.config.loss == "ranking":
            return ranking_loss(found, coarse0, coarse1)
        return hinge_loss(found, self.config.margin)


def _off_line(fundamental: Tensor, points0: Tensor, points1: Tensor, pairs: Tensor) -> Tensor:
    """(E,) bool: the ends of pairs (E, 2) lie further from their epipolar lines than any error of labels explains."""
    ends0, ends1 = points0[pairs[:, 0]].double(), points1[pairs[:, 1]].double()  # (E, 2)
    return epipolar_distance(fundamental, ends0, ends1) > OFF_LINE  # an unknown matrix is zero, and so is the distance


def _mirrored(seen: Keypoints) -> Keypoints:
    """Left and right exchanged."""
    points = torch.stack([seen.size[0] - 1 - seen.points[:, 0], seen.points[:, 1]], dim=1)
    return Keypoints(points, seen.size, seen.scales, None if seen.oris is None else torch.pi - seen.oris)
