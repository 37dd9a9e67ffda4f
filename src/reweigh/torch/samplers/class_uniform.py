"""Every class equally often, however rare it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from reweigh.torch.samplers._base import Draw, LiveSampler, SamplerConfig, Shard

__all__ = ["ClassUniform"]


@dataclass(frozen=True, kw_only=True)
class ClassUniform(SamplerConfig):
    r"""Class-balanced sampling: draw a class uniformly, then one of its examples, with replacement.

    .. math:: p_i = \frac{1}{C\, n_{y_i}}

    where :math:`C` is the number of classes that occur and :math:`n_y` the number of examples of class :math:`y`.
    An epoch is as many draws as there are examples.

    Returns
    -------
    LiveSampler
        From `start(n, batch_size=..., targets=...)`. It needs no `update`, and corrects nothing: equal emphasis on
        classes is what it is for.

    Examples
    --------
    >>> targets = torch.tensor([0, 0, 0, 0, 0, 0, 1, 1])
    >>> sampler = ClassUniform().start(8, batch_size=4, targets=targets)
    >>> sampler.probabilities()[[0, 7]]
    tensor([0.0833, 0.2500], dtype=torch.float64)

    Notes
    -----
    References: Kang et al., *Decoupling Representation and Classifier for Long-Tailed Recognition*, ICLR 2020
    ("class-balanced sampling").
    """

    search: ClassVar[Mapping[str, tuple[Any, ...]]] = {}
    cost: ClassVar[str] = "O(B)"
    needs: ClassVar[tuple[str, ...]] = ("targets",)

    def _live(self, shard: Shard, targets: Tensor | None) -> LiveSampler:
        return _LiveClassUniform(shard, _checked(targets, shard.n))


class _LiveClassUniform(LiveSampler):
    def __init__(self, shard: Shard, targets: Tensor) -> None:
        super().__init__(shard)
        _, self._classes, self._counts = torch.unique(targets, return_inverse=True, return_counts=True)
        self._members = torch.argsort(self._classes, stable=True)  # examples, class after class
        self._starts = self._counts.cumsum(0) - self._counts

    def probabilities(self) -> Tensor:
        """The inverse of the number of classes times the number of examples of one's class."""
        return (1.0 / (self._counts.shape[0] * self._counts.to(torch.float64)))[self._classes]

    def _draw(self) -> Draw:
        size = self.shard.global_size
        chosen = torch.randint(self._counts.shape[0], (size,), generator=self._generator)
        counts = self._counts[chosen]
        within = (self._uniform(size) * counts).to(torch.int64)
        return Draw(self._members[self._starts[chosen] + torch.minimum(within, counts - 1)])


def _checked(targets: Tensor | None, n: int) -> Tensor:
    if targets is None:
        raise ValueError(
            "`targets` must be given to draw classes uniformly, got None. "
            "Pass the class of each example: start(n, batch_size=..., targets=labels)."
        )
    targets = torch.as_tensor(targets).detach().to("cpu")
    if targets.shape != (n,):
        raise ValueError(f"`targets` must have one class for each of {n} examples, got shape {tuple(targets.shape)}.")
    if targets.is_floating_point():
        raise TypeError(f"`targets` must be integer classes, got {targets.dtype}. Convert soft labels with argmax.")
    return targets
