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
    choose,
    clip,
    is_floating,
    is_jax,
    is_torch,
    max_over_ranks,
    mean,
    namespace,
    order_statistic,
    pool_over_ranks,
    repeat,
    reusing,
    spans_ranks,
    stop_gradient,
    sum_over_ranks,
)
from reweigh.objectives._base import State

#: Up to here NumPy sorts as fast as it selects.
_FEW = 2048
#: Enough for any batch: the steps that find a threshold leave out part of the units each.
_MOST_STEPS = 200


def amounts_of(losses: Array, measure: Array | None) -> Array:
    """How much each unit counts, as an array even where all count one."""
    return namespace(losses).ones_like(losses) if measure is None else measure


def amount_of(losses: Array, measure: Array | None) -> Any:
    """How much the batch counts."""
    return losses.shape[0] if measure is None else measure.sum()


def present(values: Array, measure: Array | None, instead: Any) -> Array:
    """`values` with `instead` where a unit does not count, so that nothing it holds can overflow."""
    return values if measure is None else namespace(values).where(measure > 0, values, instead)


def if_any(amount: Any, value: Array) -> Array:
    """`value`, and zero where nothing counts."""
    return value if isinstance(amount, int) else namespace(value).where(amount > 0, value, 0.0)


def positive_or_one(x: Array) -> Array:
    """`x` as a denominator: one where it is zero, as it is for a batch in which nothing counts."""
    xp = namespace(x)
    if xp is np and x.ndim == 0:
        return x if x > 0 else x.dtype.type(1.0)
    return xp.where(x > 0, x, 1.0)


def batch_mean(values: Array, measure: Array | None, sync: bool | str) -> tuple[Array, Array | int]:
    """The mean of `values`, and how much the batch counts."""
    if measure is None and values.shape[0] and not spans_ranks(values, sync):
        return mean(values), values.shape[0]
    amounts = amounts_of(values, measure)
    sums = namespace(values).stack([(present(values, measure, 0.0) * amounts).sum(), amounts.sum()])
    sums = sum_over_ranks(sums, sync)
    return sums[0] / positive_or_one(sums[1]), sums[1]


class Tilted(NamedTuple):
    """The exponential moment of a batch: `centre + log_mean / t` is `(1/t) log mean exp(t l)`.

    `powers` are `exp(t (l - centre))`, with the centre at the loss that dominates, so that none is above one by more
    than a rounding error, and one where a unit does not count; `amount` is how much the batch counts.
    """

    powers: Array
    log_mean: Array
    centre: Array
    amount: Array | int

    def over(self, t: Any, log_normaliser: Array) -> Array:
        """`exp(t l)` over a normaliser that is known by its logarithm, and no less than a share of their mean."""
        xp = namespace(self.powers)
        return reusing(xp.multiply, self.powers, xp.exp(t * self.centre - log_normaliser))


def tilt(losses: Array, t: Any, measure: Array | None, sync: bool | str) -> Tilted:
    """The exponential moment of the losses at tilt `t`, by log-sum-exp."""
    if measure is None and isinstance(losses, np.ndarray) and losses.shape[0] and not isinstance(sync, str):
        return _tilt_here(losses, t)
    xp = namespace(losses)
    alone = measure is None and losses.shape[0] > 0 and not spans_ranks(losses, sync)
    if alone and isinstance(t, (int, float)):
        centre = losses.max() if t > 0 else losses.min()
    else:
        top = largest(present(t * losses, measure, -math.inf))
        top = max_over_ranks(top, sync)
        # Back in units of the loss before subtracting: a difference of losses is exact, one of products is not.
        centre = xp.where(top == -math.inf, 0.0, top) / t
    exponents = present(reusing(xp.multiply, losses - centre, t), measure, 0.0)
    # A NaN stays one, here and in the centre: a finite state made of it would be wrong for good.
    # Near one the logarithm has lost the digits that a small tilt consists of; log1p keeps them.
    if alone:
        powers = reusing(xp.exp, exponents)
        average = mean(powers)
        log_mean = choose(
            average > 0.5, lambda: xp.log1p(mean(xp.expm1(t * (losses - centre)))), lambda: xp.log(average)
        )
        return Tilted(powers, log_mean, centre, losses.shape[0])
    amounts, powers = amounts_of(losses, measure), xp.exp(exponents)
    sums = xp.stack([(amounts * powers).sum(), (amounts * xp.expm1(exponents)).sum(), amounts.sum()])
    sums = sum_over_ranks(sums, sync)
    amount = positive_or_one(sums[2])
    average, less_one = sums[0] / amount, sums[1] / amount
    near_one = average > 0.5
    less_one, average = xp.where(near_one, less_one, 0.0), xp.where(average == 0, 1.0, average)
    log_mean = xp.where(near_one, xp.log1p(less_one), xp.log(average))
    return Tilted(powers, log_mean, centre, sums[2])


