"""XGBoost: `obj=` for `xgboost.train`, and its estimators with re-weighting."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import xgboost as host
from scipy.special import expit
from sklearn.utils.multiclass import check_classification_targets

from reweigh.integrations._correction import corrected, correction_for, held_out, log_probabilities, refuse_classifier
from reweigh.integrations.boosting._rows import (
    BoostingTask,
    ClassCounts,
    RowObjective,
    booster_method,
    refuse_old_name,
    row_objective,
    start,
    variance_of,
)
from reweigh.method import ObjectiveLike

__all__ = ["RGDXGBClassifier", "RGDXGBRegressor", "xgboost", "xgboost_params"]

NATIVE: dict[str, str] = {
    "binary": "binary:logistic",
    "multiclass": "multi:softprob",
    "regression": "reg:squarederror",
}
#: XGBoost has one intercept per class from this version on; before it multi-class starts from equal shares.
VECTOR_INTERCEPT = (3, 1)


@dataclass(frozen=True)
class XGBoostObjective:
    """What `xgboost.train` calls each round: `(margins, DMatrix) -> (gradients, hessians)`."""

    rows: RowObjective

    def __call__(self, margins: Any, data: Any) -> tuple[Any, Any]:
        """The derivatives of every row; XGBoost leaves the rows' own weights to us."""
        return self.of(data.get_label(), margins, data.get_weight())

    def of(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> tuple[Any, Any]:
        """The same in the order of arguments of XGBoost's estimators."""
        # XGBoost's own multi-class hessian is 2 p (1 - p), an upper bound.
        factor = 2.0 if self.rows.task == "multiclass" else 1.0
        gradient, hessian = self.rows.gradients(y_pred, y_true, sample_weight, factor)
        return gradient, np.maximum(hessian, np.float32(1e-16), out=hessian)


def xgboost(
    task: BoostingTask,
    *,
    tau: float | None = None,
    objective: ObjectiveLike = "rgd",
    variance: float | None = None,
    class_counts: ClassCounts = "auto",
) -> XGBoostObjective:
    r"""An objective for `xgboost.train(..., obj=...)` that re-weights.

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
        For regression: the unit of the squared error; the variance of the training target unless given.
    class_counts
        Training rows of each class, for losses that depend on them; `"auto"` counts them.

    Returns
    -------
    XGBoostObjective
        A callable; the weights of the `DMatrix` are multiplied in.

    Examples
    --------
    >>> import numpy as np, xgboost as xgb
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(200, 3))
    >>> y = (X[:, 0] + rng.normal(size=200) > 1).astype(float)
    >>> params = {"max_depth": 3, **xgboost_params(y, "binary")}
    >>> booster = xgb.train(params, xgb.DMatrix(X, y), 10, obj=xgboost("binary", tau=1.0))
    >>> bool((abs(booster.predict(xgb.DMatrix(X)) - 0.5) < 0.5).all())  # probabilities
    True

    Notes
    -----
    Give the parameters of :func:`xgboost_params` as well: without them XGBoost starts a custom objective from 0.5,
    whatever the data, and predicts margins. References: Kumar et al., TMLR 2024.
    """
    return XGBoostObjective(row_objective(task, objective, tau, variance, class_counts))


def xgboost_params(
    y: Any, task: BoostingTask, sample_weight: Any = None, *, objective: XGBoostObjective | None = None
) -> dict[str, Any]:
    """Parameters that must go with a custom objective: the initial score, and the built-in twin.

    The twin is not used for gradients. It turns margins into probabilities in `predict`, and gives the plain metric
    for evaluation and early stopping.

    Parameters
    ----------
    y
        The training target: classes from 0 to K - 1, or numbers.
    task
        `"binary"`, `"multiclass"` or `"regression"`.
    sample_weight
        The user's own weights, where there are any.
    objective
        What :func:`xgboost` returned, if its loss depends on the classes: class weights start from other shares.

    Returns
    -------
    dict[str, Any]
        `objective`, `base_score` and, for many classes, `num_class`.

    Examples
    --------
    >>> xgboost_params([0, 0, 0, 1], "binary")
    {'objective': 'binary:logistic', 'base_score': 0.25}
    """
    y = np.asarray(y)
    margin = start(y, task, sample_weight) if objective is None else objective.rows.start(y, sample_weight)
    params: dict[str, Any] = {"objective": NATIVE[task]}
    if task == "regression":
        params["base_score"] = float(margin)
    elif task == "binary":
        params["base_score"] = float(expit(margin))
    else:
        params["num_class"] = len(margin)
        if tuple(int(part) for part in host.__version__.split(".")[:2]) >= VECTOR_INTERCEPT:
            params["base_score"] = (margin - margin.mean()).tolist()
    return params


class RGDXGBClassifier(host.XGBClassifier):
    """`xgboost.XGBClassifier` with re-weighting; binary and multi-class.

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
        Those of `xgboost.XGBClassifier`, but for `scale_pos_weight`.

    Examples
    --------
    >>> from sklearn.datasets import load_breast_cancer
    >>> X, y = load_breast_cancer(return_X_y=True)
    >>> model = RGDXGBClassifier(tau=1.0, n_estimators=10, max_depth=3).fit(X, y)
    >>> bool(abs(model.predict_proba(X).sum(axis=1) - 1).max() < 1e-6)
    True

    Notes
    -----
    Early stopping and evaluation use XGBoost's plain metrics. The correction is the attribute `correction_`, which a
    pickle has and XGBoost's own model files have not. References: Kumar et al., TMLR 2024.
    """

    def __init__(self, *, tau: float | None = None, objective: ObjectiveLike = "rgd", **kwargs: Any) -> None:
        refuse_old_name(kwargs)
        super().__init__(**kwargs)
        self.tau = tau
        self.objective = objective

    def fit(self, X: Any, y: Any, *, sample_weight: Any = None, **kwargs: Any) -> Any:
        """Fit as `xgboost.XGBClassifier.fit` does, with its keywords."""
        check_classification_targets(y)
        classes = np.unique(np.asarray(y))
        if np.ndim(y) != 1 or not np.array_equal(classes, np.arange(len(classes))):
            raise ValueError(
                f"`y` must hold classes from 0 to K - 1, one per row, got {classes[:4].tolist()}. Encode it with "
                "sklearn.preprocessing.LabelEncoder, as for XGBClassifier."
            )
        task: BoostingTask = "multiclass" if len(classes) > 2 else "binary"
        chosen = booster_method(_objective_of(self), self.tau)
        refuse_classifier(chosen, "a booster")
        held = held_out(chosen.post, kwargs.get("eval_set"))
        _fit(self, super().fit, task, X, y, sample_weight, kwargs, replace(chosen, post=None))
        outputs = None if held is None else log_probabilities(super().predict_proba(held[0]))
        codes = None if held is None else np.asarray(held[1])
        self.correction_ = correction_for(
            chosen.post, outputs, codes, np.asarray(y), len(classes), sample_weight, loss=chosen.loss
        )
        return self

    def predict_proba(self, X: Any, **kwargs: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        """The probability of each class, after the correction if there is one; keywords as in XGBoost."""
        return corrected(getattr(self, "correction_", None), super().predict_proba(X, **kwargs))

    def predict(self, X: Any, *, output_margin: bool = False, **kwargs: Any) -> Any:
        """The most probable class, after the correction if there is one; margins are the model's own."""
        if output_margin or getattr(self, "correction_", None) is None:
            return super().predict(X, output_margin=output_margin, **kwargs)
        return self.classes_[self.predict_proba(X, **kwargs).argmax(axis=1)]

    def get_xgb_params(self) -> dict[str, Any]:
        """Parameters for the native library, with the initial score of the data being fitted."""
        return _native(self, super().get_xgb_params())


class RGDXGBRegressor(host.XGBRegressor):
    """`xgboost.XGBRegressor` with re-weighting; the loss is the squared error over the variance of the target.

    Parameters
    ----------
    tau
        The clip level, in units of the squared error over the variance; `None` keeps the objective's own.
    objective
        What re-weights: a method's text, a separable objective or a weight function.
    **kwargs
        Those of `xgboost.XGBRegressor`.

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> X, y = load_diabetes(return_X_y=True)
    >>> bool(RGDXGBRegressor(tau=1.0, n_estimators=20, max_depth=3).fit(X, y).score(X, y) > 0.5)
    True

    Notes
    -----
    Early stopping and evaluation use XGBoost's plain metrics. References: Kumar et al., TMLR 2024.
    """

    def __init__(self, *, tau: float | None = None, objective: ObjectiveLike = "rgd", **kwargs: Any) -> None:
        refuse_old_name(kwargs)
        super().__init__(**kwargs)
        self.tau = tau
        self.objective = objective

    def fit(self, X: Any, y: Any, *, sample_weight: Any = None, **kwargs: Any) -> Any:
        """Fit as `xgboost.XGBRegressor.fit` does, with its keywords."""
        return _fit(self, super().fit, "regression", X, y, sample_weight, kwargs, _objective_of(self))

    def get_xgb_params(self) -> dict[str, Any]:
        """Parameters for the native library, with the initial score of the data being fitted."""
        return _native(self, super().get_xgb_params())


def _fit(
    model: Any, fit: Any, task: BoostingTask, X: Any, y: Any, sample_weight: Any, kwargs: dict[str, Any], objective: Any
) -> Any:
    """The host's own fit, while the model holds our objective and its initial score."""
    _refuse(model)
    rows = row_objective(task, objective, model.tau, None if task != "regression" else variance_of(y, sample_weight))
    if task != "regression":
        rows, sample_weight = rows.row_weights(np.asarray(y), sample_weight)
    named = model.objective
    # A model that is trained further keeps its own initial score.
    own = XGBoostObjective(rows)
    again = kwargs.get("xgb_model") is not None
    model._start = {} if again else xgboost_params(y, task, sample_weight, objective=own)
    model.objective = own.of
    try:
        fit(X, y, sample_weight=sample_weight, **kwargs)
    finally:
        model.objective = named
        del model._start
    return model


def _native(model: Any, params: dict[str, Any]) -> dict[str, Any]:
    for name in ("tau", "objective"):  # the host knows the loss by the task, and sets it itself
        params.pop(name, None)
    base_score = getattr(model, "_start", {}).get("base_score")
    if base_score is not None and params.get("base_score") is None:
        params["base_score"] = base_score
    return params


def _objective_of(model: Any) -> Any:
    """What re-weights. The host writes the name of its own loss there when it loads a model: that names no other."""
    given = model.objective
    if given is None or (isinstance(given, str) and given in NATIVE.values()):
        return "rgd"
    if isinstance(given, str) and given.split(":")[0] in ("binary", "multi", "reg", "count", "rank", "survival"):
        raise ValueError(
            f"`objective` is what re-weights here, got {given!r}, a loss of XGBoost. The loss is the log loss, or the "
            "squared error, whichever fits the target; leave it out."
        )
    return given


def _refuse(model: Any) -> None:
    """Parameters that a custom objective makes void must not be ignored in silence."""
    if model.scale_pos_weight not in (None, 1):
        raise ValueError(
            f"`scale_pos_weight` has no effect on a custom objective, got {model.scale_pos_weight!r}. Give "
            "sample_weight to fit, for example sklearn.utils.compute_sample_weight('balanced', y)."
        )
