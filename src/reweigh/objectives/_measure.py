"""Statistics of a batch under its measure: what the objectives that look beyond one unit share.

The measure says how much each unit counts before any re-weighting; a unit of measure zero is not there, and a
measure of k stands for k copies. With `sync` the batch is the one over all data-parallel ranks. Everything is free
of data-dependent branches, so that it can be traced.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from reweigh._array import (
    Array,
    argsort,
    cast,
    is_floating,
    max_over_ranks,
    namespace,
    pool_over_ranks,
    stop_gradient,
    sum_over_ranks,
)
from reweigh.objectives._base import State


def amounts_of(losses: Array, measure: Array | None) -> Array:
    """How much each unit counts, as an array even where all count one."""
    return namespace(losses).ones_like(losses) if measure is None else measure


def present(values: Array, measure: Array | None, instead: Any) -> Array:
    """`values` with `instead` where a unit does not count, so that nothing it holds can overflow."""
    return values if measure is None else namespace(values).where(measure > 0, values, instead)


def positive_or_one(x: Array) -> Array:
    """`x` as a denominator: one where it is zero, as it is for a batch in which nothing counts."""
    return namespace(x).where(x > 0, x, 1.0)


def batch_mean(values: Array, measure: Array | None, sync: bool) -> tuple[Array, Array]:
    """The mean of `values`, and how much the batch counts."""
    xp = namespace(values)
    amounts = amounts_of(values, measure)
    sums = xp.stack([(present(values, measure, 0.0) * amounts).sum(), amounts.sum()])
    sums = sum_over_ranks(sums) if sync else sums
    return sums[0] / positive_or_one(sums[1]), sums[1]


class Tilted(NamedTuple):
    """The exponential moment of a batch: `centre + log_mean / t` is `(1/t) log mean exp(t l)`.

    `exponents` are `t (l - centre)`, with the centre at the loss that dominates, so that none is above zero by more
    than a rounding error; `amount` is how much the batch counts.
    """

    exponents: Array
    log_mean: Array
    centre: Array
    amount: Array


def tilt(losses: Array, t: Any, measure: Array | None, sync: bool) -> Tilted:
    """The exponential moment of the losses at tilt `t`, by log-sum-exp."""
    xp = namespace(losses)
    amounts = amounts_of(losses, measure)
    top = largest(present(t * losses, measure, -math.inf))
    top = max_over_ranks(top) if sync else top
    # Back in units of the loss before subtracting: a difference of losses is exact, one of products is not.
    centre = xp.where(top == -math.inf, 0.0, top) / t
    exponents = present(t * (losses - centre), measure, 0.0)
    sums = xp.stack([(amounts * xp.exp(exponents)).sum(), (amounts * xp.expm1(exponents)).sum(), amounts.sum()])
    sums = sum_over_ranks(sums) if sync else sums
    amount = positive_or_one(sums[2])
    mean, less_one = sums[0] / amount, sums[1] / amount
    # A NaN stays one, here and in the centre: a finite state made of it would be wrong for good.
    # Near one the logarithm has lost the digits that a small tilt consists of; log1p keeps them.
    near_one = mean > 0.5
    log_mean = xp.where(near_one, xp.log1p(xp.where(near_one, less_one, 0.0)), xp.log(xp.where(mean == 0, 1.0, mean)))
    return Tilted(exponents, log_mean, centre, sums[2])


def largest(x: Array) -> Array:
    """The largest entry of a vector, minus infinity if it has none."""
    return x.max() if x.shape[0] else x.sum() - math.inf


# --- running averages ---


def moving_average(old: Array, new: Array, rate: Any, first: Array) -> Array:
    """`(1 - rate) old + rate new`, or `new` at the first batch."""
    return namespace(new).where(first, new, (1.0 - rate) * old + rate * new)


def log_moving_average(log_old: Array, log_new: Array, rate: Any, first: Array) -> Array:
    """The logarithm of the moving average of two numbers that are known by their logarithms."""
    xp = namespace(log_new)
    top = xp.maximum(log_old, log_new)
    mixed = top + xp.log((1.0 - rate) * xp.exp(log_old - top) + rate * xp.exp(log_new - top))
    return xp.where(first, log_new, mixed)


def advance(state: State, amount: Array, **new: Array) -> State:
    """The next state, in the dtypes of the old one.

    A batch in which nothing counts leaves it as it was, and so does one after which it would be no number: a NaN
    among the losses costs a step, as an overflow in mixed precision does, and not the training.
    """
    xp = namespace(amount)
    usable = amount > 0
    for value in new.values():
        usable = usable & xp.isfinite(value).all()
    following = {**new, "step": state["step"] + 1}
    return {name: cast(stop_gradient(xp.where(usable, following[name], old)), old.dtype) for name, old in state.items()}


# --- order: the batch as one sorted sample ---


def pool(losses: Array, measure: Array | None, sync: bool) -> tuple[Array, Array, Callable[[Array], Array]]:
    """The losses of the whole batch, how much each counts, and the function that cuts this rank's part back out."""
    amounts = amounts_of(losses, measure)
    if not sync:
        return hide_absent(losses, amounts), amounts, lambda whole: whole
    (losses, amounts), cut = pool_over_ranks((losses, amounts))
    return hide_absent(losses, amounts), amounts, cut


