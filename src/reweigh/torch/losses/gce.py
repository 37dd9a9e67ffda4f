"""Generalised cross entropy, between cross entropy and the absolute error."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from reweigh import _validate as validate
from reweigh.torch.losses._base import ClassLoss, check_classes, cross_entropy_of

__all__ = ["GCE"]


@dataclass(frozen=True, kw_only=True)
class GCE(ClassLoss):
    r"""Generalised cross entropy: bounded, so that wrong labels cannot pull without end.

    .. math:: \ell = \frac{1 - p_y^q}{q}

    Its gradient is that of cross entropy times :math:`p_y^q`. q towards 0 is cross entropy, q = 1 the missing
    probability.

    Parameters
    ----------
    q
        The power, in (0, 1].
    ignore_index
        A label that marks units as not real: their loss is 0, and `mask` leaves them out.

    Returns
    -------
    Tensor
        One loss per unit, between 0 and 1/q. float32 at least.

    Examples
    --------
    >>> import torch
    >>> GCE(q=0.5)(torch.zeros(1, 4), torch.tensor([2]))
    tensor([1.])

    Notes
    -----
    Without the paper's truncation, which drops units with a small probability for good. References: Zhang and Sabuncu,
    *Generalized Cross Entropy Loss for Training Deep Neural Networks with Noisy Labels*, NeurIPS 2018.
    """

    q: float = 0.7

    search: ClassVar[Mapping[str, tuple[Any, ...]]] = {"q": (0.3, 0.5, 0.7, 0.9)}

    def __post_init__(self) -> None:
        super().__post_init__()
        validate.fraction("q", self.q)

    def __call__(self, output: Tensor, target: Tensor) -> Tensor:
        """The loss of each unit."""
        logits = check_classes(output, target)
        # An ignored unit has cross entropy zero, so probability one and loss zero.
        cross_entropy = cross_entropy_of(logits, target.long(), self.ignore_index)
        return (-self.q * cross_entropy).expm1() / -self.q
