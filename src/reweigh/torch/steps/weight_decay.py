"""Weight decay as a method of its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer

from reweigh import _validate as validate
from reweigh.torch.steps._base import Closures, Step, Stepper, descend, in_turn, update

__all__ = ["WeightDecay"]


@dataclass(frozen=True, kw_only=True)
class WeightDecay(Step):
    r"""The optimizer's own step with a weight decay chosen for the task: strong on its own on long tails.

    .. math:: \theta \leftarrow \theta - \eta\,(\nabla \hat L + \lambda\,\theta)

    It keeps the vectors of frequent classes from growing, as losses for rare classes set out to do.

    Parameters
    ----------
    strength
        The decay lambda, in place of the optimizer's own.

    Examples
    --------
    >>> import torch
    >>> model = torch.nn.Linear(1, 1, bias=False)
    >>> _ = torch.nn.init.ones_(model.weight)
    >>> stepper = WeightDecay(strength=0.5).start(model)
    >>> _ = stepper.step(torch.optim.SGD(model.parameters(), lr=0.1), lambda: 0.0 * model.weight.sum())
    >>> round(model.weight.item(), 4)
    0.95

    Notes
    -----
    Every group of parameters gets the same decay, biases included; with AdamW it is decoupled from the gradient.
    The default is that of the first stage in the authors' code for CIFAR-100-LT (SGD, rate 0.01, 320 epochs). Their
    second stage is left out: the classifier alone with a class-balanced loss, decay 0.1 and a bound on norms.
    References: Alshammari et al., *Long-Tailed Recognition via Weight Balancing*, CVPR 2022.
    """

    strength: float = 5e-3

    search: ClassVar[Mapping[str, tuple[Any, ...]]] = {"strength": (5e-4, 2e-3, 5e-3, 2e-2)}

    def __post_init__(self) -> None:
        validate.non_negative("strength", self.strength)

    def start(self, model: nn.Module) -> LiveWeightDecay:
        """The live step."""
        return LiveWeightDecay(self.strength)


class LiveWeightDecay(Stepper):
    """The live form of :class:`WeightDecay`."""

    def __init__(self, strength: float) -> None:
        self.strength = strength

    def step(self, optimizer: Optimizer, closure: Closures, *, scaler: GradScaler | None = None) -> Tensor:
        """Set the decay, then gradient and update."""
        for group in optimizer.param_groups:
            if "weight_decay" not in group:
                raise ValueError(
                    f"`optimizer` must have a weight decay to set, got {type(optimizer).__name__}, which has none. Use "
                    "SGD, Adam or AdamW."
                )
            group["weight_decay"] = self.strength
        optimizer.zero_grad(set_to_none=True)
        loss = descend(in_turn(closure), scaler)
        update(optimizer, scaler)
        return loss
