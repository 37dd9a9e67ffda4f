"""The loss without weights, over several calls: shown in a trainer's log next to the re-weighted one."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from reweigh.torch.reweighted import Reweighted

#: The sum of a criterion's own losses, and what its mean divides that by.
Sums = tuple[Tensor, Tensor | int]


class PlainLoss:
    """The criterion's own mean over several calls: with its class weights and smoothing, without ignored labels.

    It is what `criterion` alone would have returned, and so can be compared with a validation loss; the losses that a
    weight is made from cannot. The sums stay on their device until `value` is read.
    """

    def __init__(self) -> None:
        self._loss: Any = 0.0
        self._amount: Any = 0.0

    def add(self, given: Reweighted | Sums) -> None:
        """Take note of one call: of a criterion's last, or of the sums of an earlier one."""
        sums = given.plain if isinstance(given, Reweighted) else given
        if sums is not None:
            self._loss, self._amount = self._loss + sums[0], self._amount + sums[1]

    def value(self) -> float:
        """The mean so far; not a number before anything has counted."""
        amount = float(self._amount)
        return float(self._loss) / amount if amount else float("nan")
