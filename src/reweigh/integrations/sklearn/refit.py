"""Re-weighting around any estimator that takes `sample_weight`: refits to a fixed point."""

from __future__ import annotations

import inspect
import warnings
from abc import abstractmethod
from typing import Any, Literal

import numpy as np
from sklearn import config_context
from sklearn.base import BaseEstimator, ClassifierMixin, MetaEstimatorMixin, RegressorMixin, clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.model_selection import check_cv
from sklearn.pipeline import Pipeline
from sklearn.utils import check_random_state, get_tags
from sklearn.utils._indexing import _safe_indexing  # pyright: ignore[reportPrivateUsage]
from sklearn.utils.metaestimators import available_if
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import (
    _check_sample_weight,  # pyright: ignore[reportPrivateUsage]
    _num_samples,  # pyright: ignore[reportPrivateUsage]
    check_is_fitted,
    column_or_1d,
)

from reweigh import _validate as validate
from reweigh.integrations._correction import corrected, correction_for, log_probabilities, objective_and_post
from reweigh.method import ObjectiveLike
from reweigh.objectives._base import state_like
from reweigh.post import Post

__all__ = ["ReweightedClassifier", "ReweightedRegressor"]

Folds = Any  # an int, a splitter or an iterable of splits
#: In-sample losses below this share of what a constant would lose say nothing about which rows are hard.
NEGLIGIBLE = 0.01
#: What replaces in-sample losses then.
FOLDS = 5


def _has(name: str) -> Any:
    """Delegate a method only where the estimator has it, fitted or not."""

    def has(self: _ReweightedEstimator) -> bool:
        return hasattr(getattr(self, "estimator_", None) or self._base(), name)  # pyright: ignore[reportPrivateUsage]

    return available_if(has)


