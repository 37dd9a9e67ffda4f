"""What objectives weigh by besides the loss, in a Trainer: a column of the data, or the losses of a reference model."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from reweigh.integrations._data_weights import SIGNAL, WeightedCollator
from reweigh.integrations._step_weights import carry_column
from reweigh.integrations.causal import losses_of
from reweigh.objectives import Objective
from reweigh.objectives.entropy import Entropy

__all__ = ["BatchSignal", "check_signal"]


class BatchSignal:
    """Hands the signal of each micro-batch to the loss.

    Parameters
    ----------
    trainer
        A `transformers.Trainer`; its collator and how it takes losses are wrapped.
    column
        The column of the data that holds the signal: one number per row, or one per token.
    reference
        A causal language model of the same tokens instead, which is run without gradients on every training batch.
    """

    def __init__(self, trainer: Any, column: str | None, reference: nn.Module | None) -> None:
        self.current: Tensor | None = None
        self._reference = reference
        self._compute = trainer.compute_loss
        trainer.compute_loss = self._loss
        if column is not None:
            carry_column(trainer, column)
            trainer.data_collator = WeightedCollator(trainer.data_collator, column, key=SIGNAL)

    def _loss(self, model: Any, inputs: Any, *arguments: Any, **keywords: Any) -> Any:
        self.current = inputs.pop(SIGNAL, None)
        if self._reference is not None and model.training and torch.is_grad_enabled():
            self.current = F.pad(losses_of(self._reference, inputs), (1, 0))  # nothing predicts the first label
        return self._compute(model, inputs, *arguments, **keywords)


def check_signal(objective: Objective, column: str | None, reference: nn.Module | None) -> None:
    """Refuse an objective without the signal it weighs by, and a signal that nothing weighs by."""
    named = [name for name, given in (("signal_column", column), ("reference", reference)) if given is not None]
    needs = "signal" in objective.takes and not isinstance(objective, Entropy)
    if "index" in objective.takes:
        raise ValueError(f"{objective!r} remembers units of the data, which a Trainer does not number. Use another.")
    if "n_groups" in getattr(objective, "needs", ()):
        raise ValueError(
            f"{objective!r} weighs groups, and a Trainer does not hand on the groups of rows. Use another."
        )
    if needs and not named:
        raise ValueError(
            f"{objective!r} weighs by {objective.signal_is.partition(', ')[0]}. Pass reference=AutoModelForCausalLM."
            "from_pretrained(...), or signal_column= with the column of the data that holds them."
        )
    if named and not needs:
        raise ValueError(f"{objective!r} needs no `{named[0]}`, got one. Leave it out.")
    if len(named) > 1:
        raise ValueError("`signal_column` and `reference` are two sources of one number, got both. Leave one out.")
