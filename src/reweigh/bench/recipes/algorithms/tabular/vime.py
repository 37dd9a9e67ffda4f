"""VIME: predict which cells of a row were replaced, and what they were."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from reweigh import _validate as validate
from reweigh.bench.recipes.algorithms.tabular.self_supervised import SelfSupervised
from reweigh.bench.train.programs.rows import RowNetwork
from reweigh.method import ObjectiveLike

__all__ = ["VIME"]


@dataclass(kw_only=True, eq=False, repr=False)
class VIME(SelfSupervised):
    r"""Value imputation and mask estimation: `VIME().fit(X).transform(X)`.

    Cells are replaced, each with probability `corrupted`, by the same column's value in another row. From the
    corrupted row an encoder's features must predict both what was replaced (m) and the true row:

    .. math:: \ell = \frac1d \sum_j \mathrm{BCE}(\hat m_j, m_j) + \alpha\,\frac1d \sum_j (\hat x_j - x_j)^2

    Parameters
    ----------
    objective
        What re-weights rows by their loss; `"mean"` for none.
    corrupted
        Probability of a cell to be replaced.
    alpha
        Weight of the reconstruction.
    hidden
        Width of the encoder, which is one layer with ReLU; `None` for as many as there are columns.
    lr, epochs, batch_size
        Training by Adam.
    random_state, device
        As in :class:`METS`.

    Attributes
    ----------
    network_, losses_, mean_weights_, clip_shares_
        As in :class:`METS`.

    Notes
    -----
    Departs from the authors' code: cells are replaced again for every batch, by values of other rows of the batch, and
    not once before training, by values of all rows; a linear layer predicts the values, not a sigmoid, since
    columns are standardised and not between 0 and 1; and training is by Adam and not by RMSprop, as that of all
    transformers here. Their semi-supervised second stage is for rows without labels beside rows with labels, and is
    not here. References: Yoon et al., VIME, NeurIPS 2020.
    """

    objective: ObjectiveLike = "mean"
    corrupted: float = 0.3
    alpha: float = 2.0
    hidden: int | None = None
    lr: float = 1e-3
    epochs: int = 10
    batch_size: int = 128
    random_state: Any = None
    device: str | None = None

    def check_settings(self) -> None:
        """Refuse settings that make no sense, by name."""
        super().check_settings()
        validate.fraction("corrupted", self.corrupted, "It is the probability of a cell to be replaced.")
        validate.non_negative("alpha", self.alpha)
        if self.hidden is not None:
            validate.whole("hidden", self.hidden, 1)

    def network(self, columns: int) -> RowNetwork:
        """The untrained encoder with its two tasks."""
        return TwoTasks(columns, self.hidden or columns, corrupted=self.corrupted, alpha=self.alpha)


def shuffled_columns(x: Tensor, draw: torch.Generator) -> Tensor:
    """Every column in an order of its own: each cell is a real value of its column, and rows mean nothing."""
    order = torch.rand(x.shape, generator=draw).argsort(0)
    return x.gather(0, order.to(x.device, non_blocking=True))


def corrupt(x: Tensor, share: float, draw: torch.Generator) -> tuple[Tensor, Tensor]:
    """Rows with cells replaced by shuffled ones, and which cells really changed, both `(rows, columns)`."""
    chosen = torch.rand(x.shape, generator=draw) < share
    replaced = torch.where(chosen.to(x.device, non_blocking=True), shuffled_columns(x, draw), x)
    return replaced, (replaced != x).to(x.dtype)


class TwoTasks(RowNetwork):
    """An encoder, a layer that predicts what was replaced, and one that predicts the true values."""

    def __init__(self, columns: int, hidden: int, *, corrupted: float, alpha: float) -> None:
        super().__init__()
        self.corrupted, self.alpha = corrupted, alpha
        self.encoder = nn.Sequential(nn.Linear(columns, hidden), nn.ReLU())
        self.which = nn.Linear(hidden, columns)
        self.what = nn.Linear(hidden, columns)

    def losses(self, x: Tensor, draw: torch.Generator, epoch: int, step: int) -> Tensor:
        """Replace some cells, and predict which and what."""
        replaced, changed = corrupt(x, self.corrupted, draw)
        features = self.encoder(replaced)
        which = F.binary_cross_entropy_with_logits(self.which(features), changed, reduction="none").mean(1)
        return which + self.alpha * (self.what(features) - x).square().mean(1)

    def encode(self, x: Tensor) -> Tensor:
        """The features of the row as it is."""
        return self.encoder(x)
