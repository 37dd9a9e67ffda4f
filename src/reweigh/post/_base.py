"""The contract of every correction after training, and what corrections are made of."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np

from reweigh import _validate as validate
from reweigh._array import to_numpy
from reweigh.method import Context

__all__ = ["Affine", "Correction", "Knots", "Post", "load"]

Floats = np.ndarray[Any, Any]


class Post(ABC):
    """What is done to outputs after training: a frozen value; `fit` gives the correction."""

    #: Values worth trying for each hyper-parameter: what tuning searches.
    search: ClassVar[Mapping[str, tuple[Any, ...]]] = {}
    #: Cost beyond plain training, in words.
    cost: ClassVar[str] = "one pass over validation outputs"
    #: What `Context` must hold before training starts: `"class_counts"` or nothing.
    needs: ClassVar[tuple[str, ...]] = ()

    @property
    def needs_rows(self) -> bool:
        """Whether `fit` learns from the rows it is given; without, any rows will do, even none."""
        return True

    @property
    def needs_classifier(self) -> bool:
        """Whether `fit` must know the model's last layer, `Context(classifier=(weight, bias))`."""
        return False

    def after(self, parts: Iterable[Any], class_counts: Sequence[int] | None) -> Self:
        """What is left to correct after a training with these parts of a method; all of it, for most corrections."""
        return self

    def fit(self, outputs: Any, targets: Any, context: Context | None = None) -> Correction:
        """The correction that suits these rows.

        Parameters
        ----------
        outputs
            Logits or log-probabilities of held-out rows, `(n, classes)`: a NumPy array or a tensor of any framework.
        targets
            The class of each row, `(n,)`, from 0 on.
        context
            What is known of the *training* data (`class_counts`) and of the model (`classifier`).

        Returns
        -------
        Correction
            Call it with outputs of any rows.
        """
        logits = check_outputs(outputs)
        classes = logits.shape[1]
        labels = np.asarray(to_numpy(targets))
        if labels.shape != (len(logits),) or labels.dtype.kind not in "iub":
            raise ValueError(
                f"`targets` must be one class index per row, shape ({len(logits)},), got {labels.dtype} of shape "
                f"{labels.shape}."
            )
        if labels.size and not 0 <= labels.min() <= labels.max() < classes:
            raise ValueError(
                f"`targets` must be classes from 0 to {classes - 1}, got {labels.min()} to {labels.max()}. Outputs "
                "have one column per class."
            )
        if self.needs_rows and not labels.size:
            raise ValueError(f"{self!r} learns from held-out rows, got none. Hold some out.")
        if not np.isfinite(logits).all():
            raise ValueError("`outputs` must be finite, got NaN or infinite ones. The model diverged: train it again.")
        return self._fit(logits, labels.astype(np.int64), Context() if context is None else context)

    @abstractmethod
    def _fit(self, outputs: Floats, targets: Floats, context: Context) -> Correction:
        """The correction, from checked float64 logits and class indices."""


class Correction(ABC):
    """A fitted correction: outputs in, corrected outputs out; all of it plain numbers."""

    @abstractmethod
    def __call__(self, outputs: Any) -> Floats:
        """Corrected outputs, float64 of the same shape: the largest is the prediction, their softmax probabilities."""

    @abstractmethod
    def state(self) -> dict[str, Any]:
        """The correction as what JSON can hold; :func:`load` reads it back."""


@dataclass(frozen=True, kw_only=True)
class Affine(Correction):
    r"""A factor and an offset for each class: :math:`f_k \mapsto s_k f_k + b_k`."""

    scale: tuple[float, ...]
    offset: tuple[float, ...]

    def __call__(self, outputs: Any) -> Floats:
        """Scaled and shifted outputs."""
        return check_outputs(outputs, len(self.scale)) * np.asarray(self.scale) + np.asarray(self.offset)

    def state(self) -> dict[str, Any]:
        """Factors and offsets."""
        return {"kind": "affine", "scale": list(self.scale), "offset": list(self.offset)}


@dataclass(frozen=True, kw_only=True)
class Knots(Correction):
    """A non-decreasing, piecewise linear function of each class's probability; probabilities then sum to one again.

    With two classes there is one function, that of the second class's probability.
    """

    x: tuple[tuple[float, ...], ...]
    y: tuple[tuple[float, ...], ...]
    classes: int

    def __call__(self, outputs: Any) -> Floats:
        """The logarithm of the corrected probabilities."""
        probabilities = softmax(check_outputs(outputs, self.classes))
        if self.classes == 2:
            second = np.interp(probabilities[:, 1], self.x[0], self.y[0])
            return np.log(np.stack([1.0 - second, second], axis=1))
        columns = [np.interp(p, x, y) for p, x, y in zip(probabilities.T, self.x, self.y, strict=True)]
        own = np.stack(columns, axis=1)
        return np.log(own / own.sum(axis=1, keepdims=True))

    def state(self) -> dict[str, Any]:
        """The points between which probabilities are interpolated."""
        points = {"x": [list(x) for x in self.x], "y": [list(y) for y in self.y]}
        return {"kind": "knots", "classes": self.classes, **points}


def load(state: Mapping[str, Any]) -> Correction:
    """The correction that `state()` was taken of.

    >>> correction = load({"kind": "affine", "scale": [1.0, 1.0], "offset": [0.0, 2.0]})
    >>> correction([[1.0, 0.0]]).tolist()
    [[1.0, 2.0]]
    """
    kind = state.get("kind")
    validate.one_of("kind", kind, ("affine", "knots"), "Pass what `Correction.state()` returned.")
    if kind == "affine":
        return Affine(scale=tuple(state["scale"]), offset=tuple(state["offset"]))
    x, y = (tuple(tuple(column) for column in state[name]) for name in ("x", "y"))
    return Knots(x=x, y=y, classes=int(state["classes"]))


def check_outputs(outputs: Any, classes: int | None = None) -> Floats:
    """Outputs as float64 logits `(n, classes)`, or an error that names the shape."""
    logits = np.asarray(to_numpy(outputs), np.float64)
    if logits.ndim != 2 or logits.shape[1] < 2:
        raise ValueError(
            f"`outputs` must be logits or log-probabilities of shape (n, classes) with two classes or more, got shape "
            f"{logits.shape}. For one margin per row stack zeros in front: numpy.stack([0 * margin, margin], axis=1)."
        )
    if classes is not None and logits.shape[1] != classes:
        raise ValueError(f"`outputs` must have {classes} classes, as those of the fit had, got {logits.shape[1]}.")
    return logits


def softmax(logits: Floats) -> Floats:
    """Probabilities along the last axis."""
    odds = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return odds / odds.sum(axis=-1, keepdims=True)


def log_shares(class_counts: Sequence[int] | None, classes: int, name: str) -> Floats:
    """The logarithm of each class's share of the training data; a class without examples counts as one with one."""
    if class_counts is None:
        raise ValueError(
            f"`class_counts` must be given to {name}, got None. Pass Context(class_counts=[...]), the number of "
            "training examples of each class, in class order."
        )
    counts = np.asarray(class_counts, np.float64)
    if counts.shape != (classes,) or counts.min() < 0 or counts.max() == 0:
        raise ValueError(
            f"`class_counts` must be {classes} numbers, one per class, none negative and not all zero, got "
            f"{list(class_counts)}."
        )
    least = min(1.0, counts[counts > 0].min())  # counts may be sums of weights
    return np.log(np.where(counts > 0, counts, least) / counts.sum())
