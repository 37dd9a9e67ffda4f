"""Squared error, one value per unit."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from reweigh.torch.losses._base import Loss, check_same_shape, per_unit_mean

__all__ = ["MSE"]


@dataclass(frozen=True, kw_only=True)
class MSE(Loss):
    r"""The squared error of each unit, averaged over its coordinates.

    .. math:: \ell = \frac{c}{d}\sum_{k=1}^d (\hat y_k - y_k)^2, \qquad c = \tfrac12 \text{ if half, else } 1

    Parameters
    ----------
    half
        Whether the factor 1/2 is included. It halves the loss and so moves it against a clip level: state it when
        reporting `tau`.

    Returns
    -------
    Tensor
        Shape (B,), for outputs and targets of one same shape (B,) or (B, ...). float32 at least.

    Examples
    --------
    >>> import torch
    >>> MSE()(torch.tensor([[1.0, 3.0], [0.0, 0.0]]), torch.zeros(2, 2))
    tensor([5., 0.])
    """

    half: bool = False

    def __call__(self, output: Tensor, target: Tensor) -> Tensor:
        """The squared error of each unit."""
        predicted = check_same_shape(output, target)
        squared = per_unit_mean((predicted - target.to(predicted.dtype)).square())
        return 0.5 * squared if self.half else squared
