"""CatBoost: `loss_function=` for its models, and its estimators with re-weighting."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import catboost as host
import numpy as np
from sklearn.utils.multiclass import check_classification_targets

from reweigh.integrations._correction import corrected, correction_for, held_out, log_probabilities, refuse_classifier
from reweigh.integrations.boosting._losses import FocalFactors, counted
from reweigh.integrations.boosting._rows import (
    BoostingTask,
    RowObjective,
    booster_method,
    refuse_old_name,
    row_objective,
    start,
    variance_of,
)
from reweigh.method import ObjectiveLike

__all__ = ["RGDCatBoostClassifier", "RGDCatBoostRegressor", "catboost"]

METRIC = {"binary": "Logloss", "multiclass": "MultiClass", "regression": "RMSE"}
#: Where a model keeps what re-weights it: CatBoost takes `objective` for another name of its loss.
OWN = "reweigh"
#: From so many features on the built-in log loss takes ten Newton steps in each leaf, instead of one.
MANY_FEATURES = 20
_CORRECTION = "__correction"


class CatBoostObjective:
    """What CatBoost calls for blocks of rows: derivatives of *minus* the loss, first and second."""

    def __init__(self, rows: RowObjective) -> None:
        self.rows = rows

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.rows!r})"


class RangeObjective(CatBoostObjective):
    """One margin per row: binary and regression."""

    def calc_ders_range(self, approxes: Any, targets: Any, weights: Any) -> Any:
        """An array of shape (rows, 2)."""
        margins, y = np.asarray(approxes, np.float64), np.asarray(targets, np.float64)
        own = None if weights is None else np.asarray(weights, np.float64)
        gradient, hessian = self.rows.gradients(margins, y, own, 1.0)
        return np.negative(np.stack([gradient, hessian], axis=1))


class MultiObjective(CatBoostObjective):
    """One margin per class; CatBoost asks for one row at a time, with the full matrix of second derivatives."""

    def calc_ders_multi(self, approxes: Any, target: Any, weight: Any) -> tuple[Any, Any]:
        """A vector and a matrix for one row."""
        p, own = np.asarray(approxes, np.float64), int(target)
        named = self.rows.loss_of(None, len(p))
        if named.shift is not None:
            p = p + named.shift
        p = p - p.max()
        loss = np.log(np.exp(p).sum()) - p[own]
        p = np.exp(p)
        p /= p.sum()
        direction = -p
        direction[own] += 1.0
        slope, bend = 1.0, 0.0  # first and second derivative by minus the logarithm of the row's probability
        if named.gamma:
            q = max(float(p.sum() - p[own]), 1e-100)
            focal = FocalFactors.of(loss, p[own], q, named.gamma)
            loss, slope, bend = focal.factor * loss, focal.slope / q, focal.bend / q**2
        w = float(self.rows.weigh(np.array([loss]))[0]) * weight
        if named.weights is not None:
            w *= named.weights[own]
        curvature = slope * (np.diag(p) - np.outer(p, p)) + bend * np.outer(direction, direction)
        return w * slope * direction, -w * curvature


def catboost(
    task: BoostingTask,
    *,
    tau: float | None = None,
    objective: ObjectiveLike = "rgd",
    variance: float | None = None,
    class_counts: Sequence[int] | None = None,
) -> CatBoostObjective:
    r"""A `loss_function` for CatBoost models that re-weights.

    .. math:: g_i = v_i\,w(\ell_i)\,\ell_i', \qquad h_i = v_i\,w(\ell_i)\,\ell_i''

    Parameters
    ----------
    task
        `"binary"`, `"multiclass"` or `"regression"`.
    tau
        The clip level, in units of the log loss, or of the squared error over the variance of the target; `None` keeps
        the objective's own, which is 1 for RGD.
    objective
        A method's text, a separable objective or a weight function. A text may name a loss of classes too: `focal`,
        `class_weights`, `class_balanced` or `logit_adjusted`, as in `"class_weights:power=0.5+rgd"`.
    variance
        For regression, and required there: the variance of the training target. CatBoost shows an objective blocks of
        rows, each with a variance of its own.
    class_counts
        Training rows of each class, required for losses that depend on them, for the same reason.

    Returns
    -------
    CatBoostObjective
        An object with CatBoost's own methods. Give `eval_metric` as well (`"Logloss"`, `"MultiClass"`, `"RMSE"`) and
        the defaults that CatBoost forgets for a custom objective: for many classes `class_names` and
        `bootstrap_type="Bayesian"`; for two `leaf_estimation_iterations=10` from 20 features on; for regression a
        `baseline` of the target's mean, put back with `set_scale_and_bias`. The estimators below do all that.

    Examples
    --------
    >>> import numpy as np
    >>> catboost("binary", tau=1.0).calc_ders_range(np.array([0.0]), np.array([1.0]), None).round(4)
    array([[ 0.7071, -0.3536]])

    Notes
    -----
    For many classes CatBoost calls Python once per row and round; expect it to be slow. References: Kumar et al., TMLR
    2024.
    """
    rows = row_objective(task, objective, tau, variance, "auto" if class_counts is None else class_counts)
    if rows.loss is not None and "class_counts" in rows.loss.needs and class_counts is None:
        raise ValueError(
            f"`class_counts` is required for CatBoost with {rows.loss!r}, got None: an objective sees blocks of rows "
            "there. Pass those of the training target, class_counts=np.bincount(y)."
        )
    if task == "regression" and variance is None:
        raise ValueError(
            "`variance` is required for CatBoost regression, got None: an objective sees blocks of rows there, which "
            "have a variance of their own. Pass that of the training target, variance=y.var()."
        )
    return MultiObjective(rows) if task == "multiclass" else RangeObjective(rows)


class RGDCatBoostClassifier(host.CatBoostClassifier):
    """`catboost.CatBoostClassifier` with re-weighting; binary and multi-class, labels of any kind.

    Parameters
    ----------
    tau
        The clip level, in units of the log loss; `None` keeps the objective's own, which is 1 for RGD.
    objective
        What re-weights: a method's text (`"rgd:divergence=revkl"`), a separable objective or a weight function. A text
        may name a loss of classes (`"class_weights+rgd"`; also `class_balanced`, `focal` and `logit_adjusted`) and a
        correction after training (`"rgd+prior"`); one that learns from rows, such as `threshold`, is fitted to the last
        set of `eval_set`.
    **kwargs
        Those of `catboost.CatBoostClassifier`, but for `loss_function`.

    Examples
    --------
    >>> from sklearn.datasets import load_breast_cancer
    >>> X, y = load_breast_cancer(return_X_y=True)
    >>> options = {"iterations": 5, "verbose": False, "allow_writing_files": False}
    >>> RGDCatBoostClassifier(tau=1.0, **options).fit(X, y).predict_proba(X).shape
    (569, 2)

    Notes
    -----
    Evaluation and early stopping use CatBoost's plain metrics. CatBoost chooses a learning rate from the data for its
    own objectives only: it is 0.03 here unless given. Nor does it backtrack in a leaf (`leaf_estimation_backtracking`),
    which needs the value of the objective. The correction is the attribute `correction_`, which a pickle has and
    CatBoost's own model files have not. References: Kumar et al., TMLR 2024.
    """

    def __init__(self, *, tau: float | None = None, objective: ObjectiveLike = "rgd", **kwargs: Any) -> None:
        refuse_old_name(kwargs)
        super().__init__(**kwargs)
        self._init_params.update({"tau": tau, OWN: objective})

    def fit(self, X: Any, y: Any = None, *, sample_weight: Any = None, **kwargs: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Fit as `catboost.CatBoostClassifier.fit` does, with its keywords."""
        _need_target(X, y)
        check_classification_targets(y)
        classes = np.unique(np.asarray(y))
        task: BoostingTask = "multiclass" if len(classes) > 2 else "binary"
        options: dict[str, Any] = {"class_names": classes.tolist()}
        # The defaults of the built-in objectives, which CatBoost forgets for a custom one.
        if task == "multiclass":
            options["bootstrap_type"] = "Bayesian"
        elif np.shape(X)[1] >= MANY_FEATURES:
            options["leaf_estimation_iterations"] = 10
        codes = np.searchsorted(classes, np.asarray(y))
        chosen = booster_method(self._init_params[OWN], self._init_params["tau"])
        refuse_classifier(chosen, "a booster")
        held = held_out(chosen.post, kwargs.get("eval_set"))
        counts = counted(codes, len(classes))
        rows = row_objective(task, replace(chosen, post=None), None, class_counts=counts)
        rows, weight = rows.row_weights(codes, sample_weight)
        objective = MultiObjective(rows) if task == "multiclass" else RangeObjective(rows)
        options |= {"loss_function": objective, "eval_metric": METRIC[task]}
        self.correction_ = None
        _fit(self, super().fit, options, {"X": X, "y": y, "sample_weight": weight, **kwargs})
        outputs = None if held is None else log_probabilities(super().predict_proba(held[0]))
        held_codes = None if held is None else np.searchsorted(classes, np.asarray(held[1]))
        self.correction_ = correction_for(
            chosen.post, outputs, held_codes, codes, len(classes), sample_weight, loss=chosen.loss
        )
        return self

    def predict_proba(self, X: Any, **kwargs: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        """The probability of each class, after the correction if there is one; keywords as in CatBoost."""
        return corrected(getattr(self, "correction_", None), super().predict_proba(X, **kwargs))

    def predict_log_proba(self, data: Any, **kwargs: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        """The logarithm of the probability of each class, after the correction if there is one."""
        if getattr(self, "correction_", None) is None:
            return super().predict_log_proba(data, **kwargs)
        return log_probabilities(self.predict_proba(data, **kwargs))

    def predict(self, data: Any, prediction_type: str = "Class", **kwargs: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        """CatBoost's predictions; classes and probabilities after the correction if there is one."""
        if getattr(self, "correction_", None) is None or prediction_type in ("RawFormulaVal", "Exponent"):
            return super().predict(data, prediction_type=prediction_type, **kwargs)
        if prediction_type == "LogProbability":
            return self.predict_log_proba(data, **kwargs)
        probabilities = self.predict_proba(data, **kwargs)
        if prediction_type == "Probability":
            return probabilities
        labels = np.asarray(self.classes_)
        classes = labels[probabilities.argmax(axis=1)]
        return classes if len(labels) == 2 else classes[:, None]  # a column of classes, as CatBoost has it

    def __getstate__(self) -> dict[str, Any]:
        # CatBoost pickles its parameters and trees, and no other attribute.
        return {**super().__getstate__(), _CORRECTION: getattr(self, "correction_", None)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        own = dict(state)
        self.correction_ = own.pop(_CORRECTION, None)
        super().__setstate__(own)

    def get_params(self, deep: bool = True, **_unused_kwargs: Any) -> dict[str, Any]:
        """Parameters as given."""
        return _params(self, super().get_params())

    def set_params(self, **params: Any) -> Any:
        """Change parameters."""
        return super().set_params(**_renamed(params))


class RGDCatBoostRegressor(host.CatBoostRegressor):
    """`catboost.CatBoostRegressor` with re-weighting; the loss is the squared error over the variance of the target.

    Parameters
    ----------
    tau
        The clip level, in units of the squared error over the variance; `None` keeps the objective's own.
    objective
        What re-weights: a method's text, a separable objective or a weight function.
    **kwargs
        Those of `catboost.CatBoostRegressor`, but for `loss_function`.

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> X, y = load_diabetes(return_X_y=True)
    >>> options = {"iterations": 30, "verbose": False, "allow_writing_files": False}
    >>> bool(RGDCatBoostRegressor(tau=1.0, **options).fit(X, y).score(X, y) > 0.4)
    True

    Notes
    -----
    Evaluation and early stopping use CatBoost's plain metrics. CatBoost chooses a learning rate from the data for its
    own objectives only: it is 0.03 here unless given. References: Kumar et al., TMLR 2024.
    """

    def __init__(self, *, tau: float | None = None, objective: ObjectiveLike = "rgd", **kwargs: Any) -> None:
        refuse_old_name(kwargs)
        super().__init__(**kwargs)
        self._init_params.update({"tau": tau, OWN: objective})

    def fit(self, X: Any, y: Any = None, *, sample_weight: Any = None, eval_set: Any = None, **kwargs: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Fit as `catboost.CatBoostRegressor.fit` does, with its keywords."""
        _need_target(X, y)
        rows = row_objective(
            "regression", self._init_params[OWN], self._init_params["tau"], variance_of(y, sample_weight)
        )
        mean = float(start(y, "regression", sample_weight))
        options = {"loss_function": RangeObjective(rows), "eval_metric": METRIC["regression"]}
        given = {"X": X, "y": y, "sample_weight": sample_weight, "baseline": np.full(len(y), mean), **kwargs}
        if eval_set is not None:
            given["eval_set"] = [
                _from_mean(one, mean, kwargs.get("cat_features"))
                for one in (eval_set if isinstance(eval_set, list) else [eval_set])
            ]
        _fit(self, super().fit, options, given)
        self.set_scale_and_bias(1.0, mean)  # into the model itself, where the built-in objective has it
        return self

    def get_params(self, deep: bool = True, **_unused_kwargs: Any) -> dict[str, Any]:
        """Parameters as given."""
        return _params(self, super().get_params())

    def set_params(self, **params: Any) -> Any:
        """Change parameters."""
        return super().set_params(**_renamed(params))


def _fit(model: Any, fit: Any, options: dict[str, Any], given: dict[str, Any]) -> Any:
    """The host's own fit, while the model's parameters are those for a custom objective."""
    own = model._init_params
    if own.get("loss_function") not in (None, *METRIC.values()):
        raise ValueError(
            f"`loss_function` cannot be set here, got {own['loss_function']!r}: re-weighting takes its place. What "
            "re-weights is the `objective`."
        )
    kept = {name: value for name, value in own.items() if name not in ("tau", OWN, "loss_function")}
    _swap(model, {**options, **kept})
    try:
        with warnings.catch_warnings():  # compiling our objective with numba would gain nothing: it is vectorised
            warnings.filterwarnings("ignore", message=".*numba.*|.*[Cc]an't optimi[sz]e.*")
            fit(**given)
    finally:
        _swap(model, own)
    return model


def _swap(model: Any, params: dict[str, Any]) -> None:
    model._init_params = params
    model._canonized_params = None  # CatBoost remembers them under their canonical names, too


def _params(model: Any, params: dict[str, Any]) -> dict[str, Any]:
    # CatBoost hands out copies, and scikit-learn's clone wants the very value.
    params = {name: value for name, value in params.items() if name != OWN}
    return {**params, "objective": model._init_params[OWN], "tau": model._init_params["tau"]}


def _renamed(params: dict[str, Any]) -> dict[str, Any]:
    return {OWN if name == "objective" else name: value for name, value in params.items()}


def _from_mean(rows: Any, mean: float, cat_features: Any) -> Any:
    """Rows to evaluate on, as a Pool of their own whose predictions start at the mean, as those of training do."""
    if isinstance(rows, tuple) and len(rows) == 2:
        X, y = rows
        return host.Pool(X, y, baseline=np.full(len(y), mean), cat_features=cat_features)
    if not isinstance(rows, host.Pool):
        raise TypeError(
            f"`eval_set` must be (X, y), a catboost.Pool or a list of those, got {type(rows).__name__}. Read a file "
            "with catboost.Pool(path, column_description=...) first."
        )
    if np.size(rows.get_baseline()):
        raise ValueError(
            "`eval_set` must be a Pool without a baseline, got one with: predictions start at the mean of the target "
            "here, and it would be lost. Make the Pool without it."
        )
    own = rows.slice(list(range(rows.num_row())))  # a copy: the caller's stays as it is
    own.set_baseline(np.full(rows.num_row(), mean))
    return own


def _need_target(X: Any, y: Any) -> None:
    if y is None:
        raise ValueError(
            f"`y` must be given, got {type(X).__name__} alone. Pass rows and target rather than a Pool, or use "
            "reweigh.integrations.boosting.catboost as the loss_function of a CatBoost model."
        )
