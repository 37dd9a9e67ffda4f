"""Hardness-weighted sampling: draw from the softmax of the last losses seen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from reweigh import _validate as validate
from reweigh.torch.samplers._base import Draw, LiveSampler, SamplerConfig, Shard
from reweigh.torch.samplers._sum_tree import SumTree

__all__ = ["Hardness"]

_LOW, _HIGH = 0.1, 10.0


@dataclass(frozen=True, kw_only=True)
class Hardness(SamplerConfig):
    r"""Hardness-weighted sampling: draw examples from the softmax of their stale losses.

    .. math:: p_i = \frac{e^{\beta L_i}}{\sum_j e^{\beta L_j}}

    where :math:`L_i` is the last loss seen of example :math:`i`. Plain descent on batches drawn so descends the
    KL-penalised worst case :math:`\max_q \sum_i q_i \ell_i - \frac1\beta \mathrm{KL}(q \| \text{uniform})`;
    with weights of examples, relative to their shares of the weights instead of the uniform distribution.

    Parameters
    ----------
    beta
        Robustness: towards 0 all examples are drawn alike, towards infinity only the hardest.
    correction
        Whether `sample_weight` corrects for the age of the losses by
        :math:`e^{\beta(\ell_i - L_i)}`, clipped to [0.1, 10].
    initial
        The loss that examples are taken to have before their first visit. Choose the largest that is expected:
        with a large `beta` an example that starts too low is never drawn.

    Returns
    -------
    LiveSampler
        From `start(n, batch_size=...)`.

    Examples
    --------
    >>> sampler = Hardness(beta=2.0).start(3, batch_size=3)
    >>> sampler.update(torch.tensor([0, 1, 2]), torch.tensor([0.0, 0.5, 1.0]))
    >>> sampler.probabilities()
    tensor([0.0900, 0.2447, 0.6652], dtype=torch.float64)

    Notes
    -----
    Draws are with replacement, in O(log n); the authors' code draws each batch without replacement in O(n), lifts
    probabilities below 1e-4/n to that, and adds a little noise to `initial`. The tree keeps logarithms, so no
    probability underflows before the softmax does. References: Fidon et al., *Distributionally Robust Deep
    Learning using Hardness Weighted Sampling*, MELBA 2022.
    """

    beta: float = 100.0
    correction: bool = False
    initial: float = 1.0

    search: ClassVar[Mapping[str, tuple[Any, ...]]] = {"beta": (10.0, 100.0, 1000.0)}
    cost: ClassVar[str] = "O(B log n); 8 bytes per example"
    needs: ClassVar[tuple[str, ...]] = ("losses",)

    def __post_init__(self) -> None:
        validate.positive("beta", self.beta, "For plain shuffling use Uniform().")
        validate.one_of("correction", self.correction, (True, False))
        validate.real("initial", self.initial)

    def _live(self, shard: Shard, targets: Tensor | None) -> LiveSampler:
        return _LiveHardness(self, shard)


class _LiveHardness(LiveSampler):
    _adaptive = True

    def __init__(self, config: Hardness, shard: Shard) -> None:
        super().__init__(shard, corrects=config.correction)
        self.config = config
        start = torch.full((shard.n,), config.beta * config.initial, dtype=torch.float64)
        self._offsets = start.new_zeros(()).expand(shard.n) if shard.weight is None else shard.weight.log()
        self._tree = SumTree(start + self._offsets, logarithms=True)

    def probabilities(self) -> Tensor:
        """The softmax of beta times the stale losses, times the weights."""
        return self._tree.shares()

    def _draw(self) -> Draw:
        indices = self._tree.draw(self._uniform(self.shard.global_size))
        return Draw(indices, (self._tree.values[indices] - self._offsets[indices]) / self.config.beta)

    def _learn(self, indices: Tensor, losses: Tensor, record: Tensor | None) -> None:
        self._tree.update(indices, self.config.beta * losses + self._offsets[indices])

    def _correction(self, losses: Tensor, record: Tensor) -> Tensor:
        # A huge exponent becomes infinite and is clipped like any other.
        return torch.exp(self.config.beta * (losses - record)).clamp(_LOW, _HIGH)

    def _state(self) -> dict[str, Tensor]:
        return {"exponents": self._tree.values}

    def _load_state(self, state: Mapping[str, Tensor]) -> None:
        self._tree.rebuild(state["exponents"].to("cpu"))
