"""MET-R: the encoder of MET as it was initialised."""

from __future__ import annotations

from typing import Any, Self

from reweigh.bench.recipes.algorithms.tabular.met_s import check_sizes, masked_autoencoder
from reweigh.bench.recipes.algorithms.tabular.self_supervised import SelfSupervised
from reweigh.bench.train.programs.rows import RowNetwork

__all__ = ["METR"]


class METR(SelfSupervised):
    """The random twin of :class:`METS`: what its features are worth without any training.

    Parameters
    ----------
    embedding, blocks, feed_forward
        As in :class:`METS`.
    random_state
        Seeds the parameters; equal to those that :class:`METS` starts from with the same one.

    Attributes
    ----------
    network_
        The network, a torch module with `encode`.

    Notes
    -----
    References: Majmundar et al., MET, 2022.
    """

    objective, lr, epochs, batch_size, device = "mean", 1.0, 0, 1, None
    masked, decoder_blocks, dropout = 0.7, 1, 0.0

    def __init__(
        self, *, embedding: int = 64, blocks: int = 6, feed_forward: int = 64, random_state: Any = None
    ) -> None:
        self.embedding = embedding
        self.blocks = blocks
        self.feed_forward = feed_forward
        self.random_state = random_state

    def check_settings(self) -> None:
        """Refuse settings that make no sense, by name."""
        check_sizes(self)

    def network(self, columns: int) -> RowNetwork:
        """The untrained masked autoencoder."""
        return masked_autoencoder(self, columns)

    def fit(self, X: Any, y: Any = None, *, scale: Any = None) -> Self:
        """Look at the number of columns; nothing is learnt."""
        return super().fit(X, y, scale=scale)
