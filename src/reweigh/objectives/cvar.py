"""Conditional value at risk: the mean of the hardest fraction of the batch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from reweigh import _validate as validate
from reweigh._array import Array, namespace, reusing
from reweigh.objectives._base import Objective, State, Weighed
from reweigh.objectives._measure import amount_of, own_part, pool, top_share

__all__ = ["CVaR"]


@dataclass(frozen=True, kw_only=True)
class CVaR(Objective):
    r"""Conditional value at risk: the mean loss of the hardest fraction alpha of the batch.

    .. math:: \sup_p \Big\{ \sum_i p_i \ell_i : p_i \le \frac{1}{\alpha B} \Big\}, \qquad w_i = B p_i

    The :math:`\lfloor \alpha B \rfloor` hardest units weigh :math:`1/\alpha`, the next one takes the mass that is left,
    all others weigh nothing.

    Parameters
    ----------
    alpha
        The fraction of the batch, in (0, 1]; one is the plain mean.
    sync
        Whether the batch is the one over all data-parallel ranks. Inside
        `jax.shard_map`, the name of the axis that holds the batch.

    Returns
    -------
    Array
        A scalar: the mean loss of the hardest fraction, with its own gradient.

    Examples
    --------
    >>> import numpy as np
    >>> print(round(float(CVaR(alpha=0.375)(np.array([0.2, 0.7, 1.5, 4.0]))), 6))  # (4 + 1.5/2) / 1.5
    3.166667

    Notes
    -----
    Units that tie at the boundary share the mass that is left, so that their order does not matter; the authors give
    it to whichever sorts first. The value is the same. References: Rockafellar and Uryasev, *Optimization of
    Conditional Value-at-Risk*, 2000; Levy, Carmon, Duchi, Sidford, *Large-Scale Methods for Distributionally Robust
    Optimization*, NeurIPS 2020.
    """

    alpha: float = 0.1
    sync: bool | str = True

    search: ClassVar[Mapping[str, tuple[Any, ...]]] = {"alpha": (0.1, 0.2, 0.5, 0.8)}
    cost: ClassVar[str] = "O(B log B); over ranks, the losses are gathered"
    neutral: ClassVar[bool] = True

    def __post_init__(self) -> None:
        validate.fraction("alpha", self.alpha, "It is the fraction of the batch that counts.")

    @property
    def separable(self) -> bool:
        """False: which units are the hardest depends on the batch."""
        return False

    def weigh(
        self, losses: Array, state: State, *, measure: Array | None = None, groups: Array | None = None
    ) -> Weighed:
        """One over alpha for the hardest units."""
        whole, amounts, cut = pool(losses, measure, self.sync)
        parts = top_share(whole, amounts, self.alpha * amount_of(whole, amounts))
        return Weighed(own_part(reusing(namespace(parts).divide, parts, self.alpha), cut))
