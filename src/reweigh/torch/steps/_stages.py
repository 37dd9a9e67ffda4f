"""What steps with two stages share: where the second begins, and what the model makes of all training rows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer

from reweigh._array import widen
from reweigh.torch._classifier import last_layer
from reweigh.torch.steps._base import Closure, Closures, Stepper, descend, unwrapped, update, with_losses

#: Rows that go through the model at a time.
_CHUNK = 256


class LiveStages(Stepper):
    """A live step with two stages: `done` steps have been made, and step `until` is the first of the second stage."""

    def __init__(self, until: int) -> None:
        self.until, self.done = until, 0

    @property
    def late(self) -> bool:
        """Whether the second stage has begun."""
        return self.done >= self.until

    def state_dict(self) -> dict[str, Any]:
        """How many steps have been made."""
        return {"done": self.done}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there."""
        self.done = int(state["done"])


def known_steps(steps: int | None, purpose: str) -> int:
    """The steps of the whole training, without which nobody knows when the second stage begins."""
    if steps is None:
        raise ValueError(f"`steps` must be known to {purpose}, got None. Give the steps of the whole training.")
    return steps


class LiveTurn(LiveStages, ABC):
    """Plain steps, and between the stages a turn: something is done to the model that takes all training rows."""

    #: The name in a method's text, for messages.
    name: ClassVar[str]

    @abstractmethod
    def turn(self, optimizer: Optimizer, closure: Closure) -> None:
        """What is done after the last step of the first stage."""

    def step(self, optimizer: Optimizer, closure: Closures, *, scaler: GradScaler | None = None) -> Tensor:
        """Gradient and update; after the last step of the first stage, the turn."""
        closures = with_losses(closure, self.name, "its second stage looks at them", rows=True)
        optimizer.zero_grad(set_to_none=True)
        loss = descend(closures, scaler)
        update(optimizer, scaler)
        self.done += 1
        if self.done == self.until:
            self.turn(optimizer, closures[0])
        return loss


class LiveLastLayer(LiveTurn):
    """Training on the rows that are not held out; after its last step, a new last layer from those that are."""

    def __init__(self, steps: int, n: int | None, share: float, seed: int) -> None:
        super().__init__(steps)
        if n is None or n < 2:
            raise ValueError(f"`n` must be at least 2 to hold training rows out, got {n}. Give len(dataset).")
        order = torch.randperm(n, generator=torch.Generator().manual_seed(seed))
        self.held = order[: min(max(round(n * share), 1), n - 1)].sort().values
        self.copies = torch.ones(n, dtype=torch.int64).index_fill(0, self.held, 0)

    def turn(self, optimizer: Optimizer, closure: Closure) -> None:
        """Fit the layer, and put it in place."""
        layer, seen = last_layer(unwrapped(closure.model), self.name), passed(closure, self.name)
        if not bool(torch.isfinite(seen.outputs).all()):  # a training that broke down is left as it is
            return
        learnt = self.fit(seen, layer)
        with torch.no_grad():
            for parameter, value in zip(layer.parameters(), learnt, strict=True):
                parameter.copy_(value)

    @abstractmethod
    def fit(self, seen: Passed, layer: nn.Linear) -> Sequence[Tensor]:
        """The new layer's parameters, in the order of the old one's: weight, and bias if there is one."""


class Passed(NamedTuple):
    """What a model makes of training rows: the inputs of its last layer, its outputs, and the rows' labels."""

    features: Tensor
    outputs: Tensor
    targets: Tensor
    groups: Tensor | None

    def rows(self, chosen: Tensor) -> Passed:
        """Some of the rows."""
        chosen = chosen.to(self.targets.device)
        groups = None if self.groups is None else self.groups[chosen]
        return Passed(self.features[chosen], self.outputs[chosen], self.targets[chosen], groups)


@torch.no_grad()
def passed(closure: Closure, who: str) -> Passed:
    """All training rows through the model as it is used after training: no dropout, running statistics."""
    rows, model = closure.training_rows, closure.model
    assert rows is not None
    seen: list[Tensor] = []
    layer, training = last_layer(unwrapped(model), who), model.training
    hook = layer.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    model.eval()
    try:
        with closure.context():
            outputs = torch.cat([widen(model(part)) for part in rows.inputs.split(_CHUNK)])
    finally:
        hook.remove()
        model.train(training)
    features, targets = torch.cat([widen(part) for part in seen]), rows.targets.to(outputs.device)
    one_vector_each = features.ndim == outputs.ndim == 2 and len(features) == len(targets)
    if not one_vector_each or targets.ndim != 1 or targets.is_floating_point():
        raise ValueError(
            f"{who} needs one class and one vector of features per row, got targets of shape {tuple(targets.shape)} "
            f"({targets.dtype}) and features of shape {tuple(features.shape)}. Use it with a plain classifier."
        )
    return Passed(features, outputs, targets, None if rows.groups is None else rows.groups.to(outputs.device))