def _tilt_here(losses: Array, t: Any) -> Tilted:
    """The same for a plain vector of NumPy, in its fewest steps and one vector of memory."""
    number = losses.shape[0]
    centre = losses.max() if t > 0 else losses.min()
    powers = losses - centre
    powers *= t
    np.exp(powers, out=powers)
    average = np.add.reduce(powers) / powers.dtype.type(number)
    if average <= 0.5:
        return Tilted(powers, np.log(average), centre, number)
    return Tilted(powers, np.log1p(mean(np.expm1(t * (losses - centre)))), centre, number)


def largest(x: Array) -> Array:
    """The largest entry of a vector, minus infinity if it has none."""
    return x.max() if x.shape[0] else x.sum() - math.inf


# --- running averages ---


def moving_average(old: Array, new: Array, rate: Any, first: Array) -> Array:
    """`(1 - rate) old + rate new`, or `new` at the first batch."""
    if isinstance(first, np.bool_):
        return new if first else (1.0 - rate) * old + rate * new
    return namespace(new).where(first, new, (1.0 - rate) * old + rate * new)


def log_moving_average(log_old: Array, log_new: Array, rate: Any, first: Array) -> Array:
    """The logarithm of the moving average of two numbers that are known by their logarithms."""
    if isinstance(first, np.bool_):
        return log_new if first else log_new.dtype.type(_log_mixed(float(log_old), float(log_new), rate))
    xp = namespace(log_new)
    top = xp.maximum(log_old, log_new)
    mixed = top + xp.log((1.0 - rate) * xp.exp(log_old - top) + rate * xp.exp(log_new - top))
    return xp.where(first, log_new, mixed)


def _log_mixed(log_old: float, log_new: float, rate: float) -> float:
    """The same for two numbers: NumPy takes several times as long for one as Python."""
    top = max(log_old, log_new)
    mixed = (1.0 - rate) * math.exp(log_old - top) + rate * math.exp(log_new - top)
    return top + math.log(mixed) if mixed else -math.inf


def advance(state: State, amount: Any, **new: Array) -> State:
    """The next state, in the dtypes of the old one.

    A batch in which nothing counts leaves it as it was, and so does one after which it would be no number: a NaN
    among the losses costs a step, as an overflow in mixed precision does, and not the training.
    """
    step = state["step"]
    following = {**new, "step": step + 1}
    if isinstance(step, (np.ndarray, np.generic)):
        if not amount > 0:
            return state
        for value in new.values():
            if not (np.isfinite(value).all() if value.ndim else math.isfinite(value)):
                return state
        return {name: np.asarray(following[name], old.dtype) for name, old in state.items()}
    xp = namespace(step)
    usable = amount > 0
    for value in new.values():
        usable = usable & xp.isfinite(value).all()
    return {name: cast(stop_gradient(xp.where(usable, following[name], old)), old.dtype) for name, old in state.items()}


# --- order: the batch as one sorted sample ---


def pool(
    losses: Array, measure: Array | None, sync: bool | str
) -> tuple[Array, Array | None, Callable[[Array], Array] | None]:
    """The losses of the whole batch, how much each counts, and the function that cuts this rank's part back out.

    The latter two are None where every unit counts one, and where this rank has the whole batch.
    """
    if not spans_ranks(losses, sync):
        return (losses if measure is None else hide_absent(losses, measure)), measure, None
    (losses, amounts), cut = pool_over_ranks((losses, amounts_of(losses, measure)), sync)
    return hide_absent(losses, amounts), amounts, cut


def own_part(whole: Array, cut: Callable[[Array], Array] | None) -> Array:
    """What belongs to this rank of something computed for the batch over all ranks."""
    return whole if cut is None else cut(whole)


def hide_absent(losses: Array, amounts: Any) -> Array:
    """The losses, with the hardest one that counts in place of those that do not: no extremum sees these."""
    xp = namespace(losses)
    top = largest(xp.where(amounts > 0, losses, -math.inf))
    return xp.where(amounts > 0, losses, xp.where(top > -math.inf, top, 0.0))


def top_share(losses: Array, amounts: Array | None, mass: Any) -> Array:
    """The part of each unit, between 0 and 1, that lies within the hardest `mass` of the batch.

    Units that tie at the boundary share what is left, so that the order of the batch does not matter.
    """
    xp = namespace(losses)
    number = losses.shape[0]
    if not number:
        return losses
    if amounts is None and isinstance(losses, np.ndarray) and isinstance(mass, (int, float)):
        return _top_share_here(losses, mass)
    if amounts is None and isinstance(mass, (int, float)):
        boundary = order_statistic(losses, number - min(max(math.ceil(mass), 1), number))
    else:
        known: Any = amounts_of(losses, amounts)
        order = argsort(-losses)
        reached = xp.cumsum(known[order], 0) >= mass
        # The last sum may miss the mass by a rounding error; then the boundary is the easiest unit.
        boundary = xp.maximum(largest(xp.where(reached, losses[order], -math.inf)), losses.min())
    above, tied = losses > boundary, losses == boundary
    above, tied = cast(above, losses.dtype), cast(tied, losses.dtype)
    left = mass - (above if amounts is None else amounts * above).sum()
    share = xp.clip(left / positive_or_one((tied if amounts is None else amounts * tied).sum()), 0.0, 1.0)
    return above + tied * share


