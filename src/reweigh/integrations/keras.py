"""Keras 3: a loss that wraps a loss or is a whole method, on TensorFlow, JAX and PyTorch; metrics stay plain."""

from __future__ import annotations

import functools
import importlib
import math
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any, Literal

import numpy as np

from reweigh import _validate as validate
from reweigh._carry import carried, refuse_more_than_losses, with_hyper_parameters
from reweigh.integrations._class_losses import (
    check_class_loss,
    class_weights,
    losses_of_classes,
    smallest_loss,
    takes_shares,
)
from reweigh.integrations._correction import log_probabilities
from reweigh.integrations._counts import count_classes
from reweigh.integrations._missing import missing
from reweigh.method import Context, Method, ObjectiveLike
from reweigh.method import method as method_of
from reweigh.objectives import Objective
from reweigh.objectives.entropy import Entropy
from reweigh.objectives.rgd import RGD
from reweigh.post import Correction
from reweigh.weights import KL, ReverseKL, WeightFunction

if find_spec("keras") is None:
    raise missing("keras", "keras")

try:
    import keras
except ModuleNotFoundError as error:
    if error.name != "tensorflow":
        raise
    raise ModuleNotFoundError(
        "Keras runs on TensorFlow by default, and TensorFlow is not installed. Set the environment variable "
        "KERAS_BACKEND to torch or jax, whichever you have, before Keras is first imported: "
        "os.environ['KERAS_BACKEND'] = 'torch'.",
        name="tensorflow",
    ) from error

__all__ = ["ClassLoss", "Reweighted", "WeightMetric", "loss", "watch", "weights_of"]

Tensor = Any  # of whichever backend Keras runs on
ops: Any = keras.ops  # its stubs promise less than it does
UnitLevel = Literal["sample", "token"]
Counts = Sequence[int] | Literal["auto"] | None

STATISTICS = ("plain_loss", "weight_mean", "clip_share", "ess_share")
#: Why a Keras loss has no place for the other parts of a method.
_NOT_A_KERAS_LOSS = {
    "sampler": "a loss sees batches that are drawn already",
    "loss": "the loss is the Keras loss that is wrapped; `loss(...)` takes a whole method",
    "step": "a loss leaves the update to `model.fit`",
    "average": "a loss does not see the model's weights",
}


def weights_of(weight: WeightFunction, losses: Tensor) -> Tensor:
    """A weight function through `keras.ops`: the same numbers on every backend, TensorFlow included.

    Parameters
    ----------
    weight
        :class:`~reweigh.KL`, :class:`~reweigh.ReverseKL` or :class:`~reweigh.ChiSquare`.
    losses
        Losses of any shape, as a tensor of the backend.

    Returns
    -------
    Tensor
        Weights in the shape of the losses, without gradient and in float32 at least.

    Examples
    --------
    >>> import reweigh
    >>> losses = ops.convert_to_tensor([0.0, 0.5, 5.0])
    >>> [round(float(w), 4) for w in weights_of(reweigh.KL(tau=1.0), losses)]
    [1.0, 1.284, 1.6487]
    """
    losses = _widen(ops.stop_gradient(losses)) - weight.offset
    if isinstance(weight, KL) and weight.tau is None:
        assert weight.gamma is not None
        limit = math.log(float(np.finfo(keras.backend.standardize_dtype(losses.dtype)).max)) - 1.0
        return ops.exp(ops.clip(losses * weight.gamma, -limit, limit))
    tau = weight.tau
    assert tau is not None
    clipped = ops.clip(losses, 0.0, tau)
    if isinstance(weight, KL):
        gamma = 1.0 / (tau + 1.0) if weight.gamma is None else weight.gamma
        return ops.exp(clipped * gamma)
    if isinstance(weight, ReverseKL):
        return 1.0 / (1.0 - clipped / (tau + 1.0))
    return 1.0 + clipped / tau if weight.scaled else clipped + tau


