"""A distribution on the chi-square ball that is drawn from, nudged and projected back in logarithmic time."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from reweigh.torch.samplers._sum_tree import FANOUT, descend, pad_rows

__all__ = ["ChiSquareBall"]

_INFINITY = float("inf")
#: Keys are rewritten when the affine map has drifted this far from the identity, long before digits are lost.
_DRIFT = 2.0**16


class _PowerSums(NamedTuple):
    """Number, sum and sum of squares of some values."""

    number: float
    first: float
    second: float


class ChiSquareBall:
    r"""Relative weights :math:`q = n p` in the chi-square ball, with a floor, under Euclidean projection.

    .. math:: \Big\{ q : \textstyle\sum_i q_i = n,\; q_i \ge \delta,\; \frac12 \sum_i (q_i - 1)^2 \le \rho \Big\}

    The projection of :math:`y` is :math:`q_i = \max(\delta, \alpha (y_i - t) + \delta)` for two numbers
    :math:`\alpha \le 1` and :math:`t`. Such maps compose to maps of the same form, so all projections so far are
    kept as *one* lazy map :math:`q_i = 1 + \max(c, a k_i + b)` of keys :math:`k_i` that only a nudge of example
    :math:`i` rewrites. Examples held at the common low value :math:`1 + c` form the *lump*, which is all of them at
    the start.

    With :math:`m` and :math:`V` the mean and variance of the :math:`N` values above the threshold,

    .. math:: t = m - d, \qquad d = \max\Big(d_0, \sqrt{V/(K-1)}\Big), \qquad d_0 = \frac{n(1-\delta)}{N}, \qquad
              \alpha = \frac{d_0}{d}, \qquad K = \frac{N}{n}\Big(1 + \frac{2\rho}{n(1-\delta)^2}\Big)

    Computed from too many values, :math:`t` is too low, never too high. So the threshold only sweeps upwards:
    take all values, sink those at or below `t` into the lump, repeat until none sinks. A tree over the examples
    that stores count, sum, sum of squares and *minimum* of the keys above the lump finds them in O(log n) each.
    An example sinks at most once for each time it was nudged, so a nudge costs O(log n) amortised, and no tree
    sorted by value has to be kept in balance.

    Parameters
    ----------
    n
        Number of examples.
    rho
        Radius.
    floor
        :math:`\delta`, the least relative weight.

    Examples
    --------
    >>> ball = ChiSquareBall(4, rho=1.0, floor=0.1)
    >>> ball.nudge(torch.tensor([0]), torch.tensor([1.0], dtype=torch.float64))
    >>> ball.weights()
    tensor([1.7500, 0.7500, 0.7500, 0.7500], dtype=torch.float64)
    """

    def __init__(self, n: int, *, rho: float, floor: float) -> None:
        self.n, self.rho = n, rho
        self._floor = floor - 1.0
        self._load(torch.full((n,), _INFINITY, dtype=torch.float64), torch.tensor([1.0, 0.0, 0.0]).double())

    def weights(self, indices: Tensor | None = None) -> Tensor:
        """Relative weights q; of all examples if none are named."""
        keys = self._keys.view(-1)
        return 1.0 + self._values(keys[: self.n] if indices is None else keys[indices])

    def draw(self, u: Tensor) -> Tensor:
        """The example for each number in [0, 1), with probability q/n."""
        share = u.to(torch.float64)
        node = torch.zeros_like(share, dtype=torch.int64)
        child = torch.arange(FANOUT)
        for depth in reversed(range(len(self._levels))):
            rows = self._levels[depth].index_select(0, node)
            below = FANOUT ** (depth + 1)
            size = (self.n - (node[:, None] * FANOUT + child) * below).clamp(0, below)
            above, first = rows[..., 0], rows[..., 1]
            masses = above * (1.0 + self._shift) + self._scale * first + (size - above) * (1.0 + self._lump)
            step, share = descend(masses.clamp_min(0.0), share)
            node = node * FANOUT + step
        masses = 1.0 + self._values(self._keys.index_select(0, node))
        masses.masked_fill_(node[:, None] * FANOUT + child >= self.n, 0.0)
        return node * FANOUT + descend(masses, share)[0]

    def nudge(self, indices: Tensor, amounts: Tensor) -> None:
        """Raise weights by amounts of zero or more, which add up over repeated indices, and project back."""
        indices, place = torch.unique(indices, return_inverse=True)
        raised = torch.zeros(indices.shape[0], dtype=torch.float64).index_add_(0, place, amounts)
        indices, raised = indices[raised > 0], raised[raised > 0]
        if indices.shape[0] == 0:
            return
        values = self._values(self._keys.view(-1)[indices]) + raised
        self._write(indices, (values - self._shift) / self._scale)
        self._project()

    def state(self) -> dict[str, Tensor]:
        """All that is needed to resume."""
        return {
            "keys": self._keys.view(-1)[: self.n],
            "map": torch.tensor([self._scale, self._shift, self._lump], dtype=torch.float64),
        }

    def load(self, state: dict[str, Tensor]) -> None:
        """The inverse of `state`."""
        self._load(state["keys"].to("cpu"), state["map"].to("cpu"))

    def _load(self, keys: Tensor, affine: Tensor) -> None:
        self._scale, self._shift, self._lump = affine.tolist()
        self._keys = pad_rows(keys, _INFINITY)
        self._levels: list[Tensor] = []
        stats = _leaf_stats(self._keys)
        while stats.shape[0] > 1 or not self._levels:
            # Rows beyond the last hold nothing; their minimum must not be mistaken for zero.
            rows = pad_rows(stats, 0.0)
            rows.view(-1, 4)[stats.shape[0] :, 3] = _INFINITY
            self._levels.append(rows)
            stats = _node_stats(rows)

    def _values(self, keys: Tensor) -> Tensor:
        """Relative weights, less one, of the examples with these keys; an infinite key stands for the lump."""
        above = (self._scale * keys + self._shift).clamp_min(self._floor)
        return torch.where(torch.isinf(keys), self._lump, above)

    def _write(self, indices: Tensor, keys: Tensor | float) -> None:
        self._keys.view(-1)[indices] = keys if isinstance(keys, Tensor) else torch.tensor(keys, dtype=torch.float64)
        node = torch.unique(torch.div(indices, FANOUT, rounding_mode="floor"))
        stats = _leaf_stats(self._keys.index_select(0, node))
        for level in self._levels:
            level.view(-1, 4)[node] = stats
            node = torch.unique(torch.div(node, FANOUT, rounding_mode="floor"))
            stats = _node_stats(level.index_select(0, node))

    def _above(self) -> _PowerSums:
        """The moments of the values above the lump."""
        count, first, second, _ = _node_stats(self._levels[-1])[0].tolist()
        a, b = self._scale, self._shift
        return _PowerSums(count, a * first + b * count, a * a * second + 2 * a * b * first + b * b * count)

    def _threshold(self, moments: _PowerSums) -> tuple[float, float]:
        """The threshold t and the slope alpha, as if all values counted in the moments were above it."""
        mean = moments.first / moments.number
        variance = max(moments.second / moments.number - mean * mean, 0.0)
        depth = -self._floor
        nearest = self.n * depth / moments.number
        room = (moments.number - self.n) / self.n + 2.0 * self.rho * moments.number / (self.n * depth) ** 2
        if variance <= room * nearest * nearest:
            return mean - nearest, 1.0
        distance = math.sqrt(variance / max(room, 1e-300))
        return mean - distance, nearest / distance

    def _project(self) -> None:
        moments = self._above()
        lump = self.n - moments.number
        everything = _PowerSums(self.n, moments.first + lump * self._lump, moments.second + lump * self._lump**2)
        t, alpha = self._threshold(everything)
        if lump > 0 and self._lump > t:  # the lump is the lowest value there is: if it stays above, all do
            self._lump = alpha * (self._lump - t) + self._floor
        else:
            t, alpha = self._sink()
            self._lump = self._floor
        self._scale, self._shift = alpha * self._scale, alpha * (self._shift - t) + self._floor
        if self._scale * _DRIFT < 1.0 or abs(self._shift) > _DRIFT:
            self._rewrite()

    def _sink(self) -> tuple[float, float]:
        """Sink examples until none is below the threshold, which is returned with the slope."""
        while True:
            t, alpha = self._threshold(self._above())
            sunk = self._at_most((t - self._shift) / self._scale)
            if sunk.shape[0] == 0:
                return t, alpha
            self._write(sunk, _INFINITY)

    def _at_most(self, key: float) -> Tensor:
        """The examples above the lump whose keys do not exceed one."""
        node = torch.zeros(1, dtype=torch.int64)
        for minima in [level[..., 3] for level in reversed(self._levels)] + [self._keys]:
            parent, child = torch.nonzero(minima.index_select(0, node) <= key, as_tuple=True)
            node = node[parent] * FANOUT + child
        return node

    def _rewrite(self) -> None:
        """Apply the map to all keys, in O(n): rare, because it takes many projections to drift."""
        keys = self._keys.view(-1)[: self.n]
        self._load(self._scale * keys + self._shift, torch.tensor([1.0, 0.0, self._lump], dtype=torch.float64))


def _leaf_stats(keys: Tensor) -> Tensor:
    """Count, sum, sum of squares and minimum of the keys above the lump in each row."""
    above = torch.isfinite(keys)
    real = torch.where(above, keys, 0.0)
    return torch.stack(
        [above.sum(-1).to(keys.dtype), _sum(real), _sum(real * real), keys.amin(-1)],
        dim=-1,
    )


def _node_stats(rows: Tensor) -> Tensor:
    """The same of each node, from its children."""
    return torch.cat([rows[..., :3].cumsum(-2)[:, -1], rows[..., 3].amin(-1, keepdim=True)], dim=-1)


def _sum(rows: Tensor) -> Tensor:
    # A running sum: its rounding depends on the row alone, not on how many rows are summed at once.
    return rows.cumsum(-1)[:, -1]
