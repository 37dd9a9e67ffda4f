"""The weights of a Trainer's labels, normalised over all micro-batches and ranks of an optimiser step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from reweigh._array import sum_over_ranks
from reweigh.integrations._data_weights import KEY, WeightedCollator

__all__ = ["StepWeights", "carry_column"]

#: The amount that labels, with weights of their own or none, count in the loss.
Amount = Callable[[Tensor, Tensor | None], Tensor]


class StepWeights:
    """Hands the weights of each micro-batch to the loss, with a factor that makes those of a whole step mean one.

    The Trainer divides the loss by the number of labels of the step, which it counts; with the factor, that is the sum
    of the weighted losses over the sum of the weights.

    Parameters
    ----------
    trainer
        A `transformers.Trainer`; its collator, and how it takes batches and losses, are wrapped.
    column
        The column of weights, or None where only classes have weights.
    """

    def __init__(self, trainer: Any, column: str | None) -> None:
        self.current: Tensor | None = None
        self._average = trainer.args.average_tokens_across_devices
        self._step: list[tuple[Tensor, Tensor | None]] = []
        self._count: Any = None
        self._factor: Tensor | None = None
        self._take, self._compute = trainer.get_batch_samples, trainer.compute_loss
        trainer.get_batch_samples, trainer.compute_loss = self._batches, self._loss
        if column is not None:
            carry_column(trainer, column)
            trainer.data_collator = WeightedCollator(trainer.data_collator, column)

    def factor(self, amount: Amount) -> Tensor:
        """The number of labels of the step over the amount that they count; zero where nothing counts."""
        if self._factor is None:
            if not self._step or self._count is None:
                raise RuntimeError(
                    "the Trainer did not say which micro-batches make this step, or did not count their labels, so "
                    "weights cannot be normalised over it. Update transformers (4.46 does both)."
                )
            total = torch.stack([amount(labels, weights) for labels, weights in self._step]).sum()
            if self._average:
                total = sum_over_ranks(total)
            count = torch.as_tensor(self._count, device=total.device)
            self._factor = torch.where(total > 0, (count.sum() if count.ndim else count) / total, 0.0)
        return self._factor

    def _batches(self, *arguments: Any, **keywords: Any) -> Any:
        batches, count = self._take(*arguments, **keywords)
        self._step = [(batch["labels"], batch.get(KEY)) for batch in batches if "labels" in batch]
        self._factor = None
        return batches, count

    def _loss(self, model: Any, inputs: Any, *arguments: Any, **keywords: Any) -> Any:
        self.current = inputs.pop(KEY, None)
        self._count = keywords.get("num_items_in_batch")
        return self._compute(model, inputs, *arguments, **keywords)


def carry_column(trainer: Any, column: str) -> None:
    """Let a column of the training data through to the collator."""
    _check_column(trainer.train_dataset, column)
    trainer._set_signature_columns_if_needed()
    trainer._signature_columns.append(column)  # or the Trainer drops what the model does not take


def _check_column(data: Any, column: str) -> None:
    names = getattr(data, "column_names", None)
    if names is not None and column not in names:
        raise ValueError(
            f"the training data has no column {column!r}; it has {', '.join(names)}. The packing of TRL keeps tokens "
            "and labels alone: pack your own column with them by trl.pack_dataset beforehand, and train with "
            "padding_free=True, dataset_kwargs={'skip_prepare_dataset': True}."
        )
