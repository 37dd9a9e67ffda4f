"""What a booster asks for: the gradient and hessian of each row's loss, times the weight of that loss."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import numpy as np

from reweigh import _validate as validate
from reweigh._carry import carried, refuse_more_than_losses
from reweigh.integrations.boosting._losses import (
    PLAIN,
    RowDerivatives,
    RowLoss,
    as_counts,
    binary,
    check_loss,
    counted,
    multiclass,
    row_loss,
    shares,
    some,
)
from reweigh.method import Method
from reweigh.objectives import Objective
from reweigh.objectives.rgd import RGD

BoostingTask = Literal["binary", "multiclass", "regression"]
Array = Any
#: Training examples of each class, or that they are to be counted.
ClassCounts = Sequence[int] | Literal["auto"]


@dataclass(frozen=True, kw_only=True)
class RowObjective:
    """The re-weighted objective of a task, independent of the library that asks.

    The hessian is the plain one times the weight: positive, and exact where the weight is constant. The derivative of
    the weight is left out, as the method stops gradients there. A loss that depends on the classes counts the rows of
    each call, unless `class_counts` are given; those also say how many classes there are, where some have no rows.
    """

    task: BoostingTask
    objective: Objective
    variance: float | None = None
    loss: Any = None
    class_counts: tuple[int, ...] | None = None

    def gradients(
        self, margins: Array, y: Array, sample_weight: Array | None, hessian_factor: float
    ) -> tuple[Array, Array]:
        """Weighted gradients and hessians in the shape of the margins."""
        loss = self.loss_of(y, margins.shape[1] if margins.ndim == 2 else 2)
        rows = self.rows(margins, y, loss)
        weights = self.weigh(rows.losses)
        if loss.weights is not None:
            weights = weights * np.asarray(loss.weights, weights.dtype)[y.astype(np.intp)]
        if sample_weight is not None and len(sample_weight):
            weights = weights * sample_weight
        if rows.gradient.ndim == 2:
            weights = weights[:, None]
        hessian = rows.hessian
        hessian *= weights if hessian_factor == 1.0 else weights * hessian_factor
        gradient = rows.gradient
        gradient *= weights
        return gradient, hessian

    def rows(self, margins: Array, y: Array, loss: RowLoss) -> RowDerivatives:
        """Losses and plain derivatives."""
        if self.task == "binary":
            return binary(margins, y, loss)
        if self.task == "multiclass":
            return multiclass(margins, y, loss)
        return regression(margins, y, float(np.var(y)) if self.variance is None else self.variance)

    def loss_of(self, y: Array, classes: int) -> RowLoss:
        """The loss of rows with these labels, which may depend on how many there are of each class."""
        if self.loss is None or self.task == "regression":
            return PLAIN
        if "class_counts" not in self.loss.needs:
            return row_loss(self.loss, None)
        return row_loss(self.loss, counted(y, classes) if self.class_counts is None else self.class_counts)

    def row_weights(self, codes: Array, sample_weight: Array | None) -> tuple[RowObjective, Array | None]:
        """The same objective with its class weights in those of the rows, where a library looks for weights.

        XGBoost chooses thresholds by them, and CatBoost splits and leaves.
        """
        if self.loss is None:
            return self, sample_weight
        weights = self.loss_of(codes, int(codes.max()) + 1).weights
        if weights is None:
            return self, sample_weight
        of_rows = np.asarray(weights)[codes]
        own = of_rows if sample_weight is None else of_rows * np.asarray(sample_weight)
        return replace(self, loss=self.loss.under), own

    def start(self, y: Array, sample_weight: Array | None = None) -> Array:
        """The constant margins with the smallest loss, as far as classes decide it: a number, or one per class."""
        if self.task == "regression":
            return start(y, self.task, sample_weight)
        known = None if self.class_counts is None else len(self.class_counts)
        if self.loss is None:
            return start(y, self.task, sample_weight, classes=known)
        classes = 2 if self.task == "binary" else known or int(np.max(y)) + 1
        return start(y, self.task, sample_weight, self.loss_of(y, classes).factors, classes=known)

    @property
    def weigh(self) -> Callable[[Array], Array]:
        """The weight of each loss; RGD's own weight function needs none of an objective's bookkeeping."""
        objective = self.objective
        if isinstance(objective, RGD):
            return objective.weight.of_constants
        return lambda losses: objective.weigh(losses, ()).weights


def row_objective(
    task: Any,
    objective: Any,
    tau: float | None,
    variance: float | None = None,
    class_counts: ClassCounts = "auto",
) -> RowObjective:
    """The objective of a booster, or an error that says why it cannot be one."""
    validate.one_of("task", task, get_args(BoostingTask))
    if variance is not None:
        validate.positive("variance", variance, "It is the variance of the training target.")
        if task != "regression":
            raise ValueError(f"`variance` belongs to the task 'regression', got it with {task!r}.")
    named = booster_method(objective, tau, ("objective",) if task == "regression" else ("loss", "objective"))
    chosen = named.objective
    if not chosen.separable or chosen.stateful:
        raise ValueError(
            f"a booster needs an objective whose weight depends on the row's own loss alone, got {chosen!r}: rows come "
            "in blocks, in any order, and each asks for its own gradient and hessian. Use RGD without normalize and "
            "warmup, DFT or Redescending, or fit the booster inside reweigh.integrations.sklearn.ReweightedClassifier "
            "or ReweightedRegressor, which see all rows at once."
        )
    refuse_more_than_losses(chosen, "a booster")
    if named.loss is not None:
        check_loss(named.loss)
    counts = as_counts(class_counts)
    return RowObjective(task=task, objective=chosen, variance=variance, loss=named.loss, class_counts=counts)


def booster_method(objective: Any, tau: float | None, slots: Sequence[str] = ("loss", "objective", "post")) -> Method:
    """The method that a text or value names, of the parts that a booster has."""
    why = {
        "sampler": "it grows trees on all rows",
        "loss": "the loss of a regression is the squared error",
        "step": "it grows trees, and has no parameters to step",
        "average": "trees have no weights to average",
        "post": "corrections are for classes, and are fitted by the estimators, such as RGDXGBClassifier",
    }
    return carried(objective, slots, "a booster", tau=tau, why=why)


def regression(predictions: Array, y: Array, variance: float) -> RowDerivatives:
    """Squared error over the variance, with derivatives in the libraries' unit: of half the squared error."""
    gradient = predictions - y
    return RowDerivatives(gradient * gradient / (variance or 1.0), gradient, np.ones_like(gradient))


