"""A small neural network that re-weights itself, as scikit-learn estimators."""

from __future__ import annotations

import copy
from abc import abstractmethod
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.model_selection import train_test_split
from sklearn.utils import check_random_state, compute_sample_weight
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import (
    _check_sample_weight,  # pyright: ignore[reportPrivateUsage]
    check_is_fitted,
    validate_data,
)
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from reweigh import _validate as validate
from reweigh._carry import carried, refuse_more_than_losses
from reweigh.integrations._correction import correction_for
from reweigh.method import Context, Method, ObjectiveLike
from reweigh.objectives.entropy import Entropy
from reweigh.post import Correction
from reweigh.torch._classifier import last_layer
from reweigh.torch.devices import resolve
from reweigh.torch.losses import ClassLoss, CosineLinear
from reweigh.torch.reweighted import Reweighted

__all__ = ["RGDClassifier", "RGDRegressor"]

#: Rows that predictions take at a time.
CHUNK = 8192


class _Network(BaseEstimator):
    """Training, early stopping and raw outputs; what a target is, the two kinds below say."""

    def __init__(
        self,
        *,
        tau: float | None = None,
        objective: ObjectiveLike = "rgd",
        hidden_layer_sizes: tuple[int, ...] = (64, 64),
        learning_rate_init: float = 1e-3,
        max_iter: int = 100,
        batch_size: int = 64,
        weight_decay: float = 0.0,
        early_stopping: bool = False,
        validation_fraction: float = 0.1,
        n_iter_no_change: int = 10,
        random_state: Any = None,
        device: str | None = None,
    ) -> None:
        self.tau = tau
        self.objective = objective
        self.hidden_layer_sizes = hidden_layer_sizes
        self.learning_rate_init = learning_rate_init
        self.max_iter = max_iter
        self.batch_size = batch_size
        self.weight_decay = weight_decay
        self.early_stopping = early_stopping
        self.validation_fraction = validation_fraction
        self.n_iter_no_change = n_iter_no_change
        self.random_state = random_state
        self.device = device

    def _fit(
        self,
        X: Any,
        target: Any,
        outputs: int,
        own: Any,
        strata: Any,
        criterion: Reweighted,
        head: str = "linear",
        hold_out: bool = False,
    ) -> tuple[Any, Any]:
        """Train on rows, float32 or integer targets and the user's weights, all NumPy.

        Returns which rows were trained on, and which were held out to stop by or, with `hold_out`, in any case.
        """
        self._check_settings()
        random = check_random_state(self.random_state)
        training = self._start(X.shape[1], outputs, criterion, head, random)
        rows = np.arange(len(X)) if own is None else np.flatnonzero(own > 0)
        rows, held = self._split(rows, strata, random) if self.early_stopping or hold_out else (rows, None)
        own = np.ones(len(X)) if own is None else own
        own = own / own[rows].mean()  # a scale of the user's weights is not a learning rate
        data = tuple(torch.as_tensor(part) for part in (X, target, own.astype(np.float32)))
        kept = tuple(part[rows].to(training.device) for part in data)
        losses: list[Tensor] = []
        best: tuple[float, int, dict[str, Tensor]] | None = None
        self.validation_losses_: list[float] = []
        for epoch in range(1, self.max_iter + 1):
            training.criterion.progress = (epoch - 1) / self.max_iter
            losses.append(training.epoch(kept, self.batch_size))
            if held is None or not self.early_stopping:
                continue
            # Scored with the class weights that training ends with, or epochs before and after they start, when a loss
            # defers them, could not be compared.
            training.criterion.progress = 1.0
            score = training.plain_loss(tuple(part[held].to(training.device) for part in data))
            self.validation_losses_.append(score)
            if best is None or score < best[0]:
                best = score, epoch, {name: value.clone() for name, value in training.model.state_dict().items()}
            elif epoch - best[1] >= self.n_iter_no_change:
                break
        if best is not None:
            training.model.load_state_dict(best[2])
        self._keep(training)
        self._training: _NetworkTraining | None = training
        self.n_iter_ = len(losses)
        self.best_epoch_ = len(losses) if best is None else best[1]
        self.losses_ = torch.stack(losses).tolist()
        return rows, held

    def _fit_further(
        self, X: Any, target: Any, outputs: int, own: Any, criterion: Reweighted | None, head: str = "linear"
    ) -> None:
        """One pass over some rows; a criterion is given for the first of them."""
        self._check_settings()
        if criterion is not None:
            self._training = self._start(X.shape[1], outputs, criterion, head, check_random_state(self.random_state))
            self.n_iter_, self.losses_ = 0, []
            self.validation_losses_ = []
        training = self._training
        assert training is not None
        own = np.ones(len(X)) if own is None else own
        data = (torch.as_tensor(part).to(training.device) for part in (X, target, own.astype(np.float32)))
        training.criterion.progress = min(self.n_iter_ / self.max_iter, 1.0)
        self.losses_.append(float(training.epoch(tuple(data), self.batch_size)))
        self.n_iter_ += 1
        self.best_epoch_ = self.n_iter_
        self._keep(training)

    def _start(self, inputs: int, outputs: int, criterion: Reweighted, head: str, random: Any) -> _NetworkTraining:
        """A fresh network and its optimiser, on the device."""
        seed = int(random.randint(np.iinfo(np.int32).max))
        order = torch.Generator().manual_seed(seed)
        sizes = self.hidden_layer_sizes
        model = _network(inputs, (sizes,) if isinstance(sizes, int) else tuple(sizes), outputs, order, head)
        device = resolve("cpu" if self.device is None else self.device)
        model, criterion = model.to(device), criterion.to(device)
        optimizer = torch.optim.AdamW(model.parameters(), lr=self.learning_rate_init, weight_decay=self.weight_decay)
        return _NetworkTraining(model, criterion, optimizer, order.get_state())

    def _keep(self, training: _NetworkTraining) -> None:
        # Kept on the host: it pickles, and it loads where there is no such device. In double precision, so that a
        # row's prediction does not depend on which rows come with it.
        self.model_ = copy.deepcopy(training.model).cpu().double().eval()

    def _check_settings(self) -> None:
        for name in ("max_iter", "batch_size", "n_iter_no_change"):
            validate.whole(name, getattr(self, name), 1)
        sizes = self.hidden_layer_sizes
        for size in (sizes,) if isinstance(sizes, int) else sizes:
            validate.whole("hidden_layer_sizes", size, 1, "It is a tuple of layer widths, such as (64, 64).")
        validate.positive("learning_rate_init", self.learning_rate_init)
        validate.non_negative("weight_decay", self.weight_decay)
        validate.fraction("validation_fraction", self.validation_fraction, one=False)

    def _split(self, rows: Any, strata: Any, random: Any) -> tuple[Any, Any]:
        """Rows to train on, and rows to hold out."""
        if strata is not None:
            strata = strata[rows]
            held = int(np.ceil(self.validation_fraction * len(rows)))
            counts = np.bincount(strata)
            counts = counts[counts > 0]
            if counts.min() < 2 or held < len(counts) or len(rows) - held < len(counts):
                strata = None  # too few of some class to have it on both sides
        kept, held = train_test_split(
            rows, test_size=self.validation_fraction, stratify=strata, random_state=random.randint(2**31 - 1)
        )
        return kept, held

    def _method(self) -> Method:
        return carried(self.objective, ("loss", "objective", "post"), type(self).__name__, tau=self.tau)

    def _outputs(self, X: Any) -> Any:
        """Raw outputs of the network, in double precision."""
        check_is_fitted(self, "model_")
        rows = torch.as_tensor(validate_data(self, X, dtype=np.float32, reset=False)).double()
        with torch.no_grad():
            parts = [self.model_(part) for part in rows.split(CHUNK)]
        return torch.cat(parts).numpy()

    @abstractmethod
    def predict(self, X: Any) -> Any:
        """What the network predicts."""


