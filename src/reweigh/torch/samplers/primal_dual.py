"""Primal-dual bandit descent: a second player learns which examples to draw."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from reweigh import _validate as validate
from reweigh.torch.samplers._base import Draw, LiveSampler, SamplerConfig, Shard
from reweigh.torch.samplers._chi_square_ball import ChiSquareBall
from reweigh.torch.samplers._sum_tree import SumTree

__all__ = ["PrimalDual"]


@dataclass(frozen=True, kw_only=True)
class PrimalDual(SamplerConfig):
    r"""Namkoong and Duchi's game: the model descends on examples drawn from p, and p ascends on their losses.

    .. math:: I \sim p, \qquad \theta \leftarrow \theta - a_\theta \nabla \ell_I(\theta), \qquad
              q_I \leftarrow q_I + \eta\, \frac{\ell_I}{q_I} \text{ and project}, \qquad q = n p

    onto :math:`\{p \in \Delta : \frac12 \|n p - 1\|^2 \le \rho,\ p_i \ge \delta/n\}` (`"chi2"`). Dividing by
    :math:`q_I` makes the one coordinate that is seen an unbiased estimate of the whole gradient in :math:`p`. The
    penalised form (`"kl"`) descends :math:`\max_p \sum_i p_i \ell_i - \lambda\, \mathrm{KL}(p \|
    \text{uniform})` by

    .. math:: q_I \leftarrow q_I \exp\!\Big(\eta\, \frac{\ell_I - \lambda \log q_I}{\hat q_I}\Big)
              \text{ and renormalise}, \qquad \hat q = (1 - \delta) q + \delta

    with :math:`\hat q` drawn from, so that the floor holds there too; its fixed point is
    :math:`p_i \propto e^{\ell_i/\lambda}`.

    Parameters
    ----------
    divergence
        `"chi2"` (constrained to a ball) or `"kl"` (penalised).
    rho
        Radius of the chi-square ball. `None` stands for `n`, a mean squared relative deviation of two; statistical
        guarantees ask for a radius that does not grow with `n`, and are closer to plain descent.
    penalty
        :math:`\lambda`, in units of the loss, of the `"kl"` form; `None` stands for 1.
    step
        :math:`\eta`, the step of the second player for losses of order one. In terms of a step :math:`a_p` on
        :math:`p` itself, :math:`\eta = n^2 a_p` (`"chi2"`) and :math:`n\, a_p` (`"kl"`), so that it need not be
        tuned again for another `n`.
    floor
        :math:`\delta`, the least probability times `n`.
    offset
        Subtracted from the losses, for losses whose floor is not zero; what is still negative counts as zero.

    Returns
    -------
    LiveSampler
        From `start(n, batch_size=...)`. The objective used with it is the plain mean; nothing is to be corrected,
        because the drawing is the emphasis.

    Examples
    --------
    >>> sampler = PrimalDual(rho=4.0, step=0.5).start(8, batch_size=8, seed=1)
    >>> for _ in range(50):
    ...     for batch in sampler:
    ...         indices = torch.tensor(batch)
    ...         sampler.update(indices, (indices == 3).double())
    >>> int(sampler.probabilities().argmax())
    3

    Notes
    -----
    A batch of B is B one-coordinate steps whose draws share one p, with one projection (or renormalisation) at
    the end: the same expected motion of p an epoch at any batch size, and the published iteration at B = 1.
    Estimates divide by the probability at the time of drawing, which keeps them unbiased when batches are
    prefetched. With weights of examples the draws are from :math:`p` times the weights, at O(n) per batch; estimates
    divide by the probability of the draw, so the expected step of p for an example is that without weights, unless
    its weight is 0; a very small weight makes rare and large steps, because the floor bounds p alone. In the theory
    both players' steps shrink as :math:`1/\sqrt T` with the length of the run; `step` is constant here. References:
    Namkoong and Duchi, *Stochastic Gradient Methods for Distributionally
    Robust Optimization with f-divergences*, NeurIPS 2016.
    """

    divergence: Literal["chi2", "kl"] = "chi2"
    rho: float | None = None
    penalty: float | None = None
    step: float = 0.1
    floor: float = 0.1
    offset: float = 0.0

    search: ClassVar[Mapping[str, tuple[Any, ...]]] = {"step": (0.01, 0.1, 1.0)}
    cost: ClassVar[str] = "O(B log n) amortised; 8 bytes per example"
    needs: ClassVar[tuple[str, ...]] = ("losses",)

    def __post_init__(self) -> None:
        validate.one_of("divergence", self.divergence, ("chi2", "kl"))
        if self.rho is not None:
            if self.divergence != "chi2":
                raise ValueError(f"`rho` belongs to divergence='chi2', got it with {self.divergence!r}. Use penalty.")
            validate.positive("rho", self.rho, "For plain shuffling use Uniform().")
        if self.penalty is not None:
            if self.divergence != "kl":
                raise ValueError(f"`penalty` belongs to divergence='kl', got it with {self.divergence!r}. Use rho.")
            validate.positive("penalty", self.penalty)
        validate.positive("step", self.step)
        validate.fraction("floor", self.floor, "0.1 keeps every example in play.", one=False)
        validate.real("offset", self.offset)

    def _live(self, shard: Shard, targets: Tensor | None) -> LiveSampler:
        return _LiveChiSquare(self, shard) if self.divergence == "chi2" else _LivePenalised(self, shard)

    def rewards(self, losses: Tensor, record: Tensor | None) -> tuple[Tensor, Tensor]:
        """What the second player earns, and the relative probabilities it was drawn with."""
        if record is None:
            raise ValueError(
                "`indices` must belong to one batch that was drawn and not yet updated, got others. The estimate "
                "divides by the probability of the draw; update once for each batch, with the indices it gave."
            )
        return (losses - self.offset).clamp_min(0.0), record


class _LivePrimalDual(LiveSampler):
    """What both forms share."""

    _adaptive = True

    def _draw_weighted(self) -> Draw:
        """A batch drawn by p times the weights of the examples, in O(n)."""
        p = self.probabilities()
        indices = SumTree(p).draw(self._uniform(self.shard.global_size))
        return Draw(indices, self.shard.n * p[indices])


class _LiveChiSquare(_LivePrimalDual):
    def __init__(self, config: PrimalDual, shard: Shard) -> None:
        super().__init__(shard)
        self.config = config
        rho = float(shard.n) if config.rho is None else config.rho
        self._ball = ChiSquareBall(shard.n, rho=rho, floor=config.floor)

    def probabilities(self) -> Tensor:
        """The second player's p, times the weights."""
        return self.shard.weighted(self._ball.weights() / self.shard.n)

    def _draw(self) -> Draw:
        if self.shard.weight is not None:
            return self._draw_weighted()
        indices = self._ball.draw(self._uniform(self.shard.global_size))
        return Draw(indices, self._ball.weights(indices))

    def _learn(self, indices: Tensor, losses: Tensor, record: Tensor | None) -> None:
        rewards, drawn = self.config.rewards(losses, record)
        self._ball.nudge(indices, self.config.step * rewards / drawn)

    def _state(self) -> dict[str, Tensor]:
        return self._ball.state()

    def _load_state(self, state: Mapping[str, Tensor]) -> None:
        self._ball.load(dict(state))


