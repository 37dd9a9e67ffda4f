"""Class weights by inverse frequency, on top of any loss: what people write by hand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from reweigh import _validate as validate
from reweigh.torch.losses._class_weighted import ClassWeighted

__all__ = ["ClassWeights"]


@dataclass(frozen=True, kw_only=True)
class ClassWeights(ClassWeighted):
    r"""Any loss, with class weights by a power of the inverse class frequency.

    .. math:: w_y = \frac{\pi_y^{-p}}{\sum_j \pi_j^{1-p}}, \qquad \sum_j \pi_j w_j = 1

    with :math:`\pi_j` the share of class j in training: the weights have mean one over the data.

    Parameters
    ----------
    power
        The power p: 1 makes all classes count the same (scikit-learn's `"balanced"`), 0.5 is half-way, 0 changes
        nothing.
    base
        The loss underneath: its name, or a loss with settings of its own such as `Focal(gamma=1.0)`.
    class_counts
        Number of training examples of each class; `bind` fills it in.
    ignore_index
        A label that marks units as not real, in place of the base's own.

    Returns
    -------
    Tensor
        The base's losses; the weights come out of `sample_weight`, so that they multiply after re-weighting.

    Examples
    --------
    >>> import torch
    >>> ClassWeights().bind([90, 10]).sample_weight(torch.tensor([0, 1]))
    tensor([0.5556, 5.0000])

    Notes
    -----
    A class without examples gets the weight of the rarest class that has some. The mean an objective takes divides by
    the sum of the weights in the batch, as torch's `weight=` does.
    """

    power: float = 1.0

    search: ClassVar[Mapping[str, tuple[Any, ...]]] = {"power": (1.0, 0.5)}

    def __post_init__(self) -> None:
        validate.non_negative("power", self.power)
        super().__post_init__()

    def weights_of(self, counts: tuple[int, ...]) -> tuple[float, ...]:
        """Inverse shares to the power, with mean one over the data."""
        least = min(n for n in counts if n)
        shares = [max(n, least) / sum(counts) for n in counts]
        mean = sum(n / sum(counts) * share**-self.power for n, share in zip(counts, shares, strict=True))
        return tuple(share**-self.power / mean for share in shares)
