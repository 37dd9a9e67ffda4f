"""Poly-1: cross entropy with its leading polynomial term adjusted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from reweigh import _validate as validate
from reweigh.torch.losses._base import ClassLoss, check_classes, cross_entropy_of

__all__ = ["Poly"]


@dataclass(frozen=True, kw_only=True)
class Poly(ClassLoss):
    r"""Cross entropy plus a multiple of the probability missing from the true class (Poly-1).

    .. math:: \ell = -\log p_y + \epsilon_1 (1 - p_y)

    Parameters
    ----------
    e1
        The multiple; 0 gives back cross entropy. It may be negative down to -1, where the leading term vanishes.
    ignore_index
        A label that marks units as not real: their loss is 0, and `mask` leaves them out.

    Returns
    -------
    Tensor
        One loss per unit, as for cross entropy. float32 at least.

    Examples
    --------
    >>> import torch
    >>> Poly(e1=1.0)(torch.tensor([[2.0, 0.0], [0.0, 0.0]]), torch.tensor([0, 1]))
    tensor([0.2461, 1.1931])

    Notes
    -----
    Hard labels only, as in the paper's main form. References: Leng et al., *PolyLoss: A Polynomial Expansion
    Perspective of Classification Loss Functions*, ICLR 2022.
    """

    e1: float = 1.0

    search: ClassVar[Mapping[str, tuple[Any, ...]]] = {"e1": (-1.0, 1.0, 2.0)}

    def __post_init__(self) -> None:
        super().__post_init__()
        validate.real("e1", self.e1)
        if self.e1 < -1:
            raise ValueError(f"`e1` must be at least -1, got {self.e1!r}. Below, being wrong would be rewarded.")

    def __call__(self, output: Tensor, target: Tensor) -> Tensor:
        """The Poly-1 loss of each unit."""
        logits = check_classes(output, target)
        # An ignored unit has cross entropy zero, and so no missing probability either.
        cross_entropy = cross_entropy_of(logits, target.long(), self.ignore_index)
        return cross_entropy - self.e1 * (-cross_entropy).expm1()