def loss(
    method: ObjectiveLike,
    *,
    class_counts: Counts = None,
    from_logits: bool = True,
    level: UnitLevel = "sample",
    floor: bool = True,
    name: str | None = None,
    reduction: str | None = None,
    dtype: Any = None,
) -> Reweighted:
    """A whole method as a Keras loss: `loss("class_balanced+rgd:tau=3+prior", class_counts="auto")`.

    Parameters
    ----------
    method
        A method or its text with a loss of classes (cross_entropy, focal, label_smoothing, class_weights,
        class_balanced, logit_adjusted, vs, large_margin, poly, gce or sce; cross_entropy unless named), an objective
        and a correction after training.
    class_counts
        Training examples of each class, for losses and corrections that need them; with `"auto"`, :func:`watch` counts
        the labels that `fit` is given.
    from_logits
        Whether the model's outputs are logits, or the probabilities of a softmax.
    level, floor, name, reduction, dtype
        As in :class:`Reweighted`.

    Returns
    -------
    Reweighted
        Whose `correction(model.predict(x), y)` is what the method does after training.

    Examples
    --------
    >>> import numpy as np
    >>> criterion = loss("class_weights+rgd:tau=1", class_counts=[90, 10])
    >>> logits, labels = np.array([[2.0, 0.0], [0.0, 1.0]], "float32"), np.array([0, 1])
    >>> print(round(float(criterion(labels, logits)), 4))
    0.9535

    Notes
    -----
    Labels are class indices or one-hot rows; probabilities in their place are taken as they are by cross_entropy and
    label_smoothing, and as their largest class by the others. Class weights count like Keras's `class_weight`: the mean
    divides by the number of samples, and they are scaled to a mean of one over the training examples. Naming a loss
    reads its card, which needs PyTorch to be installed, whatever the backend.
    """
    chosen = carried(method, ("loss", "objective", "post"), "a Keras loss", why=_NOT_A_KERAS_LOSS)
    counts = None if isinstance(class_counts, str) else class_counts
    inner = ClassLoss(
        Method(loss=_class_loss(chosen)), class_counts=counts, from_logits=from_logits, reduction=reduction
    )
    rest = Method(objective=chosen.objective, post=chosen.post)
    return Reweighted(inner, rest, level=level, floor=floor, class_counts=class_counts, name=name, dtype=dtype)


def watch(model: Any) -> Any:
    """Let `model.fit` count the classes of its labels for losses with `class_counts="auto"`, before it trains.

    Parameters
    ----------
    model
        A compiled `keras.Model`.

    Returns
    -------
    keras.Model
        The same model.

    Notes
    -----
    Labels may be indices or one-hot rows, in an array, or in the second place of the batches of a data set, which is
    then read again. Call `loss.bind(counts)` where the loss belongs to one of several outputs.
    """
    waiting = [part for part in _losses(model.loss) if part.class_counts == "auto"]
    if not waiting:
        return model
    if not isinstance(model.loss, Reweighted):
        raise ValueError(
            "class_counts='auto' counts the labels of one output, and this model has several losses. Pass the number "
            "of examples of each class, class_counts=[...]."
        )
    fit = model.fit

    @functools.wraps(fit)
    def counting(x: Any = None, y: Any = None, *arguments: Any, **options: Any) -> Any:
        for part in waiting:
            if part.class_counts == "auto":
                part.bind(_counted(x, y))
        return fit(x, y, *arguments, **options)

    model.fit = counting
    return model