class _ReweightedEstimator(MetaEstimatorMixin, BaseEstimator):
    """The search for the fixed point; what a loss is, the two kinds below say."""

    def __init__(
        self,
        estimator: Any = None,
        *,
        tau: float | None = None,
        objective: ObjectiveLike = "rgd",
        cv: Folds | Literal["auto"] | None = "auto",
        damping: float = 0.0,
        tol: float = 1e-3,
        max_iter: int = 30,
        random_state: Any = None,
    ) -> None:
        self.estimator = estimator
        self.tau = tau
        self.objective = objective
        self.cv = cv
        self.damping = damping
        self.tol = tol
        self.max_iter = max_iter
        self.random_state = random_state

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Any:
        """Refit the estimator with weights from its own losses until the weights repeat themselves.

        Parameters
        ----------
        X, y
            Training data, in any form the estimator takes.
        sample_weight
            The user's own weights; they multiply those of the objective.

        Returns
        -------
        object
            The fitted estimator itself.
        """
        if y is None:
            raise ValueError(f"This {type(self).__name__} estimator requires y to be passed, but the target y is None")
        validate.fraction("damping", self.damping, zero=True, one=False)
        validate.positive("tol", self.tol)
        validate.whole("max_iter", self.max_iter, 1)
        objective, post = objective_and_post(self.objective, self.tau, type(self).__name__)
        if post is not None and isinstance(self, RegressorMixin):
            raise ValueError(
                f"{post!r} corrects the outputs of a classifier, and the target is a number. Leave it out."
            )
        y = column_or_1d(y, warn=True)
        self._look_at(y)
        if sample_weight is not None:
            sample_weight = _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
        self._seed = int(check_random_state(self.random_state).randint(np.iinfo(np.int32).max))
        self._iterate(X, y, sample_weight, objective)
        self._correct(X, y, sample_weight, post)
        for name in ("n_features_in_", "feature_names_in_"):
            if hasattr(self.estimator_, name):
                setattr(self, name, getattr(self.estimator_, name))
        return self

    def _iterate(self, X: Any, y: Any, own: Any, objective: Any) -> None:
        """Weights from losses from a fit with the weights, again and again."""
        state = objective.init()
        counts = slice(None) if own is None else own > 0
        weights = np.ones(_num_samples(X))
        folds = None if isinstance(self.cv, str) else self.cv
        if isinstance(self.cv, str):
            validate.one_of("cv", self.cv, ("auto", None), "Or a number of folds, or a splitter.")
        gap, losses = np.inf, weights
        for iteration in range(1, self.max_iter + 1):
            self.n_iter_ = iteration
            losses = self._losses(X, y, weights, own, folds)
            if iteration == 1 and isinstance(self.cv, str) and self._interpolates(losses[counts], y, own):
                folds = FOLDS
                losses = self._losses(X, y, weights, own, folds)
            if own is not None:
                losses = np.where(own > 0, losses, 0.0)
            weighed = objective.weigh(losses, state_like(state, losses), measure=own)
            state, following = weighed.state, np.asarray(weighed.weights, np.float64)
            gap = float(np.abs(following - weights)[counts].max() / max(np.abs(following[counts]).max(), 1e-300))
            if gap <= self.tol:
                break
            if iteration < self.max_iter:
                weights = self.damping * weights + (1.0 - self.damping) * following
        else:
            warnings.warn(
                f"the weights still change by {gap:.2g} after {self.max_iter} refits, more than tol={self.tol:g}. "
                "Raise max_iter, damp the steps (damping=0.5), or fix the random_state of the estimator.",
                ConvergenceWarning,
                stacklevel=4,
            )
        if folds is not None:
            self.estimator_ = self._fitted(X, y, weights, own)
        self.weights_, self.losses_ = weights, losses

    def _losses(self, X: Any, y: Any, weights: Any, own: Any, folds: Folds) -> Any:
        """The loss of every row: of the model fitted to all, or of models fitted without the row."""
        if folds is None:
            self.estimator_ = self._fitted(X, y, weights, own)
            return self._losses_of(self.estimator_, X, y)
        losses = np.full(_num_samples(X), np.nan)
        splitter: Any = check_cv(folds, y, classifier=isinstance(self, ClassifierMixin))
        for train, test in splitter.split(X, y):
            part = None if own is None else own[train]
            model = self._fitted(_safe_indexing(X, train), y[train], weights[train], part)
            losses[test] = self._losses_of(model, _safe_indexing(X, test), y[test])
        if np.isnan(losses).any():
            raise ValueError(
                f"`cv` must hold every row out once, got {folds!r}, which leaves {int(np.isnan(losses).sum())} rows "
                "without a loss. Use KFold, StratifiedKFold or a number of folds."
            )
        return losses

    def _fitted(self, X: Any, y: Any, weights: Any, own: Any) -> Any:
        model: Any = clone(self._base())
        # One seed for every refit: a fit that changes by chance has no fixed point.
        missing = {
            name for name, value in model.get_params().items() if name.endswith("random_state") and value is None
        }
        model.set_params(**dict.fromkeys(missing, self._seed))
        return _fit_weighted(model, X, y, weights if own is None else weights * own)

    def _interpolates(self, losses: Any, y: Any, own: Any) -> bool:
        if losses.size < 2 * FOLDS or float(losses.max()) > NEGLIGIBLE * self._loss_of_constant(y, own):
            return False
        warnings.warn(
            f"{type(self._base()).__name__} fits the training rows almost exactly, so their losses cannot say "
            f"hard rows from easy ones: using out-of-fold losses of {FOLDS} folds. Say so with cv={FOLDS}, or keep "
            "in-sample losses with cv=None.",
            UserWarning,
            stacklevel=5,
        )
        return True

    @abstractmethod
    def _correct(self, X: Any, y: Any, own: Any, post: Post | None) -> None:
        """Fit what the method does after training, once the weights are known."""

    @abstractmethod
    def _base(self) -> Any:
        """The estimator to refit: the given one, or the default."""

    @abstractmethod
    def _look_at(self, y: Any) -> None:
        """Check the target, and note what predictions need of it."""

    @abstractmethod
    def _losses_of(self, model: Any, X: Any, y: Any) -> Any:
        """The loss of each row under a fitted model."""

    @abstractmethod
    def _loss_of_constant(self, y: Any, own: Any) -> float:
        """What the best constant prediction loses on average."""

    def predict(self, X: Any) -> Any:
        """What the re-weighted estimator predicts."""
        check_is_fitted(self, "estimator_")
        return self.estimator_.predict(X)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        inner = get_tags(self._base())
        tags.input_tags.sparse = inner.input_tags.sparse
        tags.input_tags.allow_nan = inner.input_tags.allow_nan
        tags.input_tags.categorical = inner.input_tags.categorical
        return tags


