"""Exponential moving average of the weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from torch import nn

from reweigh import _validate as validate
from reweigh.torch.averages._base import Average, Averager, AverageState, buffers_of, mix, narrow, tensors_of, wide

__all__ = ["EMA"]


@dataclass(frozen=True, kw_only=True)
class EMA(Average):
    r"""An average in which a step fades by the same factor each step.

    .. math:: \bar\theta_t = d_t\,\bar\theta_{t-1} + (1 - d_t)\,\theta_t, \qquad \bar\theta_0 = \theta_0, \qquad
              d_t = d \;\text{ or }\; \min\!\Big(d, \frac{t}{t + 9}\Big) \text{ with warm-up, } t = 1, 2, \dots

    Parameters
    ----------
    decay
        The factor d. The average looks back over about `1/(1 - decay)` steps.
    warmup
        Forget the random initial weights sooner: the factor starts at 1/10 and rises to `decay`.
    buffers
        `"averaged"` treats floating-point buffers (running statistics of BatchNorm) as the weights they belong to;
        `"copied"` takes the latest. Integer buffers are always copied.

    Examples
    --------
    >>> import torch
    >>> model = torch.nn.Linear(1, 1, bias=False)
    >>> _ = torch.nn.init.zeros_(model.weight)
    >>> average = EMA(decay=0.9).start(model)
    >>> _ = torch.nn.init.ones_(model.weight)
    >>> average.update(model)
    >>> print(round(average.average()["weight"].item(), 6))
    0.1

    Notes
    -----
    Kept in float32 at least: in bfloat16 one thousandth of a step rounds to nothing. The warm-up is TensorFlow's,
    :math:`(1 + n)/(10 + n)` after n earlier updates. References: Polyak and Juditsky, *Acceleration of Stochastic
    Approximation by Averaging*, 1992.
    """

    decay: float = 0.999
    warmup: bool = False
    buffers: Literal["averaged", "copied"] = "averaged"

    search: ClassVar[Mapping[str, tuple[Any, ...]]] = {"decay": (0.99, 0.999, 0.9999)}
    cost: ClassVar[str] = "one copy of the weights, one pass over them a step"

    def __post_init__(self) -> None:
        validate.fraction("decay", self.decay, zero=True, one=False)
        validate.one_of("buffers", self.buffers, ("averaged", "copied"))

    def start(self, model: nn.Module) -> LiveEMA:
        """The live average, beginning with the model's weights."""
        return LiveEMA(self, model)


class LiveEMA(Averager):
    """The live form of :class:`EMA`."""

    def __init__(self, config: EMA, model: nn.Module) -> None:
        self.config = config
        self.updates = 0
        own = tensors_of(model)
        self._dtypes = {name: value.dtype for name, value in own.items()}
        self._copied = buffers_of(model) if config.buffers == "copied" else frozenset[str]()
        self._mean = wide(own)

    def update(self, model: nn.Module) -> None:
        """Move the average by a share of the way to the model's weights."""
        decay = self.config.decay
        if self.config.warmup:
            decay = min(decay, (1 + self.updates) / (10 + self.updates))
        mix(self._mean, tensors_of(model), 1.0 - decay, self._copied)
        self.updates += 1

    def average(self) -> AverageState:
        """The averaged weights, for `model.load_state_dict`."""
        return narrow(self._mean, self._dtypes)

    def state_dict(self) -> dict[str, Any]:
        """The average in its own precision, and the number of updates."""
        return {"updates": self.updates, "mean": {name: value.clone() for name, value in self._mean.items()}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state."""
        self.updates = int(state["updates"])
        mix(self._mean, state["mean"], 1.0, frozenset(self._mean))