@keras.saving.register_keras_serializable(package="reweigh")
class ClassLoss(keras.losses.Loss):
    """One of the library's losses of classes as a Keras loss, without objective: what :func:`loss` wraps.

    Parameters
    ----------
    method
        A method or its text that names a loss and nothing else: `"focal:gamma=1"`.
    class_counts, from_logits
        As in :func:`loss`.
    name, reduction, dtype
        As in `keras.losses.Loss`.

    Examples
    --------
    >>> import numpy as np
    >>> focal = ClassLoss("focal:gamma=2")
    >>> print(round(float(focal(np.array([0, 1]), np.zeros((2, 2), "float32"))), 4))
    0.1733

    Notes
    -----
    On its own it applies class weights too.
    """

    def __init__(
        self,
        method: str | Method,
        *,
        class_counts: Sequence[int] | None = None,
        from_logits: bool = True,
        name: str | None = None,
        reduction: str | None = None,
        dtype: Any = None,
    ) -> None:
        self.value = _class_loss(carried(method, ("loss",), "ClassLoss"))
        host = type(self.value).__module__.rpartition(".")[2]
        super().__init__(name=name or host, reduction=reduction or "sum_over_batch_size", dtype=dtype)
        validate.boolean("from_logits", from_logits)
        if not from_logits and host == "vs":
            raise ValueError(f"{self.value!r} scales logits, which probabilities do not determine. Train on logits.")
        self.from_logits = from_logits
        self.class_counts: tuple[int, ...] | None = None
        if class_counts is not None:
            self.bind(class_counts)

    def bind(self, class_counts: Sequence[int]) -> None:
        """Tell the loss how many training examples each class has."""
        self.class_counts = tuple(int(count) for count in class_counts)
        self.value = self.value.bind(self.class_counts)

    def call(self, y_true: Tensor, y_pred: Tensor) -> Tensor:
        """The losses with their class weights, before Keras reduces them."""
        losses = self.losses(y_true, y_pred)
        factors = self.factors(y_true, y_pred)
        weighted = losses if factors is None else losses * ops.cast(factors, losses.dtype)
        _copy_mask(losses, weighted)
        return weighted

    def losses(self, y_true: Tensor, y_pred: Tensor) -> Tensor:
        """One loss per unit, without class weights; ignored labels are marked as padding."""
        logits = _widen(y_pred)
        if not self.from_logits:
            tiny = float(np.finfo(keras.backend.standardize_dtype(logits.dtype)).tiny)
            logits = ops.log(ops.maximum(logits, tiny))
        losses = losses_of_classes(self.value, logits, self._shares(y_true, logits), ops)
        ignored = getattr(getattr(self.value, "under", self.value), "ignore_index", None)
        if ignored is not None and not _has_classes(y_true, y_pred):
            real = ops.not_equal(_labels(y_true, y_pred), ignored)
            losses = ops.where(real, losses, ops.zeros_like(losses))
            _set_mask(losses, real)
        return losses

    def factors(self, y_true: Tensor, y_pred: Tensor) -> Tensor | None:
        """The class weight of each unit, of mean one over the training examples; None where all count alike."""
        weights = class_weights(self.value)
        if weights is None:
            return None
        weights = weights / np.average(weights, weights=self.class_counts)
        shares = self._shares(y_true, _widen(y_pred))
        return ops.sum(shares * ops.cast(ops.convert_to_tensor(weights.astype(np.float32)), shares.dtype), axis=-1)

    def floor(self, y_true: Tensor, y_pred: Tensor) -> Tensor | float:
        """The smallest loss that each target allows."""
        if not _has_classes(y_true, y_pred):
            return smallest_loss(self.value, y_pred.shape[-1])
        if not takes_shares(self.value):
            return 0.0
        under = getattr(self.value, "under", self.value)
        shares = self._shares(y_true, _widen(y_pred))
        everywhere, classes = getattr(under, "eps", 0.0), y_pred.shape[-1]
        everywhere = everywhere / (classes - 1 if getattr(under, "over", "C") == "C-1" else classes)
        return ops.sum(_entr(shares * (1.0 - everywhere * classes) + everywhere), axis=-1)

    def get_config(self) -> dict[str, Any]:
        """What `from_config` and `keras.models.load_model` need."""
        text = str(Method(loss=self.value))
        if "(" in text:
            raise TypeError(
                f"{self.value!r} has no text that a saved model could be read from. Save the weights alone, or compile "
                "again after loading with compile=False."
            )
        own = {"method": text, "class_counts": self.class_counts, "from_logits": self.from_logits}
        return {**super().get_config(), **own}

    def _shares(self, y_true: Tensor, logits: Tensor) -> Tensor:
        """One row per unit with a one at its label, or the probabilities that stand for it."""
        classes = logits.shape[-1]
        if not _has_classes(y_true, logits):
            return ops.one_hot(ops.cast(_labels(y_true, logits), "int32"), classes, dtype=logits.dtype)
        if takes_shares(self.value):
            return ops.cast(y_true, logits.dtype)
        return ops.one_hot(ops.argmax(y_true, axis=-1), classes, dtype=logits.dtype)


#: Losses of one label, whose predictions have the classes on the last axis: logits or probabilities.
_OF_CLASSES = (ClassLoss, keras.losses.CategoricalCrossentropy, keras.losses.SparseCategoricalCrossentropy)