def start(
    y: Array,
    task: BoostingTask,
    sample_weight: Array | None = None,
    factors: Array = 1.0,
    *,
    classes: int | None = None,
) -> Array:
    """The constant margins with the smallest log loss of classes that count so many times as much as they do.

    Of several classes each must have rows, unless `classes` says how many there are.
    """
    validate.one_of("task", task, get_args(BoostingTask))
    if task == "regression":
        return np.float64(np.average(np.asarray(y, np.float64), weights=sample_weight))
    if task == "binary":
        share = shares(y, sample_weight, 2, factors)
        if len(share) != 2:
            raise ValueError(f"labels must be 0 and 1 for the task 'binary', got {some(y)}. Use 'multiclass'.")
        return np.log(share[1] / share[0])
    return np.log(shares(y, sample_weight, classes, factors))


def variance_of(y: Array, sample_weight: Array | None) -> float:
    """The variance of the target: the unit in which a squared error is measured."""
    y = np.asarray(y, np.float64)
    return float(np.average((y - np.average(y, weights=sample_weight)) ** 2, weights=sample_weight)) or 1.0


def refuse_old_name(kwargs: dict[str, Any]) -> None:
    """The hosts take any keyword, and would keep this one without using it."""
    if "reweigh" in kwargs:
        raise TypeError(f"`reweigh` is called `objective`, as everywhere: objective={kwargs['reweigh']!r}.")
