"""Re-weighting by drawing: hard examples are drawn more often instead of counting for more."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from reweigh import _validate as validate
from reweigh.torch.samplers._base import Draw, LiveSampler, SamplerConfig, Shard
from reweigh.torch.samplers._sum_tree import SumTree
from reweigh.weights import KL

__all__ = ["Importance"]

#: Stored weights stay within e^±300, so that no sum of them overflows and none is zero.
_EXTREME = math.exp(300.0)


@dataclass(frozen=True, kw_only=True)
class Importance(SamplerConfig):
    r"""Importance-sampled RGD: draw an example in proportion to its RGD weight, for extreme imbalance.

    .. math:: p_i = \frac{s_i}{\sum_j s_j}, \qquad
              v = \frac1B \sum_{i \sim p} \frac{w_i}{n\, p_i} \nabla \ell_i, \qquad
              w_i = \exp\!\big(\gamma\, \mathrm{clip}(\ell_i, 0, \tau)\big)

    :math:`s_i` is the weight of the last loss seen of example :math:`i`, and :math:`w_i` that of its loss now. Every
    example starts at the largest weight, so that none is passed over before it has been seen. Whatever the age of
    :math:`s`, the expectation of :math:`v` is the gradient of RGD over the whole data set,
    :math:`\frac1n\sum_i w_i \nabla\ell_i`. With fresh weights its second moment is
    :math:`\mathbb E[w]\,\mathbb E[w\,|g|^2]` against :math:`\mathbb E[w^2|g|^2]` of uniform drawing: less wherever
    gradients grow with the loss. With weights :math:`a` of examples, :math:`p_i \propto a_i s_i`, and
    :math:`a_i / \sum_j a_j` stands wherever :math:`1/n` stood.

    Parameters
    ----------
    tau, gamma, offset
        The weight function, :class:`~reweigh.KL`. `tau=None` with a `gamma` is the unclipped
        :math:`e^{\gamma\ell}`, for which `initial` is required.
    correction
        Whether `sample_weight` gives :math:`w_i/(n p_i)`. Without it, the paper's plain form, drawn examples count
        alike and the gradient is that of RGD divided by the mean weight (and lags behind it with the age of
        :math:`s`).
    initial
        The loss that examples are taken to have before their first visit; `tau`, hence the largest weight, unless
        given.

    Returns
    -------
    LiveSampler
        From `start(n, batch_size=...)`. The objective used with it is the *plain mean*: the weight is already in the
        drawing and in `sample_weight`. A method that names another objective is refused.

    Examples
    --------
    >>> sampler = Importance(tau=1.0).start(3, batch_size=3)
    >>> sampler.update(torch.tensor([0, 1, 2]), torch.tensor([0.0, 0.5, 9.0]))
    >>> sampler.probabilities()
    tensor([0.2543, 0.3265, 0.4192], dtype=torch.float64)

    Notes
    -----
    The paper writes the weight as :math:`e^{\ell}` and leaves storage open; the clipped weight, the sum tree, the
    optimistic start and the correction for stale weights are ours. Stored weights are held within
    :math:`e^{\pm 300}`. References: Kumar et al., *Stochastic Re-weighted Gradient Descent via Distributionally
    Robust Optimization*, TMLR 2024.
    """

    tau: float | None = 1.0
    gamma: float | None = None
    offset: float = 0.0
    correction: bool = True
    initial: float | None = None

    search: ClassVar[Mapping[str, tuple[Any, ...]]] = {"tau": (1.0, 3.0, 5.0, 7.0, 9.0)}
    cost: ClassVar[str] = "O(B log n); 8 bytes per example"
    needs: ClassVar[tuple[str, ...]] = ("losses",)
    #: The weight is in the drawing: an objective other than the mean would count it a second time.
    own_objective: ClassVar[bool] = True

    def __post_init__(self) -> None:
        validate.boolean("correction", self.correction)
        weight = KL(tau=self.tau, gamma=self.gamma, offset=self.offset)
        if self.initial is not None:
            validate.real("initial", self.initial)
        elif self.tau is None:
            raise ValueError(
                "`initial` is required when `tau` is None, because an unclipped weight has no largest value to start "
                "from. Give the loss of an untrained model, for example the logarithm of the number of classes."
            )
        object.__setattr__(self, "_weight", weight)

    @property
    def weight(self) -> KL:
        """The weight function."""
        return self.__dict__["_weight"]

    def _live(self, shard: Shard, targets: Tensor | None) -> LiveSampler:
        return _LiveImportance(self, shard)

    def first_weight(self) -> float:
        """The weight of an example that was never visited: the largest there is, unless `initial` says otherwise."""
        if self.initial is not None:
            losses = [self.initial]
        else:
            assert self.tau is not None
            losses = [self.offset, self.offset + self.tau]  # a negative gamma has its largest weight at the low end
        weights = self.weight(torch.tensor(losses, dtype=torch.float64))
        return float(weights.clamp(1.0 / _EXTREME, _EXTREME).amax())


class _LiveImportance(LiveSampler):
    _adaptive = True

    def __init__(self, config: Importance, shard: Shard) -> None:
        super().__init__(shard, corrects=config.correction)
        self.config = config
        start = torch.full((shard.n,), config.first_weight(), dtype=torch.float64)
        self._weight = start.new_ones(()).expand(shard.n) if shard.weight is None else shard.weight
        self._mean_weight = self._weight.mean()
        self._tree = SumTree(start * self._weight)

    def probabilities(self) -> Tensor:
        """The stored weights times those of the examples, divided by their sum."""
        return self._tree.shares()

    def _draw(self) -> Draw:
        indices = self._tree.draw(self._uniform(self.shard.global_size))
        # How much more often than by the examples' own weights alone.
        relative = self.shard.n * self._tree.shares(indices) * self._mean_weight / self._weight[indices]
        return Draw(indices, relative)

    def _learn(self, indices: Tensor, losses: Tensor, record: Tensor | None) -> None:
        stored = self.config.weight(losses).clamp(1.0 / _EXTREME, _EXTREME)
        self._tree.update(indices, stored * self._weight[indices])

    def _correction(self, losses: Tensor, record: Tensor) -> Tensor:
        return self.config.weight(losses) / record

    def _state(self) -> dict[str, Tensor]:
        return {"weights": self._tree.values}

    def _load_state(self, state: Mapping[str, Tensor]) -> None:
        self._tree.rebuild(state["weights"].to("cpu"))