class ReweightedClassifier(ClassifierMixin, _ReweightedEstimator):
    r"""Any classifier that takes `sample_weight`, with re-weighting: `ReweightedClassifier(LogisticRegression())`.

    .. math:: \hat f = \arg\min_f \sum_i v_i\,w_i\,\ell_i(f), \qquad w_i = w(\ell_i(\hat f)), \qquad
              \ell_i = -\log \hat p(y_i \mid x_i)

    Fit, take the log loss of each row, turn the losses into weights, fit again with the weights, until they repeat
    themselves. Such a fixed point has :math:`\sum_i v_i w_i \nabla \ell_i = 0`: it is a stationary point of the
    objective that re-weighted descent minimises.

    Parameters
    ----------
    estimator
        A classifier with `predict_proba` whose `fit` takes `sample_weight`, or a pipeline that ends in one;
        `LogisticRegression()` unless given.
    tau
        The clip level, in units of the log loss; `None` keeps the objective's own, which is 1 for RGD.
    objective
        A method's text (`"rgd:divergence=revkl"`, `"cvar:alpha=0.2"`, `"mean+threshold"`), an objective or a weight
        function. A correction after training that learns from rows, such as `threshold`, is fitted to out-of-fold
        probabilities, of the folds of `cv` or of 5.
    cv
        Folds for out-of-fold losses: a number or a splitter, for models that interpolate their training rows. `None`
        uses the losses on the training rows. `"auto"` does so too, unless they are all about zero; then it warns and
        uses 5 folds.
    damping
        The share of the old weights that is kept at each refit, in [0, 1); try 0.5 where weights oscillate.
    tol
        The largest change of a weight, relative to the largest weight, at which refitting stops.
    max_iter
        The most refits; a `ConvergenceWarning` says when they were not enough.
    random_state
        Seed for the parts of the estimator that have none set; every refit uses the same.

    Attributes
    ----------
    estimator_
        The estimator fitted with the final weights.
    weights_, losses_
        The weight of each row in the final fit, without the user's own, and the loss it came from.
    n_iter_
        How many times the estimator (or each fold of it) was fitted.
    classes_
        The class labels.
    correction_
        What is done to the estimator's probabilities, a :class:`reweigh.post.Correction`, or None.

    Examples
    --------
    >>> from sklearn.datasets import load_breast_cancer
    >>> from sklearn.linear_model import LogisticRegression
    >>> from sklearn.pipeline import make_pipeline
    >>> from sklearn.preprocessing import StandardScaler
    >>> X, y = load_breast_cancer(return_X_y=True)
    >>> model = ReweightedClassifier(make_pipeline(StandardScaler(), LogisticRegression()), tau=1.0).fit(X, y)
    >>> bool(model.weights_.max() <= 1.6488), bool(model.score(X, y) > 0.95)
    (True, True)

    Notes
    -----
    The paper re-weights every gradient step; a fixed point of refits has the same stationarity condition and needs no
    gradients. Weights are not normalised, as in the paper, so a penalised estimator is penalised up to *e* times less;
    use `objective="rgd:normalize=mean"` to keep the scale. References: Kumar et al., TMLR 2024.
    """

    def _base(self) -> Any:
        return LogisticRegression() if self.estimator is None else self.estimator

    def _look_at(self, y: Any) -> None:
        check_classification_targets(y)
        if not hasattr(self._base(), "predict_proba"):
            raise TypeError(
                f"`estimator` must have predict_proba, because weights come from the log loss, got {self._base()!r}. "
                "Wrap it in CalibratedClassifierCV, or switch its probabilities on."
            )
        self.classes_ = np.unique(y)

    def _losses_of(self, model: Any, X: Any, y: Any) -> Any:
        probability = np.asarray(model.predict_proba(X), np.float64)
        # A fold may have missed a class altogether: what it never saw has probability zero.
        column = np.searchsorted(model.classes_, y)
        seen = np.append(model.classes_, model.classes_[:1])[column] == y
        own = np.where(seen, probability[np.arange(len(y)), np.where(seen, column, 0)], 0.0)
        return -np.log(np.clip(own, np.finfo(np.float64).eps, 1.0))

    def _correct(self, X: Any, y: Any, own: Any, post: Post | None) -> None:
        codes, classes = np.searchsorted(self.classes_, y), len(self.classes_)
        outputs = self._out_of_fold(X, y, own) if post is not None and post.needs_rows else None
        self.correction_ = correction_for(post, outputs, codes, codes, classes, own)

    def _out_of_fold(self, X: Any, y: Any, own: Any) -> Any:
        """Log-probabilities of every row from models fitted, with the final weights, without it."""
        outputs = np.zeros((len(y), len(self.classes_)))
        splitter: Any = check_cv(FOLDS if self.cv is None or isinstance(self.cv, str) else self.cv, y, classifier=True)
        for train, test in splitter.split(X, y):
            part = None if own is None else own[train]
            model = self._fitted(_safe_indexing(X, train), y[train], self.weights_[train], part)
            outputs[np.ix_(test, np.searchsorted(self.classes_, model.classes_))] = model.predict_proba(
                _safe_indexing(X, test)
            )
        return log_probabilities(outputs)

    def _loss_of_constant(self, y: Any, own: Any) -> float:
        share = np.bincount(np.searchsorted(self.classes_, y), weights=own) / (len(y) if own is None else own.sum())
        share = share[share > 0]
        return float(-(share * np.log(share)).sum())

    def predict(self, X: Any) -> Any:
        """What the re-weighted estimator predicts, after the correction if there is one."""
        check_is_fitted(self, "estimator_")
        if self.correction_ is None:
            return self.estimator_.predict(X)
        return self.classes_[self.predict_proba(X).argmax(axis=1)]

    @_has("predict_proba")
    def predict_proba(self, X: Any) -> Any:
        """The probability of each class."""
        check_is_fitted(self, "estimator_")
        return corrected(self.correction_, self.estimator_.predict_proba(X))

    @_has("predict_log_proba")
    def predict_log_proba(self, X: Any) -> Any:
        """The logarithm of the probability of each class."""
        check_is_fitted(self, "estimator_")
        if self.correction_ is not None:
            return log_probabilities(self.predict_proba(X))
        return self.estimator_.predict_log_proba(X)

    @_has("decision_function")
    def decision_function(self, X: Any) -> Any:
        """The estimator's own scores, before any correction."""
        check_is_fitted(self, "estimator_")
        return self.estimator_.decision_function(X)


