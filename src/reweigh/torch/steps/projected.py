"""A step followed by projection onto a ball or a box."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer

from reweigh import _validate as validate
from reweigh._array import widen
from reweigh.torch.steps._base import Closures, Step, Stepper, parameters_of
from reweigh.torch.steps.plain import Plain

__all__ = ["Projected"]


@dataclass(frozen=True, kw_only=True)
class Projected(Step):
    r"""Keep the parameters in a convex set: any step, then the nearest point of the set.

    .. math:: \theta \leftarrow \Pi(\mathrm{step}(\theta)), \qquad
              \Pi(\theta) = \theta \min(1, r/\lVert\theta\rVert) \;\text{ or }\; \mathrm{clip}(\theta, l, h)

    Parameters
    ----------
    radius
        Of an L2 ball around zero, for all parameters of the optimizer as one vector.
    low, high
        Bounds of a box, the same for every entry; one of them may be missing. Ball and box exclude each other.
    base
        The step before the projection; what it needs, and whether it asks for an objective, holds for both.

    Examples
    --------
    >>> import torch
    >>> model = torch.nn.Linear(2, 1, bias=False)
    >>> _ = torch.nn.init.ones_(model.weight)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    >>> _ = Projected(radius=5.0).start(model).step(optimizer, lambda: (model.weight @ torch.tensor([-5.0, -7.0]))[0])
    >>> print([round(w, 4) for w in model.weight[0].tolist()])
    [3.0, 4.0]

    Notes
    -----
    What the convergence theory of re-weighted descent asks for: convex, compact parameter sets and the last iterate.
    References: Shamir and Zhang, *Stochastic Gradient Descent for Non-smooth Optimization*, ICML 2013.
    """

    radius: float | None = None
    low: float | None = None
    high: float | None = None
    base: Step = field(default_factory=Plain)

    def __post_init__(self) -> None:
        box = self.low is not None or self.high is not None
        if (self.radius is None) != box:
            raise ValueError(
                "`radius` or `low`/`high` must be given, and not both, got "
                f"radius={self.radius!r}, low={self.low!r}, high={self.high!r}."
            )
        if self.radius is not None:
            validate.positive("radius", self.radius)
        for name, bound in (("low", self.low), ("high", self.high)):
            if bound is not None:
                validate.real(name, bound)
        if self.low is not None and self.high is not None and self.low > self.high:
            raise ValueError(f"`low` must not be above `high`, got low={self.low!r}, high={self.high!r}.")
        if not isinstance(self.base, Step):  # pyright: ignore[reportUnnecessaryIsInstance]  # a text gives a name
            raise TypeError(f"`base` must be a step, got {self.base!r}. Pass the value itself, for example base=SAM().")
        for name in (
            "needs",
            "needs_losses",
            "own_objective",
            "draws",
            "replaces",
        ):  # the class says what is true of the plain base
            object.__setattr__(self, name, getattr(self.base, name))

    def start(self, model: nn.Module) -> LiveProjected:
        """The live step around the base's live step."""
        return LiveProjected(self, self.base.start(model))

    @torch.no_grad()
    def project(self, parameters: Sequence[Tensor]) -> None:
        """Replace the parameters by the nearest point of the set, in place."""
        if self.radius is None:
            for parameter in parameters:
                parameter.clamp_(self.low, self.high)
            return
        device = parameters[0].device
        norms = [torch.linalg.vector_norm(widen(parameter)).to(device) for parameter in parameters]
        factor = (self.radius / torch.linalg.vector_norm(torch.stack(norms))).clamp_max(1.0)
        for parameter in parameters:
            parameter.mul_(factor.to(parameter.device))


class LiveProjected(Stepper):
    """The live form of :class:`Projected`."""

    def __init__(self, config: Projected, base: Stepper) -> None:
        self.config = config
        self.base = base
        self.copies = base.copies

    def step(self, optimizer: Optimizer, closure: Closures, *, scaler: GradScaler | None = None) -> Tensor:
        """The base's step, then the projection."""
        loss = self.base.step(optimizer, closure, scaler=scaler)
        self.config.project(parameters_of(optimizer))
        self.copies = self.base.copies
        return loss

    def state_dict(self) -> dict[str, Any]:
        """The base's state."""
        return self.base.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state of the base."""
        self.base.load_state_dict(state)
        self.copies = self.base.copies