def _top_share_here(losses: Array, mass: float) -> Array:
    """The same for a plain vector of NumPy, in its fewest steps."""
    places = math.ceil(mass)
    first = losses.shape[0] - min(max(places, 1), losses.shape[0])
    if losses.shape[0] <= _FEW:
        ordered = np.sort(losses)
        boundary = ordered[first]
        if mass == places > 0 and (first == 0 or ordered[first - 1] < boundary):  # nothing is shared
            return (losses >= boundary).astype(losses.dtype)
    else:
        boundary = np.partition(losses, first)[first]
    above, tied = losses > boundary, losses == boundary
    parts = above.astype(losses.dtype)
    share = (mass - np.count_nonzero(above)) / (np.count_nonzero(tied) or 1)
    np.putmask(parts, tied, min(max(share, 0.0), 1.0))
    return parts


def measured_quantile(losses: Array, amounts: Array | None, q: Any) -> Array:
    """The `q`-quantile of a sample under its measure; where the sample jumps, the middle of the jump.

    Unlike interpolation between neighbours this does not change when every unit is repeated or the measure is scaled.
    """
    xp = namespace(losses)
    number = losses.shape[0]
    if not number:
        return losses.sum()
    top = losses.max()
    if amounts is None and isinstance(q, (int, float)):
        first = min(max(math.ceil(q * number * (1.0 - 1e-6)) - 1, 0), number - 1)
        second = min(math.floor(q * number * (1.0 + 1e-6)), number - 1)
        below = order_statistic(losses, first)
        above = below if first == second else order_statistic(losses, second)
        return xp.where(xp.isnan(top), top, 0.5 * (below + above))  # a sample with a NaN has no quantile
    known: Any = amounts_of(losses, amounts)
    order = argsort(losses)
    ordered = losses[order]
    mass = xp.cumsum(known[order], 0)
    wanted = q * mass[-1]
    below = xp.where(mass >= wanted * (1.0 - 1e-6), ordered, top).min()
    above = xp.where(mass > wanted * (1.0 + 1e-6), ordered, top).min()
    return 0.5 * (below + above)


class Moments(NamedTuple):
    """The share of a batch that is above a threshold, and the mean and variance of its losses."""

    share: Array
    mean: Array
    variance: Array


def chi2_ball(losses: Array, amounts: Array | None, rho: Any) -> Array:
    r"""The density that makes the mean loss largest within a chi-square ball.

    It is :math:`r \propto \max(\ell - \eta, 0)` with :math:`\frac12 E[(r-1)^2] = \rho`. With the units above
    :math:`\eta` known, of mass :math:`S`, mean :math:`\mu` and variance :math:`v`, the threshold is
    :math:`\eta = \mu - \sqrt{v / ((1 + 2\rho) S - 1)}`. Starting from all units, the threshold of those above the
    last one rises to that value, because the ones left out had made the density too even.
    """
    xp = namespace(losses)
    if not losses.shape[0]:
        return losses
    below_top = losses - losses.max()
    # The density does not depend on the unit of the loss. In units of the range no square overflows or vanishes.
    below_top = reusing(xp.divide, below_top, positive_or_one(-below_top.min()))
    share = None if amounts is None else amounts / positive_or_one(amounts.sum())
    at_top = cast(below_top == 0, losses.dtype)
    hardest = mean(at_top) if share is None else (share * at_top).sum()
    wide = (1.0 + 2.0 * rho) * hardest >= 1.0

    def distance(m: Moments) -> Array:
        room = clip(2.0 * rho * m.share + (m.share - 1.0), 1e-12, None)
        return positive_or_one(xp.sqrt(m.variance / room))

    def too_even(ordered: Array, mass: Array, first: Array, second: Array) -> Array:
        # Were each loss the threshold: the first two moments of the excess over it.
        excess = first - ordered * mass
        square = second - 2.0 * ordered * first + ordered * ordered * mass
        return (ordered < 0) & (square <= (1.0 + 2.0 * rho) * excess * excess)

    def spread() -> Array:
        m = _moments_above(below_top, share, distance, too_even)
        return _normalised(_positive_part(reusing(xp.subtract, below_top, m.mean - distance(m))), share)

    return choose(wide, lambda: at_top / positive_or_one(hardest), spread)


