"""DACL+: contrast rows that were mixed with a little of another row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from reweigh import _validate as validate
from reweigh.bench.recipes.algorithms.tabular._contrast import nt_xent
from reweigh.bench.recipes.algorithms.tabular.self_supervised import SelfSupervised
from reweigh.bench.train.programs.rows import RowNetwork
from reweigh.method import ObjectiveLike

__all__ = ["DACL"]


@dataclass(kw_only=True, eq=False, repr=False)
class DACL(SelfSupervised):
    r"""Domain-agnostic contrastive learning with three kinds of mixing: `DACL().fit(X).transform(X)`.

    Two views of a row are made by mixing it with other rows, with a share a between `least` and 1 of itself: linear
    :math:`a x + (1-a) x'`, geometric :math:`x^a x'^{\,1-a}`, or binary (each cell is the row's own with probability a).
    Which kind is drawn again for each row and view. An encoder with a projection head must recognise views of the same
    row (see `nt_xent`).

    Parameters
    ----------
    objective
        What re-weights rows by their loss; `"mean"` for none.
    least
        Smallest share of the row itself.
    temperature
        Of the contrastive loss.
    hidden
        Width of the encoder's two layers; its output are the features.
    projection
        Width of the projection head.
    lr, epochs, batch_size
        Training by Adam; every other row of the batch is a negative.
    random_state, device
        As in :class:`METS`.

    Attributes
    ----------
    network_, losses_, mean_weights_, clip_shares_
        As in :class:`METS`.

    Notes
    -----
    Geometric mixing is for positive values: columns are moved so that the smallest value in the batch is one, mixed,
    and moved back. The sizes are ours; MET's authors do not print theirs. References: Verma et al., Towards
    domain-agnostic contrastive learning, ICML 2021.
    """

    objective: ObjectiveLike = "mean"
    least: float = 0.9
    temperature: float = 0.5
    hidden: int = 256
    projection: int = 128
    lr: float = 1e-3
    epochs: int = 50
    batch_size: int = 128
    random_state: Any = None
    device: str | None = None

    def check_settings(self) -> None:
        """Refuse settings that make no sense, by name."""
        super().check_settings()
        validate.fraction("least", self.least, "It is the smallest share of a row itself in its views.")
        validate.positive("temperature", self.temperature)
        validate.whole("hidden", self.hidden, 1)
        validate.whole("projection", self.projection, 1)

    def network(self, columns: int) -> RowNetwork:
        """The untrained encoder with its projection head."""
        return Mixing(columns, self.hidden, self.projection, least=self.least, temperature=self.temperature)


def mixed(x: Tensor, least: float, draw: torch.Generator) -> Tensor:
    """A view of every row: itself with a little of another one, mixed in one of three ways."""
    rows = len(x)

    def there(drawn: Tensor) -> Tensor:
        return drawn.to(x.device, non_blocking=True)

    def random(*shape: int) -> Tensor:
        return there(torch.rand(shape, generator=draw))

    other = x[there(torch.randperm(rows, generator=draw))]
    share = least + (1.0 - least) * random(rows, 1)
    low = x.amin(0) - 1.0
    linear = share * x + (1.0 - share) * other
    geometric = (x - low) ** share * (other - low) ** (1.0 - share) + low
    binary = torch.where(random(*x.shape) < share, x, other)
    kind = there(torch.randint(3, (rows, 1), generator=draw))
    return torch.where(kind == 0, linear, torch.where(kind == 1, geometric, binary))


class Mixing(RowNetwork):
    """An encoder and a projection head that recognise mixed rows."""

    def __init__(self, columns: int, hidden: int, projection: int, *, least: float, temperature: float) -> None:
        super().__init__()
        self.least, self.temperature = least, temperature
        self.encoder = nn.Sequential(nn.Linear(columns, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU())
        self.project = nn.Sequential(nn.Linear(hidden, projection), nn.ReLU(), nn.Linear(projection, projection))

    def losses(self, x: Tensor, draw: torch.Generator, epoch: int, step: int) -> Tensor:
        """Two views of each row, to be recognised among those of all others."""
        first, second = (self.project(self.encoder(mixed(x, self.least, draw))) for _ in range(2))
        return nt_xent(first, second, self.temperature)

    def encode(self, x: Tensor) -> Tensor:
        """The features of the row as it is."""
        return self.encoder(x)
