"""A last layer trained again on held-out rows, those that were predicted badly weighing more (AFR)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from reweigh import _validate as validate
from reweigh.torch._classifier import last_layer
from reweigh.torch.steps._base import Step, backward, unwrapped
from reweigh.torch.steps._stages import LiveLastLayer, Passed, known_steps

__all__ = ["AFR"]

#: The authors cap the length of every gradient of the second stage.
_LONGEST_GRADIENT = 1.0


@dataclass(frozen=True, kw_only=True)
class AFR(Step):
    r"""Automatic feature re-weighting: plain training, then the last layer again on held-out rows with fixed weights.

    .. math:: \min_W \sum_{i \in H} w_i\,\ell(W z_i, y_i) + \lambda \lVert W - W_0 \rVert^2, \qquad
              w_i \propto \frac{1}{|H_{y_i}|}\, e^{-\gamma p_i}

    H are the rows that the first stage did not see, :math:`z_i` what the last layer :math:`W_0` (with its bias) saw of
    them, :math:`p_i` the probability it gave the right class, and :math:`H_y` the rows of class y. Weights are computed
    once and sum to one. No group labels: the idea of weighing hard rows, at the one layer that decides what features
    are used for.

    Parameters
    ----------
    gamma
        How fast weights fall with the probability of the right class; 0 balances classes and nothing else.
    pull
        Strength lambda of the pull towards the layer of the first stage.
    held_out
        The share of training rows that is kept for the second stage.
    lr, iterations
        Of the second stage: gradient descent on all held-out rows at once.
    seed
        Of the choice of held-out rows.
    steps, n
        Steps of the whole training and number of training rows; the training context fills them in.

    Examples
    --------
    >>> import torch
    >>> from reweigh.torch.losses import CrossEntropy
    >>> from reweigh.torch.steps import Closure, TrainingRows
    >>> _ = torch.manual_seed(0)
    >>> model, x, y = torch.nn.Linear(2, 2), torch.randn(20, 2), torch.randint(2, (20,))
    >>> stepper = AFR(steps=1, n=20).start(model)
    >>> int(stepper.copies.sum())  # rows to draw from
    16
    >>> closure = Closure(model=model, batch=(x, y), losses=CrossEntropy(),
    ...                   training_rows=TrainingRows(inputs=x, targets=y))
    >>> _ = stepper.step(torch.optim.SGD(model.parameters(), lr=0.1), closure)

    Notes
    -----
    As in the authors' code: full batches, no momentum, gradients no longer than 1. They choose gamma and lambda, and
    when to stop, by the worst group of labelled validation rows; here `iterations` is fixed. Their settings were
    gamma 10, lambda 0, rate 0.01, 500 iterations for Waterbirds and 1.44, 0.001, 0.02, 1000 for CelebA. The second
    stage minimises the cross entropy whatever the objective of the first. References: Qiu et al., *Simple and Fast
    Group Robustness by Automatic Feature Reweighting*, ICML 2023.
    """

    gamma: float = 10.0
    pull: float = 0.001
    held_out: float = 0.2
    lr: float = 0.01
    iterations: int = 500
    seed: int = 0
    steps: int | None = None
    n: int | None = None

    search: ClassVar[Mapping[str, tuple[Any, ...]]] = {"gamma": (1.0, 4.0, 10.0, 20.0), "lr": (0.01, 0.1, 1.0)}
    cost: ClassVar[str] = "1 forward+backward, 1 pass over the data at the end"
    needs: ClassVar[tuple[str, ...]] = ("steps", "n")
    needs_losses: ClassVar[bool] = True
    draws: ClassVar[bool] = True
    replaces: ClassVar[bool] = True

    def __post_init__(self) -> None:
        validate.non_negative("gamma", self.gamma)
        validate.non_negative("pull", self.pull)
        validate.fraction("held_out", self.held_out, one=False)
        validate.positive("lr", self.lr)
        validate.whole("iterations", self.iterations, 0)
        validate.whole("seed", self.seed, 0)
        for name in ("steps", "n"):
            if getattr(self, name) is not None:
                validate.whole(name, getattr(self, name), 1)

    def start(self, model: nn.Module) -> LiveAFR:
        """The live step."""
        last_layer(unwrapped(model), "afr")
        return LiveAFR(self, known_steps(self.steps, "train the last layer at the end"))


class LiveAFR(LiveLastLayer):
    """The live form of :class:`AFR`."""

    name: ClassVar[str] = "afr"

    def __init__(self, settings: AFR, steps: int) -> None:
        super().__init__(steps, settings.n, settings.held_out, settings.seed)
        self.settings = settings

    def fit(self, seen: Passed, layer: nn.Linear) -> Sequence[Tensor]:
        """Gradient descent from the first stage's layer, on the weighted losses and the distance to that layer."""
        held = seen.rows(self.held)
        weights = weights_of(held, self.settings.gamma)
        start = [parameter.detach().clone() for parameter in layer.parameters()]
        moving = [parameter.clone().requires_grad_() for parameter in start]
        descent = torch.optim.SGD(moving, lr=self.settings.lr)
        for _ in range(self.settings.iterations):
            descent.zero_grad()
            outputs = nn.functional.linear(held.features, *moving)
            losses = nn.functional.cross_entropy(outputs, held.targets, reduction="none")
            distance = torch.stack([((a - b) ** 2).sum() for a, b in zip(moving, start, strict=True)]).sum()
            backward((weights * losses).sum() + self.settings.pull * distance)
            nn.utils.clip_grad_norm_(moving, _LONGEST_GRADIENT)
            descent.step()
        return moving


def weights_of(held: Passed, gamma: float) -> Tensor:
    """The fixed weights of held-out rows: they sum to one."""
    right = held.outputs.softmax(1).gather(1, held.targets[:, None])[:, 0]
    weights = torch.exp(-gamma * right) / held.targets.bincount()[held.targets]
    return weights / weights.sum()