def chi2_penalty(losses: Array, amounts: Array | None, reg: Any) -> Array:
    r"""The density that makes the mean loss largest less `reg` times its chi-square divergence.

    It is :math:`r = \max(\ell - \eta, 0) / \mathrm{reg}` with :math:`\eta` such that its mean is one.
    """
    if not losses.shape[0]:
        return losses
    below_top = losses - losses.max()
    scale = positive_or_one(-below_top.min())  # as above
    below_top, reg = reusing(namespace(losses).divide, below_top, scale), reg / scale
    share = None if amounts is None else amounts / positive_or_one(amounts.sum())

    def distance(m: Moments) -> Array:
        return reg / positive_or_one(m.share)

    def far(ordered: Array, mass: Array, first: Array, second: Array) -> Array:
        return first - ordered * mass >= reg

    m = _moments_above(below_top, share, distance, far)
    return _normalised(_positive_part(reusing(namespace(losses).subtract, below_top, m.mean - distance(m))), share)


def _positive_part(x: Array) -> Array:
    return np.maximum(x, 0.0, out=x) if isinstance(x, np.ndarray) else clip(x, 0.0, None)


def _normalised(density: Array, share: Array | None) -> Array:
    """A density over its mean."""
    average = positive_or_one(mean(density) if share is None else (share * density).sum())
    return reusing(namespace(density).divide, density, average)


def _moments_above(
    values: Array,
    share: Array | None,
    distance: Callable[[Moments], Array],
    beyond: Callable[[Array, Array, Array, Array], Array],
) -> Moments:
    """Moments of the units above a threshold that lies `distance` below their mean.

    It is found in steps until nothing changes. torch would have to wait for its device to know that, so there it is
    read off the sorted sample: `beyond` says which losses are not above it, by running mass, sum and sum of squares.
    """
    if is_torch(values):
        return _moments(values, share, values > largest(_where_beyond(values, share, beyond)))
    if isinstance(values, np.ndarray):
        return _moments_of_fewer(values, share, distance)
    xp = namespace(values)

    def step(_: Array, threshold: Array, count: Array) -> tuple[Array, Array, Array]:
        above = values > threshold
        m = _moments(values, share, above)
        return above.sum() == count, cast(m.mean - distance(m), values.dtype), above.sum()

    none = (values > math.inf).sum() - 1
    start = (none > 0, xp.full((), -math.inf, values.dtype), none)
    _, threshold, _ = repeat(step, start, _MOST_STEPS)
    return _moments(values, share, values > threshold)


def _moments(values: Array, share: Array | None, above: Array) -> Moments:
    xp = namespace(values)
    active = cast(above, values.dtype) / values.shape[0] if share is None else xp.where(above, share, 0.0)
    amount = active.sum()
    average = (active * values).sum() / positive_or_one(amount)
    variance = (active * (values - average) * (values - average)).sum() / positive_or_one(amount)
    return Moments(positive_or_one(amount), average, variance)


def _moments_of_fewer(values: Array, share: Array | None, distance: Callable[[Moments], Array]) -> Moments:
    """The same for NumPy, which can leave out the units that are below the threshold as it rises."""
    number = values.shape[0]
    while True:
        if share is None:
            average, amount = mean(values), values.dtype.type(values.shape[0] / number)
            centred = values - average
            m = Moments(amount, average, centred @ centred / values.shape[0])
        else:
            amount = positive_or_one(share.sum())
            average = (share @ values) / amount
            centred = values - average
            m = Moments(amount, average, (share * centred) @ centred / amount)
        above = values > average - distance(m)
        if np.count_nonzero(above) in (0, above.shape[0]):
            return m
        values, share = values[above], None if share is None else share[above]


def _where_beyond(values: Array, share: Array | None, beyond: Callable[[Array, Array, Array, Array], Array]) -> Array:
    """The values that are not above the threshold, in descending order; minus infinity in place of the others."""
    xp = namespace(values)
    order = argsort(-values)
    ordered = values[order]
    mass = xp.full_like(values, 1.0 / values.shape[0]) if share is None else share[order]
    weighted = mass * ordered
    sums = xp.cumsum(mass, 0), xp.cumsum(weighted, 0), xp.cumsum(weighted * ordered, 0)
    return xp.where(beyond(ordered, *sums), ordered, -math.inf)


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
    index = present(cast(groups, xp.int32 if is_jax(groups) else xp.int64), measure, 0)
    if xp is np and index.size and not 0 <= int(index.min()) <= int(index.max()) < n_groups:
        raise ValueError(
            f"`groups` must lie between 0 and {n_groups - 1}, got {int(index.min())} to {int(index.max())}. "
            "Raise `n_groups` or relabel the groups from 0."
        )
    return index
