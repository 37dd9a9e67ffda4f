"""Samplers: which examples are drawn, as batch samplers for `torch.utils.data.DataLoader`.

A sampler is a frozen value; `start` gives the live one that a `DataLoader` takes as `batch_sampler`:

>>> import torch
>>> from reweigh.torch.samplers import Importance
>>> losses_of_data = torch.tensor([0.1, 0.2, 0.1, 3.0])
>>> sampler = Importance(tau=1.0).start(4, batch_size=2, seed=0)
>>> for batch in sampler:
...     indices = torch.tensor(batch)
...     losses = losses_of_data[indices]
...     factors = sampler.sample_weight(indices, losses)  # before the update
...     loss = (factors * losses).mean()
...     sampler.update(indices, losses)  # after the step
>>> len(sampler)
2
"""

from __future__ import annotations

from reweigh.torch.samplers._base import LiveSampler, SamplerConfig
from reweigh.torch.samplers._sum_tree import SumTree
from reweigh.torch.samplers.class_uniform import ClassUniform
from reweigh.torch.samplers.group_balanced import GroupBalanced
from reweigh.torch.samplers.hardness import Hardness
from reweigh.torch.samplers.importance import Importance
from reweigh.torch.samplers.primal_dual import PrimalDual
from reweigh.torch.samplers.uniform import Uniform

__all__ = [
    "Uniform",
    "Importance",
    "Hardness",
    "PrimalDual",
    "ClassUniform",
    "GroupBalanced",
    "SamplerConfig",
    "LiveSampler",
    "SumTree",
]
