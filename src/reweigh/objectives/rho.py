"""Only the units that are hard and can be learnt: the largest losses above those of a reference model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from reweigh import _validate as validate
from reweigh._array import Array, cast, namespace, pool_over_ranks, spans_ranks
from reweigh.objectives._base import Objective, State, Weighed, required
from reweigh.objectives._measure import amounts_of, hide_absent, own_part, positive_or_one, top_share

__all__ = ["Rho"]


@dataclass(frozen=True, kw_only=True)
class Rho(Objective):
    r"""Reducible-loss selection (RHO-LOSS, Rho-1): the units whose loss is most above a reference model's.

    .. math:: \hat L = \frac1k \sum_{i \in \text{top } k \text{ of } \ell_i - s_i} \ell_i, \qquad
              k = \lceil \text{keep} \cdot B \rceil

    with :math:`s_i` the loss of the same unit under a model trained on held-out or clean data. What is hard for that
    model too is noise, or cannot be learnt.

    Parameters
    ----------
    keep
        The fraction of units to keep: the authors take 0.1 of the examples of a large batch, or 0.6 of the tokens.
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
    >>> losses, reference = np.array([3.0, 2.0, 1.0, 0.5]), np.array([2.9, 0.2, 0.1, 0.4])
    >>> print(float(Rho(keep=0.5)(losses, signal=reference)))  # the second and the third
    1.5

    Notes
    -----
    Needs `signal`, the reference losses. The authors draw a large batch and compute gradients for the chosen units
    only; here the batch is what it is, and the rest has weight zero. References: Mindermann et al., *Prioritized
    Training on Points that are Learnable, Worth Learning, and Not Yet Learnt*, ICML 2022; Lin et al., *Rho-1: Not All
    Tokens Are What You Need*, NeurIPS 2024.
    """

    keep: float = 0.6
    sync: bool | str = True

    search: ClassVar[Mapping[str, tuple[Any, ...]]] = {"keep": (0.1, 0.3, 0.6)}
    cost: ClassVar[str] = "O(B log B), and a forward pass of the reference model"
    takes: ClassVar[tuple[str, ...]] = ("signal",)
    signal_is: ClassVar[str] = "the loss of each unit under a reference model, signal=reference_losses"

    def __post_init__(self) -> None:
        validate.fraction("keep", self.keep, "It is the fraction of units to keep.")

    @property
    def separable(self) -> bool:
        """False: which units are at the top depends on the batch."""
        return False

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
        """The same for every unit kept, nothing for the rest."""
        excess: Any = losses - required(self, "signal", signal)
        amounts: Any = amounts_of(losses, measure)
        cut = None
        if spans_ranks(losses, self.sync):
            (excess, amounts), cut = pool_over_ranks((excess, amounts), self.sync)
        excess = hide_absent(excess, amounts)
        units = cast(amounts > 0, excess.dtype)
        kept = top_share(excess, units, namespace(excess).ceil(self.keep * units.sum() * (1.0 - 1e-6)))
        return Weighed(own_part(kept * (amounts.sum() / positive_or_one((amounts * kept).sum())), cut))