class RGDClassifier(ClassifierMixin, _Network):
    r"""A neural network trained by re-weighted gradient descent: `RGDClassifier(tau=1.0).fit(X, y)`.

    .. math:: \hat L = \frac1B \sum_i v_i\,\mathrm{sg}\big(w(\ell_i)\big)\,\ell_i, \qquad
              \ell_i = -\log \mathrm{softmax}(f(x_i))_{y_i}

    A multi-layer perceptron with ReLU, trained by AdamW on mini-batches. Inputs are taken as they are: put a
    `StandardScaler` in front.

    Parameters
    ----------
    tau
        The clip level, in units of the cross entropy; `None` keeps the objective's own, which is 1 for RGD.
        Objectives without one leave it unused, so that a grid over `tau` and `objective` has no holes.
    objective
        A method's text with an objective and, if wanted, a loss and a correction after training
        (`"rgd:divergence=revkl"`, `"focal+rgd:tau=3"`, `"mean+prior"`), an objective, or a weight function. A loss that
        needs cosines, such as `ldam`, gets a last layer of them. A correction that learns from rows, such as
        `threshold`, holds `validation_fraction` of them out.
    hidden_layer_sizes
        Width of each hidden layer.
    learning_rate_init, max_iter, batch_size, weight_decay
        Training by AdamW for `max_iter` epochs.
    class_weight
        `None`, `"balanced"` or a dict from label to weight; multiplies *after* re-weighting.
    early_stopping
        Whether to hold `validation_fraction` of the rows out, stop when their *plain* loss has not fallen for
        `n_iter_no_change` epochs, and go back to the best epoch.
    validation_fraction, n_iter_no_change
        See `early_stopping` and `objective`.
    random_state
        Seeds the initial parameters, the order of rows and the validation part; the global state is not touched.
    device
        Where to train, such as `"cuda"`, `"cuda:1"` or `"auto"`; the CPU unless given. Predictions are made on the CPU.

    Attributes
    ----------
    model_
        The network, an `nn.Sequential`.
    classes_
        The class labels.
    losses_, validation_losses_
        Plain loss of each epoch, of training as it went by and of validation after it.
    n_iter_, best_epoch_
        Epochs done, and the one kept.
    correction_
        What is done to the network's outputs, a :class:`reweigh.post.Correction`, or None.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> X, y = load_iris(return_X_y=True)
    >>> model = RGDClassifier(tau=1.0, max_iter=60, random_state=0).fit(X, y)
    >>> bool(model.score(X, y) > 0.9), model.predict_proba(X).shape
    (True, (150, 3))

    Notes
    -----
    Departs from mini-batch means in one way: the user's weights are scaled to mean one over the training rows and the
    batch is divided by its size, so that batches with heavy rows are not scaled down. References: Kumar et al., TMLR
    2024.
    """

    def __init__(
        self,
        *,
        tau: float | None = None,
        objective: ObjectiveLike = "rgd",
        hidden_layer_sizes: tuple[int, ...] = (64, 64),
        learning_rate_init: float = 1e-3,
        max_iter: int = 100,
        batch_size: int = 64,
        weight_decay: float = 0.0,
        class_weight: Any = None,
        early_stopping: bool = False,
        validation_fraction: float = 0.1,
        n_iter_no_change: int = 10,
        random_state: Any = None,
        device: str | None = None,
    ) -> None:
        super().__init__(
            tau=tau,
            objective=objective,
            hidden_layer_sizes=hidden_layer_sizes,
            learning_rate_init=learning_rate_init,
            max_iter=max_iter,
            batch_size=batch_size,
            weight_decay=weight_decay,
            early_stopping=early_stopping,
            validation_fraction=validation_fraction,
            n_iter_no_change=n_iter_no_change,
            random_state=random_state,
            device=device,
        )
        self.class_weight = class_weight

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> RGDClassifier:
        """Train the network.

        Parameters
        ----------
        X, y
            Rows of numbers and their labels, of any kind.
        sample_weight
            The user's own weights; they multiply those of the objective.

        Returns
        -------
        RGDClassifier
            The fitted estimator itself.
        """
        rows, y = validate_data(self, X, y, dtype=np.float32)
        check_classification_targets(y)
        self.classes_, codes = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(f"`y` must have at least two classes, got one class, {self.classes_[0]!r}.")
        own = self._weights(rows, y, sample_weight)
        criterion, head = self._criterion(codes)
        self.correction_: Correction | None = None
        post = self._method().post
        kept, held = self._fit(
            rows, codes.astype(np.int64), len(self.classes_), own, codes, criterion, head,
            hold_out=post is not None and post.needs_rows,
        )  # fmt: skip
        if post is not None:
            layer: Any = last_layer(self.model_, f"{post!r}") if post.needs_classifier else None
            self.correction_ = correction_for(
                post,
                None if held is None else self._logits(rows[held]),
                None if held is None else codes[held],
                codes[kept],
                len(self.classes_),
                None if own is None else own[kept],
                None if layer is None else (layer.weight, layer.bias),
                self._method().loss,
            )
        return self

    def partial_fit(self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None) -> RGDClassifier:
        """Train the network by one pass over some rows, from where it is.

        Parameters
        ----------
        X, y
            Rows of numbers and their labels.
        classes
            All labels that will ever come; required at the first call, and ignored after it.
        sample_weight
            The user's own weights, as they are: there is no whole over which to scale them.

        Returns
        -------
        RGDClassifier
            The estimator itself; a call of `fit` starts over. Losses that need class counts take those of the first
            call.
        """
        if self.class_weight == "balanced":
            raise ValueError(
                "class_weight='balanced' needs all rows, got it with partial_fit. Compute the weights of the classes "
                "with sklearn.utils.class_weight.compute_class_weight, and pass them as a dict."
            )
        if self._method().post is not None:
            raise ValueError(
                f"a correction after training needs all rows, got {self.objective!r} with partial_fit. Leave it out, "
                "and fit it yourself at the end: reweigh.post."
            )
        first = getattr(self, "_training", None) is None
        if first:
            self.correction_ = None
        if first and classes is None:
            raise ValueError("`classes` must be given at the first call of partial_fit, got None. Pass all labels.")
        rows, y = validate_data(self, X, y, dtype=np.float32, reset=first)
        check_classification_targets(y)
        if first:
            self.classes_ = np.unique(np.asarray(classes))
        if unknown := set(np.unique(y).tolist()) - set(self.classes_.tolist()):
            raise ValueError(
                f"`y` holds {min(unknown, key=str)!r}, which is not one of the classes of the first call. Pass all "
                "labels as `classes` there."
            )
        codes = np.searchsorted(self.classes_, y)
        criterion, head = self._criterion(codes) if first else (None, "linear")
        own = self._weights(rows, y, sample_weight)
        self._fit_further(rows, codes.astype(np.int64), len(self.classes_), own, criterion, head)
        return self

    def _weights(self, rows: Any, y: Any, sample_weight: Any) -> Any:
        """The user's own weights, those of classes included."""
        own = None if sample_weight is None else _check_sample_weight(sample_weight, rows, ensure_non_negative=True)
        if self.class_weight is None:
            return own
        of_class = compute_sample_weight(self.class_weight, y)
        return of_class if own is None else own * of_class

    def _criterion(self, codes: Any) -> tuple[Reweighted, str]:
        """The re-weighted criterion, and the kind of last layer that it needs."""
        counts = np.bincount(codes, minlength=len(self.classes_)).tolist()
        named = self._method()
        if named.loss is not None and not isinstance(named.loss, ClassLoss):
            raise ValueError(
                f"`objective` names a loss of numbers, got {str(named)!r}, and RGDClassifier needs one of classes: "
                "cross_entropy, focal, class_balanced or another."
            )
        refuse_more_than_losses(
            named.objective, "RGDClassifier", but=("signal",) if isinstance(named.objective, Entropy) else ()
        )
        built = named.build(Context(n=len(codes), class_counts=counts))
        head = getattr(built.loss, "head", "linear")
        # Cosines are not logits yet: such a loss multiplies them, and so must the caller who wants probabilities.
        self._logits_per_output = float(getattr(built.loss, "scale", 1.0)) if head == "cosine" else 1.0
        return Reweighted(built.loss, built.objective), head

    def predict_proba(self, X: Any) -> Any:
        """The probability of each class, of shape (n, classes)."""
        return np.exp(self.predict_log_proba(X))

    def predict_log_proba(self, X: Any) -> Any:
        """The logarithm of the probability of each class, without detour over the probabilities."""
        logits = self._corrected(X)
        shifted = logits - logits.max(axis=1, keepdims=True)
        return shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))

    def predict(self, X: Any) -> Any:
        """The most probable class."""
        logits = self._corrected(X)  # says so if there was no fit, before `classes_` is read
        return self.classes_[logits.argmax(axis=1)]

    def _logits(self, X: Any) -> Any:
        outputs = self._outputs(X)  # says so if there was no fit, before the scale is read
        return outputs * self._logits_per_output

    def _corrected(self, X: Any) -> Any:
        logits = self._logits(X)
        return logits if self.correction_ is None else self.correction_(logits)