@keras.saving.register_keras_serializable(package="reweigh")
class Reweighted(keras.losses.Loss):
    r"""A Keras loss with re-weighting: `Reweighted(SparseCategoricalCrossentropy(from_logits=True), tau=1.0)`.

    Multiplies each loss by a gradient-free weight that grows with it, before Keras applies its own reduction.
    `sample_weight` and `class_weight` multiply on top, and do not change what the weight sees.

    Parameters
    ----------
    loss
        A `keras.losses.Loss`, whose losses before any reduction are used, or the name of a class of them.
    objective
        What turns losses into weights: an objective, a weight function such as `KL()`, or a method or its text
        (`"cvar:alpha=0.1"`, `"rgd+prior"`) with an objective and a correction; `RGD(**hyper_parameters)` unless given.
        Objectives other than RGD run on the PyTorch and JAX backends; those that remember something between steps do
        not fit a Keras loss. A method that names a loss goes to :func:`loss`.
    level
        Which unit gets a weight when the loss has more than one axis: `"sample"` gives all elements of a sample the
        weight of their mean, `"token"` each its own.
    floor
        Whether to subtract the smallest value the loss can take for its target (the target's entropy, with label
        smoothing or soft targets) from what the weight sees.
    class_counts
        Training examples of each class, for corrections that need them, or `"auto"`, as in :func:`loss`.
    name, reduction, dtype
        As in `keras.losses.Loss`; the reduction is that of `loss` unless given.
    **hyper_parameters
        `tau`, `divergence` and the other fields of :class:`~reweigh.RGD`, in place of `objective`.

    Returns
    -------
    Tensor
        A scalar, or what `reduction` says.

    Examples
    --------
    >>> import numpy as np, keras
    >>> plain = keras.losses.MeanSquaredError()
    >>> loss = Reweighted(plain, tau=1.0)
    >>> y, prediction = np.zeros((2, 1)), np.array([[0.0], [1.0]])
    >>> print(round(float(plain(y, prediction)), 4), round(float(loss(y, prediction)), 4))
    0.5 0.8244

    Notes
    -----
    Keras uses the training loss for validation as well, so `val_loss` is the re-weighted number. Choose models and
    stop early by a plain metric: `metrics=loss.metrics()` adds `plain_loss`, hence `val_plain_loss`, and what the
    weights do. Objectives that normalise over the batch see the losses without `sample_weight`. Padding that Keras
    marks (`mask_zero`, `Masking`) and labels of `ignore_class` are not units: they get no share of the weight and count
    in no metric.
    """

    def __init__(
        self,
        loss: keras.losses.Loss | str,
        objective: ObjectiveLike | None = None,
        *,
        level: UnitLevel = "sample",
        floor: bool = True,
        class_counts: Counts = None,
        name: str | None = None,
        reduction: str | None = None,
        dtype: Any = None,
        **hyper_parameters: Any,
    ) -> None:
        inner = keras.losses.get(loss)
        if not isinstance(inner, keras.losses.Loss):
            raise TypeError(
                f"`loss` must be a keras.losses.Loss, got {loss!r}. Pass the class with its options, for example "
                "keras.losses.SparseCategoricalCrossentropy(from_logits=True)."
            )
        super().__init__(
            name=name or f"reweighted_{inner.name}",
            reduction=reduction or inner.reduction,
            dtype=dtype or inner.dtype,
        )
        validate.one_of("level", level, ("sample", "token"))
        self.loss = inner
        chosen = _method(objective, hyper_parameters, inner)
        self.objective: Any = chosen.objective
        self.post = chosen.post
        self.level: UnitLevel = level
        self.floor = floor
        self.class_counts: Counts = None
        if isinstance(class_counts, str):
            validate.one_of("class_counts", class_counts, ("auto",), "Or pass the number of examples of each class.")
            self.class_counts = class_counts
        elif class_counts is not None:
            self.bind(class_counts)
        self._mask: Tensor | None = None

    def bind(self, class_counts: Sequence[int]) -> None:
        """Tell loss and correction how many training examples each class has."""
        self.class_counts = tuple(int(count) for count in class_counts)
        if isinstance(self.loss, ClassLoss):
            self.loss.bind(self.class_counts)

    def correction(self, outputs: Any, targets: Any, *, classifier: tuple[Any, Any] | None = None) -> Correction:
        """What the method does after training, fitted to held-out rows.

        Parameters
        ----------
        outputs, targets
            What `model.predict` gives for held-out rows, logits or, where the loss says so, probabilities, and the
            class of each. Corrections that learn from none, such as `prior`, take any rows.
        classifier
            Weight, `(classes, features)`, and bias of the model's last layer, for `tau_norm`.

        Returns
        -------
        Correction
            Call it with the logits of any rows; of probabilities take the logarithm first.
        """
        if self.post is None:
            raise ValueError(
                "the method has no correction after training. Name one, as in loss('rgd:tau=3+prior', "
                "class_counts=[...])."
            )
        counts = None if isinstance(self.class_counts, str) else self.class_counts
        post = self.post.after([self.loss.value] if isinstance(self.loss, ClassLoss) else [], counts)
        if not getattr(self.loss, "from_logits", True):
            outputs = log_probabilities(ops.convert_to_numpy(outputs))
        return post.fit(outputs, targets, Context(class_counts=counts, classifier=classifier))

    def __call__(self, y_true: Tensor, y_pred: Tensor, sample_weight: Tensor | None = None) -> Tensor:
        """The loss of a batch; `sample_weight` multiplies on top."""
        # Keras marks padded steps on the prediction and may lose the mark when it converts the dtype, so it is
        # read before that.
        self._mask = _mask_of(y_pred)
        try:
            return super().__call__(y_true, y_pred, sample_weight)
        finally:
            self._mask = None

    def call(self, y_true: Tensor, y_pred: Tensor) -> Tensor:
        """The weighted losses, before Keras reduces them."""
        losses, _, weights = self.weigh(y_true, y_pred)
        if len(weights.shape) < len(losses.shape):
            weights = ops.reshape(weights, (-1,) + (1,) * (len(losses.shape) - 1))
        if isinstance(self.loss, ClassLoss):
            of_class = self.loss.factors(y_true, y_pred)
            weights = weights if of_class is None else weights * of_class
        weighted = losses * ops.cast(weights, losses.dtype)
        _copy_mask(losses, weighted)
        return weighted

    def weigh(self, y_true: Tensor, y_pred: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The plain losses, what the weight of each unit looks at, and the weights."""
        mask = _mask_of(y_pred) if self._mask is None else self._mask
        y_true, y_pred = (ops.convert_to_tensor(y, dtype=self.dtype) for y in (y_true, y_pred))
        if isinstance(self.loss, ClassLoss):
            if self.class_counts == "auto" and "class_counts" in self.loss.value.needs:
                raise ValueError(
                    "class_counts='auto' leaves counting to fit, which did not: call watch(model) after model.compile, "
                    "or loss.bind(numpy.bincount(labels))."
                )
            losses = self.loss.losses(y_true, y_pred)
        else:
            losses = self.loss.call(y_true, y_pred)
        if not len(losses.shape):
            raise ValueError(
                f"{type(self.loss).__name__} returned a single number, so there is no unit axis to re-weight: its "
                "`call` averages inside. It must return a loss per sample."
            )
        seen = _widen(ops.stop_gradient(losses))
        if self.floor:
            seen = seen - _floor(self.loss, y_true, y_pred)
        real = _real(losses, mask)
        signal = self._entropy(y_pred) if isinstance(self.objective, Entropy) else None
        if self.level == "sample":
            seen = _mean_of_samples(seen, real)
            signal = None if signal is None else _mean_of_samples(signal, real)
        return losses, seen, self._weights(seen, _units(real, seen), signal)

    def metrics(self) -> list[WeightMetric]:
        """Metrics for `model.compile`: the plain loss, the mean weight, the clip share and the effective sample."""
        return [WeightMetric(self, statistic) for statistic in STATISTICS]

    def get_config(self) -> dict[str, Any]:
        """What `from_config` and `keras.models.load_model` need."""
        text = str(Method(objective=self.objective, post=self.post))
        if not type(self.objective).__module__.startswith("reweigh.objectives."):
            raise TypeError(
                f"{self.objective!r} is not one of the library's objectives, so a saved model could not find it again. "
                "Save the weights alone, or compile again after loading with compile=False."
            )
        return {
            **super().get_config(),
            "loss": keras.losses.serialize(self.loss),
            "objective": text,
            "level": self.level,
            "floor": self.floor,
            "class_counts": self.class_counts,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Reweighted:
        """The loss that `get_config` describes."""
        return cls(**{**config, "loss": keras.losses.deserialize(config["loss"])})

    def _entropy(self, y_pred: Tensor) -> Tensor:
        """The entropy of each prediction over the largest there is, as a constant."""
        p, axis = _widen(ops.stop_gradient(y_pred)), getattr(self.loss, "axis", -1)
        if getattr(self.loss, "from_logits", False):
            p = ops.softmax(p, axis=axis)
        tiny = float(np.finfo(keras.backend.standardize_dtype(p.dtype)).tiny)
        return -ops.sum(p * ops.log(ops.maximum(p, tiny)), axis=axis) / math.log(p.shape[axis])

    def _weights(self, seen: Tensor, measure: Tensor | None, signal: Tensor | None) -> Tensor:
        if _elementwise(self.objective):
            return weights_of(self.objective.weight, seen)
        flat = ops.reshape(seen, (-1,))
        beside = {} if signal is None else {"signal": ops.reshape(signal, (-1,))}
        if measure is not None:
            measure = ops.reshape(measure, (-1,))
            real = ops.greater(measure, 0.0)
            flat, beside = (
                ops.where(real, flat, ops.zeros_like(flat)),
                {name: ops.where(real, one, ops.zeros_like(one)) for name, one in beside.items()},
            )
        return ops.reshape(self.objective.weigh(flat, (), measure=measure, **beside).weights, ops.shape(seen))


@keras.saving.register_keras_serializable(package="reweigh")
class WeightMetric(keras.metrics.Metric):
    r"""What a re-weighted loss does, as a Keras metric; the sums stay on the device.

    Parameters
    ----------
    loss
        The :class:`Reweighted` loss to watch.
    statistic
        `"plain_loss"`: the mean of the losses without any weight, to select models by;
        `"weight_mean"`; `"clip_share"`: the share of units at or above the objective's `clip_level`, which is `tau`
        for RGD, and zero where it has none;
        `"ess_share"`: the effective sample size :math:`(\sum w)^2 / (n \sum w^2)`.
    name, dtype
        As in `keras.metrics.Metric`; the name is the statistic's unless given.

    Returns
    -------
    Tensor
        A scalar from `result()`, over all batches since `reset_state()`.

    Examples
    --------
    >>> import numpy as np, keras
    >>> metric = WeightMetric(Reweighted(keras.losses.MeanSquaredError(), tau=1.0), "clip_share")
    >>> metric.update_state(np.zeros((4, 1)), np.array([[0.0], [0.5], [1.0], [3.0]]))
    >>> float(metric.result())
    0.5

    Notes
    -----
    In `weighted_metrics` a sample counts with its `sample_weight`, in `metrics` with one.
    """

    def __init__(
        self, loss: Reweighted, statistic: str = "plain_loss", name: str | None = None, dtype: Any = None
    ) -> None:
        validate.one_of("statistic", statistic, STATISTICS)
        super().__init__(name=name or statistic, dtype=dtype)
        self.loss = loss
        self.statistic = statistic
        if statistic == "plain_loss":
            self._direction = "down"  # how Keras knows that early stopping wants less of it
        self.sums = {
            part: self.add_variable((), initializer="zeros", name=part) for part in ("units", "first", "second")
        }

    def update_state(self, y_true: Tensor, y_pred: Tensor, sample_weight: Tensor | None = None) -> None:
        """Add a batch."""
        losses, seen, weights = self.loss.weigh(y_true, y_pred)
        values = _widen(losses) if self.statistic == "plain_loss" else weights
        if self.statistic == "clip_share":
            level = self.loss.objective.clip_level
            values = ops.cast(seen >= (math.inf if level is None else level), weights.dtype)
        measure = ops.ones_like(values)
        real = _units(_real(losses, _mask_of(y_pred)), values)
        if real is not None:
            measure = measure * ops.cast(real, values.dtype)
            values = ops.where(measure > 0.0, values, ops.zeros_like(values))  # whatever padding holds, NaN included
        if sample_weight is not None:
            own = ops.cast(ops.convert_to_tensor(sample_weight), values.dtype)
            if len(own.shape) != len(values.shape):  # one per sample, rather than one per element
                own = ops.reshape(own, (-1,) + (1,) * (len(values.shape) - 1))
            measure = measure * own
        self.sums["units"].assign_add(ops.cast(ops.sum(measure), self.dtype))
        self.sums["first"].assign_add(ops.cast(ops.sum(measure * values), self.dtype))
        self.sums["second"].assign_add(ops.cast(ops.sum(measure * values * values), self.dtype))

    def result(self) -> Tensor:
        """The statistic so far."""
        units, first, second = (self.sums[part] for part in ("units", "first", "second"))
        mean = ops.divide_no_nan(first, units)
        return mean * ops.divide_no_nan(first, second) if self.statistic == "ess_share" else mean

    def get_config(self) -> dict[str, Any]:
        """What `from_config` needs."""
        loss = keras.saving.serialize_keras_object(self.loss)
        return {**super().get_config(), "loss": loss, "statistic": self.statistic}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> WeightMetric:
        """The metric that `get_config` describes."""
        return cls(**{**config, "loss": keras.saving.deserialize_keras_object(config["loss"])})


def _method(given: ObjectiveLike | None, hyper_parameters: dict[str, Any], loss: keras.losses.Loss) -> Method:
    """The objective and correction meant, if Keras can run them."""
    named = None if given is None else carried(given, ("objective", "post"), "Reweighted", why=_NOT_A_KERAS_LOSS)
    chosen = with_hyper_parameters(named, hyper_parameters)
    objective = chosen.objective
    knows_entropy = isinstance(objective, Entropy) and isinstance(loss, _OF_CLASSES)
    refuse_more_than_losses(objective, "a Keras loss", but=("signal",) if knows_entropy else ())
    if objective.stateful:
        raise ValueError(
            f"{objective!r} remembers something between steps, and a Keras loss has nowhere to keep it. Use an "
            "objective without a state, or a training loop of your own with `objective.apply`."
        )
    if getattr(objective, "surrogate", False):
        raise ValueError("`surrogate` changes the value shown and not the gradient; Keras reduces itself. Drop it.")
    backend = keras.backend.backend()
    if not _elementwise(objective) and backend not in ("torch", "jax"):
        raise ValueError(
            f"{objective!r} needs the PyTorch or JAX backend of Keras, got {backend}. Set KERAS_BACKEND, or use RGD "
            "without `normalize`, which runs on all backends."
        )
    return chosen


def _class_loss(chosen: Method) -> Any:
    """The loss of a method, cross entropy unless it names one, if it is one of classes."""
    value = chosen.loss if chosen.loss is not None else method_of("cross_entropy").loss
    check_class_loss(value, "a Keras loss", "Wrap Keras's own: Reweighted(keras.losses.MeanSquaredError(), tau=1.0).")
    return value


def _losses(given: Any) -> list[Reweighted]:
    """The re-weighted losses that a model was compiled with."""
    parts = given.values() if isinstance(given, dict) else given if isinstance(given, (list, tuple)) else [given]
    return [part for part in parts if isinstance(part, Reweighted)]


def _counted(x: Any, y: Any) -> tuple[int, ...]:
    """How many labels of each class the arguments of `fit` hold."""
    if y is not None:
        return count_classes(_indices(y))
    batches = range(len(x)) if hasattr(x, "__getitem__") and hasattr(x, "__len__") else None
    if batches is None and not hasattr(x, "__iter__"):
        raise ValueError(
            f"class_counts='auto' counts an array of labels or a data set of batches, got {type(x).__name__}. Pass the "
            "number of examples of each class, class_counts=[...]."
        )
    drawn = (x[i] for i in batches) if batches is not None else iter(x)
    return count_classes(np.concatenate([_indices(batch[1]) for batch in drawn]))


def _indices(labels: Any) -> Any:
    """Labels as class indices: one-hot rows by their largest entry."""
    values = np.asarray(ops.convert_to_numpy(labels))
    rows = values.ndim > 1 and values.shape[-1] > 1
    if rows and (values >= 0).all() and np.allclose(values.sum(-1), 1.0, atol=1e-3):
        return values.argmax(-1).ravel()
    if values.dtype.kind == "f" and (values == np.round(values)).all():
        values = values.astype(np.int64)
    return values.ravel()


def _elementwise(objective: Objective) -> bool:
    """Whether the weights are those of a weight function, which `keras.ops` can express."""
    return isinstance(objective, RGD) and objective.normalize is None


def _widen(x: Tensor) -> Tensor:
    """`x` in float32 if its own precision is less."""
    return ops.cast(x, "float32") if keras.backend.standardize_dtype(x.dtype) in ("float16", "bfloat16") else x


def _mask_of(marked: Tensor) -> Tensor | None:
    """Which steps of a prediction are not padding, or which losses count. Keras has no public name for it, and several
    places to keep it.
    """
    read = getattr(importlib.import_module("keras.src.backend"), "get_keras_mask", None)
    return getattr(marked, "_keras_mask", None) if read is None else read(marked)


def _set_mask(losses: Tensor, mask: Tensor) -> None:
    """Mark which losses count, where Keras looks for it."""
    write = getattr(importlib.import_module("keras.src.backend"), "set_keras_mask", None)
    if write is None:
        losses._keras_mask = mask
    else:
        write(losses, mask)


def _copy_mask(losses: Tensor, product: Tensor) -> None:
    """Mark a product as its losses are: multiplying loses the mark of ignored labels."""
    ignored = _mask_of(losses)
    if ignored is not None:
        _set_mask(product, ignored)


def _has_classes(y_true: Tensor, y_pred: Tensor) -> bool:
    """Whether targets are rows with an entry per class, rather than class indices."""
    return len(y_true.shape) == len(y_pred.shape) and y_true.shape[-1] == y_pred.shape[-1]


def _labels(y_true: Tensor, y_pred: Tensor) -> Tensor:
    """Class indices without the axis of length one that Keras users leave behind them."""
    return ops.squeeze(y_true, -1) if len(y_true.shape) == len(y_pred.shape) else y_true


def _real(losses: Tensor, mask: Tensor | None) -> Tensor | None:
    """One where Keras counts a loss, zero at what is marked as padding, on prediction or losses; None if all count."""
    masks = [m for m in (mask, _mask_of(losses)) if m is not None and len(m.shape) == len(losses.shape)]
    if not masks:
        return None
    real = ops.cast(masks[0], _widen(losses).dtype)
    return real if len(masks) == 1 else real * ops.cast(masks[1], real.dtype)


def _units(real: Tensor | None, like: Tensor) -> Tensor | None:
    """How much each unit counts: a sample counts if any of its elements does."""
    if real is None or len(real.shape) == len(like.shape):
        return real
    return ops.max(real, axis=tuple(range(1, len(real.shape))))


def _mean_of_samples(seen: Tensor, real: Tensor | None) -> Tensor:
    """The mean over all axes but the first, of what is real."""
    axes = tuple(range(1, len(seen.shape)))
    if not axes:
        return seen
    if real is None:
        return ops.mean(seen, axis=axes)
    return ops.divide_no_nan(ops.sum(seen * real, axis=axes), ops.sum(real, axis=axes))


def _floor(loss: keras.losses.Loss, y_true: Tensor, y_pred: Tensor) -> Tensor | float:
    """The smallest value the loss can take for each target: the target's entropy."""
    if isinstance(loss, ClassLoss):
        return loss.floor(y_true, y_pred)
    smoothing: Any = getattr(loss, "label_smoothing", 0.0)
    if type(loss) is keras.losses.CategoricalCrossentropy:
        axis: Any = getattr(loss, "axis", -1)
        target = y_true * (1.0 - smoothing) + smoothing / y_true.shape[axis]
        # Rows that do not sum to one: the best prediction is the row divided by its sum.
        return ops.sum(_entr(target), axis=axis) - _entr(ops.sum(target, axis=axis))
    if type(loss) is keras.losses.BinaryCrossentropy:
        if len(y_true.shape) < len(y_pred.shape):
            y_true = ops.expand_dims(y_true, -1)
        target = y_true * (1.0 - smoothing) + 0.5 * smoothing
        return ops.mean(_entr(target) + _entr(1.0 - target), axis=-1)
    return 0.0


def _entr(x: Tensor) -> Tensor:
    """-x log x, which is zero at zero."""
    x = _widen(x)
    return -x * ops.log(ops.where(x > 0.0, x, 1.0))
