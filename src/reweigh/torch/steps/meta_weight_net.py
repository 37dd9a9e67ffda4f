"""Meta-Weight-Net: the weight of a unit as a learned function of its loss."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.optim import SGD, Adam, Optimizer

from reweigh import _validate as validate
from reweigh._array import sum_over_ranks, widen, world_size
from reweigh.torch.steps._base import Closure, Closures, Step, Stepper, backward, refuse_scaler, with_losses
from reweigh.torch.steps._look_ahead import meta_loss, rates_of

__all__ = ["MetaWeightNet"]


@dataclass(frozen=True, kw_only=True)
class MetaWeightNet(Step):
    r"""Learn the weight function so that a step with it lowers the loss on a clean meta batch.

    .. math:: \theta'(\phi) = \theta - \eta \nabla \frac1B \sum_i V_\phi(\ell_i)\, \ell_i(\theta), \qquad
              \phi \leftarrow \mathrm{step}\big(\phi, \nabla_\phi L_{\mathrm{meta}}(\theta'(\phi))\big), \qquad
              \theta \leftarrow \mathrm{step}\Big(\theta, \nabla \frac1B \sum_i V_\phi(\ell_i)\, \ell_i\Big)

    V is a network 1-h-1 with ReLU and a sigmoid at the end, so weights lie in (0, 1).

    Parameters
    ----------
    setting
        The authors' settings for V: `"noise"` (Adam, 1e-3, weight decay 1e-4, weights as they are) or `"imbalance"`
        (SGD, 1e-5, Nesterov momentum 0.9, weight decay 5e-4, weights normalised).
    hidden
        Width h.
    lr
        Learning rate of V instead of the setting's.
    normalize
        Whether weights are divided by their sum over the batch, instead of the setting's choice.
    seed
        Of V's initial weights.

    Examples
    --------
    >>> import torch
    >>> from reweigh.torch.losses import MSE
    >>> from reweigh.torch.steps import Closure
    >>> model = torch.nn.Linear(1, 1, bias=False)
    >>> batch = torch.ones(2, 1), torch.tensor([[1.0], [-1.0]])
    >>> closure = Closure(model=model, batch=batch, losses=MSE(), meta_batch=(torch.ones(1, 1), torch.ones(1, 1)))
    >>> stepper = MetaWeightNet(setting="imbalance").start(model)
    >>> _ = stepper.step(torch.optim.SGD(model.parameters(), lr=0.1), closure)
    >>> print(round(stepper.weights.sum().item(), 4))
    1.0

    Notes
    -----
    The closure's `objective` is not asked: the network makes the loss. Both virtual passes use batch statistics and
    leave running statistics alone. A batch cannot be split into micro-batches, because the meta gradient goes
    through the gradient of the whole. Under DistributedDataParallel the look-ahead is each rank's own and the
    network's gradient is averaged. Weights that all go to zero are possible without `normalize`; the weight decay
    of V is what holds them. References: Shu et al., *Meta-Weight-Net*, NeurIPS 2019.
    """

    setting: Literal["noise", "imbalance"] = "noise"
    hidden: int = 100
    lr: float | None = None
    normalize: bool | None = None
    seed: int = 0

    search: ClassVar[Mapping[str, tuple[Any, ...]]] = {"lr": (1e-5, 1e-4, 1e-3)}
    cost: ClassVar[str] = "3 forward+backward, one of them twice differentiated"
    needs: ClassVar[tuple[str, ...]] = ("meta_loader",)
    needs_losses: ClassVar[bool] = True
    own_objective: ClassVar[bool] = True

    def __post_init__(self) -> None:
        validate.one_of("setting", self.setting, ("noise", "imbalance"))
        validate.whole("hidden", self.hidden, 1)
        validate.whole("seed", self.seed, 0)
        if self.lr is not None:
            validate.positive("lr", self.lr)

    @property
    def normalized(self) -> bool:
        """`normalize`, or the setting's choice."""
        return self.setting == "imbalance" if self.normalize is None else self.normalize

    def start(self, model: nn.Module) -> LiveMetaWeightNet:
        """The live step, its network on the device of the model."""
        return LiveMetaWeightNet(self, model)


class LiveMetaWeightNet(Stepper):
    """The live form of :class:`MetaWeightNet`; `weights` are those of the last step, `net` is the function."""

    def __init__(self, config: MetaWeightNet, model: nn.Module) -> None:
        self.config = config
        self.weights: Tensor | None = None
        first = next(model.parameters())
        self.net = _network(config).to(first.device, widen(first.detach()).dtype)
        self._optimizer = _optimizer(config, self.net)

    def step(self, optimizer: Optimizer, closure: Closures, *, scaler: GradScaler | None = None) -> Tensor:
        """Better network, weights, gradient, update."""
        refuse_scaler(scaler, "MetaWeightNet")
        closures = with_losses(closure, "MetaWeightNet", "weights are learned from a meta batch", meta=True)
        if len(closures) != 1:
            raise ValueError(
                f"`closure` must be a single one for MetaWeightNet, got {len(closures)} micro-batches: the meta "
                "gradient goes through the gradient of the whole batch. Pass the batch in one closure."
            )
        self._improve(optimizer, closures[0])
        optimizer.zero_grad(set_to_none=True)
        losses = widen(closures[0].unit_losses().flatten())
        with torch.no_grad():
            weights = self.weigh(losses.detach())
        loss = torch.dot(weights, losses)
        backward(loss)
        optimizer.step()
        self.weights = weights
        return loss.detach()

    def weigh(self, losses: Tensor) -> Tensor:
        """What each loss is multiplied by before the sum: V/B, or V divided by its sum."""
        weights = self.net(losses.unsqueeze(1)).squeeze(1)
        if not self.config.normalized:
            return weights / losses.shape[0]
        total = weights.sum()
        return weights / torch.where(total > 0, total, 1.0)

    def meta_loss(self, optimizer: Optimizer, closure: Closure) -> Tensor:
        """The loss on the meta batch after a virtual step, as a function of the network."""
        return meta_loss(closure, rates_of(optimizer, closure.model), self.weigh)

    def _improve(self, optimizer: Optimizer, closure: Closure) -> None:
        parameters = list(self.net.parameters())
        # Not `backward`: that would leave gradients of the meta loss in the model.
        gradients = torch.autograd.grad(self.meta_loss(optimizer, closure), parameters)
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = sum_over_ranks(gradient) / world_size(gradient)
        self._optimizer.step()

    def state_dict(self) -> dict[str, Any]:
        """The network and its optimizer."""
        return {"net": self.net.state_dict(), "optimizer": self._optimizer.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state."""
        self.net.load_state_dict(state["net"])
        self._optimizer.load_state_dict(state["optimizer"])


def _network(config: MetaWeightNet) -> nn.Sequential:
    # Layers draw their first weights from the global generator: give them a seed and put the generator back.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        return nn.Sequential(nn.Linear(1, config.hidden), nn.ReLU(), nn.Linear(config.hidden, 1), nn.Sigmoid())


def _optimizer(config: MetaWeightNet, net: nn.Module) -> Optimizer:
    if config.setting == "noise":
        return Adam(net.parameters(), lr=1e-3 if config.lr is None else config.lr, weight_decay=1e-4)
    rate = 1e-5 if config.lr is None else config.lr
    return SGD(net.parameters(), lr=rate, momentum=0.9, nesterov=True, weight_decay=5e-4)
