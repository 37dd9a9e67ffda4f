"""Learning to re-weight: weights from how much each unit's gradient helps a clean meta set."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer

from reweigh._array import sum_over_ranks, widen, world_size
from reweigh.torch.steps._base import Closure, Closures, Step, Stepper, backward, refuse_scaler, with_losses
from reweigh.torch.steps._look_ahead import meta_loss, rates_of

__all__ = ["L2RW"]


@dataclass(frozen=True, kw_only=True)
class L2RW(Step):
    r"""Weigh each unit by how much a step along its gradient would lower the loss on a clean meta batch.

    .. math:: \theta'(\epsilon) = \theta - \eta \nabla \sum_i \epsilon_i \ell_i(\theta), \qquad
              w_i \propto \max\!\Big(0, -\frac{\partial}{\partial \epsilon_i} L_{\mathrm{meta}}(\theta'(\epsilon))
              \Big|_{\epsilon = 0}\Big), \qquad \sum_i w_i = 1

    The real step descends :math:`\sum_i w_i \ell_i`. Where no unit helps all weights stay zero.

    Examples
    --------
    >>> import torch
    >>> from reweigh.torch.losses import MSE
    >>> from reweigh.torch.steps import Closure
    >>> model = torch.nn.Linear(1, 1, bias=False)
    >>> _ = torch.nn.init.zeros_(model.weight)
    >>> batch = torch.ones(2, 1), torch.tensor([[1.0], [-1.0]])  # the second label is wrong
    >>> meta = torch.ones(1, 1), torch.ones(1, 1)
    >>> closure = Closure(model=model, batch=batch, losses=MSE(), meta_batch=meta)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> stepper = L2RW().start(model)
    >>> _ = stepper.step(optimizer, closure)
    >>> stepper.weights, round(model.weight.item(), 4)
    (tensor([1., 0.]), 0.2)

    Notes
    -----
    The closure's `objective` is not asked: the weights make the loss. Both virtual passes use batch statistics and
    leave running statistics alone; only the real pass updates them. The learning rates of the virtual step are the
    optimizer's. Micro-batches are exact: a unit's raw weight depends on itself and the meta batch, and the
    normalisation spans them all, and all ranks under DistributedDataParallel. References: Ren et al., *Learning to
    Reweight Examples for Robust Deep Learning*, ICML 2018.
    """

    cost: ClassVar[str] = "3 forward+backward, one of them twice differentiated"
    needs: ClassVar[tuple[str, ...]] = ("meta_loader",)
    needs_losses: ClassVar[bool] = True
    own_objective: ClassVar[bool] = True

    def start(self, model: nn.Module) -> LiveL2RW:
        """The live step."""
        return LiveL2RW()


class LiveL2RW(Stepper):
    """The live form of :class:`L2RW`; `weights` are those of the last step."""

    def __init__(self) -> None:
        self.weights: Tensor | None = None

    def step(self, optimizer: Optimizer, closure: Closures, *, scaler: GradScaler | None = None) -> Tensor:
        """Weights from the meta batch, gradient, update."""
        refuse_scaler(scaler, "L2RW")
        closures = with_losses(closure, "L2RW", "weights are learned from a meta batch, one per unit", meta=True)
        raw = [_helpfulness(one, optimizer) for one in closures]
        total = torch.stack([part.sum() for part in raw]).sum()
        # Each rank's gradients are averaged with the others': its weights must sum to one on average.
        total = sum_over_ranks(total) / world_size(total)
        scale = torch.where(total > 0, 1.0 / total, 0.0)
        optimizer.zero_grad(set_to_none=True)
        loss = torch.zeros_like(total)
        for one, part in zip(closures, raw, strict=True):
            here = torch.dot(part * scale, widen(one.unit_losses().flatten()))
            backward(here)
            loss = loss + here.detach()
        optimizer.step()
        self.weights = torch.cat(raw) * scale
        return loss


def _helpfulness(closure: Closure, optimizer: Optimizer) -> Tensor:
    """How fast the meta loss falls as each unit is given weight, where it falls."""
    weights: list[Tensor] = []

    def none_yet(losses: Tensor) -> Tensor:
        weights.append(torch.zeros_like(losses, requires_grad=True))
        return weights[0]

    loss = meta_loss(closure, rates_of(optimizer, closure.model), none_yet)
    (slope,) = torch.autograd.grad(loss, weights)
    return (-slope).clamp_min(0.0)
