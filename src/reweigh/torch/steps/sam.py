"""Sharpness-aware minimisation: the gradient is taken a little uphill."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer

from reweigh import _validate as validate
from reweigh._array import widen
from reweigh.torch.steps._base import (
    Closures,
    Step,
    Stepper,
    descend,
    in_turn,
    kept_buffers,
    modules_of,
    parameters_of,
    update,
)

__all__ = ["SAM"]


@dataclass(frozen=True, kw_only=True)
class SAM(Step):
    r"""Climb to the worst point nearby, take the gradient there, and step with it from where you were.

    .. math:: e = \rho\, \frac{g}{\lVert g \rVert}, \qquad g = \nabla L(\theta), \qquad
              \theta \leftarrow \mathrm{step}\big(\theta, \nabla L(\theta + e)\big)

    The adaptive form measures distance relative to each parameter's size,
    :math:`e = \rho\, \theta^2 g / \lVert\, |\theta|\, g \rVert`.

    Parameters
    ----------
    rho
        How far to climb. None means 0.05, or 2.0 in the adaptive form.
    adaptive
        Whether to use the adaptive form (ASAM).

    Examples
    --------
    >>> import torch
    >>> model = torch.nn.Linear(1, 1, bias=False)
    >>> _ = torch.nn.init.ones_(model.weight)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.25)
    >>> _ = SAM(rho=0.5).start(model).step(optimizer, lambda: model.weight.square().sum())
    >>> model.weight.item()
    0.25

    Notes
    -----
    Both passes use the whole loss: a re-weighting objective computes its weights again in the second. Micro-batches
    are all run once for the perturbation and all again at the perturbed point, so accumulation is exact. Parameters
    come back bit for bit before the update. Buffers (running statistics, the state of an objective that is a
    module) keep what the first pass made of them. With a gradient scaler the first gradient is unscaled before it
    is used, and an overflow in either pass skips the update; without one, values that are not finite reach the
    optimizer, as in a plain step. Departure: under DistributedDataParallel gradients are already averaged when the
    perturbation is made, so it is that of the global batch, where the authors perturb each worker by its own. The
    adaptive form scales by :math:`|\theta|` itself, without the small constant of its paper.
    References: Foret et al., *Sharpness-Aware Minimization*, ICLR 2021; Kwon et al., *ASAM*, ICML 2021.
    """

    rho: float | None = None
    adaptive: bool = False

    search: ClassVar[Mapping[str, tuple[Any, ...]]] = {"rho": (0.01, 0.02, 0.05, 0.1, 0.2)}
    cost: ClassVar[str] = "2 forward+backward"

    def __post_init__(self) -> None:
        if self.rho is not None:
            validate.positive("rho", self.rho, "Distances of 0.01 to 0.5 are usual (2.0 in the adaptive form).")

    @property
    def radius(self) -> float:
        """`rho`, or its default for the form."""
        return self.rho if self.rho is not None else (2.0 if self.adaptive else 0.05)

    def start(self, model: nn.Module) -> LiveSAM:
        """The live step."""
        return LiveSAM(self, model)


class LiveSAM(Stepper):
    """The live form of :class:`SAM`."""

    def __init__(self, config: SAM, model: nn.Module) -> None:
        self.config = config
        self._model = model

    def step(self, optimizer: Optimizer, closure: Closures, *, scaler: GradScaler | None = None) -> Tensor:
        """Gradient, climb, gradient, back, update."""
        closures = in_turn(closure)
        optimizer.zero_grad(set_to_none=True)
        loss = descend(closures, scaler)
        moved = [parameter for parameter in parameters_of(optimizer) if parameter.grad is not None]
        if not moved:
            raise ValueError("SAM needs a gradient, got none: no parameter of the optimizer is used by the closure.")
        saved = [parameter.detach().clone() for parameter in moved]
        try:
            finite = self._climb(moved, scaler)
            optimizer.zero_grad(set_to_none=True)
            with kept_buffers([self._model, *modules_of(closures)]):
                descend(closures, scaler)
        finally:
            with torch.no_grad():
                for parameter, value in zip(moved, saved, strict=True):
                    parameter.copy_(value)
        if scaler is not None and moved[0].grad is not None:
            # The scaler sees only the second gradient: an overflow of the first must show in it.
            moved[0].grad.mul_(torch.where(finite, 1.0, float("nan")))
        update(optimizer, scaler)
        return loss

    @torch.no_grad()
    def _climb(self, parameters: Sequence[Tensor], scaler: GradScaler | None) -> Tensor:
        """Move the parameters uphill; whether the gradient was finite."""
        directions = [widen(parameter.grad) for parameter in parameters if parameter.grad is not None]
        device = directions[0].device
        if scaler is not None:
            # The scale as a tensor: asking the scaler for a number would stall the device.
            scale = scaler.scale(torch.ones((), device=device))
            directions = [direction / scale.to(direction.device) for direction in directions]
        if self.config.adaptive:
            sizes = [widen(parameter).abs() for parameter in parameters]
            directions = [size * direction for size, direction in zip(sizes, directions, strict=True)]
            norm = _norm(directions, device)
            directions = [size * direction for size, direction in zip(sizes, directions, strict=True)]
        else:
            norm = _norm(directions, device)
        finite = norm.isfinite()
        # A gradient of zero has no direction, and one that is not finite has none that helps: stay.
        reach = torch.where(finite & (norm > 0), self.config.radius / norm, 0.0)
        for parameter, direction in zip(parameters, directions, strict=True):
            there = reach.to(direction.device)
            parameter.add_(torch.where(there > 0, there * direction, 0.0).to(parameter.dtype))
        return finite


def _norm(tensors: Sequence[Tensor], device: torch.device) -> Tensor:
    """The Euclidean length of all tensors as one vector."""
    return torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(t).to(device) for t in tensors]))
