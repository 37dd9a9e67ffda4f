"""What the two pre-training recipes share: settings, and tokens to train on and to hold out."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from reweigh import _validate as validate
from reweigh.bench.catalogue import texts as text
from reweigh.bench.lab.recipe import LATER
from reweigh.bench.train.precision import Precision
from reweigh.bench.train.programs.tokens import TokenLevel
from reweigh.bench.train.tokens import Ids, Tokens, tokens


@dataclass(frozen=True, kw_only=True)
class Language:
    """Settings that both recipes have.

    Parameters
    ----------
    text
        The corpus, a name of `reweigh.bench.catalogue.texts`.
    vocabulary, length
        Sub-word tokens to learn, and tokens of a sequence.
    depth, width, heads, dropout
        Of the transformer.
    batch_size, steps, every
        Sequences per step, steps of the training, and steps between two looks at held-out text.
    lr, warmup, schedule, weight_decay, clip
        AdamW's peak rate; the share of steps over which it rises; what it does then: `"cosine"` or `"linear"` to zero,
        or `"rsqrt"`, falling with the root of the step; decoupled weight decay; the norm that gradients are clipped to,
        0 for none.
    tied
        Whether the last layer is the embedding of the tokens, turned round.
    level
        Whether a token or a sequence is a unit.
    held
        Sequences of validation and of test text to look at.
    precision, compiled
        Of forward passes, and whether the model is compiled.
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
    schedule: Literal["cosine", "linear", "rsqrt"] = "cosine"
    weight_decay: float = 0.1
    clip: float = field(default=0.0, metadata=LATER)
    tied: bool = False
    level: TokenLevel = "token"
    held: int = 32
    precision: Precision = field(default="float32", metadata=LATER)
    compiled: bool = field(default=False, metadata=LATER)

    def __post_init__(self) -> None:
        validate.one_of("schedule", self.schedule, ("cosine", "linear", "rsqrt"))
        validate.non_negative("clip", self.clip)
        validate.one_of("level", self.level, ("token", "sequence"))
        validate.one_of("precision", self.precision, ("float32", "bfloat16", "float16"))
        validate.whole("every", self.every, 1)
        validate.whole("steps", self.steps, self.every, "It is at least one look at held-out text.")

    def training(self) -> dict[str, Any]:
        """What `TokenTraining` takes of these."""
        names = ("steps", "every", "rate", "weight_decay", "clip", "precision", "compiled")
        return {name: getattr(self, name) for name in names}

    def rate(self, step: int) -> float:
        """The learning rate of a step."""
        rising = max(self.warmup * self.steps, 1.0)
        if step < rising:
            return self.lr * (step + 1) / rising
        if self.schedule == "rsqrt":
            return self.lr * math.sqrt(rising / (step + 1))
        done = (step - rising) / max(self.steps - rising, 1.0)
        return self.lr * (1.0 - done if self.schedule == "linear" else 0.5 * (1.0 + math.cos(math.pi * done)))


@functools.cache
def load(name: str, vocabulary: int) -> Tokens:
    """The corpus as tokens, once per process."""
    return tokens(text.corpus(name), vocabulary)


def held_out(stream: Ids, length: int, rows: int) -> Tensor:
    """Sequences of `length + 1` tokens that share none but the one at the seam, spread evenly over a text."""
    count = (len(stream) - 1) // length
    if count < 1:
        raise ValueError(f"the held-out text has {len(stream)} tokens, too few for a sequence of {length}.")
    starts = np.unique(np.linspace(0, count - 1, min(rows, count)).astype(np.int64)) * length
    return torch.from_numpy(stream[starts[:, None] + np.arange(length + 1)].astype(np.int64))
