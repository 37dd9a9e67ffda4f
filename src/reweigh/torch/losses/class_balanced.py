"""Class-balanced weights from the effective number of examples, on top of any loss."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from reweigh import _validate as validate
from reweigh.torch.losses._base import counts_of
from reweigh.torch.losses._class_weighted import ClassWeighted

__all__ = ["ClassBalanced", "effective_number_weights"]


def effective_number_weights(class_counts: Sequence[int], beta: float) -> tuple[float, ...]:
    r"""One weight per class: the inverse of its effective number of examples, rescaled.

    .. math:: w_j \propto \frac{1-\beta}{1-\beta^{n_j}}, \qquad \sum_j w_j = C

    A class without examples has no effective number. It gets the weight of the rarest class that has some, and is
    left out of the rescaling: the weights of the others are what they would be without it.

    Examples
    --------
    >>> [round(w, 4) for w in effective_number_weights([100, 10], beta=0.9)]
    [0.7889, 1.2111]
    """
    counts = counts_of(class_counts, "effective_number_weights")
    validate.fraction("beta", beta, zero=True, one=False)
    # expm1 keeps 1 - beta^n exact for the smallest 1 - beta.
    inverse = [1.0 if beta == 0 else (1 - beta) / -math.expm1(n * math.log(beta)) if n else 0.0 for n in counts]
    if beta == 0:
        return tuple(inverse)
    scale = sum(n > 0 for n in counts) / sum(inverse)
    rarest = max(inverse)
    return tuple(scale * (value or rarest) for value in inverse)


@dataclass(frozen=True, kw_only=True)
class ClassBalanced(ClassWeighted):
    r"""Any loss, with class weights by the effective number of examples.

    .. math:: w_y = C \cdot \frac{(1-\beta)/(1-\beta^{n_y})}{\sum_j (1-\beta)/(1-\beta^{n_j})}

    The losses are those of the base loss; the class weights come out of `sample_weight`, so that they multiply
    after re-weighting.

    Parameters
    ----------
    beta
        0 weighs all classes the same; towards 1 the weights go to the inverse class frequency.
    base
        The loss underneath: its name, or a loss with settings of its own such as `Focal(gamma=1.0)`.
    class_counts
        Number of training examples of each class; `bind` fills it in.
    ignore_index
        A label that marks units as not real, in place of the base's own.

    Returns
    -------
    Tensor
        The base's losses.

    Examples
    --------
    >>> import torch
    >>> loss = ClassBalanced(beta=0.9).bind([100, 10])
    >>> loss.sample_weight(torch.tensor([0, 1, 1]))
    tensor([0.7889, 1.2111, 1.2111])

    Notes
    -----
    Follows the authors' rescaling to a sum of C over the classes (not over the batch). Departures: a class without
    examples is allowed (see :func:`effective_number_weights`); the authors' sigmoid form is
    `base=Focal(gamma=0.0, form="sigmoid")`. The mean an objective takes divides by the sum of the weights in the
    batch, where the authors divide by the number of examples. References: Cui et al., *Class-Balanced Loss Based
    on Effective Number of Samples*, CVPR 2019.
    """

    beta: float = 0.9999

    search: ClassVar[Mapping[str, tuple[Any, ...]]] = {"beta": (0.9, 0.99, 0.999, 0.9999)}

    def __post_init__(self) -> None:
        validate.fraction("beta", self.beta, zero=True, one=False)
        super().__post_init__()

    def weights_of(self, counts: tuple[int, ...]) -> tuple[float, ...]:
        """Inverse effective numbers."""
        return effective_number_weights(counts, self.beta)
