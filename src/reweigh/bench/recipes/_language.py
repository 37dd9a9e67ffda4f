"""What the two pre-training recipes share: settings, a loss over tokens at work, and training step by step."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from reweigh import _validate as validate
from reweigh.bench import text
from reweigh.bench.loop import Live
from reweigh.bench.runs import Record, Writer
from reweigh.bench.seeds import Seeds
from reweigh.bench.tally import EpochTally
from reweigh.bench.text._tokens import Tokens, tokens
from reweigh.method import Method
from reweigh.objectives.mean import Mean
from reweigh.torch import chunked_cross_entropy

Level = Literal["token", "sequence"]
Ids = np.ndarray[Any, Any]


@dataclass(frozen=True, kw_only=True)
class Language:
    """Settings that both recipes have.

    Parameters
    ----------
    text
        The corpus, a name of `reweigh.bench.text`.
    vocabulary, length
        Sub-word tokens to learn, and tokens of a sequence.
    depth, width, heads, dropout
        Of the transformer.
    batch_size, steps, every
        Sequences a step, steps of the training, and steps between two looks at held-out text.
    lr, warmup, schedule, weight_decay
        AdamW's peak rate; the share of steps over which it rises; what it does then: `"cosine"` to zero, or `"rsqrt"`,
        falling with the root of the step; decoupled weight decay.
    level
        Whether a token or a sequence is a unit.
    held
        Sequences of validation and of test text to look at.
    """

    text: str = "descriptions"
    vocabulary: int = 400
    length: int = 32
    depth: int = 2
    width: int = 32
    heads: int = 2
    dropout: float = 0.0
    batch_size: int = 8
    steps: int = 40
    every: int = 20
    lr: float = 3e-3
    warmup: float = 0.1
    schedule: Literal["cosine", "rsqrt"] = "cosine"
    weight_decay: float = 0.1
    level: Level = "token"
    held: int = 32

    def __post_init__(self) -> None:
        validate.one_of("schedule", self.schedule, ("cosine", "rsqrt"))
        validate.one_of("level", self.level, ("token", "sequence"))
        validate.whole("every", self.every, 1)
        validate.whole("steps", self.steps, self.every, "It is at least one look at held-out text.")

    def rate(self, step: int) -> float:
        """The learning rate of a step."""
        rising = max(self.warmup * self.steps, 1.0)
        if step < rising:
            return self.lr * (step + 1) / rising
        if self.schedule == "rsqrt":
            return self.lr * math.sqrt(rising / (step + 1))
        return self.lr * 0.5 * (1.0 + math.cos(math.pi * (step - rising) / max(self.steps - rising, 1.0)))


class TokenLoss:
    """Cross entropy over a vocabulary with an objective at work: never all logits at once, state and weights kept.

    After a call `losses` and `weights` are those of the units that count, tokens or sequences.
    """

    def __init__(self, method: Method, level: Level) -> None:
        self.live = Live(_objective_alone(method))
        self.level: Level = level
        self.losses = self.weights = torch.zeros(0)

    def __call__(self, hidden: Tensor, weight: Tensor, targets: Tensor, bias: Tensor | None = None) -> Tensor:
        """The loss to descend."""
        objective = self.live.objective
        if objective.stateful:
            losses = chunked_cross_entropy(hidden, weight, targets, Mean(), bias=bias, reduction="none")
            units, shares = self._units(losses, targets)
            loss = self.live(units, shares)
            assert self.live.weights is not None
            weights = self.live.weights
        else:
            loss, losses = chunked_cross_entropy(
                hidden, weight, targets, objective, bias=bias, level=self.level, return_losses=True
            )
            units, shares = self._units(losses, targets)
            weights = objective.weigh(units, (), measure=shares).weights
        self.losses, self.weights = units.detach()[shares > 0], weights[shares > 0]
        return loss

    def of(self, losses: Tensor) -> Tensor:
        """The weights that units of these losses would get now."""
        return self.live.objective.weigh(losses, self.live.state).weights

    def _units(self, losses: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        real = (targets != -100).to(losses.dtype)
        if self.level == "token" or targets.ndim == 1:
            return losses.flatten(), real.flatten()
        shares = real.sum(1)
        return losses.sum(1) / shares.clamp(min=1), shares


def pretrain(
    settings: Language,
    model: nn.Module,
    losses: Sequence[TokenLoss],
    loss_of: Callable[[int], Tensor],
    look: Callable[[int], Record],
    seeds: Seeds,
    writer: Writer,
    scale: np.ndarray[Any, Any] | None,
) -> Iterator[Record]:
    """Train by AdamW, yielding a record at each look; resumes from the writer's checkpoint and leaves one after each.

    Parameters
    ----------
    settings, model, seeds, writer
        How long to train, what, from which random streams, and where results go.
    losses
        The losses that `loss_of` adds up; the weights of the first are what is reported.
    loss_of
        The loss to descend at a step.
    look
        What a record says besides: scores on held-out text.
    scale
        A factor on the loss for every step: the recorded mean weights of another run, for the scale control.
    """
    optimizer = torch.optim.AdamW(model.parameters(), lr=settings.lr, weight_decay=settings.weight_decay)
    tally = EpochTally(1, settings.batch_size * settings.length)
    mean_weights: list[float] = []
    first = 0
    saved: dict[str, Any] | None = writer.resume()
    if saved is not None:
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        for loss, state in zip(losses, saved["objectives"], strict=True):
            loss.live.state = state or ()
        mean_weights, first = saved["mean_weights"], saved["step"]
    for step in range(first, settings.steps):
        model.train()
        for group in optimizer.param_groups:
            group["lr"] = settings.rate(step)
        with seeds.ambient(f"dropout {step}"):
            loss = loss_of(step) * (1.0 if scale is None else float(scale[step]))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        for part in losses:
            part.live.advance()
        # The loss is a sum of weighted means, so its scale is the mean of their mean weights.
        mean_weights.append(float(torch.stack([part.weights.mean() for part in losses]).mean()))
        units = losses[0].losses
        tally.update(torch.arange(len(units))[None], units[None], losses[0].weights[None])
        if (step + 1) % settings.every == 0:
            model.eval()
            yield _record(settings, step + 1, tally, losses[0]) | look(step + 1)
            writer.checkpoint(
                {
                    "model": model.state_dict(),
                    "optimizer": optimizer.state_dict(),
                    "objectives": [
                        {k: torch.as_tensor(v) for k, v in (loss.live.state or {}).items()} for loss in losses
                    ],
                    "mean_weights": mean_weights,
                    "step": step + 1,
                }
            )
    writer.array("mean_weight", np.asarray(mean_weights, np.float32))


@functools.cache
def load(name: str, vocabulary: int) -> Tokens:
    """The corpus as tokens, once a process."""
    return tokens(text.corpus(name)[0], vocabulary)


def held_out(stream: Ids, length: int, rows: int) -> Tensor:
    """Sequences of `length + 1` tokens that share none but the one at the seam, spread evenly over a text."""
    count = (len(stream) - 1) // length
    if count < 1:
        raise ValueError(f"the held-out text has {len(stream)} tokens, too few for a sequence of {length}.")
    starts = np.unique(np.linspace(0, count - 1, min(rows, count)).astype(np.int64)) * length
    return torch.from_numpy(stream[starts[:, None] + np.arange(length + 1)].astype(np.int64))


def _record(settings: Language, step: int, tally: EpochTally, loss: TokenLoss) -> Record:
    tau = getattr(loss.live.objective, "tau", None)
    (statistics,), _ = tally.close(None if tau is None else torch.tensor([float(tau)]))
    return {
        "epoch": step // settings.every,
        "step": step,
        "progress": step / settings.steps,
        **statistics,
    }


def _objective_alone(method: Method) -> Any:
    others = [slot for slot, _ in method.parts() if slot != "objective"]
    if others:
        raise ValueError(
            f"this recipe re-weights cross entropy over tokens and trains by AdamW, got {str(method)!r}, which names a "
            f"{others[0]} too. Leave that part out."
        )
    return method.objective
