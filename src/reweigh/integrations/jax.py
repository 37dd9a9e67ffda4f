"""JAX: the gradient of an objective over per-example losses, with its state threaded through.

The pure form needs no adapter: `reweigh.rgd(losses)` and `objective.apply(losses, state)` are JAX functions. What is
here saves the lines around them in a training step with Optax or Flax.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any, NamedTuple

from reweigh.integrations._missing import missing
from reweigh.objectives._base import Nonfinite, Objective, State, beside, mean, measured, state_like

if find_spec("jax") is None:
    raise missing("jax", "jax")

import jax
import jax.numpy as jnp

__all__ = ["Step", "init", "value_and_grad"]

Array = Any


class Step(NamedTuple):
    """What one evaluation gives beside the loss and the gradients. A pytree, so `jit` and `scan` carry it.

    `state` belongs to the next call; `plain` is the mean loss without re-weighting, which is what to log; `losses`
    and `weights` have one entry per unit, for :class:`~reweigh.Monitor`; `aux` is whatever else the loss returned.
    """

    state: State
    plain: Array
    losses: Array
    weights: Array
    aux: Any = None


def init(objective: Objective) -> State:
    """The state before the first step, as JAX arrays: what `lax.scan` may carry.

    Parameters
    ----------
    objective
        Any objective of the family.

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
    return jax.tree.map(jnp.asarray, objective.init())


def value_and_grad(
    losses_of: Callable[..., Any],
    objective: Objective,
    *,
    has_aux: bool = False,
    argnums: int | tuple[int, ...] = 0,
    nonfinite: Nonfinite | None = None,
    transform: Callable[..., Any] = jax.value_and_grad,
) -> Callable[..., tuple[tuple[Array, Step], Any]]:
    r"""`jax.value_and_grad` of an objective over the losses that `losses_of` returns, one per unit.

    Parameters
    ----------
    losses_of
        `losses_of(params, *inputs)` gives the losses, not averaged; with `has_aux`, a pair of them and anything else.
    objective
        What is descended: `RGD(tau=1.0)`, `TERM(t=1.0)` or any other.
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
        gradients`. Pure: it may be put into `jit`, `scan`, `vmap` and sharded programs. Inside `shard_map`, loss,
        losses and `plain` are those of the device's own shard; see :doc:`/exact` for `count` and gradients there.

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

    def step(
        state: State,
        *arguments: Any,
        mask: Array | None = None,
        sample_weight: Array | None = None,
        groups: Array | None = None,
        signal: Array | None = None,
        index: Array | None = None,
        count: Any = None,
    ) -> tuple[tuple[Array, Step], Any]:
        def evaluate(*given: Any) -> tuple[Array, Step]:
            returned = losses_of(*given)
            losses, aux = returned if has_aux else (returned, None)
            loss, following = objective.apply(
                losses, state, mask=mask, sample_weight=sample_weight, groups=groups, signal=signal, index=index,
                count=count, nonfinite=nonfinite,
            )  # fmt: skip
            # The same expressions as inside `apply`: the compiler evaluates them once.
            flat, measure = measured(jax.lax.stop_gradient(losses), mask, sample_weight, nonfinite)
            of_group = None if groups is None else jnp.reshape(groups, -1)
            seen = beside(objective, flat, signal, index, losses)
            weights = objective.weigh(flat, state_like(state, flat), measure=measure, groups=of_group, **seen).weights
            return loss, Step(following, mean(flat, measure), flat, weights, aux)

        return transform(evaluate, argnums=argnums, has_aux=True)(*arguments)

    return step
