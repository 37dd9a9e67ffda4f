"""Language models: cross entropy over a vocabulary, tokens or sequences weighed, trained by AdamW."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn

from reweigh.bench.draws.seeds import Seeds
from reweigh.bench.train import device as devices
from reweigh.bench.train.driver import Program, StepOutput
from reweigh.bench.train.objective import LiveObjective
from reweigh.method import Method
from reweigh.objectives.entropy import Entropy
from reweigh.objectives.mean import Mean
from reweigh.torch import chunked_cross_entropy
from reweigh.torch.chunked import TokenLevel, chunked_tokens

#: Marks targets that are not to be predicted.
_IGNORED = -100


class TokenLoss:
    """Cross entropy over a vocabulary with a live objective: never all logits at once, state and weights kept.

    After a call `live.losses` and `live.weights` are those of the units, tokens or sequences.

    Parameters
    ----------
    method
        Names an objective and nothing else.
    level
        Whether a token or a sequence is a unit.
    ignores
        Whether some targets are -100 and do not count; otherwise all do, and no device is asked which.
    """

    def __init__(self, method: Method, level: TokenLevel, *, ignores: bool = False) -> None:
        others = [slot for slot, _ in method.parts() if slot != "objective"]
        if others:
            raise ValueError(
                f"this recipe re-weights cross entropy over tokens and trains by AdamW, got {str(method)!r}, which "
                f"names a {others[0]} too. Leave that part out."
            )
        self.live = LiveObjective(method.objective)
        self.level: TokenLevel = level
        self.ignores = ignores

    def __call__(
        self,
        hidden: Tensor,
        weight: Tensor,
        targets: Tensor,
        bias: Tensor | None = None,
        reference: Tensor | None = None,
        **logits: Any,
    ) -> Tensor:
        """The loss to descend.

        `reference` are the losses of the targets under another model, for objectives that weigh by them; `logits` are
        the `scale` and the `softcap` of models that have one.
        """
        live, level = self.live, self.level
        counts = targets != _IGNORED if self.ignores else None
        if live.objective.stateful:
            losses = chunked_cross_entropy(hidden, weight, targets, Mean(), bias=bias, reduction="none", **logits)
            sizes = None if counts is None or level == "token" else counts.sum(1).to(losses.dtype)
            return live(self._units(losses, counts), sample_weight=sizes)
        by_entropy = isinstance(live.objective, Entropy)
        signal = reference if "signal" in live.objective.takes and not by_entropy else None
        chunked = chunked_tokens(
            hidden,
            weight,
            targets,
            live.objective,
            bias=bias,
            level=level,
            signal=signal,
            entropies=by_entropy,
            **logits,
        )
        live.losses = self._units(chunked.losses, counts).detach()
        if by_entropy:
            signal = chunked.entropies / math.log(weight.shape[0])
        live.weights = self.of(live.losses, None if signal is None else self._units(signal, counts))
        return chunked.loss * live.factor

    def of(self, losses: Tensor, signal: Tensor | None = None) -> Tensor:
        """The weights that units of these losses, and signals where they weigh, would get now."""
        seen = {} if signal is None else {"signal": signal}
        return self.live.objective.weigh(losses, self.live.state, **seen).weights

    def _units(self, values: Tensor, counts: Tensor | None) -> Tensor:
        """The values of the targets that count, or their mean over each row."""
        joins = self.level == "sequence" and values.ndim == 2
        if counts is None:
            return values.mean(1) if joins else values.flatten()
        return (values * counts).sum(1) / counts.sum(1).clamp(min=1) if joins else values[counts]


class TokenTraining(Program):
    """A language model trained by AdamW on the sum of some losses; a recipe adds what they are of, and its scores.

    Parameters
    ----------
    model
        The model with its initial parameters.
    losses
        The losses that `loss` adds up; what the first one weighs is recorded.
    steps, every
        Steps of the training, and steps between two looks at held-out text.
    rate, weight_decay, clip
        The learning rate of a step, AdamW's decay, and the norm that gradients are clipped to; 0 for none.
    seeds
        Random streams.
    precision, compiled
        Of the forward pass, and whether the model is compiled.
    device
        Where to train; the process's own device unless given.
    """

    def __init__(
        self,
        model: nn.Module,
        losses: Sequence[TokenLoss],
        *,
        steps: int,
        every: int,
        rate: Callable[[int], float],
        weight_decay: float,
        clip: float = 0.0,
        seeds: Seeds,
        precision: devices.Precision = "float32",
        compiled: bool = False,
        device: torch.device | None = None,
    ) -> None:
        self.device = devices.current() if device is None else device
        self.module = model.to(self.device)
        if compiled:
            self.module.compile()  # in place: the names of parameters stay as they are
        self.precision: devices.Precision = precision
        self.objectives = [loss.live for loss in losses]
        self.steps, self.every, self.rate, self.clip, self.seeds = steps, every, rate, clip, seeds
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=rate(0), weight_decay=weight_decay)
        self.loss_scale = devices.loss_scale(precision)
        devices.unscale(self.optimizer, precision)

    def context(self) -> AbstractContextManager[Any]:
        """The precision of a forward pass."""
        return devices.autocast(self.device, self.precision)

    @abstractmethod
    def loss(self, step: int) -> Tensor:
        """The sum to descend at a step."""

    def set_rate(self, step: int) -> None:
        """The schedule's rate."""
        for group in self.optimizer.param_groups:
            group["lr"] = self.rate(step)

    def step(self, step: int) -> StepOutput:
        """One step on new text."""
        with self.seeds.ambient(f"dropout {step}"), self.context():
            loss = self.loss(step)
        self.optimizer.zero_grad()
        loss.backward()
        if self.clip:
            nn.utils.clip_grad_norm_(self.module.parameters(), self.clip)
        self.optimizer.step()
        weights = [live.weights for live in self.objectives if live.weights is not None]
        first = self.objectives[0].losses
        assert first is not None
        # The loss is a sum of weighted means, so its scale is the mean of their mean weights.
        return StepOutput(first, weights[0], mean_weight=torch.stack([own.mean() for own in weights]).mean())

    def state(self) -> dict[str, Any]:
        """Model and optimiser; random numbers are a function of the step."""
        return {"model": self.module.state_dict(), "optimizer": self.optimizer.state_dict()}

    def load(self, state: dict[str, Any]) -> None:
        """Resume."""
        self.module.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
