"""What a booster asks for: the gradient and hessian of each row's loss, times the weight of that loss."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, get_args

import numpy as np

from reweigh import _validate as validate
from reweigh._array import largest_exponent
from reweigh.integrations._objective import objective_alone
from reweigh.objectives import Objective
from reweigh.objectives.rgd import RGD

Task = Literal["binary", "multiclass", "regression"]
Array = Any


class Rows(NamedTuple):
    """A loss a row, and its derivatives by the raw margins."""

    losses: Array
    gradient: Array
    hessian: Array


@dataclass(frozen=True, kw_only=True)
class RowObjective:
    """The re-weighted objective of a task, independent of the library that asks.

    The hessian is the plain one times the weight: positive, and exact where the weight is constant. The derivative of
    the weight is left out, as the method stops gradients there.
    """

    task: Task
    objective: Objective
    variance: float | None = None

    def gradients(
        self, margins: Array, y: Array, sample_weight: Array | None, hessian_factor: float
    ) -> tuple[Array, Array]:
        """Weighted gradients and hessians in the shape of the margins."""
        rows = self.rows(margins, y)
        weights = self.weigh(rows.losses)
        if sample_weight is not None and len(sample_weight):
            weights = weights * sample_weight
        if rows.gradient.ndim == 2:
            weights = weights[:, None]
        hessian = rows.hessian
        hessian *= weights if hessian_factor == 1.0 else weights * hessian_factor
        gradient = rows.gradient
        gradient *= weights
        return gradient, hessian

    def rows(self, margins: Array, y: Array) -> Rows:
        """Losses and plain derivatives."""
        if self.task == "binary":
            return binary(margins, y)
        if self.task == "multiclass":
            return multiclass(margins, y)
        return regression(margins, y, float(np.var(y)) if self.variance is None else self.variance)

    @property
    def weigh(self) -> Callable[[Array], Array]:
        """The weight of each loss; RGD's own weight function needs none of an objective's bookkeeping."""
        objective = self.objective
        if isinstance(objective, RGD):
            return objective.weight.of_constants
        return lambda losses: objective.weigh(losses, ()).weights


def row_objective(task: Any, objective: Any, tau: float | None, variance: float | None = None) -> RowObjective:
    """The objective of a booster, or an error that says why it cannot be one."""
    validate.one_of("task", task, get_args(Task))
    if variance is not None:
        validate.positive("variance", variance, "It is the variance of the training target.")
        if task != "regression":
            raise ValueError(f"`variance` belongs to the task 'regression', got it with {task!r}.")
    chosen = objective_alone(objective, tau, "a booster")
    if not chosen.separable or chosen.stateful:
        raise ValueError(
            f"a booster needs an objective whose weight depends on the row's own loss alone, got {chosen!r}: rows come "
            "in blocks, in any order, and each asks for its own gradient and hessian. Use RGD without normalize and "
            "warmup, DFT or Redescending, or fit the booster inside reweigh.integrations.sklearn.ReweightedClassifier "
            "or ReweightedRegressor, which see all rows at once."
        )
    return RowObjective(task=task, objective=chosen, variance=variance)


def binary(margins: Array, y: Array) -> Rows:
    """Log loss of one margin a row; every step is stable at any margin, in single precision too."""
    if not ((y == 0) | (y == 1)).all():
        raise ValueError(
            f"labels must be 0 and 1 for the task 'binary', got {_some(y)}. Encode them with "
            "sklearn.preprocessing.LabelEncoder, or use the task 'multiclass' for more than two classes."
        )
    sign = 1 - 2 * y  # +1 where a larger margin is more wrong
    wrong = np.multiply(margins, sign, dtype=margins.dtype)
    limit = 0.9 * largest_exponent(wrong)
    np.clip(wrong, -limit, limit, out=wrong)  # beyond, nothing but the overflow of exp would change
    odds = np.negative(wrong)
    np.exp(odds, out=odds)  # of the right class
    losses = np.log1p(odds)
    losses += wrong
    gradient = 1 + odds
    np.reciprocal(gradient, out=gradient)  # the probability of the other class
    hessian = np.multiply(odds, gradient, out=odds)
    hessian *= gradient
    gradient *= sign
    return Rows(losses, gradient, hessian)


def multiclass(margins: Array, y: Array) -> Rows:
    """Log loss of a row of margins; the hessian is the diagonal p (1 - p)."""
    k = margins.shape[1] if margins.ndim == 2 else 1
    codes = y.astype(np.intp)
    if k < 2 or not (codes == y).all() or codes.min() < 0 or codes.max() >= k:
        raise ValueError(
            f"labels must be whole numbers from 0 to {k - 1} for the task 'multiclass' with {k} margins a row, got "
            f"{_some(y)}. Encode them with sklearn.preprocessing.LabelEncoder, and set num_class."
        )
    probability = margins - margins.max(axis=1, keepdims=True)
    row = np.arange(len(codes))
    own = probability[row, codes]
    np.exp(probability, out=probability)
    total = probability.sum(axis=1)
    losses = np.log(total) - own
    probability /= total[:, None]
    hessian = probability * (1 - probability)
    probability[row, codes] -= 1
    return Rows(losses, probability, hessian)


def regression(predictions: Array, y: Array, variance: float) -> Rows:
    """Squared error over the variance, with derivatives in the libraries' unit: of half the squared error."""
    gradient = predictions - y
    return Rows(gradient * gradient / (variance or 1.0), gradient, np.ones_like(gradient))


