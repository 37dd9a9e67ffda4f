"""Plain training, then fine-tuning on a small clean set."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer

from reweigh import _validate as validate
from reweigh.torch.steps._base import Closures, Step, descend, row_shares, update, with_losses
from reweigh.torch.steps._stages import LiveStages, known_steps

__all__ = ["FineTune"]


@dataclass(frozen=True, kw_only=True)
class FineTune(Step):
    """The optimizer's own step on the batch; for the last part of training, on the clean meta batch instead.

    The simplest use of a clean, balanced set that bilevel methods ask for, and so their honest baseline.

    Parameters
    ----------
    share
        The last share of training that sees the meta set only.
    steps
        Steps of the whole training; the training context fills it in.

    Examples
    --------
    >>> import torch
    >>> from reweigh.torch.losses import MSE
    >>> from reweigh.torch.steps import Closure
    >>> model = torch.nn.Linear(1, 1)
    >>> one, two = (torch.zeros(1, 1), torch.ones(1, 1)), (torch.zeros(1, 1), 2 * torch.ones(1, 1))
    >>> stepper = FineTune(share=0.5, steps=2).start(model)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    >>> for _ in range(2):
    ...     _ = stepper.step(optimizer, Closure(model=model, batch=one, meta_batch=two, losses=MSE()))
    >>> round(model.bias.item(), 4)
    2.0

    Notes
    -----
    The paper copies this row from Shu et al. 2019, whose code for it was not read; the share is ours. The optimizer
    and its rate stay as they are.
    """

    share: float = 0.1
    steps: int | None = None

    search: ClassVar[Mapping[str, tuple[Any, ...]]] = {"share": (0.05, 0.1, 0.2)}
    needs: ClassVar[tuple[str, ...]] = ("meta_loader", "steps")
    needs_losses: ClassVar[bool] = True

    def __post_init__(self) -> None:
        validate.fraction("share", self.share)
        if self.steps is not None:
            validate.whole("steps", self.steps, 1)

    def start(self, model: nn.Module) -> LiveFineTune:
        """The live step."""
        return LiveFineTune(round(known_steps(self.steps, "fine-tune at the end") * (1.0 - self.share)))


class LiveFineTune(LiveStages):
    """The live form of :class:`FineTune`; the second stage is on the meta set."""

    def step(self, optimizer: Optimizer, closure: Closures, *, scaler: GradScaler | None = None) -> Tensor:
        """Gradient on the batch or, late, on the meta batch; update."""
        closures = with_losses(closure, "FineTune", "the last steps are made on a meta batch", meta=True)
        if self.late:
            # The objective belongs to the training batch (its class weights, its state): clean data needs none.
            clean = [(one, one.meta_batch) for one in closures if one.meta_batch is not None]
            shares = zip(clean, row_shares(batch for _, batch in clean), strict=True)
            closures = tuple(
                replace(one, batch=batch, objective=lambda losses, share=share: share * losses.mean())
                for (one, batch), share in shares
            )
        optimizer.zero_grad(set_to_none=True)
        loss = descend(closures, scaler)
        update(optimizer, scaler)
        self.done += 1
        return loss
