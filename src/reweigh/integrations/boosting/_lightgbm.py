"""LightGBM: `params["objective"]` for `lightgbm.train`, and its estimators with re-weighting."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import lightgbm as host
import numpy as np
from sklearn.utils import compute_sample_weight
from sklearn.utils.multiclass import check_classification_targets

from reweigh.integrations._correction import corrected, correction_for, held_out, log_probabilities, refuse_classifier
from reweigh.integrations.boosting._losses import binary, multiclass
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

__all__ = ["RGDLGBMClassifier", "RGDLGBMRegressor", "init_score", "lightgbm", "lightgbm_metric", "standalone"]

METRIC = {"binary": "binary_logloss", "multiclass": "multi_logloss", "regression": "l2"}
#: Names that LightGBM has for its own losses.
LOSSES = (
    *("regression", "l1", "l2", "huber", "fair", "poisson", "quantile", "mape", "gamma", "tweedie"),
    *("binary", "multiclass", "softmax", "multiclassova", "cross_entropy", "cross_entropy_lambda"),
)
#: Built-in metrics that mean the same of margins as of probabilities.
BY_RANK = {
    "binary": ("auc", "average_precision", "none", "None"),
    "multiclass": ("auc_mu", "multi_error", "none", "None"),
}


@dataclass(frozen=True)
class LightGBMObjective:
    """What `lightgbm.train` calls each round: `(scores, Dataset) -> (gradients, hessians)`."""

    rows: RowObjective

    def __call__(self, scores: Any, data: Any) -> tuple[Any, Any]:
        """The derivatives of every row; LightGBM leaves the rows' own weights to us."""
        return self.of(data.get_label(), scores, data.get_weight())

    def of(self, y_true: Any, y_pred: Any, weight: Any = None) -> tuple[Any, Any]:
        """The same in the order of arguments of LightGBM's estimators."""
        # LightGBM's own multi-class hessian is K / (K - 1) p (1 - p).
        factor = y_pred.shape[1] / (y_pred.shape[1] - 1.0) if y_pred.ndim == 2 else 1.0
        return self.rows.gradients(y_pred, np.asarray(y_true), weight, factor)


def lightgbm(
    task: BoostingTask,
    *,
    tau: float | None = None,
    objective: ObjectiveLike = "rgd",
    variance: float | None = None,
    class_counts: ClassCounts = "auto",
) -> LightGBMObjective:
    r"""An objective for `lightgbm.train({"objective": ...}, ...)` that re-weights.

    .. math:: g_i = v_i\,w(\ell_i)\,\ell_i', \qquad h_i = v_i\,w(\ell_i)\,\ell_i''

    Parameters
    ----------
    task
        `"binary"`, `"multiclass"` (set `num_class` too) or `"regression"`.
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
    LightGBMObjective
        A callable; the weights of the `Dataset` are multiplied in.

    Examples
    --------
    >>> import lightgbm as lgb, numpy as np
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(200, 3))
    >>> y = (X[:, 0] + rng.normal(size=200) > 1).astype(float)
    >>> init = init_score(y, "binary")
    >>> params = {"objective": lightgbm("binary", tau=1.0), "verbose": -1}
    >>> booster = lgb.train(params, lgb.Dataset(X, y, init_score=init), 10)
    >>> probability = standalone(booster, init, "binary").predict(X)
    >>> bool((abs(probability - 0.5) < 0.5).all())
    True

    Notes
    -----
    LightGBM starts a custom objective from zero, evaluates it on margins and predicts margins: :func:`init_score`,
    :func:`lightgbm_metric` and :func:`standalone` put that right. References: Kumar et al., TMLR 2024.
    """
    return LightGBMObjective(row_objective(task, objective, tau, variance, class_counts))


