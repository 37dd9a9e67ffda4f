"""Group-balanced sampling: every known group equally often."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from reweigh.torch.samplers._base import LiveSampler, SamplerConfig, Shard
from reweigh.torch.samplers.class_uniform import LiveClassUniform, checked

__all__ = ["GroupBalanced"]


@dataclass(frozen=True, kw_only=True)
class GroupBalanced(SamplerConfig):
    r"""Group-balanced sampling: draw a group uniformly, then one of its examples, with replacement.

    .. math:: p_i = \frac{1}{G\, n_{g_i}}

    where :math:`G` is the number of groups that occur and :math:`n_g` the number of examples of group :math:`g`. An
    epoch is as many draws as there are examples. Weights of examples multiply this probability. It uses group labels,
    so it is a bound for methods that do without.

    Returns
    -------
    LiveSampler
        From `start(n, batch_size=..., groups=...)`. It needs no `update`, and corrects nothing.

    Examples
    --------
    >>> import torch
    >>> groups = torch.tensor([0, 0, 0, 0, 0, 0, 1, 1])
    >>> sampler = GroupBalanced().start(8, batch_size=4, groups=groups)
    >>> sampler.probabilities()[[0, 7]]
    tensor([0.0833, 0.2500], dtype=torch.float64)

    Notes
    -----
    Groups are usually classes crossed with an attribute. References: Idrissi et al., *Simple Data Balancing Achieves
    Competitive Worst-Group-Accuracy*, CLeaR 2022 (their "RWG" draws the same way).
    """

    search: ClassVar[Mapping[str, tuple[Any, ...]]] = {}
    cost: ClassVar[str] = "O(B)"
    needs: ClassVar[tuple[str, ...]] = ("groups",)

    def _live(self, shard: Shard, targets: Tensor | None) -> LiveSampler:
        return LiveClassUniform(shard, checked(targets, shard.n, "groups", "group"))