class RGDRegressor(RegressorMixin, _Network):
    r"""A neural network for regression trained by re-weighted gradient descent: `RGDRegressor(tau=1.0).fit(X, y)`.

    .. math:: \ell_i = (f(x_i) - y_i)^2 / \mathrm{Var}(y)

    As :class:`RGDClassifier`, with the squared error of the standardised target, so that `tau` means the same whatever
    the target is measured in: at `tau=1` rows that are off by more than one standard deviation share the largest
    weight.

    Parameters
    ----------
    tau
        The clip level, in units of the squared error of the standardised target; `None` keeps the objective's own.
    objective, hidden_layer_sizes, learning_rate_init, max_iter, batch_size, weight_decay
        As in :class:`RGDClassifier`; the loss is always the squared error.
    early_stopping, validation_fraction, n_iter_no_change, random_state, device
        As in :class:`RGDClassifier`.

    Attributes
    ----------
    model_, losses_, validation_losses_, n_iter_, best_epoch_
        As in :class:`RGDClassifier`; the network's output is the standardised target.

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> X, y = load_diabetes(return_X_y=True, scaled=True)
    >>> model = RGDRegressor(tau=1.0, max_iter=60, random_state=0).fit(X * 20, y)
    >>> bool(model.score(X * 20, y) > 0.4)
    True

    Notes
    -----
    The factor 1/2 of the squared error is left out, as in torch's `MSELoss`. References: Kumar et al., TMLR 2024.
    """

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> RGDRegressor:
        """Train the network.

        Parameters
        ----------
        X, y
            Rows of numbers and a number for each.
        sample_weight
            The user's own weights; they multiply those of the objective.

        Returns
        -------
        RGDRegressor
            The fitted estimator itself.
        """
        rows, y = validate_data(self, X, y, dtype=np.float32, y_numeric=True)
        own = None if sample_weight is None else _check_sample_weight(sample_weight, rows, ensure_non_negative=True)
        criterion = self._begin(y, own)
        self._fit(rows, self._standardised(y), 1, own, None, criterion)
        return self

    def partial_fit(self, X: Any, y: Any, sample_weight: Any = None) -> RGDRegressor:
        """Train the network by one pass over some rows, from where it is.

        Parameters
        ----------
        X, y
            Rows of numbers and a number for each. The first call decides mean and scale of the target.
        sample_weight
            The user's own weights, as they are: there is no whole over which to scale them.

        Returns
        -------
        RGDRegressor
            The estimator itself. A call of `fit` starts over.
        """
        first = getattr(self, "_training", None) is None
        rows, y = validate_data(self, X, y, dtype=np.float32, y_numeric=True, reset=first)
        own = None if sample_weight is None else _check_sample_weight(sample_weight, rows, ensure_non_negative=True)
        criterion = self._begin(y, own) if first else None
        self._fit_further(rows, self._standardised(y), 1, own, criterion)
        return self

    def _begin(self, y: Any, own: Any) -> Reweighted:
        """Remember the unit of the target; the criterion."""
        y = np.asarray(y, np.float64)
        self._mean = float(np.average(y, weights=own))
        spread = float(np.average((y - self._mean) ** 2, weights=own))
        self._scale = spread**0.5 if spread > 0 else 1.0
        named = self._method()
        if named.loss is not None or named.post is not None:
            raise ValueError(
                f"`objective` may name an objective only, got {str(named)!r}: the loss is the squared error."
            )
        refuse_more_than_losses(named.objective, "RGDRegressor")
        return Reweighted(nn.MSELoss(), named.objective)

    def _standardised(self, y: Any) -> Any:
        return ((np.asarray(y, np.float64) - self._mean) / self._scale).astype(np.float32)[:, None]

    def predict(self, X: Any) -> Any:
        """The predicted target, in its own units."""
        return self._outputs(X)[:, 0] * self._scale + self._mean


