"""A tree of sums: draw from a distribution over millions of entries, and change it, in logarithmic time."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

__all__ = ["SumTree", "descend", "pad_rows"]

#: Children of a node. Wide nodes mean few levels, hence few kernels; of 8 to 128, 32 was fastest or close to it.
FANOUT = 32
#: On the processor, so many sums are faster run through than descended into: of all entries, and of rows of them.
_ONE_ROW, _ONE_ROW_OF_SUMS = 2**17, 2**19


_NOTHING = "at least one value must be positive to draw from, got none. Update some entry first."


class SumTree:
    r"""Draws :math:`i` with probability :math:`v_i / \sum_j v_j` in :math:`O(\log n)`, for a whole batch at once.

    Leaves hold the values; each node holds the sum of its 32 children. A draw walks down all levels with a
    handful of kernels a level, whatever the size of the batch. An update rewrites its leaves and recomputes their
    ancestors *from their children*, so no rounding accumulates: the tree always equals a freshly built one. Up to
    524,288 entries in the processor's memory the tree is one level deep or none, because running through its sums is
    faster there.

    Parameters
    ----------
    values
        One value an entry, 1-d: zero or positive, or their logarithms. Kept in float64 on their device.
    logarithms
        Whether values are logarithms of weights. Sums are then log-sum-exps, and weights of any size, such as
        :math:`e^{1000}` beside :math:`e^{-1000}`, neither overflow nor vanish together.

    Examples
    --------
    >>> tree = SumTree(torch.tensor([1.0, 0.0, 3.0]))
    >>> tree.draw(torch.tensor([0.0, 0.2, 0.3, 0.99]))
    tensor([0, 0, 2, 2])
    >>> tree.update(torch.tensor([1, 2]), torch.tensor([4.0, 0.0]))
    >>> tree.shares(torch.tensor([0, 1, 2]))
    tensor([0.2000, 0.8000, 0.0000], dtype=torch.float64)
    """

    def __init__(self, values: Tensor, *, logarithms: bool = False) -> None:
        if values.ndim != 1 or values.shape[0] == 0:
            raise ValueError(
                f"`values` must be a vector with at least one entry, got shape {tuple(values.shape)}. "
                "Give one value for each entry to draw from."
            )
        self.n = values.shape[0]
        self.logarithms = logarithms
        self._empty = float("-inf") if logarithms else 0.0
        self._check(values)
        self._levels: list[Tensor] = []
        self._build(values.to(torch.float64))

    @property
    def values(self) -> Tensor:
        """The values of all entries, shape (n,): a view, to be read only."""
        return self._levels[0].view(-1)[: self.n]

    @property
    def total(self) -> Tensor:
        """The sum of all values (the log-sum-exp of logarithms), 0-d."""
        return self._parents(self._levels[-1])[0]

    def shares(self, indices: Tensor | None = None) -> Tensor:
        """The probabilities with which entries are drawn; of all entries if none are named."""
        values = self.values if indices is None else self.values[indices]
        return torch.exp(values - self.total) if self.logarithms else values / self.total

    def draw(self, u: Tensor) -> Tensor:
        """The entry for each number in [0, 1): the first whose cumulative share exceeds it.

        Entries of value zero are never drawn, whatever the rounding.
        """
        if self._shallow:
            return self._draw_here(u)
        if not bool(self.total > self._empty):
            raise ValueError(_NOTHING)
        share = u.to(torch.float64)
        node = torch.zeros_like(share, dtype=torch.int64)
        for level in reversed(self._levels):
            child, share = descend(self._masses(level.index_select(0, node)), share)
            node = node * FANOUT + child
        return node

    def update(self, indices: Tensor, values: Tensor) -> None:
        """Give entries new values. Where an index occurs more than once, its last value counts."""
        if indices.shape != values.shape or indices.ndim != 1:
            raise ValueError(
                "`indices` and `values` must be vectors of one length, got shapes "
                f"{tuple(indices.shape)} and {tuple(values.shape)}. Give one value for each index."
            )
        if indices.shape[0] == 0:
            return
        if self._shallow and indices.is_cpu and values.is_cpu:
            self._update_here(indices, values)
            return
        self._check(values)
        # A scatter with repeated indices keeps an arbitrary one: sort, and keep the last of each run.
        order = torch.argsort(indices, stable=True)
        node, fresh = indices[order], values.to(torch.float64)[order]
        if bool((node[0] < 0) | (node[-1] >= self.n)):
            raise IndexError(f"`indices` must lie in [0, {self.n}), got {int(node[0])} to {int(node[-1])}.")
        last = torch.ones_like(node, dtype=torch.bool)
        torch.ne(node[1:], node[:-1], out=last[:-1])
        node, fresh = node[last], fresh[last]
        for level in self._levels:
            level.view(-1)[node] = fresh
            node = torch.div(node, level.shape[1], rounding_mode="floor")
            fresh = self._parents(level.index_select(0, node))

    def rebuild(self, values: Tensor) -> None:
        """Replace all values at once, in O(n)."""
        if values.shape != (self.n,):
            raise ValueError(f"`values` must have shape ({self.n},), one an entry, got {tuple(values.shape)}.")
        self._check(values)
        self._build(values.to(torch.float64))

    def _draw_here(self, u: Tensor) -> Tensor:
        """The same in the processor's memory, by NumPy: most of the steps above take longer to start than to make."""
        share = (u if u.is_cpu and u.dtype == torch.float64 else u.to(device="cpu", dtype=torch.float64)).numpy()
        sums = self._levels[-1]
        upto = sums.cumsum(1).numpy()[0]  # torch's running sum takes a third of the time of NumPy's
        whole = upto.item(-1)
        if not whole > 0:
            raise ValueError(_NOTHING)
        target = np.minimum(share * whole, math.nextafter(whole, 0.0))
        node = upto.searchsorted(target, side="right")
        if len(self._levels) == 2:
            mass = sums.numpy()[0, node]
            share = np.maximum((target - (upto[node] - mass)) / mass, 0.0)
            below = self._levels[0].numpy()[node].cumsum(1)
            whole = below[:, -1]
            target = np.minimum(share * whole, np.nextafter(whole, 0.0))
            node = node * FANOUT + (below <= target[:, None]).sum(1)
        return torch.from_numpy(node)

    def _update_here(self, indices: Tensor, values: Tensor) -> None:
        """The same; where an index is repeated, NumPy assigns the last value."""
        node, fresh = indices.numpy(), values.detach().numpy()
        if not 0.0 <= fresh.min() <= fresh.max() < np.inf:
            self._check(values)
        if not 0 <= node.min() <= node.max() < self.n:
            raise IndexError(f"`indices` must lie in [0, {self.n}), got {node.min()} to {node.max()}.")
        leaves = self._levels[0].numpy()
        leaves.reshape(-1)[node] = fresh
        if len(self._levels) == 2:
            node = node // FANOUT
            self._levels[1].numpy()[0, node] = leaves[node].cumsum(1)[:, -1]

    def _build(self, values: Tensor) -> None:
        self._shallow = values.is_cpu and not self.logarithms and self.n <= _ONE_ROW_OF_SUMS
        if self._shallow:
            self._levels = [values.clone()[None]]
            if self.n > _ONE_ROW:
                leaves = pad_rows(values, 0.0)
                self._levels = [leaves, self._parents(leaves)[None]]
            return
        self._levels = []
        while not self._levels or self._levels[-1].shape[0] > 1:
            self._levels.append(pad_rows(values, self._empty))
            values = self._parents(self._levels[-1])

    def _masses(self, rows: Tensor) -> Tensor:
        """What the children of each node weigh, up to a factor common to the node."""
        return torch.exp(rows - rows.amax(-1, keepdim=True)) if self.logarithms else rows

    def _parents(self, rows: Tensor) -> Tensor:
        """The value of each node from its children; a running sum, whose rounding depends on the row alone."""
        if not self.logarithms:
            return rows.cumsum(-1)[:, -1]
        top = rows.amax(-1, keepdim=True).clamp_min(torch.finfo(rows.dtype).min)  # a row of pads has no top
        return top[:, 0] + torch.exp(rows - top).cumsum(-1)[:, -1].log()

    def _check(self, values: Tensor) -> None:
        good = (values < float("inf")) if self.logarithms else (values >= 0) & (values < float("inf"))
        if not bool(good.all()):
            what = "numbers or -inf, being logarithms" if self.logarithms else "finite and not negative"
            raise ValueError(
                f"`values` must be {what}, got {int((~good).sum())} that are not. "
                "Clip the losses they are made of, or leave those entries out."
            )


def descend(masses: Tensor, share: Tensor) -> tuple[Tensor, Tensor]:
    """The child that each share of its parent's mass falls on, and the share of the child's mass it is.

    `masses` has one row of children a draw. A child without mass is never chosen.
    """
    upto = masses.cumsum(-1)
    whole = upto[:, -1]
    # Strictly below the sum, so that rounding cannot lead past the last child with mass.
    target = torch.minimum(share * whole, torch.nextafter(whole, torch.zeros_like(whole)))
    child = torch.searchsorted(upto, target[:, None], right=True)
    mass = masses.gather(1, child)
    before = upto.gather(1, child) - mass
    return child[:, 0], ((target[:, None] - before) / mass).clamp_min(0.0)[:, 0]


def pad_rows(values: Tensor, fill: float) -> Tensor:
    """Entries in rows of one node's children each; the last row is filled up. Always a copy."""
    rows = -(-values.shape[0] // FANOUT)
    padded = values.new_full((rows * FANOUT, *values.shape[1:]), fill)
    padded[: values.shape[0]] = values
    return padded.view(rows, FANOUT, *values.shape[1:])
