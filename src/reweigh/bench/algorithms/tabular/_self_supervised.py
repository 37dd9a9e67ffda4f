"""What the self-supervised transformers share: a network with a loss for every row, its training, and the contract."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor, nn

from reweigh import _validate as validate
from reweigh.bench.loop import Live
from reweigh.bench.seeds import Seeds
from reweigh.integrations._objective import ObjectiveLike, objective_alone
from reweigh.objectives._base import Objective

#: Rows that are encoded at a time.
CHUNK = 256


class Network(nn.Module, ABC):
    """A network that learns from rows without labels, and then encodes them."""

    @abstractmethod
    def losses(self, x: Tensor, draw: torch.Generator, epoch: int, step: int) -> Tensor:
        """One loss a row, `(rows,)`, with its gradient.

        Parameters
        ----------
        x
            Some rows, `(rows, columns)`.
        draw
            The only source of randomness besides dropout.
        epoch, step
            Counted from zero; steps within the epoch.
        """

    @abstractmethod
    def encode(self, x: Tensor) -> Tensor:
        """The features of some rows, `(rows, features)`."""


@dataclass(kw_only=True)
class Pretraining:
    """What a pre-training was like: plain loss of each epoch; mean weight and clipped share of each step."""

    losses: list[float] = field(default_factory=list[float])
    mean_weights: list[float] = field(default_factory=list[float])
    clip_shares: list[float] = field(default_factory=list[float])


def pretrain(
    network: Network,
    rows: Tensor,
    *,
    objective: Objective,
    lr: float,
    epochs: int,
    batch_size: int,
    seeds: Seeds,
    scale: Any = None,
) -> Pretraining:
    """Train a network on unlabelled rows by Adam, re-weighting them by their own losses.

    Parameters
    ----------
    network, rows
        The network, and all rows on its device.
    objective
        What turns the losses of a batch into the number to descend.
    lr, epochs, batch_size
        Sizes of a step and of the whole.
    seeds
        Streams for order, noise and dropout; torch's global state is left as it was.
    scale
        A factor on the loss of every step, for the scale control.
    """
    optimizer = torch.optim.Adam(network.parameters(), lr=lr)
    live, found, tau = Live(objective), Pretraining(), getattr(objective, "tau", None)
    order, draw = seeds.torch("order"), torch.Generator(rows.device).manual_seed(seeds.integer("noise"))
    network.train()
    with seeds.ambient("dropout"):
        for epoch in range(epochs):
            total, count = rows.new_zeros(()), 0
            for step, chosen in enumerate(batches(len(rows), batch_size, order)):
                losses = network.losses(rows[chosen.to(rows.device)], draw, epoch, step)
                live.factor = 1.0 if scale is None else float(scale[len(found.mean_weights)])
                optimizer.zero_grad(set_to_none=True)
                live(losses).backward()
                optimizer.step()
                live.advance()
                seen, weights = losses.detach(), live.weights
                total, count = total + seen.sum(), count + len(seen)
                found.mean_weights.append(1.0 if weights is None else float(weights.mean()))
                found.clip_shares.append(0.0 if tau is None else float((seen >= tau).float().mean()))
            found.losses.append(float(total / count))
    network.eval()
    return found


def batches(rows: int, size: int, order: torch.Generator) -> Iterator[Tensor]:
    """All rows in a new order, so many at a time; a last one alone joins those before it.

    A row without company has no other row to be told apart from, and no variance to be normalised by.
    """
    parts = list(torch.randperm(rows, generator=order).split(size))
    if len(parts) > 1 and len(parts[-1]) == 1:
        parts[-2:] = [torch.cat(parts[-2:])]
    yield from parts


@torch.no_grad()
def encode(network: Network, rows: Tensor) -> Tensor:
    """The features of all rows, some at a time."""
    network.eval()
    return torch.cat([network.encode(part) for part in rows.split(CHUNK)])


class SelfSupervised(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator, ABC):  # pyright: ignore[reportIncompatibleMethodOverride]
    """The contract of the transformers: `fit` on unlabelled rows, `transform`, and what both leave behind."""

    objective: ObjectiveLike
    lr: float
    epochs: int
    batch_size: int
    random_state: Any
    device: str | None

    @abstractmethod
    def network(self, columns: int) -> Network:
        """The untrained network for so many columns; initialised from torch's ambient generator."""

    def check_settings(self) -> None:
        """Refuse settings that make no sense, by name."""
        validate.positive("lr", self.lr)
        validate.whole("epochs", self.epochs, 0, "0 leaves the network as it was initialised.")
        validate.whole("batch_size", self.batch_size, 1)

    def fit(self, X: Any, y: Any = None, *, scale: Any = None) -> Self:
        """Learn from rows of numbers; labels are ignored.

        Parameters
        ----------
        X
            Rows of numbers, standardised; no missing values.
        y
            Ignored.
        scale
            A factor on the loss of every step, for experiments that take the scale of weights apart.

        Returns
        -------
        The fitted transformer itself.
        """
        self.check_settings()
        objective = objective_alone(self.objective, None, type(self).__name__)
        rows: Any = validate_data(self, X, dtype=np.float32, ensure_min_samples=2)
        seeds = Seeds(int(check_random_state(self.random_state).randint(np.iinfo(np.int32).max)))
        device = torch.device(self.device or "cpu")
        with seeds.ambient("init"):
            network = self.network(rows.shape[1])
        found = pretrain(
            network.to(device),
            torch.as_tensor(rows, device=device),
            objective=objective,
            lr=self.lr,
            epochs=self.epochs,
            batch_size=self.batch_size,
            seeds=seeds,
            scale=scale,
        )
        # Kept on the host: it pickles, and it loads where there is no such device.
        self.network_ = network.cpu().eval()
        self.losses_, self.mean_weights_, self.clip_shares_ = found.losses, found.mean_weights, found.clip_shares
        self.n_iter_ = self.epochs
        self._n_features_out = int(encode(self.network_, torch.zeros(1, rows.shape[1])).shape[1])
        return self

    def transform(self, X: Any) -> Any:
        """The features of rows of numbers, float32, of shape (rows, features)."""
        check_is_fitted(self, "network_")
        rows = validate_data(self, X, dtype=np.float32, reset=False)
        return encode(self.network_, torch.as_tensor(rows)).numpy()

    def __sklearn_tags__(self) -> Any:
        tags: Any = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = ["float32"]  # whatever comes in, single precision goes out
        return tags
