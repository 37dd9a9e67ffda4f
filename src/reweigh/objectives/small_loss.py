"""Only the units with the smallest losses: the ones whose labels are believed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from reweigh import _validate as validate
from reweigh._array import Array, cast, namespace
from reweigh.objectives._base import Objective, State, Weighed
from reweigh.objectives._measure import advance, amounts_of, own_part, pool, positive_or_one, top_share

__all__ = ["SmallLoss"]


@dataclass(frozen=True, kw_only=True)
class SmallLoss(Objective):
    r"""Small-loss selection: the hardest share of the batch is left out, for labels that may be wrong.

    .. math:: \hat L = \frac1k \sum_{i \in \text{easiest } k} \ell_i, \qquad k = \lfloor (1 - r_t)\,B \rfloor, \qquad
              r_t = \text{forget} \cdot \min\!\Big(\frac{t}{\text{gradual} \cdot \text{steps}}, 1\Big)

    Networks fit right labels before wrong ones, so that for a while a large loss says which is which.

    Parameters
    ----------
    forget
        The share of units to leave out: the share of labels believed to be wrong.
    gradual
        The share of training over which it rises from nothing, while losses say little yet.
    steps
        Steps of the whole training; the training context fills it in. Without, the share is left out from the start.
    sync
        Whether the batch is the one over all data-parallel ranks. Inside
        `jax.shard_map`, the name of the axis that holds the batch.

    Returns
    -------
    Array
        A scalar: the mean loss of the units kept.

    Examples
    --------
    >>> import numpy as np
    >>> print(float(SmallLoss(forget=0.4)(np.array([0.5, 7.0, 1.5, 4.5, 1.0]))))  # three of five
    1.0

    Notes
    -----
    The selection of co-teaching with one network, whose rate rises by epochs; here by steps. Units that tie at the
    boundary share its places; at least one is kept. Sample weights do not change how many units are kept: the mean over
    them is weighted. References: Han et al., *Co-teaching*, NeurIPS 2018; Shen and Sanghavi, *Learning with Bad
    Training Data via Iterative Trimmed Loss Minimization*, ICML 2019.
    """

    forget: float = 0.2
    gradual: float = 0.1
    steps: int | None = None
    sync: bool | str = True

    search: ClassVar[Mapping[str, tuple[Any, ...]]] = {"forget": (0.1, 0.2, 0.4)}
    cost: ClassVar[str] = "O(B log B); over ranks, the losses are gathered"

    def __post_init__(self) -> None:
        validate.fraction("forget", self.forget, "It is the share of units to leave out.", zero=True, one=False)
        validate.fraction("gradual", self.gradual, zero=True)
        if self.steps is not None:
            validate.whole("steps", self.steps, 1)

    @property
    def separable(self) -> bool:
        """False: which units are the easiest depends on the batch."""
        return False

    def init(self) -> State:
        """A step counter, where the share rises."""
        return {"step": np.zeros((), np.int32)} if self.steps is not None and self.gradual else ()

    def weigh(
        self, losses: Array, state: State, *, measure: Array | None = None, groups: Array | None = None
    ) -> Weighed:
        """The same for every unit kept, nothing for the rest."""
        whole, amounts, cut = pool(losses, measure, self.sync)
        xp = namespace(whole)
        forget: Any = self.forget
        if state:
            risen = cast(state["step"], whole.dtype) / (self.gradual * float(self.steps or 1))
            forget = forget * xp.clip(risen, 0.0, 1.0)
        known: Any = amounts_of(whole, amounts)
        units = cast(known > 0, whole.dtype)
        # More by a rounding error: 0.7 of 10 units is 7 and not 6.
        places = xp.clip(xp.floor((1.0 - forget) * units.sum() * (1.0 + 1e-6)), 1.0, None)
        kept = top_share(-whole, units, places)
        weights = own_part(kept * (known.sum() / positive_or_one((known * kept).sum())), cut)
        return Weighed(weights, advance(state, units.sum()) if state else ())