class _LivePenalised(_LivePrimalDual):
    def __init__(self, config: PrimalDual, shard: Shard) -> None:
        super().__init__(shard)
        self.config = config
        self._penalty = 1.0 if config.penalty is None else config.penalty
        self._tree = SumTree(torch.zeros(shard.n, dtype=torch.float64), logarithms=True)

    def probabilities(self) -> Tensor:
        """The second player's p, mixed with the uniform distribution for the floor, times the weights."""
        return self.shard.weighted(self._mixed(self.shard.n * self._tree.shares()) / self.shard.n)

    def _mixed(self, weights: Tensor) -> Tensor:
        return (1.0 - self.config.floor) * weights + self.config.floor

    def _draw(self) -> Draw:
        if self.shard.weight is not None:
            return self._draw_weighted()
        size, n = self.shard.global_size, self.shard.n
        drawn = self._tree.draw(self._uniform(size))
        anyone = (self._uniform(size) * n).to(torch.int64).clamp_max(n - 1)
        indices = torch.where(self._uniform(size) < self.config.floor, anyone, drawn)
        return Draw(indices, self._mixed(n * self._tree.shares(indices)))

    def _learn(self, indices: Tensor, losses: Tensor, record: Tensor | None) -> None:
        rewards, drawn = self.config.rewards(losses, record)
        indices, place = torch.unique(indices, return_inverse=True)
        # Renormalising is implicit: the tree keeps logarithms, and only their differences matter.
        exponents = self._tree.values[indices]
        weights = exponents - self._tree.total + math.log(self.shard.n)
        gains = self.config.step * (rewards - self._penalty * weights[place]) / drawn
        self._tree.update(indices, exponents.index_add(0, place, gains))

    def _state(self) -> dict[str, Tensor]:
        return {"exponents": self._tree.values}

    def _load_state(self, state: Mapping[str, Tensor]) -> None:
        self._tree.rebuild(state["exponents"].to("cpu"))