def hide_absent(losses: Array, amounts: Array) -> Array:
    """The losses, with the hardest one that counts in place of those that do not: no extremum sees these."""
    xp = namespace(losses)
    top = largest(xp.where(amounts > 0, losses, -math.inf))
    return xp.where(amounts > 0, losses, xp.where(top > -math.inf, top, 0.0))


def top_share(losses: Array, amounts: Array, mass: Any) -> Array:
    """The part of each unit, between 0 and 1, that lies within the hardest `mass` of the batch.

    Units that tie at the boundary share what is left, so that the order of the batch does not matter.
    """
    xp = namespace(losses)
    if not losses.shape[0]:
        return losses
    order = argsort(-losses)
    reached = xp.cumsum(amounts[order], 0) >= mass
    # The last sum may miss the mass by a rounding error; then the boundary is the easiest unit.
    boundary = xp.maximum(largest(xp.where(reached, losses[order], -math.inf)), losses.min())
    above, tied = losses > boundary, losses == boundary
    left = mass - (amounts * above).sum()
    share = xp.clip(left / positive_or_one((amounts * tied).sum()), 0.0, 1.0)
    return xp.where(above, 1.0, xp.where(tied, share, 0.0))


def measured_quantile(losses: Array, amounts: Array, q: Any) -> Array:
    """The `q`-quantile of a sample under its measure; where the sample jumps, the middle of the jump.

    Unlike interpolation between neighbours this does not change when every unit is repeated or the measure is scaled.
    """
    xp = namespace(losses)
    if not losses.shape[0]:
        return losses.sum()
    order = argsort(losses)
    ordered = losses[order]
    mass = xp.cumsum(amounts[order], 0)
    wanted = q * mass[-1]
    top = losses.max()
    below = xp.where(mass >= wanted * (1.0 - 1e-6), ordered, top).min()
    above = xp.where(mass > wanted * (1.0 + 1e-6), ordered, top).min()
    return 0.5 * (below + above)


