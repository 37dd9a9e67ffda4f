"""Weights by how undecided the model is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from reweigh import _validate as validate
from reweigh._array import Array, clip
from reweigh.objectives._base import Objective, State, Weighed, required

__all__ = ["Entropy"]


@dataclass(frozen=True, kw_only=True)
class Entropy(Objective):
    r"""Each loss times the entropy of the model's own prediction, over the largest there is.

    .. math:: w_i = \Big(\frac{H(p_i)}{\log K}\Big)^{a}, \qquad H(p) = -\sum_k p_k \log p_k

    A unit on which the model is sure and wrong, such as a token that contradicts what it knows, counts little; one on
    which it is undecided counts in full.

    Parameters
    ----------
    power
        The power a; 0 gives back the plain mean.

    Returns
    -------
    Array
        A scalar: the mean of weight times loss, divided by the number of units.

    Examples
    --------
    >>> import numpy as np
    >>> print(float(Entropy()(np.array([4.0, 2.0]), signal=np.array([0.1, 0.9]))))
    1.1

    Notes
    -----
    Needs `signal`, the entropy of each prediction over its maximum, between 0 and 1: :func:`reweigh.torch.entropy` of
    the logits. :class:`~reweigh.torch.Reweighted` around a loss of classes, the trainers and estimators built on it,
    :func:`~reweigh.torch.chunked_cross_entropy` and the losses by name for Keras and JAX make it themselves, of all
    classes. The authors' code (EAFT, in LLaMA-Factory) takes the 20 most probable tokens alone, renormalised, over
    3.0 as log 20: `signal=reweigh.torch.entropy(logits, top=20)`, which is theirs times 3.0 / log 20 = 1.0014.
    References: *Entropy-Adaptive Fine-Tuning: Resolving Confident Conflicts to Mitigate Forgetting*, 2026.
    """

    power: float = 1.0

    search: ClassVar[Mapping[str, tuple[Any, ...]]] = {"power": (0.5, 1.0, 2.0)}
    cost: ClassVar[str] = "O(B K) for the entropies"
    takes: ClassVar[tuple[str, ...]] = ("signal",)
    signal_is: ClassVar[str] = (
        "the entropy of each prediction over its maximum, signal=reweigh.torch.entropy(logits) in PyTorch"
    )

    def __post_init__(self) -> None:
        validate.non_negative("power", self.power)

    @property
    def separable(self) -> bool:
        """True: a unit's weight depends on its own prediction alone."""
        return True

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
        """The entropy to the power, kept between 0 and 1."""
        share: Any = required(self, "signal", signal)
        return Weighed(clip(share, 0.0, 1.0) ** self.power)
