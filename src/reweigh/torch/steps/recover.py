"""RECOVER: variance-reduced descent on KL-regularised distributionally robust optimisation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer

from reweigh import _validate as validate
from reweigh._array import max_over_ranks, sum_over_ranks, widen, world_size
from reweigh.torch.steps._base import (
    Closure,
    Closures,
    Step,
    Stepper,
    backward,
    kept_buffers,
    modules_of,
    refuse_scaler,
    unwrapped,
    with_losses,
)

__all__ = ["RECOVER"]


@dataclass(frozen=True, kw_only=True)
class RECOVER(Step):
    r"""Descend the tilted loss with running estimates of its inner value and gradient.

    .. math:: F(\theta) = \lambda \log h(\theta), \quad h = \mathbb E\, e^{\ell/\lambda}, \qquad
              u_t = h(\theta_t; z_t) + (1 - a)\big(u_{t-1} - h(\theta_{t-1}; z_t)\big), \qquad
              v_t = \nabla h(\theta_t; z_t) + (1 - a)\big(v_{t-1} - \nabla h(\theta_{t-1}; z_t)\big)

    Each batch z is evaluated at the present and at the previous parameters, which takes the drift out of the
    estimates (STORM). The optimizer is given :math:`\lambda v_t/u_t` as the gradient; step size and weight decay
    are its own.

    Parameters
    ----------
    lam
        Temperature, in units of the loss. Large values give back the plain mean.
    a
        How much of the old estimates is dropped each step; 1 uses the batch alone.

    Examples
    --------
    >>> import torch
    >>> from reweigh.torch.losses import MSE
    >>> from reweigh.torch.steps import Closure
    >>> model = torch.nn.Linear(1, 1, bias=False)
    >>> _ = torch.nn.init.zeros_(model.weight)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> batch = torch.ones(2, 1), torch.tensor([[1.0], [3.0]])
    >>> closure = Closure(model=model, batch=batch, losses=MSE())
    >>> loss = RECOVER(lam=1.0).start(model).step(optimizer, closure)
    >>> print(round(loss.item(), 4), round(model.weight.item(), 4))
    8.3072 0.5999

    Notes
    -----
    Kept in log space: the state is :math:`\lambda \log u` and :math:`\lambda v/u`, so nothing overflows and no
    running maximum has to be rescaled by hand. The recursion is a of the batch and 1 - a of the past carried to the
    present parameters, :math:`u_{t-1} + h(\theta_t; z_t) - h(\theta_{t-1}; z_t)`. Where that past is not positive,
    as a mean of exponentials is, the estimates start again from the batch. So u stays above a times the batch's
    own; to wait until u itself is negative would divide v by a u as near to zero as chance has it. The closure's
    `objective` is not asked: the step has its own. Micro-batches are joined exactly, and under
    DistributedDataParallel the batch is the global one. Returns the batch's own
    :math:`\lambda \log \mathrm{mean}\, e^{\ell/\lambda}`. The authors raise lam to 200 for a first stage of
    near-plain training and then lower it to 5. References: Qi et al., *An Online Method for A Class of
    Distributionally Robust Optimization with Non-Convex Objectives*, NeurIPS 2021.
    """

    lam: float = 5.0
    a: float = 0.9

    search: ClassVar[Mapping[str, tuple[Any, ...]]] = {"lam": (1.0, 3.0, 5.0, 7.0), "a": (0.5, 0.9)}
    cost: ClassVar[str] = "2 forward+backward"
    needs_losses: ClassVar[bool] = True
    own_objective: ClassVar[bool] = True

    def __post_init__(self) -> None:
        validate.positive("lam", self.lam)
        validate.fraction("a", self.a)

    def start(self, model: nn.Module) -> LiveRECOVER:
        """The live step."""
        return LiveRECOVER(self, model)


class _Estimate(NamedTuple):
    """A mean of exponentials as `lam log(mean)`, and `lam` times its gradient relative to it: that of the former."""

    value: Tensor
    gradient: list[Tensor]


class LiveRECOVER(Stepper):
    """The live form of :class:`RECOVER`."""

    def __init__(self, config: RECOVER, model: nn.Module) -> None:
        self.config = config
        self._model = unwrapped(model)
        self._names = [name for name, p in self._model.named_parameters() if p.requires_grad]
        self._parameters = [p for p in self._model.parameters() if p.requires_grad]
        self._estimate: _Estimate | None = None
        self._previous: list[Tensor] = []

    def step(self, optimizer: Optimizer, closure: Closures, *, scaler: GradScaler | None = None) -> Tensor:
        """Two gradients, new estimates, update."""
        refuse_scaler(scaler, "RECOVER")
        closures = with_losses(closure, "RECOVER", "it takes exponentials of the unit losses")
        here = self._evaluate(closures)
        if self._estimate is None or self.config.a == 1:
            estimate = here
        else:
            estimate = self._corrected(here, self._at_previous(closures), self._estimate)
        present = [parameter.detach().clone() for parameter in self._parameters]
        for parameter, gradient in zip(self._parameters, estimate.gradient, strict=True):
            parameter.grad = gradient.to(parameter.dtype, copy=True)
        optimizer.step()
        self._estimate, self._previous = estimate, present
        return here.value

    def _evaluate(self, closures: Sequence[Closure]) -> _Estimate:
        """The batch's own value and gradient, micro-batches joined."""
        joined: _Estimate | None = None
        units: Tensor | int = 0
        for closure in closures:
            part, number = self._sums(closure)
            joined = part if joined is None else _combine(self.config.lam, [(1.0, joined), (1.0, part)])
            units = units + number
        assert joined is not None
        count = torch.as_tensor(units, dtype=joined.value.dtype, device=joined.value.device)
        return _Estimate(joined.value - self.config.lam * count.log(), joined.gradient)

    def _sums(self, closure: Closure) -> tuple[_Estimate, Tensor | int]:
        """`lam log(sum exp(l/lam))` over a micro-batch and all ranks, its gradient, and the number of units."""
        lam = self.config.lam
        for parameter in self._parameters:
            parameter.grad = None
        losses = widen(closure.unit_losses().flatten())
        constant = losses.detach()
        top = max_over_ranks(constant.max())
        exponentials = ((constant - top) / lam).exp()
        total = sum_over_ranks(exponentials.sum())
        ranks = world_size(constant)
        # Data-parallel training averages gradients over ranks; the sum is wanted.
        backward(torch.dot(exponentials * (ranks / total), losses))
        gradient = [_gradient(parameter) for parameter in self._parameters]
        number = losses.shape[0]
        units = number if ranks == 1 else sum_over_ranks(torch.full_like(top, number))
        return _Estimate(top + lam * total.log(), gradient), units

    def _at_previous(self, closures: Sequence[Closure]) -> _Estimate:
        """The batch's value and gradient at the parameters of the step before."""
        present = [parameter.detach().clone() for parameter in self._parameters]
        self._put(self._previous)
        try:
            with kept_buffers([self._model, *modules_of(closures)]):
                return self._evaluate(closures)
        finally:
            self._put(present)

    @torch.no_grad()
    def _put(self, values: Sequence[Tensor]) -> None:
        for parameter, value in zip(self._parameters, values, strict=True):
            parameter.copy_(value)

    def _corrected(self, here: _Estimate, there: _Estimate, old: _Estimate) -> _Estimate:
        """The new estimates; the batch's own where the corrected past is no longer a mean of exponentials."""
        keep, lam = 1.0 - self.config.a, self.config.lam
        top = torch.stack([here.value, there.value, old.value]).max()
        past = _sum_signed(lam, top, [(1.0, old), (1.0, here), (-1.0, there)])
        new = _combine(lam, [(1.0, here), (keep, old), (-keep, there)])
        sound = past > 0
        return _Estimate(
            torch.where(sound, new.value, here.value),
            [torch.where(sound.to(n.device), n, h) for n, h in zip(new.gradient, here.gradient, strict=True)],
        )

    def state_dict(self) -> dict[str, Any]:
        """The estimates and the previous parameters."""
        if self._estimate is None:
            return {}
        value, gradient = self._estimate
        return {
            "value": value.clone(),
            "gradient": dict(zip(self._names, (g.clone() for g in gradient), strict=True)),
            "previous": dict(zip(self._names, (p.clone() for p in self._previous), strict=True)),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state."""
        if not state:
            self._estimate, self._previous = None, []
            return
        like = {name: p.device for name, p in zip(self._names, self._parameters, strict=True)}

        def place(tensors: Mapping[str, Tensor]) -> list[Tensor]:
            return [tensors[name].to(device, copy=True) for name, device in like.items()]

        device = self._parameters[0].device
        self._estimate = _Estimate(state["value"].to(device, copy=True), place(state["gradient"]))
        self._previous = place(state["previous"])


def _sum_signed(lam: float, top: Tensor, parts: Sequence[tuple[float, _Estimate]]) -> Tensor:
    """A sum of exponentials with coefficients, relative to `exp(top/lam)`."""
    return torch.stack([factor * ((part.value - top) / lam).exp() for factor, part in parts]).sum()


def _combine(lam: float, parts: Sequence[tuple[float, _Estimate]]) -> _Estimate:
    """The same sum in log space, with the gradient of its logarithm."""
    top = torch.stack([part.value for _, part in parts]).max()
    total = _sum_signed(lam, top, parts)
    shares = [factor * ((part.value - top) / lam).exp() / total for factor, part in parts]
    gradients = [part.gradient for _, part in parts]
    mixed = [
        torch.stack([share.to(g.device) * g for share, g in zip(shares, column, strict=True)]).sum(0)
        for column in zip(*gradients, strict=True)
    ]
    return _Estimate(top + lam * total.log(), mixed)


def _gradient(parameter: Tensor) -> Tensor:
    """A parameter's gradient in float32 at least; zeros where the loss does not depend on it."""
    return widen(torch.zeros_like(parameter) if parameter.grad is None else parameter.grad.detach().clone())
