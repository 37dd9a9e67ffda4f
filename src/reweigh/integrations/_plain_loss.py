"""The loss without weights, over the calls of a while: what a trainer's log has beside the re-weighted one."""

from __future__ import annotations

from torch import Tensor

from reweigh.torch.reweighted import Units


class PlainLoss:
    """The criterion's own mean over several calls: with its class weights and smoothing, without ignored labels.

    It is what `criterion` alone would have said, and so can be compared with a validation loss; the losses that a
    weight is made from cannot. The sums stay on their device until `value` is asked for.
    """

    def __init__(self) -> None:
        self._loss: Tensor | float = 0.0
        self._amount: Tensor | float = 0.0

    def add(self, units: Units) -> None:
        """Take note of one call."""
        self._loss = self._loss + units.own.sum()
        self._amount = self._amount + (units.own.shape[0] if units.measure is None else units.measure.sum())

    def value(self) -> float:
        """The mean so far; not a number before anything has counted."""
        amount = float(self._amount)
        return float(self._loss) / amount if amount else float("nan")
