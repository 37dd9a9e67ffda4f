"""SubTab: reconstruct a whole row from subsets of its columns, with features that agree."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from typing import Any

import torch
from torch import Tensor, nn

from reweigh import _validate as validate
from reweigh.bench.recipes.algorithms.tabular._contrast import nt_xent
from reweigh.bench.recipes.algorithms.tabular.self_supervised import SelfSupervised
from reweigh.bench.recipes.algorithms.tabular.vime import corrupt
from reweigh.bench.train.programs.rows import RowNetwork
from reweigh.method import ObjectiveLike

__all__ = ["SubTab"]


@dataclass(kw_only=True, eq=False, repr=False)
class SubTab(SelfSupervised):
    r"""Subsetting features of tables: `SubTab().fit(X).transform(X)`.

    The columns are cut into `subsets` neighbouring groups, each of which also gets an `overlap` of those before it. A
    shared encoder sees one noisy subset at a time; each reconstructs the whole row, and subsets of a row must agree:

    .. math:: \ell = \overline{\|\hat x^{(s)} - x\|^2} + \overline{\ell_{\mathrm{NT\text{-}Xent}}(z^{(s)}, z^{(t)})} +
              \overline{\|z^{(s)} - z^{(t)}\|^2}

    with bars for means over subsets s and over pairs (s, t), and z the normalised projections. As in the authors' code,
    squared errors are summed over columns, the encoder is one layer and the decoder is linear. Features of a row are
    the mean of the encodings of its subsets.

    Parameters
    ----------
    objective
        What re-weights rows by their loss; `"mean"` for none.
    subsets, overlap
        Number of subsets, and the share of a subset's columns that it has in common with the one before.
    noise
        Probability of a cell to be replaced by its column's value in another row.
    temperature
        Of the contrastive loss.
    hidden
        Width of encoder and projection.
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
    The first subset borrows the columns after it, so that all subsets are of one width. Departs from the authors' code
    where the number of columns is not a multiple of the subsets: there the last columns are in no subset, here subsets
    are a column wider. Tables with fewer columns than subsets get one subset per column, and a single subset has no
    partner. A row's loss grows with the number of columns, so tau has to grow with it. References: Ucar et al., SubTab,
    NeurIPS 2021.
    """

    objective: ObjectiveLike = "mean"
    subsets: int = 4
    overlap: float = 0.75
    noise: float = 0.3
    temperature: float = 0.1
    hidden: int = 784
    lr: float = 1e-3
    epochs: int = 15
    batch_size: int = 32
    random_state: Any = None
    device: str | None = None

    def check_settings(self) -> None:
        """Refuse settings that make no sense, by name."""
        super().check_settings()
        validate.whole("subsets", self.subsets, 1)
        validate.fraction("overlap", self.overlap, zero=True)
        validate.fraction("noise", self.noise, zero=True)
        validate.positive("temperature", self.temperature)
        validate.whole("hidden", self.hidden, 1)

    def network(self, columns: int) -> RowNetwork:
        """The untrained encoder, decoder and projection."""
        chosen = column_subsets(columns, self.subsets, self.overlap)
        return Subsets(columns, chosen, self.hidden, noise=self.noise, temperature=self.temperature)


def column_subsets(columns: int, subsets: int, overlap: float) -> list[list[int]]:
    """The columns of each subset, all of one width; together they are all columns.

    Examples
    --------
    >>> column_subsets(8, 4, 0.5)
    [[0, 1, 2], [1, 2, 3], [3, 4, 5], [5, 6, 7]]
    """
    subsets = min(subsets, columns)
    size = -(-columns // subsets)
    width = min(columns, size + int(overlap * size))
    ends = [min((s + 1) * size, columns) for s in range(subsets)]
    starts = [max(end - width, 0) for end in ends]
    return [list(range(start, start + width)) for start in starts]


class Subsets(RowNetwork):
    """One encoder for all subsets, a decoder to the whole row, and a projection in which subsets meet."""

    def __init__(
        self, columns: int, subsets: list[list[int]], hidden: int, *, noise: float, temperature: float
    ) -> None:
        super().__init__()
        self.noise, self.temperature = noise, temperature
        self.register_buffer("subsets", torch.tensor(subsets), persistent=False)
        width = len(subsets[0])
        self.encoder = nn.Sequential(nn.Linear(width, hidden), nn.LeakyReLU())
        self.decoder = nn.Linear(hidden, columns)
        self.project = nn.Sequential(nn.Linear(hidden, hidden), nn.LeakyReLU(), nn.Linear(hidden, hidden))

    def parts(self, x: Tensor) -> Tensor:
        """The rows' cells by subset, `(subsets, rows, width)`."""
        chosen: Any = self.subsets
        return x[:, chosen].transpose(0, 1)

    def losses(self, x: Tensor, draw: torch.Generator, epoch: int, step: int) -> Tensor:
        """Reconstruction from every noisy subset, and agreement of every pair."""
        noisy = torch.stack([corrupt(part, self.noise, draw)[0] for part in self.parts(x)])
        encoded = self.encoder(noisy)
        reconstruction = (self.decoder(encoded) - x).square().sum(2).mean(0)
        projected = nn.functional.normalize(self.project(encoded), dim=-1)
        pairs = list(combinations(projected, 2))
        if not pairs:
            return reconstruction
        apart = torch.stack([(a - b).square().sum(1) for a, b in pairs]).mean(0)
        unlike = torch.stack([nt_xent(a, b, self.temperature) for a, b in pairs]).mean(0)
        return reconstruction + unlike + apart

    def encode(self, x: Tensor) -> Tensor:
        """The mean of the encodings of all subsets."""
        return self.encoder(self.parts(x)).mean(0)
