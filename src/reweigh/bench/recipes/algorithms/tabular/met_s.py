"""MET-S: masked encoding of tables, without the adversarial part."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from reweigh import _validate as validate
from reweigh.bench.recipes.algorithms.tabular._masked_autoencoder import MaskedAutoencoder
from reweigh.bench.recipes.algorithms.tabular.self_supervised import SelfSupervised
from reweigh.bench.train.programs.rows import RowNetwork
from reweigh.method import ObjectiveLike

__all__ = ["METS"]


@dataclass(kw_only=True, eq=False, repr=False)
class METS(SelfSupervised):
    r"""A masked autoencoder for rows: `METS(objective="rgd:tau=1").fit(X).transform(X)`.

    Each cell is a token, its value beside a learnt embedding of its column. Of every row a random 70 % of the columns
    are hidden; a transformer encodes the others, a smaller one reconstructs all of them:

    .. math:: \hat L = \frac1B \sum_i \mathrm{sg}\big(w(\ell_i)\big)\,\ell_i, \qquad
              \ell_i = \frac1d \sum_{j=1}^d (\hat x_{ij} - x_{ij})^2

    `transform` encodes the row with nothing hidden and lays its tokens side by side: `columns × (embedding + 1)`
    features. The paper's sizes are the defaults; on a few thousand rows `embedding=15, blocks=2, lr=1e-3` is enough.

    Parameters
    ----------
    objective
        What re-weights rows by how badly they are reconstructed: `"mean"` for none, `"rgd:tau=1"`, a text,
        an objective, or a weight function. With standardised columns a row's loss is about one or less.
    masked
        Share of the columns hidden from the encoder.
    embedding
        Width of a column's embedding; tokens are one wider.
    blocks, decoder_blocks, feed_forward, dropout
        Transformer blocks of the encoder and of the decoder, width of their hidden layer, and dropout.
    lr, epochs, batch_size
        Training by Adam; `epochs=0` leaves the encoder as it was initialised.
    random_state
        Seeds parameters, order, masks and dropout; the global state is not touched.
    device
        Where to train and to encode, such as `"cuda"` or `"auto"`; the process's own device, the CPU, unless given.

    Attributes
    ----------
    network_
        The network, a torch module with `encode`.
    losses_
        Plain reconstruction loss of each epoch.
    mean_weights_, clip_shares_
        Mean weight of each step, and the share of its rows at or above tau.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> X = load_iris().data
    >>> features = METS(embedding=7, blocks=1, epochs=1, random_state=0).fit_transform((X - X.mean(0)) / X.std(0))
    >>> features.shape, features.dtype
    ((150, 32), dtype('float32'))

    Notes
    -----
    As in the authors' code the loss is over all columns and kept columns come before hidden ones. Departs from it in
    that no epoch is chosen (it keeps the one of best *test* loss), and rows that do not fill a batch are not dropped.
    References: Majmundar et al., MET, 2022; Kumar et al., TMLR 2024.
    """

    objective: ObjectiveLike = "mean"
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

    def network(self, columns: int) -> RowNetwork:
        """The untrained masked autoencoder."""
        return masked_autoencoder(self, columns)


def check_sizes(sizes: Any) -> None:
    """Refuse sizes of a masked autoencoder that make no sense."""
    validate.fraction("masked", sizes.masked, "It is the share of columns hidden from the encoder.", one=False)
    validate.fraction("dropout", sizes.dropout, zero=True, one=False)
    for name in ("embedding", "blocks", "decoder_blocks", "feed_forward"):
        validate.whole(name, getattr(sizes, name), 1)


def masked_autoencoder(sizes: Any, columns: int) -> MaskedAutoencoder:
    """The network of MET-S, MET and MET-R, which differ in what is done with it."""
    return MaskedAutoencoder(
        columns,
        embedding=sizes.embedding,
        blocks=sizes.blocks,
        decoder_blocks=sizes.decoder_blocks,
        feed_forward=sizes.feed_forward,
        dropout=sizes.dropout,
        masked=sizes.masked,
    )
