"""Large margin in softmax: cross entropy plus a regulariser on the wrong classes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor
from torch.nn import functional as F

from reweigh import _validate as validate
from reweigh.torch.losses._base import ClassLoss, check_classes, cross_entropy_of, hide, only_real

__all__ = ["LargeMargin"]


@dataclass(frozen=True, kw_only=True)
class LargeMargin(ClassLoss):
    r"""Cross entropy that also wants the wrong classes to be equally wrong.

    .. math:: \ell = -\log p_y + \frac{\lambda}{2} \sum_{j \ne y} \Big(s_j - \frac{1}{C-1}\Big) \log s_j,
              \qquad s = \mathrm{softmax}(z_{j \ne y})

    The sum is zero where all wrong classes have the same logit and positive elsewhere, which widens the margin to
    the nearest of them.

    Parameters
    ----------
    lam
        Strength of the regulariser; 0 gives back cross entropy.
    ignore_index
        A label that marks units as not real: their loss is 0, and `mask` leaves them out.

    Returns
    -------
    Tensor
        One loss per unit, as for cross entropy. float32 at least.

    Examples
    --------
    >>> import torch
    >>> LargeMargin(lam=0.3)(torch.tensor([[2.0, 0.0, 0.0], [2.0, 1.0, 0.0]]), torch.tensor([0, 0]))
    tensor([0.2395, 0.4423])

    Notes
    -----
    Kobayashi's additive form, with its authors' strength. L-Softmax (Liu et al., 2016) is another method of a
    similar name: it changes the angle between features and class vectors, which a function of logits cannot see.
    References: Kobayashi, *Large Margin in Softmax Cross-Entropy Loss*, BMVC 2019.
    """

    lam: float = 0.3

    search: ClassVar[Mapping[str, tuple[Any, ...]]] = {"lam": (0.1, 0.3, 1.0)}

    def __post_init__(self) -> None:
        super().__post_init__()
        validate.non_negative("lam", self.lam)

    def __call__(self, output: Tensor, target: Tensor) -> Tensor:
        """Cross entropy plus the regulariser, for each unit."""
        logits = check_classes(output, target)
        index, mask = self.labels(target)
        log_s = F.log_softmax(hide(logits, index), dim=1)
        # Where the true class was hidden, log s is minus infinity and does not belong to the sum.
        log_s = log_s.scatter(1, index.unsqueeze(1), 0.0)
        uniform = 1.0 / (logits.shape[1] - 1)
        spread = (log_s.exp() - uniform).scatter(1, index.unsqueeze(1), 0.0) * log_s
        return only_real(cross_entropy_of(logits, index) + 0.5 * self.lam * spread.sum(1), mask)