def shares(y: Array, sample_weight: Array | None, classes: int | None = None) -> Array:
    """The share of each class in the training rows, never quite zero."""
    codes = np.asarray(y).astype(np.intp)
    if not (codes == y).all() or codes.min() < 0:
        raise ValueError(
            f"labels must be whole numbers from 0 on, got {_some(y)}. Encode them with "
            "sklearn.preprocessing.LabelEncoder; for a continuous target use the task 'regression'."
        )
    amount = np.bincount(codes, weights=sample_weight, minlength=classes or 0).astype(np.float64)
    if not amount.all() and classes is None:
        raise ValueError(
            f"labels must be whole numbers from 0 to K - 1, each of them used, got {_some(y)}. Encode them with "
            "sklearn.preprocessing.LabelEncoder."
        )
    return np.clip(amount / amount.sum(), 1e-9, 1 - 1e-9)


def start(y: Array, task: Task, sample_weight: Array | None = None) -> Array:
    """The constant margins with the smallest plain loss: a number, or one a class."""
    validate.one_of("task", task, get_args(Task))
    if task == "regression":
        return np.float64(np.average(np.asarray(y, np.float64), weights=sample_weight))
    if task == "binary":
        share = shares(y, sample_weight, 2)
        if len(share) != 2:
            raise ValueError(f"labels must be 0 and 1 for the task 'binary', got {_some(y)}. Use 'multiclass'.")
        return np.log(share[1] / share[0])
    return np.log(shares(y, sample_weight))


def variance_of(y: Array, sample_weight: Array | None) -> float:
    """The variance of the target: the unit in which a squared error is measured."""
    y = np.asarray(y, np.float64)
    return float(np.average((y - np.average(y, weights=sample_weight)) ** 2, weights=sample_weight)) or 1.0


def refuse_old_name(kwargs: dict[str, Any]) -> None:
    """The hosts take any keyword, and would keep this one without using it."""
    if "reweigh" in kwargs:
        raise TypeError(f"`reweigh` is called `objective`, as everywhere: objective={kwargs['reweigh']!r}.")


def _some(y: Array) -> str:
    values = np.unique(np.asarray(y))
    text = ", ".join(f"{value:g}" for value in values[:4])
    return text + (", …" if len(values) > 4 else "")
