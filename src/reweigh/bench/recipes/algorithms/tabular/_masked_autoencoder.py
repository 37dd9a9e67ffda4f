"""The network of MET: every cell of a row is a token, most are hidden, and all are reconstructed."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from reweigh.bench.train.programs.rows import RowNetwork


class Masking(NamedTuple):
    """Which columns of each row are seen and which are hidden: ascending indices, `(rows, kept)`, `(rows, hidden)`."""

    kept: Tensor
    hidden: Tensor


def kept_columns(columns: int, share: float) -> int:
    """How many columns of a row are seen where this share is hidden, rounded down as the authors do; one at least."""
    return columns - min(math.ceil(share * columns - 1e-9), columns - 1)


def masking(
    rows: int, columns: int, share: float, draw: torch.Generator, device: torch.device | None = None
) -> Masking:
    """A random mask for each row; every row hides the same number of columns, and at least one is kept."""
    hidden = columns - kept_columns(columns, share)
    order = torch.rand(rows, columns, generator=draw).argsort(1).to(device, non_blocking=True)
    return Masking(order[:, hidden:].sort(1).values, order[:, :hidden].sort(1).values)


class PostNormBlock(nn.Module):
    """A transformer block with one head and normalisation after each part."""

    def __init__(self, width: int, feed_forward: int, dropout: float) -> None:
        super().__init__()
        self.query_key_value = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.after_attention = nn.LayerNorm(width, eps=1e-6)
        self.feed_forward = nn.Sequential(nn.Linear(width, feed_forward), nn.ReLU(), nn.Linear(feed_forward, width))
        self.after_feed_forward = nn.LayerNorm(width, eps=1e-6)
        self.dropout = nn.Dropout(dropout)

    def forward(self, tokens: Tensor) -> Tensor:
        """Tokens `(rows, length, width)` to tokens."""
        query, key, value = (part.unsqueeze(1) for part in self.query_key_value(tokens).chunk(3, -1))
        attended = self.out(F.scaled_dot_product_attention(query, key, value).squeeze(1))
        tokens = self.after_attention(tokens + self.dropout(attended))
        return self.after_feed_forward(tokens + self.dropout(self.feed_forward(tokens)))


class MaskedAutoencoder(RowNetwork):
    r"""Encoder, decoder and reconstruction loss.

    .. math:: \ell(x) = \frac1d \sum_{j=1}^d (\hat x_j - x_j)^2

    over *all* columns, seen and hidden. A token is a cell's value beside the learnt embedding of its column. The value
    of a hidden cell is one learnt number: what a linear layer makes of as many ones as there are kept columns, k. As in
    the authors' code, it so starts at random with a standard deviation near 1.4, and a step of Adam moves it k + 1
    times as far as a single parameter.
    """

    def __init__(
        self,
        columns: int,
        *,
        embedding: int,
        blocks: int,
        decoder_blocks: int,
        feed_forward: int,
        dropout: float,
        masked: float,
    ) -> None:
        super().__init__()
        self.columns, self.masked = columns, masked
        width = embedding + 1
        self.position = nn.Embedding(columns, embedding)
        nn.init.uniform_(self.position.weight, -0.05, 0.05)
        self.of_ones = nn.Linear(kept_columns(columns, masked), 1)
        nn.init.xavier_uniform_(self.of_ones.weight)
        nn.init.zeros_(self.of_ones.bias)
        self.encoder = nn.Sequential(*(PostNormBlock(width, feed_forward, dropout) for _ in range(blocks)))
        self.decoder = nn.Sequential(*(PostNormBlock(width, feed_forward, dropout) for _ in range(decoder_blocks)))
        self.output = nn.Linear(width, 1)

    @property
    def hidden_value(self) -> Tensor:
        """The stand-in for the value of a hidden cell."""
        return self.of_ones.weight.sum() + self.of_ones.bias

    def tokens(self, values: Tensor, columns: Tensor) -> Tensor:
        """Values `(rows, length)` of the columns `(rows, length)`, as tokens."""
        return torch.cat([values.unsqueeze(-1), self.position(columns)], -1)

    def reconstruct(self, values: Tensor, mask: Masking) -> Tensor:
        """The decoder's reconstruction of every column from the kept values: kept columns first, then hidden ones."""
        seen = self.encoder(self.tokens(values, mask.kept))
        unseen = self.tokens(self.hidden_value.expand(mask.hidden.shape), mask.hidden)
        return self.output(self.decoder(torch.cat([seen, unseen], 1))).squeeze(-1)

    def row_losses(self, values: Tensor, mask: Masking, x: Tensor) -> Tensor:
        """The mean squared error of each row, given the values to start from and the true row."""
        truth = x.gather(1, torch.cat([mask.kept, mask.hidden], 1))
        return (self.reconstruct(values, mask) - truth).square().mean(1)

    def losses(self, x: Tensor, draw: torch.Generator, epoch: int, step: int) -> Tensor:
        """Hide some columns of each row, and reconstruct all of them."""
        mask = masking(len(x), self.columns, self.masked, draw, x.device)
        return self.row_losses(x.gather(1, mask.kept), mask, x)

    def encode(self, x: Tensor) -> Tensor:
        """The encoded tokens of the whole row, nothing hidden, one after another."""
        columns = torch.arange(self.columns, device=x.device).expand(len(x), -1)
        return self.encoder(self.tokens(x, columns)).flatten(1)
