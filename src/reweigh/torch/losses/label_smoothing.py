"""Cross entropy against smoothed labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, Self

import torch
from torch import Tensor
from torch.nn import functional as F

from reweigh import _validate as validate
from reweigh.torch.losses._base import ClassLoss, check_classes, is_soft, only_real, pick

__all__ = ["LabelSmoothing"]


@dataclass(frozen=True, kw_only=True)
class LabelSmoothing(ClassLoss):
    r"""Cross entropy where a share of every label is spread over the classes.

    .. math:: \ell = -\sum_j q_j \log p_j, \qquad
              q_y = 1 - \varepsilon + \varepsilon/C,\; q_{j \ne y} = \varepsilon/C
              \quad\text{or}\quad q_y = 1 - \varepsilon,\; q_{j \ne y} = \varepsilon/(C-1)

    Parameters
    ----------
    eps
        The share spread.
    over
        `"C"` spreads it over all classes, the true one included (Szegedy et al.; torch's `label_smoothing`);
        `"C-1"` over the wrong ones only.
    classes
        Number of classes, for `floor` of class indices; `bind` fills it in, and a call does not need it.
    ignore_index
        A label that marks units as not real: their loss is 0, and `mask` leaves them out.

    Returns
    -------
    Tensor
        One loss per unit, as for cross entropy; soft targets are smoothed the same way. float32 at least.

    Examples
    --------
    >>> import torch
    >>> loss = LabelSmoothing(eps=0.1)
    >>> loss(torch.tensor([[2.0, 0.0], [0.0, 0.0]]), torch.tensor([0, 1]))
    tensor([0.2269, 0.6931])
    >>> loss.floor(torch.tensor([0, 1]), classes=2)
    tensor([0.1985, 0.1985])

    Notes
    -----
    This is the cross-entropy form: its smallest value is the entropy of the smoothed label, `floor`, not 0. Pass
    that as `offset` to an objective, or every unit looks harder than it is. The KL form of some training scripts
    is this loss less its floor. References: Szegedy et al., *Rethinking the Inception Architecture*, CVPR 2016.
    """

    eps: float = 0.1
    over: Literal["C", "C-1"] = "C"
    classes: int | None = None

    search: ClassVar[Mapping[str, tuple[Any, ...]]] = {"eps": (0.05, 0.1, 0.2)}

    def __post_init__(self) -> None:
        super().__post_init__()
        validate.fraction("eps", self.eps, zero=True, one=False)
        validate.one_of("over", self.over, ("C", "C-1"))
        if self.classes is not None:
            validate.whole("classes", self.classes, 2)

    def bind(self, class_counts: Sequence[int] | None = None) -> Self:
        """The same loss for as many classes as there are counts."""
        return self if class_counts is None else replace(self, classes=len(class_counts))

    def __call__(self, output: Tensor, target: Tensor) -> Tensor:
        """The smoothed cross entropy of each unit."""
        logits = check_classes(output, target, soft=True, classes=self.classes)
        log_p = F.log_softmax(logits, dim=1)
        own, everywhere = self._shares(logits.shape[1])
        if is_soft(target):
            return -own * (target.to(log_p.dtype) * log_p).sum(1) - everywhere * log_p.sum(1)
        index, mask = self.labels(target)
        return only_real(-own * pick(log_p, index) - everywhere * log_p.sum(1), mask)

    def floor(self, target: Tensor, classes: int | None = None) -> Tensor | float:
        """The entropy of each smoothed label."""
        if is_soft(target):
            own, everywhere = self._shares(target.shape[1])
            return torch.special.entr(own * target + everywhere).sum(1)
        known = classes or self.classes
        if known is None:
            raise ValueError(
                "`classes` must be given for the floor of class indices, got None: an index does not say how many "
                "there are. Pass floor(target, classes=...) or use `loss.bind(class_counts)`."
            )
        own, everywhere = self._shares(known)
        label = torch.full((known,), everywhere, dtype=torch.float64)
        label[0] += own
        # One number for every unit; filled, not copied, on the device of the target.
        value = float(torch.special.entr(label).sum())
        return torch.full(target.shape, value, dtype=torch.float32, device=target.device)

    def _shares(self, classes: int) -> tuple[float, float]:
        """What the true class gets on top, and what every class gets."""
        everywhere = self.eps / classes if self.over == "C" else self.eps / (classes - 1)
        return 1.0 - everywhere * classes, everywhere
