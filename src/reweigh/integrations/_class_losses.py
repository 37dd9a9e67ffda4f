"""The losses of classes that a method names, where there is no torch tensor: one definition for JAX and Keras."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

__all__ = ["check_class_loss", "class_weights", "losses_of_classes", "smallest_loss", "takes_shares"]

Array = Any
Operations = Any  # `keras.ops`, or what is spelt alike from `jax.numpy` and `jax.nn`


def check_class_loss(loss: Any, host: str, instead: str) -> None:
    """Refuse a loss that is not a function of logits and labels alone; `instead` says what the host has for numbers."""
    from reweigh.torch.losses import BCE, LDAM, MSE, Deferred, Focal

    if isinstance(loss, (BCE, MSE)):
        raise ValueError(f"{host} takes losses of classes from a method, got {loss!r}. {instead}")
    if isinstance(loss, (Deferred, LDAM)):
        raise ValueError(
            f"{host} does not know how far training is, and the class weights of {loss!r} start late. Use "
            "class_balanced, class_weights or logit_adjusted."
        )
    if isinstance(loss, Focal) and loss.form != "softmax":
        raise ValueError(f"{host} takes the focal loss of a softmax, got {loss!r}. Leave `form` out.")
    under: Any = getattr(loss, "under", None)
    if under is not None:
        check_class_loss(under, host, instead)


def takes_shares(loss: Any) -> bool:
    """Whether the loss is defined for probabilities in place of a label."""
    from reweigh.torch.losses import CrossEntropy, LabelSmoothing

    return isinstance(getattr(loss, "under", loss), (CrossEntropy, LabelSmoothing))


def losses_of_classes(loss: Any, logits: Array, shares: Array, ops: Operations) -> Array:
    """One loss per unit, without class weights.

    Parameters
    ----------
    loss
        A checked loss of :mod:`reweigh.torch.losses`, bound to the class counts if it needs them.
    logits, shares
        Both with the classes on the last axis, in float32 at least; `shares` has a one at the label, or probabilities
        where :func:`takes_shares`.
    ops
        The framework's functions.
    """
    from reweigh.torch.losses import GCE, SCE, VS, Focal, LabelSmoothing, LargeMargin, LogitAdjusted, Poly

    if hasattr(loss, "under"):
        _counts(loss, logits)
        return losses_of_classes(loss.under, logits, shares, ops)
    if isinstance(loss, (LogitAdjusted, VS)):
        counts = _counts(loss, logits)
        factor = [(max(n, 1) / max(counts)) ** getattr(loss, "gamma", 0.0) for n in counts]
        shift = [-math.log(of_class) for of_class in loss.class_factors(counts)]
        logits = logits * _constant(factor, logits, ops) + _constant(shift, logits, ops)
    log_p = ops.log_softmax(logits, axis=-1)
    # A class that is ruled out has a logarithm of minus infinity, and zero times that is NaN.
    cross_entropy = -ops.sum(shares * ops.where(shares > 0.0, log_p, 0.0), axis=-1)
    if isinstance(loss, LabelSmoothing):
        everywhere = _everywhere(loss, logits.shape[-1])
        own = 1.0 - everywhere * logits.shape[-1]
        return own * cross_entropy - everywhere * ops.sum(log_p, axis=-1)
    if isinstance(loss, Focal):
        # log(1 - p) from the logits of the other classes: exact where 1 - p rounds to 0.
        hidden = ops.where(shares > 0.5, -math.inf, logits)
        log_rest = ops.logsumexp(hidden, axis=-1) - ops.logsumexp(logits, axis=-1)
        return ops.exp(loss.gamma * log_rest) * cross_entropy
    if isinstance(loss, LargeMargin):
        own = shares > 0.5
        log_s = ops.where(own, 0.0, ops.log_softmax(ops.where(own, -math.inf, logits), axis=-1))
        spread = ops.where(own, 0.0, ops.exp(log_s) - 1.0 / (logits.shape[-1] - 1)) * log_s
        return cross_entropy + 0.5 * loss.lam * ops.sum(spread, axis=-1)
    missing = ops.expm1(-cross_entropy)  # p - 1
    if isinstance(loss, Poly):
        return cross_entropy - loss.e1 * missing
    if isinstance(loss, SCE):
        return loss.alpha * cross_entropy + loss.beta * loss.log_zero * missing
    if isinstance(loss, GCE):
        return ops.expm1(-loss.q * cross_entropy) / -loss.q
    return cross_entropy


def class_weights(loss: Any) -> np.ndarray[Any, Any] | None:
    """What a unit of each class counts, float32; None where all count alike."""
    if not hasattr(loss, "weights_of"):
        return None
    return np.asarray(loss.weights_of(loss.class_counts), np.float32)


def smallest_loss(loss: Any, classes: int) -> float:
    """What the loss of a label cannot fall below: the entropy of a smoothed label, zero for others."""
    from reweigh.torch.losses import LabelSmoothing

    loss = getattr(loss, "under", loss)
    if not isinstance(loss, LabelSmoothing) or not loss.eps:
        return 0.0
    everywhere = _everywhere(loss, classes)
    own = 1.0 - everywhere * (classes - 1)
    return -own * math.log(own) - (classes - 1) * everywhere * math.log(everywhere)


def _everywhere(loss: Any, classes: int) -> float:
    """What each class gets of a smoothed label."""
    return loss.eps / (classes if loss.over == "C" else classes - 1)


def _counts(loss: Any, logits: Array) -> tuple[int, ...]:
    """The class counts of a loss, if the logits have as many classes."""
    counts = loss.class_counts
    if counts is None:
        raise ValueError(
            f"`class_counts` must be given for {loss!r}, got None. Pass the number of training examples of each class."
        )
    if logits.shape[-1] != len(counts):
        raise ValueError(
            f"the outputs must have as many classes on the last axis as there are class counts, {len(counts)}, got "
            f"shape {tuple(logits.shape)}. Give one count for each class, zeros included."
        )
    return counts


def _constant(values: Any, like: Array, ops: Operations) -> Array:
    return ops.cast(ops.convert_to_tensor(np.asarray(values, np.float32)), like.dtype)
