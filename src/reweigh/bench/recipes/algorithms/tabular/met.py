"""MET: masked encoding of tables with adversarial reconstruction."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from reweigh import _validate as validate
from reweigh.bench.recipes.algorithms.tabular._masked_autoencoder import MaskedAutoencoder, Masking, masking
from reweigh.bench.recipes.algorithms.tabular.met_s import check_sizes, masked_autoencoder
from reweigh.bench.recipes.algorithms.tabular.self_supervised import SelfSupervised
from reweigh.bench.train.programs.rows import RowNetwork
from reweigh.method import ObjectiveLike

__all__ = ["MET"]


@dataclass(kw_only=True, eq=False, repr=False)
class MET(SelfSupervised):
    r"""A masked autoencoder that also reconstructs rows made hard on purpose: `MET(radius=2.0).fit(X).transform(X)`.

    As :class:`METS`. After `warmup` epochs, every second step starts from kept values with Gaussian noise, climbs the
    reconstruction loss, and stays near the true values:

    .. math:: v \leftarrow \Pi_{\|v - x\|\le r}\big(v + \eta\, \nabla_v \ell / \|\nabla_v \ell\|\big), \qquad
              v_0 = x + \frac{2}{\sqrt d}\,\varepsilon

    and the loss of such a row is that of its true values plus that of the climbed ones, both against the true row.

    Parameters
    ----------
    objective
        As in :class:`METS`; a row's loss on an adversarial step is the sum of both.
    radius
        Of the ball around a row's kept values.
    ascent_steps, ascent_rate
        Steps of the climb, and their length.
    warmup
        Epochs without adversarial steps.
    masked, embedding, blocks, decoder_blocks, feed_forward, dropout
        As in :class:`METS`.
    lr, epochs, batch_size, random_state, device
        As in :class:`METS`.

    Attributes
    ----------
    network_, losses_, mean_weights_, clip_shares_
        As in :class:`METS`.

    Notes
    -----
    Departs from the authors' code, which takes norms over the whole batch (so that a ball of radius 2 holds 126 rows)
    and makes two optimiser steps of the two losses: here every row has its own gradient norm and ball, and the sum is
    descended in one step. References: Majmundar et al., MET, 2022.
    """

    objective: ObjectiveLike = "mean"
    radius: float = 2.0
    ascent_steps: int = 2
    ascent_rate: float = 1e-2
    warmup: int = 10
    masked: float = 0.7
    embedding: int = 64
    blocks: int = 6
    decoder_blocks: int = 1
    feed_forward: int = 64
    dropout: float = 0.1
    lr: float = 1e-5
    epochs: int = 50
    batch_size: int = 126
    random_state: Any = None
    device: str | None = None

    def check_settings(self) -> None:
        """Refuse settings that make no sense, by name."""
        super().check_settings()
        check_sizes(self)
        validate.positive("radius", self.radius)
        validate.positive("ascent_rate", self.ascent_rate)
        validate.whole("ascent_steps", self.ascent_steps, 0)
        validate.whole("warmup", self.warmup, 0)

    def network(self, columns: int) -> RowNetwork:
        """The untrained masked autoencoder with its adversary."""
        return AdversarialAutoencoder(
            masked_autoencoder(self, columns),
            radius=self.radius,
            ascent_steps=self.ascent_steps,
            ascent_rate=self.ascent_rate,
            warmup=self.warmup,
        )


class AdversarialAutoencoder(RowNetwork):
    """A masked autoencoder, and the rows that are hardest for it near the true ones."""

    def __init__(
        self, inner: MaskedAutoencoder, *, radius: float, ascent_steps: int, ascent_rate: float, warmup: int
    ) -> None:
        super().__init__()
        self.inner = inner
        self.radius, self.ascent_steps, self.ascent_rate, self.warmup = radius, ascent_steps, ascent_rate, warmup

    def losses(self, x: Tensor, draw: torch.Generator, epoch: int, step: int) -> Tensor:
        """Plain reconstruction; on every second step after the warm-up also that of the climbed rows."""
        mask = masking(len(x), self.inner.columns, self.inner.masked, draw, x.device)
        values = x.gather(1, mask.kept)
        plain = self.inner.row_losses(values, mask, x)
        if epoch < self.warmup or step % 2 == 0:
            return plain
        return plain + self.inner.row_losses(self.climb(values, mask, x, draw), mask, x)

    def climb(self, values: Tensor, mask: Masking, x: Tensor, draw: torch.Generator) -> Tensor:
        """Values of the kept columns, within the radius of the true ones, that are harder to reconstruct from."""
        noise = torch.randn(values.shape, generator=draw).to(values.device, non_blocking=True)
        climbed = self._project(values + noise * (2.0 / self.inner.columns**0.5), values)
        for _ in range(self.ascent_steps):
            climbed = climbed.detach().requires_grad_()
            # Rows do not meet in the network, so the gradient of the sum is each row's own.
            (slope,) = torch.autograd.grad(self.inner.row_losses(climbed, mask, x).sum(), climbed)
            length = slope.norm(dim=1, keepdim=True).clamp(min=1e-12)
            climbed = self._project(climbed.detach() + self.ascent_rate * slope / length, values)
        return climbed

    def _project(self, near: Tensor, centre: Tensor) -> Tensor:
        away = near - centre
        return centre + away * (self.radius / away.norm(dim=1, keepdim=True).clamp(min=1e-12)).clamp(max=1.0)

    def encode(self, x: Tensor) -> Tensor:
        """As the masked autoencoder does."""
        return self.inner.encode(x)
