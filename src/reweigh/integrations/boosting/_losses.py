"""The losses of classes that a booster takes, and their derivatives by the margins."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from reweigh._array import largest_exponent

Array = Any


class RowDerivatives(NamedTuple):
    """One loss per row, and its derivatives by the raw margins."""

    losses: Array
    gradient: Array
    hessian: Array


@dataclass(frozen=True, kw_only=True)
class RowLoss:
    r"""Log loss, focal loss and logit adjustment in one, with class weights.

    .. math:: \ell = -(1 - p_y)^\gamma \log p_y, \qquad p = \mathrm{softmax}(z + b)

    Parameters
    ----------
    gamma
        The focal exponent.
    shift
        The shift b of each class; None shifts none.
    weights
        What a row of each class counts, with mean one over the training rows; None counts all alike.
    """

    gamma: float = 0.0
    shift: tuple[float, ...] | None = None
    weights: tuple[float, ...] | None = None

    @property
    def factors(self) -> Array:
        """By what factor the share of each class differs in training; one number where there is no difference."""
        weights = 1.0 if self.weights is None else np.asarray(self.weights)
        return weights if self.shift is None else weights * np.exp(-np.asarray(self.shift))


PLAIN = RowLoss()


def check_loss(loss: Any) -> None:
    """Refuse a loss that boosters do not have, and say which they have."""
    from reweigh.torch.losses import ClassBalanced, ClassWeights, CrossEntropy, Focal, LogitAdjusted

    if getattr(loss, "ignore_index", None) is not None:
        raise ValueError(f"`ignore_index` marks padding, which a booster does not have, got {loss!r}. Leave it out.")
    if isinstance(loss, (ClassWeights, ClassBalanced)):
        check_loss(loss.under)
    elif not isinstance(loss, (CrossEntropy, LogitAdjusted, Focal)) or getattr(loss, "form", "softmax") != "softmax":
        raise ValueError(
            "a booster takes the losses cross_entropy, focal, class_weights, class_balanced and logit_adjusted, got "
            f"{loss!r}. Use one of them, or train a network."
        )


@lru_cache(maxsize=64)
def row_loss(loss: Any, class_counts: tuple[int, ...] | None) -> RowLoss:
    """What a booster computes for a checked loss.

    Class weights are scaled to a mean of one over the rows: a network divides by their sum in each batch, and a
    booster's regularisation must not depend on their unit.
    """
    under = getattr(loss, "under", None)
    if under is None:
        factors = loss.class_factors(class_counts)
        shift = None if factors is None else tuple((-np.log(factors)).tolist())
        return RowLoss(gamma=getattr(loss, "gamma", 0.0), shift=shift)
    weights = np.asarray(loss.class_factors(class_counts))
    scaled = weights / np.average(weights, weights=class_counts)
    return replace(row_loss(under, class_counts), weights=tuple(scaled.tolist()))


def counted(y: Array, classes: int) -> tuple[int, ...]:
    """How many rows there are of each class."""
    return tuple(np.bincount(np.asarray(y).astype(np.intp), minlength=classes).tolist())


class FocalFactors(NamedTuple):
    """What a focal loss makes of a log loss, with p the probability of the row's class, and q = 1 - p.

    `factor` multiplies the loss; `slope` is the derivative by minus log p, times q; `bend` is the second derivative,
    times q squared, and zero where it would be negative: a booster divides by curvature.
    """

    factor: Array
    slope: Array
    bend: Array

    @classmethod
    def of(cls, losses: Array, p: Array, q: Array, gamma: float) -> FocalFactors:
        """The factor and its two derivatives at some log losses."""
        factor = q**gamma
        bend = gamma * p * factor * (2.0 * q - losses * (1.0 - gamma * p))
        return cls(factor, factor * (q + gamma * p * losses), np.maximum(bend, 0.0))


def binary(margins: Array, y: Array, loss: RowLoss = PLAIN) -> RowDerivatives:
    """The loss of one margin per row; every step is stable at any margin, in single precision too."""
    if not ((y == 0) | (y == 1)).all():
        raise ValueError(
            f"labels must be 0 and 1 for the task 'binary', got {some(y)}. Encode them with "
            "sklearn.preprocessing.LabelEncoder, or use the task 'multiclass' for more than two classes."
        )
    if loss.shift is not None:
        margins = margins + margins.dtype.type(loss.shift[1] - loss.shift[0])
    sign = 1 - 2 * y  # +1 where a larger margin is more wrong
    wrong = np.multiply(margins, sign, dtype=margins.dtype)
    limit = 0.9 * largest_exponent(wrong)
    np.clip(wrong, -limit, limit, out=wrong)  # beyond, nothing but the overflow of exp would change
    odds = np.negative(wrong)
    np.exp(odds, out=odds)  # of the right class
    losses = np.log1p(odds)
    losses += wrong
    if not loss.gamma:
        gradient = 1 + odds
        np.reciprocal(gradient, out=gradient)  # the probability of the other class
        hessian = np.multiply(odds, gradient, out=odds)
        hessian *= gradient
        gradient *= sign
        return RowDerivatives(losses, gradient, hessian)
    losses = np.log1p(1 / odds)  # exact to the last digit where it is small, as the factor's derivatives need it
    q = 1 / (1 + odds)
    p = odds * q
    focal = FocalFactors.of(losses, p, q, loss.gamma)
    return RowDerivatives(focal.factor * losses, focal.slope * sign, focal.bend + focal.slope * p)


def multiclass(margins: Array, y: Array, loss: RowLoss = PLAIN) -> RowDerivatives:
    """The loss of a row of margins; the hessian is its diagonal."""
    k = margins.shape[1] if margins.ndim == 2 else 1
    codes = y.astype(np.intp)
    if k < 2 or not (codes == y).all() or codes.min() < 0 or codes.max() >= k:
        raise ValueError(
            f"labels must be whole numbers from 0 to {k - 1} for the task 'multiclass' with {k} margins per row, got "
            f"{some(y)}. Encode them with sklearn.preprocessing.LabelEncoder, and set num_class."
        )
    if loss.shift is not None:
        margins = margins + np.asarray(loss.shift, margins.dtype)
    probability = margins - margins.max(axis=1, keepdims=True)
    row = np.arange(len(codes))
    own = probability[row, codes]
    np.exp(probability, out=probability)
    total = probability.sum(axis=1)
    losses = np.log(total) - own
    if loss.gamma:
        return _focal(probability, row, codes, losses, loss.gamma)
    probability /= total[:, None]
    hessian = probability * (1 - probability)
    probability[row, codes] -= 1
    return RowDerivatives(losses, probability, hessian)


def _focal(odds: Array, row: Array, codes: Array, losses: Array, gamma: float) -> RowDerivatives:
    """The focal loss from odds, which are overwritten, and the log losses."""
    own = odds[row, codes]
    odds[row, codes] = 0.0
    rest = odds.sum(axis=1)  # of the other classes alone: exact where 1 - p rounds to 0
    q = np.maximum(rest / (own + rest), np.finfo(odds.dtype).tiny)
    p = own / (own + rest)
    losses = np.where(p > 0.5, -np.log1p(-np.minimum(q, 0.5)), losses)
    focal = FocalFactors.of(losses, p, q, gamma)
    direction = odds / np.maximum(rest, np.finfo(odds.dtype).tiny)[:, None]  # p_k / q of the other classes
    probability = direction * q[:, None]
    direction[row, codes], probability[row, codes] = -1.0, p
    gradient = focal.slope[:, None] * direction
    hessian = focal.bend[:, None] * direction**2 + (focal.slope / q)[:, None] * probability * (1 - probability)
    return RowDerivatives(focal.factor * losses, gradient, hessian)


def shares(y: Array, sample_weight: Array | None, classes: int | None = None, factors: Array = 1.0) -> Array:
    """The share of each class in the training rows, times its factor, never quite zero."""
    codes = np.asarray(y).astype(np.intp)
    if not (codes == y).all() or codes.min() < 0:
        raise ValueError(
            f"labels must be whole numbers from 0 on, got {some(y)}. Encode them with "
            "sklearn.preprocessing.LabelEncoder; for a continuous target use the task 'regression'."
        )
    amount = np.bincount(codes, weights=sample_weight, minlength=classes or 0).astype(np.float64)
    if not amount.all() and classes is None:
        raise ValueError(
            f"labels must be whole numbers from 0 to K - 1, each of them used, got {some(y)}. Encode them with "
            "sklearn.preprocessing.LabelEncoder."
        )
    amount = amount * factors
    return np.clip(amount / amount.sum(), 1e-9, 1 - 1e-9)


def some(y: Array) -> str:
    """A few of the labels, for a message."""
    values = np.unique(np.asarray(y))
    text = ", ".join(f"{value:g}" for value in values[:4])
    return text + (", …" if len(values) > 4 else "")


def as_counts(given: Sequence[int] | str) -> tuple[int, ...] | None:
    """Class counts as given by a user; None where they are to be counted."""
    if isinstance(given, str):
        if given != "auto":
            raise ValueError(f"`class_counts` must be 'auto' or one number per class, got {given!r}.")
        return None
    return tuple(int(count) for count in given)
