"""One split as arrays, with what its scores depend on: all that a training needs, and nothing of the table itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from reweigh.bench.train import scores as metrics
from reweigh.bench.train.scores import ScoringRules
from reweigh.bench.train.task import Task

Array = np.ndarray[Any, Any]
#: Room for the float32 numbers of a part, by its name and shape: in memory, or in a file that is mapped.
Room = Callable[[str, tuple[int, ...]], Array]


def in_memory(part: str, shape: tuple[int, ...]) -> Array:
    """Room in this process's memory."""
    del part
    return np.empty(shape, np.float32)


@dataclass(frozen=True, kw_only=True)
class SplitFacts:
    """What the scores of a split depend on beside its rows; `scale` is one unit of a standardised target."""

    kind: str
    classes: tuple[str, ...]
    n_groups: int
    judging: ScoringRules
    scale: float = 1.0


@dataclass(frozen=True, kw_only=True, eq=False)
class DealtSplit:
    """The rows of a split, by part (`train`, `val`, `test`).

    Parameters
    ----------
    x
        Rows as numbers, `(rows, width)`, or images, `(rows, height, width, channels)`.
    y
        Class indices, or standardised numbers.
    groups
        The group of each row as an index; empty without groups.
    facts
        What scores depend on.
    """

    x: Mapping[str, Array]
    y: Mapping[str, Array]
    groups: Mapping[str, Array]
    facts: SplitFacts

    def task(self) -> Task:
        """The split as a problem to train on."""
        x = {part: _as_model_input(rows) for part, rows in self.x.items()}
        y = {part: torch.from_numpy(np.array(targets)) for part, targets in self.y.items()}
        if self.facts.kind == "regression":  # as many axes as a model's output has
            y = {part: targets[:, None] for part, targets in y.items()}
        return Task(
            x_train=x["train"],
            y_train=y["train"],
            x_val=x["val"],
            y_val=y["val"],
            x_test=x["test"],
            y_test=y["test"],
            classes=self.facts.classes,
            groups=torch.tensor(self.groups["train"]) if self.groups else None,
            n_groups=self.facts.n_groups or None,
            scorer=self._scorer(),
        )

    def _scorer(self) -> Callable[[str, Tensor], dict[str, Any]]:
        """Scores of a part's outputs; those of a regression are in the target's own unit, which a person can judge."""
        facts = self.facts

        def score(part: str, outputs: Tensor) -> dict[str, Any]:
            predicted, targets, own = outputs.detach().cpu().numpy(), self.y[part], self.groups.get(part)
            if facts.kind == "regression":
                scale = facts.scale
                return metrics.regression(predicted * scale, targets[:, None] * scale, own, facts.n_groups)
            return metrics.classification(predicted, targets, len(facts.classes), own, facts.n_groups, facts.judging)

        return score


def _as_model_input(rows: Array) -> Tensor:
    tensor = torch.from_numpy(rows)
    return tensor.permute(0, 3, 1, 2) if tensor.ndim == 4 else tensor  # on the same memory, channels last
