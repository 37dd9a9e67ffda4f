"""Every class equally often, however rare it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from reweigh.torch.losses.class_weights import ClassWeights
from reweigh.torch.samplers._base import Draw, LiveSampler, SamplerConfig, Shard
from reweigh.torch.samplers._sum_tree import SumTree

__all__ = ["ClassUniform"]


@dataclass(frozen=True, kw_only=True)
class ClassUniform(SamplerConfig):
    r"""Class-balanced sampling: draw a class uniformly, then one of its examples, with replacement.

    .. math:: p_i = \frac{1}{C\, n_{y_i}}

    where :math:`C` is the number of classes that occur and :math:`n_y` the number of examples of class :math:`y`.
    An epoch is as many draws as there are examples. Weights of examples multiply this probability, so a class is then
    drawn in proportion to the mean weight of its examples.

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

    def class_factors(self, class_counts: Sequence[int] | None) -> Sequence[float]:
        """Inverse shares: what `prior` must not correct for a second time."""
        return ClassWeights(power=1.0).class_factors(class_counts)

    def _live(self, shard: Shard, targets: Tensor | None) -> LiveSampler:
        return LiveClassUniform(shard, checked(targets, shard.n, "targets", "class"))


class LiveClassUniform(LiveSampler):
    """The live form: every class, or other label, equally often."""

    def __init__(self, shard: Shard, targets: Tensor) -> None:
        super().__init__(shard)
        _, self._classes, self._counts = torch.unique(targets, return_inverse=True, return_counts=True)
        self._members = torch.argsort(self._classes, stable=True)  # examples, class after class
        self._starts = self._counts.cumsum(0) - self._counts
        self._tree = None if shard.weight is None else SumTree(self.probabilities())

    def probabilities(self) -> Tensor:
        """The inverse of the number of classes times the number of examples of one's class, times its weight."""
        return self.shard.weighted((1.0 / (self._counts.shape[0] * self._counts.to(torch.float64)))[self._classes])

    def _draw(self) -> Draw:
        size = self.shard.global_size
        if self._tree is not None:
            return Draw(self._tree.draw(self._uniform(size)))
        chosen = torch.randint(self._counts.shape[0], (size,), generator=self._generator)
        counts = self._counts[chosen]
        within = (self._uniform(size) * counts).to(torch.int64)
        return Draw(self._members[self._starts[chosen] + torch.minimum(within, counts - 1)])


def checked(labels: Tensor | None, n: int, name: str, kind: str) -> Tensor:
    """The class or group of each example, on the host, or an error that names what is wrong with it."""
    if labels is None:
        raise ValueError(
            f"`{name}` must be given to draw each {kind} equally often, got None. "
            f"Pass the {kind} of each example: start(n, batch_size=..., {name}=labels)."
        )
    labels = torch.as_tensor(labels).detach().to("cpu")
    if labels.shape != (n,):
        raise ValueError(f"`{name}` must have one {kind} for each of {n} examples, got shape {tuple(labels.shape)}.")
    if labels.is_floating_point():
        raise TypeError(f"`{name}` must be integers, one {kind} each, got {labels.dtype}. Convert them with argmax.")
    return labels
