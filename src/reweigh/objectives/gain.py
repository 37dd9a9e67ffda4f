"""More weight where little was gained since the last visit: a unit's loss against its own of before."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from reweigh import _validate as validate
from reweigh._array import Array, cast, is_floating, is_jax, is_readable, namespace, put
from reweigh.objectives._base import Objective, State, Weighed, required
from reweigh.objectives._measure import amounts_of

__all__ = ["Gain"]


@dataclass(frozen=True, kw_only=True)
class Gain(Objective):
    r"""Weights that fall with how much a unit's loss has fallen since it was last seen.

    .. math:: w_i = \frac{2}{1 + e^{\beta g_i}}, \qquad g_i = \ell_i^{\text{last}} - \ell_i

    One where nothing was gained, and at a unit's first visit; less where the loss fell, up to two where it rose. Units
    that are hard and stay so keep their weight of one, however large their loss: what counts is progress.

    Parameters
    ----------
    beta
        How fast weights fall with the gain, in units of one over the loss; 0 is the plain mean.
    n
        Units of the data; the training context fills it in.

    Returns
    -------
    Array
        A scalar. It is a surrogate: log and compare the plain mean.

    Examples
    --------
    >>> import numpy as np
    >>> objective, index = Gain(n=3), np.array([0, 2])
    >>> _, state = objective.apply(np.array([2.0, 1.0]), objective.init(), index=index)
    >>> objective.weigh(np.array([1.0, 1.0]), state, index=index).weights.round(4)  # the first unit has gained one nat
    array([0.5379, 1.    ])

    Notes
    -----
    Needs `index`, the number of each unit in the data, and remembers one number for each. In PyTorch,
    `criterion = Reweighted(nn.CrossEntropyLoss(), Gain(n=len(dataset)))` and then
    `criterion(output, target, index=indices)`, with or without micro-batches. With several processes each remembers the
    units it saw itself; keep the criterion outside the model that `DistributedDataParallel` wraps, which would give all
    processes the memory of the first. It follows the idea of GLOW, which weighs samples by a sigmoid of the fall of
    their loss between two epochs; scale and offset of the sigmoid are ours, chosen so that no gain weighs one, and
    nothing is compared with its authors' code. References: Tian et al., 2026, who propose gain-based loss weighting
    (GLOW) for fine-tuning language models.
    """

    beta: float = 1.0
    n: int | None = None

    search: ClassVar[Mapping[str, tuple[Any, ...]]] = {"beta": (0.5, 1.0, 3.0)}
    needs: ClassVar[tuple[str, ...]] = ("n",)
    cost: ClassVar[str] = "O(B), and a copy of one number per unit of the data"
    takes: ClassVar[tuple[str, ...]] = ("index",)

    def __post_init__(self) -> None:
        validate.real("beta", self.beta)
        if self.n is not None:
            validate.whole("n", self.n, 1)

    @property
    def separable(self) -> bool:
        """False: what another process saw of a unit is not known here."""
        return False

    def init(self) -> State:
        """The loss of each unit when it was last seen; infinite before that."""
        if self.n is None:
            raise ValueError(f"`n` must be known before the first batch, got None in {self!r}. Give len(dataset).")
        return {"last": np.full(self.n, np.inf, np.float32)}

    def weigh(
        self,
        losses: Array,
        state: State,
        *,
        measure: Array | None = None,
        groups: Array | None = None,
        signal: Array | None = None,
        index: Array | None = None,
    ) -> Weighed:
        """Two over one plus the exponential of the gain; one at a first visit."""
        xp = namespace(losses)
        where = _whole(required(self, "index", index))
        size = state["last"].shape[0]
        # Where looking at values costs nothing; a device reports large ones in its own way. Negative ones would wrap.
        if is_readable(where) and where.shape[0] and not (int(where.min()) >= 0 and int(where.max()) < size):
            raise IndexError(
                f"`index` must lie in [0, {size}), got {int(where.min())} to {int(where.max())} in {self!r}. Give "
                "n=len(dataset)."
            )
        last = cast(state["last"][where], losses.dtype)
        known = xp.isfinite(last)
        gain = xp.where(known, last, losses) - losses
        # Beyond these the sigmoid is flat, and its exponential would overflow.
        weights = 2.0 / (1.0 + xp.exp(xp.clip(self.beta * gain, -60.0, 60.0)))
        # A loss that is not a number, or does not count, leaves what is remembered.
        counts = (amounts_of(losses, measure) > 0) & xp.isfinite(losses)
        return Weighed(weights, {"last": put(state["last"], where, xp.where(counts, losses, last))})


def _whole(index: Array) -> Array:
    if is_floating(index):
        raise TypeError(f"`index` must be whole numbers, got dtype {index.dtype}. Cast them to an integer dtype.")
    xp = namespace(index)
    return cast(index, xp.int32 if is_jax(index) else xp.int64)
