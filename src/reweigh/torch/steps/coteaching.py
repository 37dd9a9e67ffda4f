"""Two networks that choose each other's examples."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer

from reweigh import _validate as validate
from reweigh.torch.steps._base import Closures, Step, Stepper, refuse_scaler, row_shares, unwrapped, with_losses

__all__ = ["Coteaching"]


@dataclass(frozen=True, kw_only=True)
class Coteaching(Step):
    r"""Two networks, each trained on the units of the batch that have the smallest losses under the other.

    .. math:: \hat L_1 = \frac1k \sum_{i \in S_2} \ell_i(\theta_1), \qquad
              \hat L_2 = \frac1k \sum_{i \in S_1} \ell_i(\theta_2), \qquad k = \lfloor (1 - r_t)\,B \rfloor

    :math:`S_1, S_2` are the k units with the smallest losses under each network, and :math:`r_t` rises from 0 to
    `forget` over the first part of training: what one network mislearns, the other has no reason to.

    Parameters
    ----------
    forget
        The share of units to leave out: the share of labels believed to be wrong.
    gradual
        The share of training over which it rises.
    seed
        Of the second network's initial parameters.
    steps
        Steps of the whole training; the training context fills it in.

    Examples
    --------
    >>> import torch
    >>> from reweigh.torch.losses import MSE
    >>> from reweigh.torch.steps import Closure
    >>> model = torch.nn.Linear(1, 1)
    >>> stepper = Coteaching(forget=0.5, gradual=0.0, steps=1).start(model)
    >>> batch = torch.ones(4, 1), torch.tensor([[0.0], [0.0], [9.0], [9.0]])
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> _ = stepper.step(optimizer, Closure(model=model, batch=batch, losses=MSE()))
    >>> print(stepper.weights.sum())  # two of the four units, half each
    tensor(1.)

    Notes
    -----
    Follows the authors' code, with the rate rising by steps and not by epochs. There the mean over the units kept is
    divided by their number again, which Adam, their optimizer, does not see except for its epsilon; here it is
    not. The first network is the model that is kept and scored. The second has an optimizer of the same kind and
    rates. Layers without `reset_parameters` start as copies. References: Han et al., *Co-teaching: Robust Training
    of Deep Neural Networks with Extremely Noisy Labels*, NeurIPS 2018.
    """

    forget: float = 0.2
    gradual: float = 0.1
    seed: int = 1
    steps: int | None = None

    search: ClassVar[Mapping[str, tuple[Any, ...]]] = {"forget": (0.1, 0.2, 0.4)}
    needs: ClassVar[tuple[str, ...]] = ("steps",)
    needs_losses: ClassVar[bool] = True
    own_objective: ClassVar[bool] = True
    cost: ClassVar[str] = "2 forward+backward, 2 models"

    def __post_init__(self) -> None:
        validate.fraction("forget", self.forget, zero=True, one=False)
        validate.fraction("gradual", self.gradual, zero=True)
        validate.whole("seed", self.seed, 0)
        if self.steps is not None:
            validate.whole("steps", self.steps, 1)

    def start(self, model: nn.Module) -> LiveCoteaching:
        """The live step, with the second network."""
        if self.steps is None:
            raise ValueError("`steps` must be known to raise the share gradually, got None. Give all steps.")
        return LiveCoteaching(self, model)


class LiveCoteaching(Stepper):
    """The live form of :class:`Coteaching`; `weights` are those of the last step, `twin` is the second network."""

    def __init__(self, settings: Coteaching, model: nn.Module) -> None:
        self.settings = settings
        self.twin = copy.deepcopy(unwrapped(model))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(settings.seed)
            for layer in self.twin.modules():
                reset = getattr(layer, "reset_parameters", None)
                if callable(reset):
                    reset()
        self.twin_optimizer: Optimizer | None = None
        self._saved: Any = None
        self.done = 0
        self.weights: Tensor | None = None

    def step(self, optimizer: Optimizer, closure: Closures, *, scaler: GradScaler | None = None) -> Tensor:
        """Each network's step on the other's choice."""
        refuse_scaler(scaler, "Coteaching")
        closures = with_losses(closure, "Coteaching", "units are chosen by their losses")
        twin_optimizer = self._twin_of(optimizer, closures[0].model)
        self.twin.train(closures[0].model.training)
        optimizer.zero_grad(set_to_none=True)
        twin_optimizer.zero_grad(set_to_none=True)
        total, weights = torch.zeros(()), []
        for one, share in zip(closures, row_shares(one.batch for one in closures), strict=True):
            theirs = one.losses_of(self.twin, one.batch)
            ours = one.unit_losses()
            kept = max(int((1.0 - self.rate) * len(ours) * (1.0 + 1e-6)), 1)
            by_them, by_us = (losses.detach().argsort()[:kept] for losses in (theirs, ours))
            loss = share * ours[by_them].mean()
            torch.autograd.backward([loss, share * theirs[by_us].mean()])
            weights.append(torch.zeros_like(ours.detach()).scatter(0, by_them, share / kept))
            total = total.to(loss.device) + loss.detach()
        optimizer.step()
        twin_optimizer.step()
        self.weights = torch.cat(weights)
        self.done += 1
        return total

    @property
    def rate(self) -> float:
        """The share left out now."""
        until = self.settings.gradual * (self.settings.steps or 1)
        return self.settings.forget * (min(self.done / until, 1.0) if until else 1.0)

    def _twin_of(self, optimizer: Optimizer, model: nn.Module) -> Optimizer:
        """The second network's optimizer: of the first one's kind, with its rates of now."""
        if self.twin_optimizer is None:
            own = dict(zip(map(id, unwrapped(model).parameters()), self.twin.parameters(), strict=True))
            groups = [
                {**group, "params": [own[id(parameter)] for parameter in group["params"]]}
                for group in optimizer.param_groups
            ]
            kind = type(optimizer)
            taken = inspect.signature(kind).parameters  # AdamW has defaults that it does not take
            self.twin_optimizer = kind(groups, **{k: v for k, v in optimizer.defaults.items() if k in taken})
            if self._saved is not None:
                self.twin_optimizer.load_state_dict(self._saved)
        for ours, theirs in zip(optimizer.param_groups, self.twin_optimizer.param_groups, strict=True):
            theirs["lr"] = ours["lr"]
        return self.twin_optimizer

    def state_dict(self) -> dict[str, Any]:
        """The second network, its optimizer, and how many steps have been made."""
        optimizer = self._saved if self.twin_optimizer is None else self.twin_optimizer.state_dict()
        return {"done": self.done, "twin": self.twin.state_dict(), "optimizer": optimizer}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there."""
        self.done = int(state["done"])
        self.twin.load_state_dict(state["twin"])
        self._saved, self.twin_optimizer = state["optimizer"], None
