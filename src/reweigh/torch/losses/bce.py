"""Binary cross entropy, one value per unit, for one label or many."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from reweigh import _validate as validate
from reweigh._array import widen
from reweigh.torch.losses._base import Loss, PerClass, check_same_shape, per_unit_mean

__all__ = ["BCE"]


@dataclass(frozen=True, kw_only=True)
class BCE(Loss):
    r"""Binary cross entropy on logits, averaged over the labels of a unit.

    .. math:: \ell = -\frac1L \sum_{k=1}^L \big[\,p_k\, y_k \log \sigma(z_k) + (1 - y_k) \log(1 - \sigma(z_k))\big]

    Parameters
    ----------
    pos_weight
        The weight p of positive answers: one number, one per label (the last axis), or None for 1.

    Returns
    -------
    Tensor
        Shape (B,), for logits and targets of one same shape (B,) or (B, L, ...). Targets are 0 or 1, or
        probabilities. float32 at least.

    Examples
    --------
    >>> import torch
    >>> BCE()(torch.tensor([[0.0, 0.0], [5.0, -5.0]]), torch.tensor([[1, 0], [1, 0]]))
    tensor([0.6931, 0.0067])

    Notes
    -----
    The unit is the example: its labels are averaged before re-weighting. To re-weight each label separately, pass
    flattened logits and targets. `floor` is the loss of predicting a soft target exactly.
    """

    pos_weight: float | tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        if self.pos_weight is None:
            return
        many = self.pos_weight if isinstance(self.pos_weight, tuple) else (self.pos_weight,)
        for value in many:
            validate.positive("pos_weight", value)
        object.__setattr__(self, "_positive", PerClass(many))

    def __call__(self, output: Tensor, target: Tensor) -> Tensor:
        """The binary cross entropy of each unit."""
        logits = check_same_shape(output, target)
        weight = self._weight(logits)
        losses = F.binary_cross_entropy_with_logits(
            logits, target.to(logits.dtype), pos_weight=weight, reduction="none"
        )
        return per_unit_mean(losses)

    def floor(self, target: Tensor, classes: int | None = None) -> Tensor | float:
        """The loss of the best constant answer to a soft target; 0 for targets that are not floating point."""
        if not target.is_floating_point():
            return 0.0
        yes = widen(target)
        no = 1 - yes
        weight = self._weight(yes)
        if weight is not None:
            yes = yes * weight
        # The best answer is yes/(yes + no); its loss is the entropy, times how much the two count together.
        both = yes + no
        return per_unit_mean(-(torch.xlogy(yes, yes / both) + torch.xlogy(no, no / both)))

    def _weight(self, like: Tensor) -> Tensor | None:
        if self.pos_weight is None:
            return None
        positive: PerClass = self.__dict__["_positive"]
        if isinstance(self.pos_weight, tuple) and like.shape[-1] != len(self.pos_weight):
            raise ValueError(
                f"`pos_weight` must have one entry per label, {like.shape[-1]} for shape {tuple(like.shape)}, got "
                f"{len(self.pos_weight)}. Pass one number to use it for all labels."
            )
        return positive.on(like.device).to(like.dtype)
