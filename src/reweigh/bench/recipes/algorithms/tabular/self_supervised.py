"""What the self-supervised transformers share: the contract of scikit-learn around a network that learns from rows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Self

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from reweigh import _validate as validate
from reweigh._carry import carried
from reweigh.bench.draws.seeds import Seeds
from reweigh.bench.train import device as devices
from reweigh.bench.train.programs.rows import RowNetwork, RowTraining, encode, pretrain
from reweigh.method import ObjectiveLike
from reweigh.torch.devices import resolve


class SelfSupervised(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator, ABC):  # pyright: ignore[reportIncompatibleMethodOverride]
    """The contract of the transformers: `fit` on unlabelled rows, `transform`, and what both leave behind.

    Subclasses with parameters are dataclasses, which have the `__init__` whose signature scikit-learn reads.
    """

    objective: ObjectiveLike
    lr: float
    epochs: int
    batch_size: int
    random_state: Any
    device: str | None

    @abstractmethod
    def network(self, columns: int) -> RowNetwork:
        """The untrained network for so many columns; initialised from torch's ambient generator."""

    def check_settings(self) -> None:
        """Refuse settings that make no sense, by name."""
        validate.positive("lr", self.lr)
        validate.whole("epochs", self.epochs, 0, "0 leaves the network as it was initialised.")
        validate.whole("batch_size", self.batch_size, 1)

    def where(self) -> torch.device:
        """Where to train and to encode."""
        return devices.current() if self.device is None else resolve(self.device)

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
        objective = carried(self.objective, ("objective",), type(self).__name__).objective
        rows: Any = validate_data(self, X, dtype=np.float32, ensure_min_samples=2)
        seeds = Seeds(int(check_random_state(self.random_state).randint(np.iinfo(np.int32).max)))
        with seeds.ambient("init"):
            network = self.network(rows.shape[1])
        program = RowTraining(
            network,
            torch.as_tensor(rows),
            objective=objective,
            lr=self.lr,
            epochs=self.epochs,
            batch_size=self.batch_size,
            seeds=seeds,
            device=self.where(),
        )
        self.losses_, self.mean_weights_, self.clip_shares_ = pretrain(program, scale)
        # Kept in the processor's memory: it pickles, and it loads where there is no such device.
        self.network_ = network.cpu().eval()
        self.n_iter_ = self.epochs
        self._n_features_out = int(encode(self.network_, torch.zeros(1, rows.shape[1]), torch.device("cpu")).shape[1])
        return self

    def transform(self, X: Any) -> Any:
        """The features of rows of numbers, float32, of shape (rows, features)."""
        check_is_fitted(self, "network_")
        rows = validate_data(self, X, dtype=np.float32, reset=False)
        return encode(self.network_, torch.as_tensor(rows), self.where()).numpy()

    def __sklearn_tags__(self) -> Any:
        tags: Any = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = ["float32"]  # whatever comes in, single precision goes out
        return tags