def _network(
    inputs: int, hidden: tuple[int, ...], outputs: int, generator: torch.Generator, head: str
) -> nn.Sequential:
    """Linear layers with ReLU between, initialised as torch does but from a generator of our own.

    The last layer is linear too, or one of cosines, as the loss asks.
    """
    layers: list[nn.Module] = []
    kinds = [nn.Linear] * len(hidden) + [CosineLinear if head == "cosine" else nn.Linear]
    for kind, (before, after) in zip(kinds, pairwise([inputs, *hidden, outputs]), strict=True):
        with torch.device("meta"):  # where initialising draws no random numbers
            layer = kind(before, after)
        layer.to_empty(device="cpu")
        bound = before**-0.5
        for parameter in layer.parameters():
            nn.init.uniform_(parameter, -bound, bound, generator=generator)
        layers += [layer, nn.ReLU()]
    return nn.Sequential(*layers[:-1])


class _NetworkTraining:
    """A network in training: what one more pass over rows needs. Pickled on any device, it loads on the host."""

    def __init__(
        self, model: nn.Module, criterion: Reweighted, optimizer: torch.optim.Optimizer, order: Tensor
    ) -> None:
        self.model = model
        self.criterion = criterion
        self.optimizer = optimizer
        self.order = order  # the state of the generator: the generator itself would not pickle

    def __getstate__(self) -> dict[str, Any]:
        moments = tree_map(lambda x: x.cpu() if isinstance(x, Tensor) else x, self.optimizer.state_dict())
        model, criterion = copy.deepcopy(self.model).cpu(), copy.deepcopy(self.criterion).cpu()
        return {"model": model, "criterion": criterion, "moments": moments, "order": self.order}

    def __setstate__(self, state: dict[str, Any]) -> None:
        optimizer = torch.optim.AdamW(state["model"].parameters())
        optimizer.load_state_dict(state["moments"])
        self.__init__(state["model"], state["criterion"], optimizer, state["order"])

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    def epoch(self, data: tuple[Tensor, ...], batch_size: int) -> Tensor:
        """One pass over the rows in a new order; the mean of their plain losses as they went by."""
        generator = torch.Generator()
        generator.set_state(self.order)
        order = torch.randperm(len(data[0]), generator=generator).to(self.device)
        self.order = generator.get_state()
        self.model.train()
        self.criterion.train()
        total: Any = 0.0
        for rows in order.split(batch_size):
            x, target, own = (part[rows] for part in data)
            self.optimizer.zero_grad()
            loss: Tensor = self.criterion(self.model(x), target, sample_weight=own, count=len(x))
            loss.backward()
            self.optimizer.step()
            seen: Any = self.criterion.losses
            total = total + seen.sum()
        return total / len(order)

    @torch.no_grad()
    def plain_loss(self, data: tuple[Tensor, ...]) -> float:
        """The mean loss without re-weighting: gradients are off, and then the criterion is plain."""
        x, target, own = data
        return float(self.criterion(self.model.eval()(x), target, sample_weight=own))