def init_score(
    y: Any,
    task: BoostingTask,
    sample_weight: Any = None,
    *,
    rows: int | None = None,
    objective: LightGBMObjective | None = None,
) -> Any:
    """The initial scores for `lightgbm.Dataset(..., init_score=...)`: the built-in objective's own start.

    Parameters
    ----------
    y, sample_weight
        Target and weights of the *training* rows, for validation sets too.
    task
        `"binary"`, `"multiclass"` or `"regression"`.
    rows
        How many rows the dataset has; as many as `y` unless given.
    objective
        What :func:`lightgbm` returned, if its loss depends on the classes: class weights start from other shares.

    Returns
    -------
    numpy.ndarray
        Shape (rows,), or (rows, classes).

    Examples
    --------
    >>> init_score([0, 0, 0, 1], "binary", rows=2).round(4)
    array([-1.0986, -1.0986])
    """
    y = np.asarray(y)
    margin = start(y, task, sample_weight) if objective is None else objective.rows.start(y, sample_weight)
    return np.tile(margin, (len(y) if rows is None else rows, *(1,) * np.ndim(margin)))


@dataclass(frozen=True)
class LightGBMMetric:
    """The plain mean loss of raw scores, as a `feval` of `lightgbm.train`."""

    task: BoostingTask

    def __call__(self, scores: Any, data: Any) -> tuple[str, float, bool]:
        """Name, value, and that less is better."""
        return self.of(data.get_label(), scores, data.get_weight())

    def of(self, y_true: Any, y_pred: Any, weight: Any = None) -> tuple[str, float, bool]:
        """The same in the order of arguments of LightGBM's estimators."""
        y = np.asarray(y_true)
        if self.task == "regression":
            losses = (y_pred - y) ** 2
        else:
            losses = (binary if self.task == "binary" else multiclass)(y_pred, y).losses
        return METRIC[self.task], float(np.average(losses, weights=weight)), False


def lightgbm_metric(task: BoostingTask) -> LightGBMMetric:
    """The plain loss for `lightgbm.train(..., feval=...)`: evaluation and early stopping see none of our weights.

    The built-in `binary_logloss` takes the raw scores of a custom objective for probabilities; do not use it.

    Parameters
    ----------
    task
        `"binary"`, `"multiclass"` or `"regression"`.

    Returns
    -------
    LightGBMMetric
        A callable, named as the built-in metric.

    Examples
    --------
    >>> import numpy as np
    >>> name, value, _ = lightgbm_metric("binary").of(np.array([1.0]), np.array([0.0]))
    >>> name, round(value, 4)
    ('binary_logloss', 0.6931)
    """
    return LightGBMMetric(task)


def standalone(booster: Any, init: Any, task: BoostingTask) -> Any:
    """The trained booster as if its objective were built in: no initial score to add, probabilities to predict.

    The initial score goes into the leaves of the first tree, where LightGBM itself puts it, and the model gets the name
    of the built-in objective, which turns margins into probabilities. Saved and loaded, it needs nothing of this
    library.

    Parameters
    ----------
    booster
        What `lightgbm.train` returned.
    init
        The initial scores of its training set.
    task
        `"binary"`, `"multiclass"` or `"regression"`.

    Returns
    -------
    lightgbm.Booster
        A new booster; the given one is left as it is.

    Examples
    --------
    See :func:`lightgbm`.
    """
    margins = np.atleast_1d(np.asarray(init, np.float64)[0])
    native = {
        "binary": "binary sigmoid:1",
        "multiclass": f"multiclass num_class:{len(margins)}",
        "regression": "regression",
    }
    text = booster.model_to_string(num_iteration=-1)
    head = text.partition("\nTree=0")[0]
    if "\naverage_output" in head or "\nis_linear=1" in text:
        raise ValueError(
            "an initial score fits into constant leaves that are added up, got a random forest or linear trees. Train "
            "with boosting='gbdt' or 'dart' and linear_tree=False."
        )
    if "\nobjective=" not in head:
        text = text.replace("\nfeature_names=", f"\nobjective={native[task]}\nfeature_names=", 1)
    finished = host.Booster(model_str=text)
    if finished.num_trees() < len(margins):
        raise ValueError("the booster has no tree to hold the initial score. Train at least one round.")
    leaves = [tree["num_leaves"] for tree in booster.dump_model(num_iteration=1, start_iteration=0)["tree_info"]]
    for tree, (margin, count) in enumerate(zip(margins, leaves, strict=True)):
        for leaf in range(count):
            finished.set_leaf_output(tree, leaf, finished.get_leaf_output(tree, leaf) + margin)
    finished.best_iteration, finished.best_score = booster.best_iteration, booster.best_score
    return finished


