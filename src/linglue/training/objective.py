"""One number to minimise: the network and its loss as one module, so that gradients can be shared by processes."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn

from linglue.network.linglue import Encoded, LinGlue
from linglue.training.config import OptimiserConfig
from linglue.training.losses import contrastive_loss, distances, hinge_loss, ranking_loss, transport_loss


class Objective(nn.Module):
    """Mean loss of a batch of pairs, on x̂ and, as deep supervision, on f̂."""

    def __init__(self, network: LinGlue, config: OptimiserConfig) -> None:
        super().__init__()
        self.network = network
        self.config = config
        self.log_temperature = nn.Parameter(torch.tensor(0.05).log(), requires_grad=config.loss == "contrastive")

    def forward(self, batch: dict[str, Any]) -> Tensor:
        """Mean loss () of a batch of a feature cache; only the network's layers compute in bfloat16, if at all."""
        device = batch["matches0"].device.type
        with torch.autocast(device, torch.bfloat16, enabled=self.config.bfloat16):
            encoded = self.network.encode(batch["image0"], batch["image1"])
        with torch.autocast(device, enabled=False):
            return self._mean_loss(encoded, batch)

    def _mean_loss(self, encoded: Encoded, batch: dict[str, Any]) -> Tensor:
        losses = []
        for b in range(len(batch["matches0"])):
            valid0, valid1 = batch["image0"]["mask"][b], batch["image1"]["mask"][b]
            # Padding lies behind all keypoints, so indices stay true when it is cut off.
            truth0, truth1 = batch["matches0"][b][valid0], batch["matches1"][b][valid1]
            final = encoded.descriptors0[b][valid0], encoded.descriptors1[b][valid1]
            coarse = encoded.coarse0[b][valid0], encoded.coarse1[b][valid1]
            loss = self._loss(*final, truth0, truth1, *coarse)
            if self.config.coarse > 0 and self.network.pairwise:
                loss = loss + self.config.coarse * self._loss(*coarse, truth0, truth1, *coarse)
            losses.append(loss)
        return torch.stack(losses).mean()

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
