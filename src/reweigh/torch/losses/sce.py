"""Symmetric cross entropy: cross entropy and the same with its arguments swapped."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from reweigh import _validate as validate
from reweigh.torch.losses._base import ClassLoss, check_classes, cross_entropy_of

__all__ = ["SCE"]


@dataclass(frozen=True, kw_only=True)
class SCE(ClassLoss):
    r"""Symmetric cross entropy: a learner that converges, and one that wrong labels cannot pull far.

    .. math:: \ell = -\alpha \log p_y - \beta A\,(1 - p_y)

    The second term is cross entropy with the arguments swapped, :math:`-\sum_k p_k \log [k = y]`, where
    :math:`\log 0 := A < 0`.

    Parameters
    ----------
    alpha, beta
        The weights of cross entropy and of its reverse.
    log_zero
        A, which stands for the logarithm of zero.
    ignore_index
        A label that marks units as not real: their loss is 0, and `mask` leaves them out.

    Returns
    -------
    Tensor
        One loss per unit. float32 at least.

    Examples
    --------
    >>> import torch
    >>> SCE(alpha=1.0, beta=1.0)(torch.zeros(1, 2), torch.tensor([0]))
    tensor([2.6931])

    Notes
    -----
    The paper has A = -4; the authors' code clips labels at 1e-4, which is A = -9.21, and probabilities at 1e-7, below
    which cross entropy has no gradient there; here it keeps it. Their settings are (0.1, 1) for ten classes, (0.01,
    1) for MNIST and (6, 0.1) for a hundred. References: Wang et al., *Symmetric Cross Entropy for Robust Learning
    with Noisy Labels*, ICCV 2019.
    """

    alpha: float = 0.1
    beta: float = 1.0
    log_zero: float = -4.0

    search: ClassVar[Mapping[str, tuple[Any, ...]]] = {"alpha": (0.1, 1.0, 6.0), "beta": (1.0, 0.1)}

    def __post_init__(self) -> None:
        super().__post_init__()
        validate.non_negative("alpha", self.alpha)
        validate.non_negative("beta", self.beta)
        validate.real("log_zero", self.log_zero)
        if self.log_zero >= 0:
            raise ValueError(f"`log_zero` must be a negative number, got {self.log_zero!r}. The paper has -4.")

    def __call__(self, output: Tensor, target: Tensor) -> Tensor:
        """The loss of each unit."""
        logits = check_classes(output, target)
        # An ignored unit has cross entropy zero, so no missing probability either.
        cross_entropy = cross_entropy_of(logits, target.long(), self.ignore_index)
        return self.alpha * cross_entropy + self.beta * self.log_zero * (-cross_entropy).expm1()
