"""Cross entropy and its weighted gradient from one pass over logits that lie in the processor's memory.

For a vector of losses torch fills a matrix with zeros, writes one entry per row, and reads it again beside the
probabilities. Here the gradient is made from the probabilities directly, which pays for the weights.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from reweigh._array import are_readable
from reweigh.torch._criterion import Criterion, Elements, elements_of_logs, is_hooked
from reweigh.torch._passes import is_batched

_forward_mode: Any = torch.autograd.forward_ad

#: Below so many logits a Python function in the graph costs more than it saves: of a matrix, and with all the rest.
MANY, VERY_MANY = 2**17, 2**19
#: Below so small a probability it may lack digits.
_UNLIKELY = 1e-30
#: Up to so many threads NumPy's exponential on one is faster than torch's on all.
_FEW_THREADS = 2


class Rows(NamedTuple):
    """Plain cross entropies of the rows of a matrix as constants, and what their gradient is made of."""

    losses: Tensor
    probabilities: Tensor
    target: Tensor

    def descend(self, output: Tensor, value: Tensor, shares: Tensor) -> Tensor:
        """The number `value`, whose gradient is that of the losses, each times its constant share."""
        return _DescentOfRows.apply(output, self.probabilities, value, self.target, shares)  # pyright: ignore


def rows(output: Tensor, target: Tensor, ignore_index: int) -> Rows | None:
    """The rows of many logits without ignored or unlikely labels; None for others.

    The logarithm of a probability is as exact as the difference of logarithms until the probability underflows.
    """
    if not output.requires_grad or _forward_mode._current_level >= 0:
        return None
    probabilities = torch.softmax(output, 1)
    # Checks the labels as for a loss, and is zero for those that are ignored.
    negative = F.nll_loss(probabilities.detach(), target, reduction="none", ignore_index=ignore_index)
    losses = _losses_here(negative)
    return None if losses is None else Rows(losses, probabilities, target)


def _losses_here(negative: Tensor) -> Tensor | None:
    """Minus the logarithms of probabilities with their signs turned; None where one is too small for it."""
    values = negative.numpy()
    if not np.maximum.reduce(values) < -_UNLIKELY:  # a NaN is too small too
        return None
    np.log(np.negative(values, out=values), out=values)
    np.negative(values, out=values)
    return negative


class Pass(NamedTuple):
    """The elements of a cross entropy as constants, and what their gradient is made of.

    The gradient of an element is `hit` times that of `-log p[index]`, plus `rest` times that of the sum of
    `class_weight · -log p`.
    """

    elements: Elements
    logs: Tensor
    labels: Tensor
    hit: Tensor | float
    rest: float
    class_weight: Tensor | None

    def descend(self, output: Tensor, value: Tensor, shares: Tensor) -> Tensor:
        """The number `value`, whose gradient is that of the elements, each times its constant share."""
        mask = self.elements.mask
        shares = (shares if mask is None else torch.where(mask, shares, 0.0)).unsqueeze(1)
        hit = shares if isinstance(self.hit, float) and self.hit == 1.0 else shares * self.hit
        rest = shares * self.rest if self.rest else None
        return _Descent.apply(output, self.logs, value, self.labels, hit, rest, self.class_weight)  # pyright: ignore


def one_pass(criterion: Criterion, inputs: tuple[Any, ...]) -> Pass | None:
    """The pass over many logits; None for what is left to torch."""
    inner: Any = criterion.inner
    if type(inner) is not nn.CrossEntropyLoss or len(inputs) != 2:
        return None
    output, target = inputs
    class_weight = inner.weight
    if (
        not are_readable(output, target)
        or output.ndim < 2
        or output.numel() < VERY_MANY
        or not output.requires_grad
        or output.dtype.itemsize < 4
        or target.dtype != torch.int64
        or target.shape != (output.shape[0], *output.shape[2:])
        or (class_weight is not None and (not class_weight.is_cpu or class_weight.dtype != output.dtype))
        or _forward_mode._current_level >= 0
        or is_hooked(inner)
    ):
        return None
    logs = torch.log_softmax(output, 1)
    elements = elements_of_logs(logs.detach(), target, inner, criterion.floor)
    mask, smoothing = elements.mask, inner.label_smoothing
    hit: Tensor | float = 1.0 - smoothing
    if class_weight is not None:
        assert elements.measure is not None
        hit = (elements.measure * hit if smoothing else elements.measure).unsqueeze(1)
        class_weight = class_weight.detach()
    elif smoothing:
        class_weight = output.new_ones(output.shape[1])
    index = (target if mask is None else torch.where(mask, target, 0)).unsqueeze(1)
    return Pass(elements, logs, index, hit, smoothing / output.shape[1], class_weight)


class _DescentOfRows(torch.autograd.Function):
    """A number that is known already, with the gradient of the plain cross entropies it was made from."""

    @staticmethod
    def forward(
        ctx: Any, output: Tensor, probabilities: Tensor, value: Tensor, target: Tensor, shares: Tensor
    ) -> Tensor:
        # The logits go by way of their probabilities, which torch can differentiate once more.
        ctx.save_for_backward(probabilities, target, shares)
        return value.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        probabilities, target, shares = ctx.saved_tensors
        index, shares = target.unsqueeze(1), (shares * gradients[0]).unsqueeze(1)
        if _is_followed(gradients[0]):
            return (probabilities * shares).scatter_add(1, index, -shares), None, None, None, None
        return (probabilities * shares).scatter_add_(1, index, -shares), None, None, None, None


class _Descent(torch.autograd.Function):
    """A number that is known already, with the gradient of the cross entropies it was made from."""

    @staticmethod
    def forward(
        ctx: Any,
        output: Tensor,
        logs: Tensor,
        value: Tensor,
        index: Tensor,
        hit: Tensor,
        rest: Tensor | None,
        class_weight: Tensor | None,
    ) -> Tensor:
        # The logits go by way of `logs`, which torch can differentiate once more.
        ctx.save_for_backward(logs, index, hit, rest, class_weight)
        return value.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        saved: Any = ctx.saved_tensors
        logs, index, hit, rest, class_weight = saved
        hit = hit * gradients[0]
        summed, less, spread = hit, (-hit).expand_as(index), None
        if rest is not None:
            rest = rest * gradients[0]
            summed = hit + rest * class_weight.sum()
            spread = class_weight.view(-1, *[1] * (logs.ndim - 2))
        if _is_followed(gradients[0]):
            gradient = (torch.exp(logs) * summed).scatter_add(1, index, less)
            gradient = gradient if spread is None else gradient - rest * spread
        else:
            gradient = _exp_here(logs).mul_(summed).scatter_add_(1, index, less)
            if rest is not None and spread is not None:
                gradient.addcmul_(rest, spread, value=-1.0)
        return gradient, None, None, None, None, None, None


def _is_followed(gradient: Tensor) -> bool:
    """Whether a gradient is differentiated itself, or stands for a batch of them: nothing may be done in place."""
    return torch.is_grad_enabled() or is_batched(gradient) or not are_readable(gradient)


def _exp_here(x: Tensor) -> Tensor:
    if torch.get_num_threads() > _FEW_THREADS:
        return torch.exp(x)
    powers = torch.empty_like(x)
    np.exp(x.numpy(), out=powers.numpy())
    return powers