class ReweightedRegressor(RegressorMixin, _ReweightedEstimator):
    r"""Any regressor that takes `sample_weight`, with re-weighting: `ReweightedRegressor(Ridge())`.

    .. math:: w_i = w(\ell_i), \qquad \ell_i = (y_i - \hat f(x_i))^2 / \mathrm{Var}(y)

    As :class:`ReweightedClassifier`, with the squared error in units of the variance of the target, so that `tau`
    means the same whatever the target is measured in: at `tau=1` rows that are off by more than one standard
    deviation share the largest weight.

    Parameters
    ----------
    estimator
        A regressor whose `fit` takes `sample_weight`, or a pipeline that ends in one; `Ridge()` unless given.
    tau, objective, cv, damping, tol, max_iter, random_state
        As in :class:`ReweightedClassifier`.

    Attributes
    ----------
    estimator_, weights_, losses_, n_iter_
        As in :class:`ReweightedClassifier`.

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> X, y = load_diabetes(return_X_y=True)
    >>> model = ReweightedRegressor(tau=1.0).fit(X, y)
    >>> bool(1.0 <= model.weights_.min()), bool(model.weights_.max() <= 1.6488)
    (True, True)

    Notes
    -----
    The factor 1/2 of the squared error is left out, as in torch's `MSELoss`. References: Kumar et al., TMLR 2024.
    """

    def _base(self) -> Any:
        return Ridge() if self.estimator is None else self.estimator

    def _look_at(self, y: Any) -> None:
        if y.dtype.kind not in "fiub":
            try:
                y.astype(np.float64)
            except (TypeError, ValueError) as error:
                raise ValueError(
                    f"`y` must be numbers, got dtype {y.dtype}. Labels need ReweightedClassifier."
                ) from error

    def _iterate(self, X: Any, y: Any, own: Any, objective: Any) -> None:
        values = np.asarray(y, np.float64)
        spread = float(np.average((values - np.average(values, weights=own)) ** 2, weights=own))
        self._variance = spread if spread > 0 else 1.0
        super()._iterate(X, y, own, objective)

    def _correct(self, X: Any, y: Any, own: Any, post: Post | None) -> None:
        return  # a method with such a part was refused

    def _losses_of(self, model: Any, X: Any, y: Any) -> Any:
        return (np.asarray(y, np.float64) - np.asarray(model.predict(X), np.float64).reshape(-1)) ** 2 / self._variance

    def _loss_of_constant(self, y: Any, own: Any) -> float:
        return 1.0  # the mean's error is the variance


def _fit_weighted(model: Any, X: Any, y: Any, weights: Any) -> Any:
    """Fit with sample weights, which a pipeline hands on to its last step."""
    last = model
    path: list[str] = []
    while isinstance(last, Pipeline):
        name, last = last.steps[-1]
        path.append(name)
    parameters = inspect.signature(last.fit).parameters.values()
    if not any(p.name == "sample_weight" or p.kind is p.VAR_KEYWORD for p in parameters):
        raise TypeError(
            f"`estimator` must take sample_weight in fit, which {type(last).__name__} does not. Choose an estimator "
            "that does (most linear models, trees, forests and boosters), or RGDClassifier and RGDRegressor."
        )
    # The step's own name is the old way of handing on, which works without any requests; switched on or not.
    with config_context(enable_metadata_routing=False):
        return model.fit(X, y, **{"__".join([*path, "sample_weight"]): weights})