def chi2_ball(losses: Array, amounts: Array, rho: Any) -> Array:
    r"""The density that makes the mean loss largest within a chi-square ball.

    It is :math:`r \propto \max(\ell - \eta, 0)` with :math:`\frac12 E[(r-1)^2] = \rho`. With the units above
    :math:`\eta` known, of mass :math:`S`, mean :math:`\mu` and variance :math:`v`, the threshold is
    :math:`\eta = \mu - \sqrt{v / ((1 + 2\rho) S - 1)}`; which units those are is read off the sorted sample.
    """
    xp = namespace(losses)
    if not losses.shape[0]:
        return losses
    share = amounts / positive_or_one(amounts.sum())
    below_top = losses - losses.max()
    ordered, mass, first, second = _cumulative_moments(below_top, share)
    # Were each loss the threshold: the first two moments of the excess over it. The threshold wanted is at or
    # above every loss at which the density would still be too even.
    excess = first - ordered * mass
    square = second - 2.0 * ordered * first + ordered * ordered * mass
    even = (ordered < 0) & (square <= (1.0 + 2.0 * rho) * excess * excess)
    active = share * (below_top > largest(xp.where(even, ordered, -math.inf)))
    amount = positive_or_one(active.sum())
    mean = (active * below_top).sum() / amount
    variance = (active * (below_top - mean) * (below_top - mean)).sum() / amount
    room = xp.clip(2.0 * rho * amount + (amount - 1.0), 1e-12, None)
    distance = positive_or_one(xp.sqrt(variance / room))
    density = xp.clip(below_top - mean + distance, 0.0, None)
    density = density / positive_or_one((share * density).sum())
    hardest = (share * (below_top == 0)).sum()
    alone = cast(below_top == 0, losses.dtype) / positive_or_one(hardest)
    return xp.where((1.0 + 2.0 * rho) * hardest >= 1.0, alone, density)


def chi2_penalty(losses: Array, amounts: Array, reg: Any) -> Array:
    r"""The density that makes the mean loss largest less `reg` times its chi-square divergence.

    It is :math:`r = \max(\ell - \eta, 0) / \mathrm{reg}` with :math:`\eta` such that its mean is one.
    """
    xp = namespace(losses)
    if not losses.shape[0]:
        return losses
    share = amounts / positive_or_one(amounts.sum())
    below_top = losses - losses.max()
    ordered, mass, first, _ = _cumulative_moments(below_top, share)
    far = first - ordered * mass >= reg
    active = share * (below_top > largest(xp.where(far, ordered, -math.inf)))
    amount = positive_or_one(active.sum())
    mean = (active * below_top).sum() / amount
    density = xp.clip(below_top - mean + reg / amount, 0.0, None)
    return density / positive_or_one((share * density).sum())


def _cumulative_moments(values: Array, share: Array) -> tuple[Array, Array, Array, Array]:
    """The values in descending order, and the running mass, sum and sum of squares up to each."""
    xp = namespace(values)
    order = argsort(-values)
    ordered, mass = values[order], share[order]
    weighted = mass * ordered
    return ordered, xp.cumsum(mass, 0), xp.cumsum(weighted, 0), xp.cumsum(weighted * ordered, 0)


# --- groups ---


def group_number(objective: Any) -> int:
    """The number of groups of an objective over groups, which must be known by the time it sees a batch."""
    if objective.n_groups is None:
        raise ValueError(
            f"`n_groups` must be known before the first batch, got None in {objective!r}. Give the number of groups in "
            "the data."
        )
    return objective.n_groups


def group_index(groups: Array | None, measure: Array | None, n_groups: int) -> Array:
    """The group of each unit as an index; units that do not count may carry any group and get the first."""
    if groups is None:
        raise ValueError(
            "`groups` is required: this objective weighs groups of units against each other. Pass the integer group "
            f"of each unit, 0 to {n_groups - 1}, as apply(..., groups=...)."
        )
    if is_floating(groups):
        raise TypeError(f"`groups` must be whole numbers, got dtype {groups.dtype}. Cast them to an integer dtype.")
    xp = namespace(groups)
    index = present(cast(groups, xp.int32), measure, 0)
    if xp is np and index.size and not 0 <= int(index.min()) <= int(index.max()) < n_groups:
        raise ValueError(
            f"`groups` must lie between 0 and {n_groups - 1}, got {int(index.min())} to {int(index.max())}. "
            "Raise `n_groups` or relabel the groups from 0."
        )
    return index
