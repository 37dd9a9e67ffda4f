"""Focal loss: easy units count for less, through the loss itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from torch import Tensor
from torch.nn import functional as F

from reweigh import _validate as validate
from reweigh.torch.losses._base import ClassLoss, check_classes, check_same_shape, hide, is_soft, only_real, pick

__all__ = ["Focal"]


@dataclass(frozen=True, kw_only=True)
class Focal(ClassLoss):
    r"""Cross entropy times a power of what is missing from certainty.

    .. math:: \ell = -(1 - p_y)^\gamma \log p_y

    The `"sigmoid"` form treats each class as a yes-or-no question of its own and adds them up,
    :math:`\ell = -\sum_j \alpha_j (1 - p_j)^\gamma \log p_j`, with :math:`p_j` the probability given to the right
    answer.

    Parameters
    ----------
    gamma
        How fast easy units fade; 0 gives back cross entropy (or summed binary cross entropy).
    form
        `"softmax"` or `"sigmoid"`.
    alpha
        In the sigmoid form, the weight of positive answers; negative ones get `1 - alpha`. None weighs both 1.
    ignore_index
        A label that marks units as not real: their loss is 0, and `mask` leaves them out.

    Returns
    -------
    Tensor
        One loss per unit: shape (B,) or (B, d1, ...) as for cross entropy. float32 at least.

    Examples
    --------
    >>> import torch
    >>> Focal(gamma=2.0)(torch.tensor([[2.0, 0.0], [0.0, 0.0]]), torch.tensor([0, 1]))
    tensor([0.0018, 0.1733])

    Notes
    -----
    Unlike a re-weighting objective the factor is part of the loss: gradients flow through it. It is computed as
    the exponential of a log-probability, so that value and gradient stay finite for any logits and any gamma.
    Departures: the original detection setting is `form="sigmoid", gamma=2, alpha=0.25`, divided by the number of
    positive anchors, which is left to the objective; `alpha` is refused in the softmax form, where one number
    would only rescale the loss (see `class_balanced` for class weights). In the sigmoid form start the last
    layer's bias at `-log(C - 1)`, as Cui et al. do, or the first steps are spent on it.
    References: Lin et al., *Focal Loss for Dense Object Detection*, ICCV 2017.
    """

    gamma: float = 2.0
    form: Literal["softmax", "sigmoid"] = "softmax"
    alpha: float | None = None

    search: ClassVar[Mapping[str, tuple[Any, ...]]] = {"gamma": (0.5, 1.0, 2.0)}

    def __post_init__(self) -> None:
        super().__post_init__()
        validate.non_negative("gamma", self.gamma)
        validate.one_of("form", self.form, ("softmax", "sigmoid"))
        if self.alpha is None:
            return
        validate.fraction("alpha", self.alpha)
        if self.form == "softmax":
            raise ValueError(
                f"`alpha` belongs to form='sigmoid', got alpha={self.alpha!r} with form='softmax', where it would "
                "only rescale the loss. Use the loss `class_balanced` with base='focal' for class weights."
            )

    def __call__(self, output: Tensor, target: Tensor) -> Tensor:
        """The focal loss of each unit."""
        return self._softmax(output, target) if self.form == "softmax" else self._sigmoid(output, target)

    def _softmax(self, output: Tensor, target: Tensor) -> Tensor:
        logits = check_classes(output, target)
        index, mask = self.labels(target)
        total = logits.logsumexp(1)
        # log(1 - p) from the wrong classes' own logits: exact where 1 - p rounds to 0, with a bounded gradient.
        log_rest = hide(logits, index).logsumexp(1) - total
        return only_real((self.gamma * log_rest).exp() * (total - pick(logits, index)), mask)

    def _sigmoid(self, output: Tensor, target: Tensor) -> Tensor:
        mask = None
        if is_soft(target):
            logits, positive = check_same_shape(output, target), target
        else:
            logits = check_classes(output, target)
            index, mask = self.labels(target)
            positive = F.one_hot(index, logits.shape[1]).movedim(-1, 1)
        positive = positive.to(logits.dtype)
        log_yes, log_no = F.logsigmoid(logits), F.logsigmoid(-logits)
        yes = -(self.gamma * log_no).exp() * log_yes * positive
        no = -(self.gamma * log_yes).exp() * log_no * (1 - positive)
        if self.alpha is not None:
            yes, no = self.alpha * yes, (1 - self.alpha) * no
        return only_real((yes + no).sum(1), mask)
