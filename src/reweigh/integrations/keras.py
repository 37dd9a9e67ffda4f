"""Keras 3: a loss that wraps a loss, on TensorFlow, JAX and PyTorch, and metrics that stay plain."""

from __future__ import annotations

import importlib
import math
from importlib.util import find_spec
from typing import Any, Literal

import numpy as np

from reweigh import _validate as validate
from reweigh.integrations._missing import missing
from reweigh.method import Method, method
from reweigh.objectives import Objective
from reweigh.objectives.rgd import RGD
from reweigh.weights import KL, ReverseKL, WeightFunction

if find_spec("keras") is None:
    raise missing("keras", "keras")

try:
    import keras
except ModuleNotFoundError as error:
    if error.name != "tensorflow":
        raise
    raise ModuleNotFoundError(
        "Keras runs on TensorFlow unless told otherwise, and TensorFlow is not installed. Set the environment variable "
        "KERAS_BACKEND to torch or jax, whichever you have, before Keras is first imported: "
        "os.environ['KERAS_BACKEND'] = 'torch'.",
        name="tensorflow",
    ) from error

__all__ = ["Reweighted", "WeightMetric", "weights_of"]

Tensor = Any  # of whichever backend Keras runs on
ops: Any = keras.ops  # its stubs promise less than it does
Level = Literal["sample", "token"]

STATISTICS = ("plain_loss", "weight_mean", "clip_share", "ess_share")


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
        What turns losses into weights; `RGD(**hyper_parameters)` unless given. Objectives other than RGD run on the
        PyTorch and JAX backends; those that remember something between steps do not fit a Keras loss.
    level
        Which unit gets a weight when the loss has more than one axis: `"sample"` gives all elements of a sample the
        weight of their mean, `"token"` each its own.
    floor
        Whether to subtract the smallest value the loss can take for its target (the target's entropy, with label
        smoothing or soft targets) from what the weight sees.
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
        objective: Objective | str | None = None,
        *,
        level: Level = "sample",
        floor: bool = True,
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
        self.objective = _objective(objective, hyper_parameters)
        self.level: Level = level
        self.floor = floor
        self._mask: Tensor | None = None

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
        weighted = losses * ops.cast(weights, losses.dtype)
        ignored = _mask_of(losses)
        if ignored is not None:  # a product loses the mark that `ignore_class` makes on the losses
            _set_mask(weighted, ignored)
        return weighted

    def weigh(self, y_true: Tensor, y_pred: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The plain losses, what the weight of each unit looks at, and the weights."""
        mask = _mask_of(y_pred) if self._mask is None else self._mask
        y_true, y_pred = (ops.convert_to_tensor(y, dtype=self.dtype) for y in (y_true, y_pred))
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
        if self.level == "sample":
            seen = _mean_of_samples(seen, real)
        return losses, seen, self._weights(seen, _units(real, seen))

    def metrics(self) -> list[WeightMetric]:
        """Metrics for `model.compile`: the plain loss, the mean weight, the clip share and the effective sample."""
        return [WeightMetric(self, statistic) for statistic in STATISTICS]

    def get_config(self) -> dict[str, Any]:
        """What `from_config` and `keras.models.load_model` need."""
        text = str(Method(objective=self.objective))
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
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Reweighted:
        """The loss that `get_config` describes."""
        return cls(**{**config, "loss": keras.losses.deserialize(config["loss"])})

    def _weights(self, seen: Tensor, measure: Tensor | None) -> Tensor:
        if _elementwise(self.objective):
            return weights_of(self.objective.weight, seen)
        flat = ops.reshape(seen, (-1,))
        if measure is not None:
            measure = ops.reshape(measure, (-1,))
            flat = ops.where(ops.greater(measure, 0.0), flat, ops.zeros_like(flat))
        return ops.reshape(self.objective.weigh(flat, (), measure=measure).weights, ops.shape(seen))


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


def _objective(given: Objective | str | None, hyper_parameters: dict[str, Any]) -> Any:
    """The objective meant, if Keras can run it."""
    if given is not None and hyper_parameters:
        raise TypeError(
            f"give either an objective or hyper-parameters of RGD, got {given!r} and {', '.join(hyper_parameters)}. "
            "Put them into the objective."
        )
    objective = RGD(**hyper_parameters) if given is None else given
    if isinstance(objective, str):
        objective = method(objective).objective
    if objective.stateful:
        raise ValueError(
            f"{objective!r} remembers something between steps, and a Keras loss has nowhere to keep it. Use an "
            "objective without a state, or a training loop of your own with `objective.apply`."
        )
    if getattr(objective, "surrogate", False):
        raise ValueError("`surrogate` changes the value shown and not the gradient; Keras reduces by itself. Drop it.")
    backend = keras.backend.backend()
    if not _elementwise(objective) and backend not in ("torch", "jax"):
        raise ValueError(
            f"{objective!r} needs the PyTorch or JAX backend of Keras, got {backend}. Set KERAS_BACKEND, or use RGD "
            "without `normalize`, which runs on all backends."
        )
    return objective


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
