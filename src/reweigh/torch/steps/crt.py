"""Plain training, then a new classifier on the frozen trunk, classes balanced (cRT)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer

from reweigh import _validate as validate
from reweigh.torch._classifier import last_layer
from reweigh.torch.losses._base import PerClass, counts_of
from reweigh.torch.losses.class_weights import ClassWeights
from reweigh.torch.steps._base import Closure, Closures, Step, descend, row_shares, unwrapped, update, with_losses
from reweigh.torch.steps._stages import LiveStages, known_steps

__all__ = ["CRT"]


@dataclass(frozen=True, kw_only=True)
class CRT(Step):
    r"""The optimizer's own step; for the last part of training, on a new last layer alone, with balanced classes.

    .. math:: \hat L = \frac1B \sum_i \frac{n}{C\,n_{y_i}}\,\ell_i \quad \text{over the last layer's parameters}

    Features are learnt from the data as they are; only the boundary is learnt with every class counting the same.

    Parameters
    ----------
    share
        The last share of training, for the classifier.
    steps, class_counts
        Steps of the whole training and training examples of each class; the training context fills them in.

    Examples
    --------
    >>> import torch
    >>> from reweigh.torch.losses import CrossEntropy
    >>> from reweigh.torch.steps import Closure
    >>> model = torch.nn.Sequential(torch.nn.Linear(2, 4), torch.nn.Linear(4, 2))
    >>> stepper = CRT(share=0.5, steps=2, class_counts=(3, 1)).start(model)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    >>> batch = torch.randn(4, 2), torch.tensor([0, 0, 0, 1])
    >>> _ = stepper.step(optimizer, Closure(model=model, batch=batch, losses=CrossEntropy()))
    >>> trunk = model[0].weight.clone()
    >>> _ = stepper.step(optimizer, Closure(model=model, batch=batch, losses=CrossEntropy()))
    >>> bool((model[0].weight == trunk).all())
    True

    Notes
    -----
    Departures: classes are balanced by weights instead of by drawing, which has the same expected gradient; the new
    classifier starts at zero and not at random; the authors' code trains it for 10 epochs after 90 on ImageNet-LT
    (30 on iNaturalist) with a cosine schedule of its own from the full rate, here it has the last share of the budget
    and the schedule continues. As there, the trunk's running statistics keep moving. The objective is the plain mean in
    this part. References: Kang et al., *Decoupling Representation and Classifier for Long-Tailed Recognition*,
    ICLR 2020.
    """

    share: float = 0.1
    steps: int | None = None
    class_counts: tuple[int, ...] | None = None

    search: ClassVar[Mapping[str, tuple[Any, ...]]] = {"share": (0.1, 0.2)}
    needs: ClassVar[tuple[str, ...]] = ("steps", "class_counts")
    needs_losses: ClassVar[bool] = True

    def __post_init__(self) -> None:
        validate.fraction("share", self.share)
        if self.steps is not None:
            validate.whole("steps", self.steps, 1)
        if self.class_counts is not None:
            object.__setattr__(self, "class_counts", counts_of(self.class_counts, "crt"))

    def class_factors(self, class_counts: Sequence[int] | None) -> Sequence[float]:
        """Inverse shares: what `prior` must not correct for a second time."""
        return ClassWeights(power=1.0).class_factors(class_counts)

    def start(self, model: nn.Module) -> LiveCRT:
        """The live step."""
        steps = known_steps(self.steps, "train a classifier at the end")
        counts = counts_of(self.class_counts, "crt")
        weights = PerClass(self.class_factors(counts))
        return LiveCRT(round(steps * (1.0 - self.share)), weights, last_layer(unwrapped(model), "crt"))


class LiveCRT(LiveStages):
    """The live form of :class:`CRT`; the second stage is on the classifier alone."""

    def __init__(self, until: int, weights: PerClass, layer: nn.Linear) -> None:
        super().__init__(until)
        self.class_weights, self.layer = weights, layer

    def step(self, optimizer: Optimizer, closure: Closures, *, scaler: GradScaler | None = None) -> Tensor:
        """Gradient on everything or, late, on the classifier alone; update."""
        closures = with_losses(closure, "CRT", "the last steps weigh each unit by its class")
        late = self.late
        if self.done == self.until:
            self._begin_anew(optimizer)
        if late:
            shares = row_shares(one.batch for one in closures)
            closures = tuple(self._balanced(one, share) for one, share in zip(closures, shares, strict=True))
        optimizer.zero_grad(set_to_none=True)
        loss = descend(closures, scaler)
        if late:
            own = {id(parameter) for parameter in self.layer.parameters()}
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    if id(parameter) not in own:
                        parameter.grad = None  # without a gradient neither momentum nor weight decay move it
        update(optimizer, scaler)
        self.done += 1
        return loss

    def _begin_anew(self, optimizer: Optimizer) -> None:
        with torch.no_grad():
            for parameter in self.layer.parameters():
                parameter.zero_()
                optimizer.state.pop(parameter, None)

    def _balanced(self, one: Closure, share: float) -> Closure:
        target = one.batch[1]
        return replace(one, objective=lambda losses: share * (self.class_weights.of(target) * losses).mean())
