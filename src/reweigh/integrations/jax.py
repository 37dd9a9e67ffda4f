"""JAX: the gradient of an objective over per-example losses, with its state threaded through; losses by name.

The pure form needs no adapter: `reweigh.rgd(losses)` and `objective.apply(losses, state)` are JAX functions. What is
here saves the lines around them in a training step with Optax or Flax.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any, NamedTuple

from reweigh._carry import carried
from reweigh.integrations._class_losses import (
    check_class_loss,
    class_weights,
    losses_of_classes,
    smallest_loss,
    takes_shares,
)
from reweigh.integrations._missing import missing
from reweigh.method import Context, Method, ObjectiveLike, as_method
from reweigh.objectives._base import Nonfinite, State, beside, mean, measured, state_like, total
from reweigh.objectives.entropy import Entropy
from reweigh.post import Correction

if find_spec("jax") is None:
    raise missing("jax", "jax")

import jax
import jax.numpy as jnp

__all__ = ["MethodLoss", "Evaluation", "init", "loss", "value_and_grad"]

Array = Any
#: Why a function of logits and labels has no place for the other parts of a method.
_NOT_A_GRADIENT = {
    "sampler": "it sees batches that are drawn already",
    "step": "it gives one gradient and leaves the update to its caller",
    "average": "it gives gradients and keeps no parameters",
}
_OPERATIONS = SimpleNamespace(
    **{name: getattr(jnp, name) for name in ("exp", "expm1", "sum", "where")},
    log_softmax=jax.nn.log_softmax,
    logsumexp=jax.nn.logsumexp,
    cast=lambda x, dtype: x.astype(dtype),
    convert_to_tensor=jnp.asarray,
)


class Evaluation(NamedTuple):
    """What one evaluation gives besides the loss and the gradients. A pytree, so `jit` and `scan` carry it.

    `state` belongs to the next call; `plain` is the mean loss without re-weighting, which is what to log; `losses`
    and `weights` have one entry per unit, for :class:`~reweigh.Monitor`; `aux` is whatever else the loss returned.
    """

    state: State
    plain: Array
    losses: Array
    weights: Array
    aux: Any = None


@dataclass(frozen=True)
class MethodLoss:
    """What :func:`loss` returns: a pure function of logits and labels. Hashable, so `jit` takes it as static.

    `method` is the method, its loss bound to `class_counts`.
    """

    method: Method
    class_counts: tuple[int, ...] | None = None

    def __call__(
        self,
        logits: Array,
        labels: Array,
        *,
        mask: Array | None = None,
        sample_weight: Array | None = None,
        groups: Array | None = None,
        signal: Array | None = None,
        index: Array | None = None,
        count: Any = None,
    ) -> Array:
        """The number to descend, for objectives without a state; `value_and_grad` threads one."""
        if self.method.objective.stateful:
            raise TypeError(
                f"{self.method.objective!r} remembers something between steps, so a single call is not enough. Pass "
                "the loss to `value_and_grad`, which threads a state."
            )
        given = {"mask": mask, "sample_weight": sample_weight, "groups": groups, "signal": signal, "index": index}
        return _descend(self, logits, labels, (), given, count, None)[0]

    def losses(self, logits: Array, labels: Array) -> Array:
        """One loss per unit, before class weights, objective and mean.

        `logits` have the classes on the last axis. `labels` are class indices, or rows of probabilities for
        cross_entropy and label_smoothing; an ignored label has loss zero.
        """
        chosen, logits = self.method.loss, _wide(logits)
        if jnp.ndim(labels) == logits.ndim:
            if not takes_shares(chosen):
                raise ValueError(f"labels must be class indices for {chosen!r}, got shape {jnp.shape(labels)}.")
            if jnp.shape(labels) != logits.shape:
                raise ValueError(
                    f"labels must be class indices of shape {logits.shape[:-1]} or probabilities of shape "
                    f"{logits.shape}, got {jnp.shape(labels)}. Use labels.squeeze(-1) for a column of indices."
                )
            return losses_of_classes(chosen, logits, jnp.asarray(labels, logits.dtype), _OPERATIONS)
        if jnp.shape(labels) != logits.shape[:-1]:
            raise ValueError(
                f"labels must have shape {logits.shape[:-1]} for logits of shape {logits.shape}, got "
                f"{jnp.shape(labels)}. Classes are the last axis of logits."
            )
        shares = jax.nn.one_hot(labels, logits.shape[-1], dtype=logits.dtype)
        losses = losses_of_classes(chosen, logits, shares, _OPERATIONS)
        real = self.mask(labels)
        return losses if real is None else jnp.where(real, losses, 0.0)

    def weights(self, labels: Array) -> Array | None:
        """What each unit counts by its class, to multiply after re-weighting; None where all count alike."""
        of_class = class_weights(self.method.loss)
        if of_class is None:
            return None
        if jnp.issubdtype(jnp.result_type(labels), jnp.floating):
            return jnp.asarray(labels) @ of_class
        return jnp.asarray(of_class)[labels]

    def mask(self, labels: Array) -> Array | None:
        """Which labels are not the ignored one; None where none is."""
        chosen = self.method.loss
        ignored = getattr(getattr(chosen, "under", chosen), "ignore_index", None)
        return None if ignored is None else jnp.asarray(labels) != ignored

    def correction(self, logits: Array, labels: Array, *, classifier: tuple[Any, Any] | None = None) -> Correction:
        """What the method does after training, fitted to held-out rows: call it with the logits of any rows.

        `classifier` is the weight, `(classes, features)`, and bias of the last layer, for `tau_norm`.
        """
        if self.method.post is None:
            raise ValueError(
                "the method has no correction after training. Name one, as in loss('rgd:tau=3+prior', "
                "class_counts=[...])."
            )
        post = self.method.post.after([self.method.loss], self.class_counts)
        return post.fit(logits, labels, Context(class_counts=self.class_counts, classifier=classifier))


def loss(method: ObjectiveLike, *, class_counts: Sequence[int] | None = None) -> MethodLoss:
    """A whole method as a function of logits and labels: `loss("class_balanced+rgd:tau=3+prior", class_counts=[...])`.

    Parameters
    ----------
    method
        A method or its text with a loss of classes (cross_entropy, focal, label_smoothing, class_weights,
        class_balanced, logit_adjusted, vs, large_margin, poly, gce or sce; cross_entropy unless named), an objective
        and a correction.
    class_counts
        Training examples of each class, for losses and corrections that need them: `numpy.bincount(labels)`.

    Returns
    -------
    MethodLoss
        Call it with logits and labels, or pass it to :func:`value_and_grad` with a function that returns logits.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> criterion = loss("class_weights+rgd:tau=1+prior", class_counts=[90, 10])
    >>> logits, labels = jnp.array([[2.0, 0.0], [0.0, 1.0]]), jnp.array([0, 1])
    >>> print(criterion.weights(labels), round(float(criterion(logits, labels)), 4))
    [0.5555556 5.       ] 0.3433

    Notes
    -----
    Class weights multiply after re-weighting, and the mean divides by their sum, as torch's `weight=` does. Naming a
    loss reads its card, which needs PyTorch to be installed; nothing of it runs.
    """
    chosen = carried(method, ("loss", "objective", "post"), "a JAX loss", why=_NOT_A_GRADIENT)
    if isinstance(class_counts, str):
        raise ValueError(
            f"`class_counts` must be one number per class, got {class_counts!r}: a function of a batch has no data set "
            "to count. Pass numpy.bincount(labels)."
        )
    counts = None if class_counts is None else tuple(int(count) for count in class_counts)
    if chosen.loss is not None:
        check_class_loss(chosen.loss, "a JAX loss", "Use optax's own losses with value_and_grad.")
    if counts is None and any("class_counts" in getattr(part, "needs", ()) for part in (chosen.loss, chosen.post)):
        raise ValueError(
            f"`class_counts` must be given for {str(chosen)!r}, got None. Pass the number of training examples of each "
            f"class: loss({str(chosen)!r}, class_counts=numpy.bincount(labels))."
        )
    built = chosen.build(Context(class_counts=counts))
    return MethodLoss(Method(loss=built.loss, objective=built.objective, post=chosen.post), counts)


def init(objective: ObjectiveLike | MethodLoss) -> State:
    """The state before the first step, as JAX arrays: what `lax.scan` may carry.

    Parameters
    ----------
    objective
        Any objective of the family, a method, its text, or a :class:`MethodLoss`.

    Returns
    -------
    State
        A dict of arrays, or `()` for an objective that remembers nothing.

    Examples
    --------
    >>> import reweigh
    >>> init(reweigh.RGD(tau=1.0)), init(reweigh.RGD(tau=1.0, warmup=10))
    ((), {'step': Array(0, dtype=int32)})
    """
    chosen = objective.method if isinstance(objective, MethodLoss) else as_method(objective)
    return jax.tree.map(jnp.asarray, chosen.objective.init())


def value_and_grad(
    losses_of: Callable[..., Any],
    objective: ObjectiveLike | MethodLoss,
    *,
    has_aux: bool = False,
    argnums: int | tuple[int, ...] = 0,
    nonfinite: Nonfinite | None = None,
    transform: Callable[..., Any] = jax.value_and_grad,
) -> Callable[..., tuple[tuple[Array, Evaluation], Any]]:
    r"""`jax.value_and_grad` of an objective over the losses that `losses_of` returns, one per unit.

    Parameters
    ----------
    losses_of
        `losses_of(params, *inputs)` gives the losses, not averaged; with `has_aux`, a pair of them and anything else.
        Where `objective` names a loss, it gives logits.
    objective
        What is descended: `RGD(tau=1.0)`, `TERM(t=1.0)` or any other, a weight function such as `KL()`, a method or
        its text (`"cvar:alpha=0.1"`, `"focal+rgd:tau=3"`), or what :func:`loss` makes of one with class counts.
    has_aux
        Whether `losses_of` returns a pair.
    argnums
        Which arguments of `losses_of` to differentiate, as in `jax.value_and_grad`.
    nonfinite
        `"propagate"` (the default) or `"skip"` units whose loss is NaN or infinite.
    transform
        What differentiates: pass `nnx.value_and_grad` for Flax NNX modules.

    Returns
    -------
    Callable
        `step(state, *arguments, mask=, sample_weight=, groups=, signal=, index=, count=)`, which returns `(loss, Step),
        gradients`; where `objective` names a loss, it takes `labels=` as well. Pure: it may be put into `jit`, `scan`,
        `vmap` and sharded programs. Inside `shard_map`, loss, losses and `plain` are those of the device's own shard;
        see :doc:`/exact` for `count` and gradients there.

    Examples
    --------
    >>> import jax.numpy as jnp, reweigh
    >>> def squares(w, x, y):
    ...     return (w * x - y) ** 2
    >>> objective = reweigh.RGD(tau=1.0)
    >>> step = value_and_grad(squares, objective)
    >>> (loss, step_info), gradient = step(init(objective), 0.0, jnp.array([1.0, 1.0]), jnp.array([0.0, 2.0]))
    >>> print(round(float(loss), 4), float(step_info.plain), round(float(gradient), 4))
    3.2974 2.0 -3.2974
    """
    named = objective if isinstance(objective, MethodLoss) else as_method(objective)
    criterion = loss(named) if isinstance(named, Method) and (named.loss or named.post) else named
    if isinstance(criterion, Method):
        criterion = carried(criterion, ("loss", "objective", "post"), "value_and_grad", why=_NOT_A_GRADIENT).objective

    def step(
        state: State,
        *arguments: Any,
        labels: Array | None = None,
        mask: Array | None = None,
        sample_weight: Array | None = None,
        groups: Array | None = None,
        signal: Array | None = None,
        index: Array | None = None,
        count: Any = None,
    ) -> tuple[tuple[Array, Evaluation], Any]:
        if (labels is None) == isinstance(criterion, MethodLoss):
            what = "needs `labels`, since the function gives logits" if labels is None else "takes no `labels`"
            raise TypeError(f"{objective!r} {what}. With a method that names a loss call step(..., labels=labels).")
        given = {"mask": mask, "sample_weight": sample_weight, "groups": groups, "signal": signal, "index": index}

        def evaluate(*inputs: Any) -> tuple[Array, Evaluation]:
            returned = losses_of(*inputs)
            outputs, aux = returned if has_aux else (returned, None)
            value, info = _descend(criterion, outputs, labels, state, given, count, nonfinite)
            return value, info._replace(aux=aux)

        return transform(evaluate, argnums=argnums, has_aux=True)(*arguments)

    return step


def _descend(
    criterion: Any,
    outputs: Array,
    labels: Array,
    state: State,
    given: dict[str, Any],
    count: Any,
    nonfinite: Any,
) -> tuple[Array, Evaluation]:
    """The number to descend and what goes with it, of logits and labels or, for an objective, of losses."""
    objective, losses, floor = criterion, outputs, 0.0
    if isinstance(criterion, MethodLoss):
        objective, losses = criterion.method.objective, criterion.losses(outputs, labels)
        floor = smallest_loss(criterion.method.loss, outputs.shape[-1]) if losses.ndim == jnp.ndim(labels) else 0.0
        given = given | {
            "mask": _both(given["mask"], criterion.mask(labels), jnp.logical_and),
            "sample_weight": _both(given["sample_weight"], criterion.weights(labels), jnp.multiply),
        }
        if given["signal"] is None and isinstance(objective, Entropy):
            given["signal"] = _entropy(outputs)
    mask, own = given["mask"], given["sample_weight"]
    seen = losses - floor if floor else losses
    value, following = objective.apply(seen, state, **given, count=count, nonfinite=nonfinite)
    # The same expressions as inside `apply`: the compiler evaluates them once.
    flat, measure = measured(jax.lax.stop_gradient(seen), mask, own, nonfinite)
    of_group = None if given["groups"] is None else jnp.reshape(given["groups"], -1)
    extra = beside(objective, flat, given["signal"], given["index"], losses)
    weighed = objective.weigh(flat, state_like(state, flat), measure=measure, groups=of_group, **extra)
    if floor and weighed.value is None:
        # The weights see losses above their floor; the number descended is made of the losses themselves.
        amounts = weighed.weights if measure is None else weighed.weights * measure
        value = value + floor * amounts.sum() / (total(measure, flat) if count is None else count)
    return value, Evaluation(following, mean(flat, measure) + floor, flat, weighed.weights)


def _entropy(logits: Array) -> Array:
    """The entropy of each prediction over the largest there is, as a constant."""
    logs = jax.nn.log_softmax(jax.lax.stop_gradient(_wide(logits)), axis=-1)
    terms = jnp.where(jnp.isfinite(logs), jnp.exp(logs) * logs, 0.0)  # a class that is ruled out adds nothing
    return -terms.sum(-1) / math.log(logits.shape[-1])


def _both(one: Array | None, other: Array | None, joined: Callable[..., Array]) -> Array | None:
    """Two masks, or two vectors of weights, as one; None where there is neither."""
    if one is None or other is None:
        return other if one is None else one
    return joined(one, other)


def _wide(logits: Array) -> Array:
    """Logits in float32 at least."""
    logits = jnp.asarray(logits)
    if not jnp.issubdtype(logits.dtype, jnp.floating):
        raise TypeError(
            f"logits must be floating-point numbers, got dtype {logits.dtype}. Pass the model's raw output."
        )
    return logits.astype(jnp.promote_types(logits.dtype, jnp.float32))
