"""Online hard example mining: the mean of the hardest units."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from reweigh import _validate as validate
from reweigh._array import Array, cast, is_array, namespace, reusing
from reweigh.objectives._base import Objective, State, Weighed
from reweigh.objectives._measure import own_part, pool, positive_or_one, top_share

__all__ = ["OHEM"]


@dataclass(frozen=True, kw_only=True)
class OHEM(Objective):
    r"""Online hard example mining: only the k hardest units of the batch count.

    .. math:: \hat L = \frac1k \sum_{i \in \text{hardest } k} \ell_i, \qquad k = \lceil \text{keep} \cdot B \rceil

    Parameters
    ----------
    keep
        The fraction of units to keep, in (0, 1]; at least one unit is kept.
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
    >>> print(float(OHEM(keep=0.5)(np.array([0.2, 0.7, 1.5, 4.5, 3.0]))))  # three of five
    3.0

    Notes
    -----
    Whole units are kept, which is the difference from :class:`CVaR`; units that tie at the boundary share its places.
    Sample weights do not change how many units are kept: the mean over them is weighted. References: Shrivastava,
    Gupta, Girshick, *Training Region-Based Object Detectors with Online Hard Example Mining*, CVPR 2016.
    """

    keep: float = 0.5
    sync: bool | str = True

    search: ClassVar[Mapping[str, tuple[Any, ...]]] = {"keep": (0.25, 0.5, 0.75)}
    cost: ClassVar[str] = "O(B log B); over ranks, the losses are gathered"
    neutral: ClassVar[bool] = True

    def __post_init__(self) -> None:
        validate.fraction("keep", self.keep, "It is the fraction of units to keep.")

    @property
    def separable(self) -> bool:
        """False: which units are the hardest depends on the batch."""
        return False

    @functools.cached_property
    def bounded(self) -> bool:
        """Losses are only compared."""
        return True

    def weigh(
        self, losses: Array, state: State, *, measure: Array | None = None, groups: Array | None = None
    ) -> Weighed:
        """The same for every unit kept, nothing for the rest."""
        whole, amounts, cut = pool(losses, measure, self.sync)
        # Less a rounding error: 0.7 of 10 units is 7 and not 8.
        if amounts is None:
            wanted = self.keep * whole.shape[0] * (1.0 - 1e-6)
            places = namespace(wanted).ceil(wanted) if is_array(wanted) else max(math.ceil(wanted), 1)
            kept = top_share(whole, None, places)
            return Weighed(own_part(reusing(namespace(kept).multiply, kept, whole.shape[0] / places), cut))
        units = cast(amounts > 0, whole.dtype)
        kept = top_share(whole, units, namespace(whole).ceil(self.keep * units.sum() * (1.0 - 1e-6)))
        return Weighed(own_part(kept * (amounts.sum() / positive_or_one((amounts * kept).sum())), cut))
