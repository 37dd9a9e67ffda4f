"""Early-learning regularisation: predictions are held to what the model said of the same row before (ELR)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer

from reweigh import _validate as validate
from reweigh._array import widen
from reweigh.torch.steps._base import Closure, Closures, Step, Stepper, descend, row_shares, update, with_losses

__all__ = ["ELR"]

#: The authors hold probabilities between this and one less this, so that the logarithm stays finite.
_LEAST = 1e-4


@dataclass(frozen=True, kw_only=True)
class ELR(Step):
    r"""Early-learning regularisation: the optimizer's own step, with a pull towards the model's earlier predictions.

    .. math:: \hat L + \frac{\lambda}{B} \sum_i \log\big(1 - \langle t_i, p_i \rangle\big), \qquad
              t_i \leftarrow \beta\, t_i + (1 - \beta)\, p_i

    :math:`p_i` are the predicted probabilities of row i, :math:`t_i` their moving average over the visits to that row,
    which starts at zero and carries no gradient. Networks fit right labels before wrong ones: once :math:`t_i` leans
    to a class, the second term undoes the gradient of a label that disagrees.

    Parameters
    ----------
    lam
        Strength :math:`\lambda` of the second term; 0 is `plain`.
    beta
        How much of the moving average is kept at each visit.
    n
        Number of training rows; the training context fills it in.

    Examples
    --------
    >>> import torch
    >>> from reweigh.torch.losses import CrossEntropy
    >>> from reweigh.torch.steps import Closure
    >>> model = torch.nn.Linear(1, 2)
    >>> _ = torch.nn.init.zeros_(model.weight), torch.nn.init.zeros_(model.bias)
    >>> stepper = ELR(n=3).start(model)
    >>> closure = Closure(model=model, batch=(torch.ones(2, 1), torch.tensor([0, 1])), losses=CrossEntropy(),
    ...                   index=torch.tensor([0, 2]))
    >>> _ = stepper.step(torch.optim.SGD(model.parameters(), lr=0.1), closure)
    >>> stepper.averages  # the second row was not in the batch
    tensor([[0.1500, 0.1500],
            [0.0000, 0.0000],
            [0.1500, 0.1500]])

    Notes
    -----
    Needs the closure's `index`, and n times C numbers of memory. As in the authors' code: probabilities are held within
    [1e-4, 1 - 1e-4], the average takes in the batch's own prediction before it is used, and the term is not weighted.
    Theirs comes with the mean cross entropy, :math:`\hat L` here is the method's own loss and objective. Their
    settings are (3, 0.7) for CIFAR-10, (1, 0.9) with flipped labels, (7, 0.9) for CIFAR-100; ELR+, with two networks
    and mixup, is not here. A process of several remembers the rows that it saw itself. References: Liu et al.,
    *Early-Learning Regularization Prevents Memorization of Noisy Labels*, NeurIPS 2020.
    """

    lam: float = 3.0
    beta: float = 0.7
    n: int | None = None

    search: ClassVar[Mapping[str, tuple[Any, ...]]] = {"lam": (1.0, 3.0, 7.0), "beta": (0.7, 0.9)}
    needs: ClassVar[tuple[str, ...]] = ("n",)
    needs_losses: ClassVar[bool] = True
    cost: ClassVar[str] = "1 forward+backward, O(B C)"

    def __post_init__(self) -> None:
        validate.non_negative("lam", self.lam)
        validate.fraction("beta", self.beta, zero=True, one=False)
        if self.n is not None:
            validate.whole("n", self.n, 1)

    def start(self, model: nn.Module) -> LiveELR:
        """The live step, which remembers nothing yet."""
        if self.n is None:
            raise ValueError("`n` must be known to remember predictions by row, got None. Give len(dataset).")
        return LiveELR(self, self.n)


class LiveELR(Stepper):
    """The live form of :class:`ELR`; `averages` are the remembered predictions, (n, C), None before the first step."""

    def __init__(self, settings: ELR, n: int) -> None:
        self.settings, self.n = settings, n
        self.averages: Tensor | None = None

    def step(self, optimizer: Optimizer, closure: Closures, *, scaler: GradScaler | None = None) -> Tensor:
        """Remember what is predicted, then gradient and update."""
        closures = with_losses(closure, "ELR", "it looks at predictions, and remembers them by row", index=True)
        optimizer.zero_grad(set_to_none=True)
        shares = zip(closures, row_shares(one.batch for one in closures), strict=True)
        loss = descend([lambda one=one, share=share: self._loss(one, share) for one, share in shares], scaler)
        update(optimizer, scaler)
        return loss

    def _loss(self, one: Closure, share: float) -> Tensor:
        """The closure's own loss and the regulariser, which is the mean over the rows of all parts."""
        inputs, target = one.batch
        with one.context():
            output = one.model(inputs)
            losses = one.losses(output, target)
        if output.ndim != 2 or output.shape[1] < 2:
            raise ValueError(f"elr needs one logit per class and row, (B, C), got shape {tuple(output.shape)}.")
        assert one.index is not None
        probabilities = widen(output).softmax(1).clamp(_LEAST, 1.0 - _LEAST)
        agreement = (self._remember(one.index, probabilities.detach()) * probabilities).sum(1)
        return one.objective(losses) + share * self.settings.lam * torch.log1p(-agreement).mean()

    def _remember(self, index: Tensor, seen: Tensor) -> Tensor:
        """The rows' moving averages, once they have taken these predictions in."""
        if self.averages is None:
            self.averages = seen.new_zeros(self.n, seen.shape[1])
        elif self.averages.device != seen.device:  # from a checkpoint, which is read on the processor
            self.averages = self.averages.to(seen.device)
        index, beta = index.to(seen.device), self.settings.beta
        new = beta * self.averages[index] + (1.0 - beta) * seen / seen.sum(1, keepdim=True)
        self.averages[index] = new.to(self.averages.dtype)
        return new

    def state_dict(self) -> dict[str, Any]:
        """The remembered predictions."""
        return {"averages": self.averages}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there."""
        self.averages = state["averages"]
