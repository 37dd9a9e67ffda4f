"""Train, collect the errors, repeat them, train again (JTT)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from reweigh import _validate as validate
from reweigh.torch.steps._base import Closure, Step, unwrapped
from reweigh.torch.steps._stages import LiveTurn, known_steps, passed

__all__ = ["JTT"]


@dataclass(frozen=True, kw_only=True)
class JTT(Step):
    r"""Just train twice: a short training finds the rows it gets wrong; a new one draws them more often.

    .. math:: c_i = 1 + u \cdot \mathbf{1}[\arg\max_k f_k(x_i) \ne y_i]

    where :math:`f` is the model at the end of the first stage and :math:`c_i` how often row i is in the set that the
    second stage draws from. The second stage starts from the initial parameters. No group labels: the errors of a
    model that was trained briefly stand for the rows that its shortcut does not explain.

    Parameters
    ----------
    first
        The share of training that is spent on finding errors.
    up
        How many more times each of them is in the set.
    steps
        Steps of the whole training; the training context fills it in.

    Examples
    --------
    >>> import torch
    >>> from reweigh.torch.losses import CrossEntropy
    >>> from reweigh.torch.steps import Closure, TrainingRows
    >>> model = torch.nn.Linear(1, 2)
    >>> _ = torch.nn.init.zeros_(model.weight)
    >>> x, y = torch.tensor([[-1.0], [1.0], [2.0], [3.0]]), torch.tensor([0, 1, 1, 0])
    >>> stepper = JTT(first=0.5, up=5, steps=40).start(model)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> closure = Closure(model=model, batch=(x[:3], y[:3]), losses=CrossEntropy(),
    ...                   training_rows=TrainingRows(inputs=x, targets=y))
    >>> for _ in range(20):
    ...     _ = stepper.step(optimizer, closure)
    >>> stepper.copies  # the last row has the other label
    tensor([1, 1, 1, 6])

    Notes
    -----
    As in the authors' code, errors are added `up` times to the rows that are there, the second model starts as the
    first did, with a new optimizer. Departures: the two stages share one budget and one schedule of learning rates,
    which continues; an epoch of the second stage is as many draws as there are rows. They stop the first stage and
    choose `up` by the worst group of labelled validation rows: (0.2, 100) for Waterbirds, (0.02, 50) for CelebA, (0.4,
    4) for MultiNLI and (0.67, 6) for CivilComments, with a weight decay of 1 on Waterbirds. References: Liu et al.,
    *Just Train Twice: Improving Group Robustness without Training Group Information*, ICML 2021.
    """

    first: float = 0.2
    up: int = 20
    steps: int | None = None

    search: ClassVar[Mapping[str, tuple[Any, ...]]] = {"up": (4, 20, 50), "first": (0.1, 0.2, 0.4)}
    cost: ClassVar[str] = "1 forward+backward, 1 pass over the data between the stages"
    needs: ClassVar[tuple[str, ...]] = ("steps",)
    needs_losses: ClassVar[bool] = True
    draws: ClassVar[bool] = True

    def __post_init__(self) -> None:
        validate.fraction("first", self.first, one=False)
        validate.whole("up", self.up, 0)
        if self.steps is not None:
            validate.whole("steps", self.steps, 2)

    def start(self, model: nn.Module) -> LiveJTT:
        """The live step, which keeps a copy of the initial parameters."""
        steps = known_steps(self.steps, "train twice")
        return LiveJTT(min(max(round(steps * self.first), 1), steps - 1), self.up, unwrapped(model))


class LiveJTT(LiveTurn):
    """The live form of :class:`JTT`; `copies` is None until the errors are known."""

    name: ClassVar[str] = "jtt"

    def __init__(self, until: int, up: int, model: nn.Module) -> None:
        super().__init__(until)
        self.up = up
        self.initial: dict[str, Tensor] | None = _copied(model)

    def turn(self, optimizer: Optimizer, closure: Closure) -> None:
        """Note the errors, and begin again."""
        seen = passed(closure, self.name)
        wrong = seen.outputs.argmax(1) != seen.targets
        self.copies = 1 + self.up * wrong.to("cpu", torch.int64)
        assert self.initial is not None
        unwrapped(closure.model).load_state_dict(self.initial)
        self.initial = None
        optimizer.state.clear()

    def state_dict(self) -> dict[str, Any]:
        """How many steps have been made, what the second stage starts from, and which rows it draws."""
        return {**super().state_dict(), "initial": self.initial, "copies": self.copies}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there."""
        super().load_state_dict(state)
        self.initial, self.copies = state["initial"], state["copies"]


def _copied(model: nn.Module) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in model.state_dict().items()}