class RGDLGBMClassifier(host.LGBMClassifier):
    """`lightgbm.LGBMClassifier` with re-weighting; binary and multi-class, labels of any kind.

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
        Those of `lightgbm.LGBMClassifier`, but for `is_unbalance` and `scale_pos_weight`.

    Examples
    --------
    >>> from sklearn.datasets import load_breast_cancer
    >>> X, y = load_breast_cancer(return_X_y=True)
    >>> model = RGDLGBMClassifier(tau=1.0, n_estimators=10, verbose=-1).fit(X, y)
    >>> model.predict_proba(X).shape
    (569, 2)

    Notes
    -----
    Evaluation and early stopping use the plain log loss, and metrics that depend on ranks alone. The correction is the
    attribute `correction_`, which a pickle has and LightGBM's own model files have not. References: Kumar et al., TMLR
    2024.
    """

    def __init__(self, *, tau: float | None = None, objective: ObjectiveLike = "rgd", **kwargs: Any) -> None:
        refuse_old_name(kwargs)
        super().__init__(**kwargs)
        self.tau = tau
        self.objective = objective

    def fit(self, X: Any, y: Any, sample_weight: Any = None, **kwargs: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Fit as `lightgbm.LGBMClassifier.fit` does, with its keywords."""
        check_classification_targets(y)
        classes, codes = np.unique(np.asarray(y), return_inverse=True)
        task: BoostingTask = "multiclass" if len(classes) > 2 else "binary"
        weight = None if sample_weight is None else np.asarray(sample_weight, np.float64)
        if self.class_weight is not None:
            of_class = compute_sample_weight(self.class_weight, y)
            weight = of_class if weight is None else weight * of_class
        _refuse(self, kwargs)
        chosen = booster_method(self.objective or "rgd", self.tau)
        refuse_classifier(chosen, "a booster")
        held = held_out(chosen.post, _eval_sets(kwargs))
        self.correction_ = None
        _fit(self, super().fit, task, (X, y, sample_weight), (codes, weight), kwargs, replace(chosen, post=None))
        outputs = None if held is None else log_probabilities(super().predict_proba(held[0]))
        held_codes = None if held is None else np.searchsorted(classes, np.asarray(held[1]))
        self.correction_ = correction_for(
            chosen.post, outputs, held_codes, codes, len(classes), weight, loss=chosen.loss
        )
        return self

    def predict_proba(self, X: Any, raw_score: bool = False, **kwargs: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        """The probability of each class, after the correction if there is one; keywords as in LightGBM."""
        result = super().predict_proba(X, raw_score=raw_score, **kwargs)
        other = raw_score or kwargs.get("pred_leaf") or kwargs.get("pred_contrib")
        return result if other else corrected(getattr(self, "correction_", None), result)

    def _process_params(self, stage: str) -> dict[str, Any]:
        return _native(self, super()._process_params(stage), stage)


class RGDLGBMRegressor(host.LGBMRegressor):
    """`lightgbm.LGBMRegressor` with re-weighting; the loss is the squared error over the variance of the target.

    Parameters
    ----------
    tau
        The clip level, in units of the squared error over the variance; `None` keeps the objective's own.
    objective
        What re-weights: a method's text, a separable objective or a weight function.
    **kwargs
        Those of `lightgbm.LGBMRegressor`.

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> X, y = load_diabetes(return_X_y=True)
    >>> bool(RGDLGBMRegressor(tau=1.0, n_estimators=30, verbose=-1).fit(X, y).score(X, y) > 0.5)
    True

    Notes
    -----
    Evaluation and early stopping use LightGBM's plain metrics. References: Kumar et al., TMLR 2024.
    """

    def __init__(self, *, tau: float | None = None, objective: ObjectiveLike = "rgd", **kwargs: Any) -> None:
        refuse_old_name(kwargs)
        super().__init__(**kwargs)
        self.tau = tau
        self.objective = objective

    def fit(self, X: Any, y: Any, sample_weight: Any = None, **kwargs: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Fit as `lightgbm.LGBMRegressor.fit` does, with its keywords."""
        _refuse(self, kwargs)
        data, coded = (X, y, sample_weight), (np.asarray(y), sample_weight)
        return _fit(self, super().fit, "regression", data, coded, kwargs, self.objective or "rgd")

    def _process_params(self, stage: str) -> dict[str, Any]:
        return _native(self, super()._process_params(stage), stage)


def _fit(
    model: Any, fit: Any, task: BoostingTask, data: Any, coded: Any, kwargs: dict[str, Any], objective: Any
) -> Any:
    """The host's own fit with our objective, its initial score and the plain metric; then a model that stands alone."""
    y, weight = coded
    variance = variance_of(y, weight) if task == "regression" else None
    rows = row_objective(task, objective, model.tau, variance)
    X, labels, sample_weight = data
    if task != "regression":
        _, weight = rows.row_weights(y, weight)
        rows, sample_weight = rows.row_weights(y, sample_weight)
    own = LightGBMObjective(rows)
    sizes = [np.shape(X)[0] for X, _ in _eval_sets(kwargs)]
    kwargs["init_score"] = init_score(y, task, weight, objective=own)
    if sizes:
        kwargs["eval_init_score"] = [init_score(y, task, weight, rows=size, objective=own) for size in sizes]
    if task != "regression":
        kwargs["eval_metric"] = _metrics(kwargs.get("eval_metric"), task)
    given = model.objective
    model.objective = model._objective = own.of  # the host looks at one, then at the other
    try:
        fit(X, labels, sample_weight=sample_weight, **kwargs)
    finally:
        model.objective, model._objective = given, None
    model._Booster = standalone(model._Booster, kwargs["init_score"], task)
    model._objective = task  # so that predict_proba takes the model for what it now is
    return model


def _eval_sets(kwargs: dict[str, Any]) -> list[tuple[Any, Any]]:
    """The validation sets, given as `eval_set` or, in later versions, as `eval_X` and `eval_y`."""
    given, X, y = kwargs.get("eval_set"), kwargs.get("eval_X"), kwargs.get("eval_y")
    if given is not None:
        return [given] if isinstance(given, tuple) else list(given)
    if X is None or y is None:
        return []
    return list(zip(X, y, strict=True)) if isinstance(X, tuple) else [(X, y)]


def _metrics(given: Any, task: BoostingTask) -> list[Any]:
    """Metrics that are right on raw scores: the plain loss is ours, ranks are the host's."""
    plain = LightGBMMetric(task).of
    if given is None:
        return [plain]
    chosen: list[Any] = []
    for metric in given if isinstance(given, list) else [given]:
        if metric in (METRIC[task], "logloss", task, "softmax"):
            metric = plain
        elif isinstance(metric, str) and metric not in BY_RANK[task]:
            raise ValueError(
                f"`eval_metric` must be one that is right on raw scores, got {metric!r}, which would take them for "
                f"probabilities. Use {METRIC[task]!r}, {', '.join(BY_RANK[task][:2])} or a function of "
                "(y_true, raw_score)."
            )
        chosen.append(metric)
    return chosen


def _native(model: Any, params: dict[str, Any], stage: str) -> dict[str, Any]:
    params.pop("tau", None)
    if stage == "fit" and isinstance(model, host.LGBMClassifier):
        params["metric"] = "None"  # the default one would take raw scores for probabilities; ours is in `eval_metric`
    return params


def _refuse(model: Any, kwargs: dict[str, Any]) -> None:
    """Parameters that a custom objective makes void must not be ignored in silence."""
    params = model.get_params()
    if isinstance(params["objective"], str) and params["objective"].split(":")[0] in LOSSES:
        raise ValueError(
            f"`objective` is what re-weights here, got {params['objective']!r}, a loss of LightGBM. The loss is the "
            "log loss, or the squared error, whichever fits the target; leave it out."
        )
    void = {
        "is_unbalance": "it has no effect on a custom objective: use class_weight='balanced'",
        "scale_pos_weight": "it has no effect on a custom objective: use class_weight or sample_weight",
        "linear_tree": "its leaves cannot hold the initial score",
    }
    for name, why in void.items():
        if params.get(name):
            raise ValueError(f"`{name}` cannot be set here, got {params[name]!r}: {why}.")
    if params.get("metric") is not None:
        raise ValueError(f"`metric` cannot be set here, got {params['metric']!r}: give eval_metric to fit.")
    for name in ("init_score", "eval_init_score", "init_model"):
        if kwargs.get(name) is not None:
            raise ValueError(
                f"`{name}` cannot be given here: the estimator sets the initial score. Use lightgbm.train."
            )
