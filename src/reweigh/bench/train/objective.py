"""An objective at work: its state, the weights of the last step, and a factor on the loss."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from reweigh.objectives import Objective
from reweigh.objectives._base import beside, descend, state_like, weigh


class LiveObjective:
    """An objective and what it remembers.

    A step may ask for the loss more than once (SAM does); the state moves once per step, with `advance`.
    """

    def __init__(self, objective: Objective) -> None:
        self.objective = objective
        self.state: Any = objective.init()
        self.factor: float | Tensor = 1.0
        self.losses: Tensor | None = None
        self.weights: Tensor | None = None
        self._following: Any = self.state

    def __call__(
        self,
        losses: Tensor,
        sample_weight: Tensor | None = None,
        count: Any = None,
        groups: Tensor | None = None,
        signal: Tensor | None = None,
        index: Tensor | None = None,
    ) -> Tensor:
        """The loss to descend."""
        self.losses = losses.detach()
        seen = beside(self.objective, self.losses, signal, index)
        state = state_like(self.state, self.losses)
        weighed = weigh(self.objective, self.losses, state, sample_weight, groups, **seen)
        self.weights, self._following = weighed.weights, weighed.state
        loss = descend(losses, weighed, sample_weight, count)
        return loss if isinstance(self.factor, float) and self.factor == 1.0 else loss * self.factor

    def advance(self) -> None:
        """Move the state on, after the step."""
        self.state = self._following

    def forget(self) -> None:
        """Forget the last step's losses and weights, so that what a new step sees cannot be mistaken."""
        self.losses = self.weights = None

    def state_dict(self) -> dict[str, Tensor]:
        """The state as tensors."""
        return {name: torch.as_tensor(value) for name, value in (self.state or {}).items()}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Resume from a state."""
        self.state = self._following = dict(state) or ()
