"""Linear layer, cross entropy and re-weighting in one, for vocabularies whose logits do not fit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, overload

import torch
from torch import Tensor

from reweigh import _validate as validate
from reweigh._array import widen
from reweigh.objectives._base import Objective, Weighed, descend, total
from reweigh.objectives.rgd import RGD

__all__ = ["chunked_cross_entropy"]

Level = Literal["token", "sequence"]
Reduction = Literal["mean", "sum", "none"]

#: Bytes of logits to hold at once: enough rows for a matrix product to run at full speed, and far below a batch's.
_BYTES = 128 * 2**20
#: Rows between which `chunk="auto"` stays, whatever the vocabulary: fewer make the products slow, more gain nothing.
_FEWEST, _MOST = 64, 256


@overload
def chunked_cross_entropy(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    objective: Objective | None = None,
    *,
    bias: Tensor | None = None,
    ignore_index: int = -100,
    level: Level = "token",
    reduction: Reduction = "mean",
    count: Tensor | float | None = None,
    chunk: int | Literal["auto"] = "auto",
    return_losses: Literal[False] = False,
) -> Tensor: ...


@overload
def chunked_cross_entropy(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    objective: Objective | None = None,
    *,
    bias: Tensor | None = None,
    ignore_index: int = -100,
    level: Level = "token",
    reduction: Reduction = "mean",
    count: Tensor | float | None = None,
    chunk: int | Literal["auto"] = "auto",
    return_losses: Literal[True],
) -> tuple[Tensor, Tensor]: ...


def chunked_cross_entropy(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    objective: Objective | None = None,
    *,
    bias: Tensor | None = None,
    ignore_index: int = -100,
    level: Level = "token",
    reduction: Reduction = "mean",
    count: Tensor | float | None = None,
    chunk: int | Literal["auto"] = "auto",
    return_losses: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    r"""Re-weighted cross entropy of a linear layer, without ever holding the logits of the whole batch.

    .. math:: \hat L = \frac1N \sum_i \mathrm{sg}(w_i)\,\ell_i, \qquad
              \ell_i = -\log \mathrm{softmax}(W h_i + b)_{y_i}

    Equal to `objective(F.cross_entropy(F.linear(hidden, weight, bias), targets, reduction="none"))`, value and
    gradients, but a few rows of logits at a time: with 4096 tokens and a vocabulary of 128 000 a fifteenth of the
    memory, in less time. Where a weight depends on the unit's own loss alone, gradients are made in the forward pass,
    from the same logits; other objectives need the logits a second time, once all losses are known.

    Parameters
    ----------
    hidden
        What the linear layer sees: (..., d).
    weight, bias
        Of the linear layer: (V, d) and (V,), as in `torch.nn.Linear`.
    targets
        Class indices in the shape of `hidden` without its last axis. Nothing is shifted here.
    objective
        What turns losses into weights; `RGD()` unless given. `Mean()` is the plain cross entropy.
    ignore_index
        Targets that do not count. They cost as much as the others: leave rows out beforehand if most are ignored.
    level
        Which unit gets a weight: `"token"`, each on its own, or `"sequence"`, for targets of shape (B, T): the row by
        its mean loss. Both divide by the number of tokens.
    reduction
        `"mean"`; `"sum"`; or `"none"` for the weighted loss of each token in the shape of the targets, whose gradient
        is made in the backward pass.
    count
        The denominator of the mean instead: the total over micro-batches or, under data parallel,
        `reweigh.torch.global_count((targets != -100).sum())`.
    chunk
        Tokens whose logits are held at once; `"auto"` takes 64 to 256 of them.
    return_losses
        Whether to return the plain losses too, as constants in the shape of the targets (zero where ignored): what to
        log, since the loss itself is a surrogate.

    Returns
    -------
    Tensor
        A scalar, or the weighted losses; float32 at least. With `return_losses` a pair.

    Examples
    --------
    >>> import torch
    >>> hidden = torch.eye(3, requires_grad=True)
    >>> weight = torch.tensor([[2.0, 0.0, 1.0], [0.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
    >>> loss, losses = chunked_cross_entropy(hidden, weight, torch.tensor([0, 0, -100]), return_losses=True)
    >>> losses
    tensor([0.2395, 1.5514, 0.0000])
    >>> print(round(loss.item(), 4))  # (e^(0.2395/2) 0.2395 + e^(1/2) 1.5514) / 2
    1.414

    Notes
    -----
    Half-precision inputs give half-precision products, as a linear layer would; the softmax, the losses, the weights
    and the sum over chunks are in float32. Gradients are those of first order. An objective that remembers something
    between steps goes on top: `objective.apply(losses, state, mask=targets != -100)` with the losses of
    `objective=Mean(), reduction="none"`. References: Kumar et al., TMLR 2024, for the weights; gradients in the forward
    pass as in Hsu et al., *Liger Kernel*, 2024, and Wijmans et al., *Cut Your Losses in Large-Vocabulary Language
    Models*, ICLR 2025.
    """
    objective = RGD() if objective is None else objective
    _check_options(objective, level, reduction, count, chunk)
    _check_shapes(hidden, weight, bias, targets, level)
    hidden, weight, bias = _as_autocast(hidden, weight, bias)
    flat, size = targets.reshape(-1).long(), hidden.shape[-1]
    task = _Task(
        objective=objective,
        length=targets.shape[1] if level == "sequence" else 1,
        rows=_rows_at_once(chunk, flat.shape[0], weight.shape[0]),
        reduction=reduction,
        count=count if reduction == "mean" else 1,
    )
    mask = flat != ignore_index
    apply: Callable[..., tuple[Tensor, Tensor]] = _ChunkedCrossEntropy.apply  # pyright: ignore[reportAssignmentType]
    loss, losses = apply(hidden.reshape(-1, size), weight, bias, torch.where(mask, flat, 0), mask, task)
    if reduction == "none":
        loss = loss.reshape(targets.shape)
    return (loss, losses.reshape(targets.shape)) if return_losses else loss


@dataclass(frozen=True, kw_only=True)
class _Task:
    """What is asked for: the objective over units of `length` tokens, `rows` of logits at a time."""

    objective: Objective
    length: int
    rows: int
    reduction: Reduction
    count: Any

    @property
    def at_once(self) -> bool:
        """Whether a chunk's weights are known as soon as its losses are."""
        return self.objective.separable and self.length <= self.rows and self.reduction != "none"

    def spans(self, n: int, *, whole_units: bool) -> list[slice]:
        """The chunks of `n` rows, ending between units if asked."""
        step = self.rows // self.length * self.length if whole_units else self.rows
        return [slice(start, min(start + step, n)) for start in range(0, n, max(step, 1))]

    def units(self, losses: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """The mean loss of each unit and how many tokens it counts for."""
        real = mask.to(losses.dtype)
        if self.length == 1:
            return losses, real
        shares = real.view(-1, self.length).sum(1)
        return losses.view(-1, self.length).sum(1) / shares.clamp(min=1), shares

    def weigh(self, losses: Tensor, mask: Tensor) -> Weighed:
        """What the objective makes of these losses."""
        seen, shares = self.units(losses, mask)
        return self.objective.weigh(seen, (), measure=shares)

    def of_tokens(self, weighed: Weighed, mask: Tensor) -> Tensor:
        """The weight of each token, zero where it is ignored."""
        return weighed.weights.repeat_interleave(self.length) * mask if self.length > 1 else weighed.weights * mask


class _Layer(NamedTuple):
    """The linear layer and its rows; targets are valid everywhere, and `mask` tells which of them count."""

    hidden: Tensor
    weight: Tensor
    bias: Tensor | None
    targets: Tensor
    mask: Tensor


class _Gradients:
    """Gradients of the sum over rows of coefficient times loss, chunk by chunk; None for what needs none.

    They are held in float32 at least: a sum of hundreds of chunks in half precision would lose the small ones.
    """

    def __init__(self, layer: _Layer, wanted: Sequence[bool]) -> None:
        wide = widen(layer.hidden.new_empty(0)).dtype
        self.layer = layer
        self.hidden = torch.empty_like(layer.hidden, dtype=wide) if wanted[0] else None
        self.weight = torch.zeros_like(layer.weight, dtype=wide) if wanted[1] else None
        self.bias = torch.zeros_like(layer.bias, dtype=wide) if layer.bias is not None and wanted[2] else None

    def add(self, span: slice, slopes: Tensor, coefficients: Tensor) -> None:
        """Add the rows of a span, where the derivative by a row's logits is coefficient times slope."""
        hidden = self.layer.hidden[span]
        narrow = slopes.to(hidden.dtype)
        column = coefficients.unsqueeze(1)
        if self.hidden is not None:
            self.hidden[span] = torch.mm(narrow, self.layer.weight) * column
        if self.weight is not None:
            # Scaling the d numbers of a row of `hidden` rather than the V of its slopes saves a pass over the logits.
            scaled = (hidden * column).to(hidden.dtype)
            if self.weight.dtype == narrow.dtype:
                self.weight.addmm_(narrow.t(), scaled)
            else:
                self.weight.add_(torch.mm(narrow.t(), scaled))
        if self.bias is not None:
            self.bias.add_(slopes.t() @ coefficients)

    def scaled(self, factor: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """The gradients times a factor, in the precision of the inputs; used up by this, to save a copy."""
        layer = self.layer
        return (
            None if self.hidden is None else self.hidden.mul_(factor).to(layer.hidden.dtype),
            None if self.weight is None else self.weight.mul_(factor).to(layer.weight.dtype),
            None if self.bias is None or layer.bias is None else self.bias.mul_(factor).to(layer.bias.dtype),
        )


class _ChunkedCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, mask: Tensor, task: _Task
    ) -> tuple[Tensor, Tensor]:
        """The reduced loss and the plain losses; gradients too where they can already be known."""
        layer = _Layer(hidden, weight, bias, targets, mask)
        wanted: tuple[bool, ...] = ctx.needs_input_grad[:3]
        gradients = _Gradients(layer, wanted) if any(wanted) and task.reduction != "none" else None
        with torch.autocast(hidden.device.type, enabled=False):
            losses, normalisers = _losses(layer, task, gradients if task.at_once else None)
            weighed = task.weigh(losses, mask)
            coefficients = task.of_tokens(weighed, mask)
            if gradients is not None and not task.at_once:
                _add_all(gradients, task, normalisers, coefficients)
        seen, shares = task.units(losses, mask)
        denominator = total(shares, seen) if task.count is None else task.count
        ctx.save_for_backward(
            *layer, normalisers, coefficients, torch.as_tensor(denominator, dtype=losses.dtype, device=losses.device)
        )
        ctx.task, ctx.wanted, ctx.gradients = task, wanted, gradients
        ctx.mark_non_differentiable(losses)
        if task.reduction == "none":
            return losses * coefficients, losses
        return descend(seen, weighed, shares, task.count), losses

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """The gradients of the forward pass times what comes in, or made now from the logits once more."""
        if torch.is_grad_enabled() and not torch.compiler.is_compiling():
            # Left alone, the second derivative of this part would silently be taken for zero.
            raise RuntimeError(
                "chunked_cross_entropy has gradients of the first order only, and create_graph=True asks for more. Use "
                "F.linear and F.cross_entropy with reduction='none' for those, and the objective on the losses."
            )
        gradient = grad_outputs[0]
        *parts, normalisers, coefficients, denominator = ctx.saved_tensors
        gradients: _Gradients | None = ctx.gradients
        ctx.gradients = None  # used up below: a second backward through the same graph makes them again
        if gradients is None:
            gradients = _Gradients(_Layer(*parts), ctx.wanted)
            if ctx.task.reduction == "none":
                coefficients, gradient, denominator = coefficients * gradient, torch.ones_like(denominator), 1.0
            with torch.autocast(gradient.device.type, enabled=False):
                _add_all(gradients, ctx.task, normalisers, coefficients)
        return *gradients.scaled(gradient / denominator), None, None, None


def _losses(layer: _Layer, task: _Task, gradients: _Gradients | None) -> tuple[Tensor, Tensor]:
    """The loss and the log-normaliser of each row; with `gradients`, those are added on the way."""
    n = layer.hidden.shape[0]
    wide = widen(layer.hidden.new_empty(0)).dtype
    losses, normalisers = (layer.hidden.new_empty(n, dtype=wide) for _ in range(2))
    buffer = _buffer(layer, task.rows)
    for span in task.spans(n, whole_units=gradients is not None):
        logits = _logits(layer, span, buffer)
        targets, mask = layer.targets[span].unsqueeze(1), layer.mask[span]
        own = logits.gather(1, targets).squeeze(1)
        top = logits.amax(1)
        exponentials = logits.sub_(top.unsqueeze(1)).exp_()
        sums = exponentials.sum(1)
        normalisers[span] = top + sums.log()
        losses[span] = torch.where(mask, top - own + sums.log(), 0.0)
        if gradients is None:
            continue
        coefficients = task.of_tokens(task.weigh(losses[span], mask), mask)
        # The slope by the logits is softmax less one-hot. Here both times `sums`, which the coefficients divide by.
        slopes = exponentials.scatter_add_(1, targets, -sums.unsqueeze(1))
        if layer.hidden.dtype != wide:  # half precision may not reach as far as a sum over the vocabulary
            slopes.div_(sums.unsqueeze(1))
            gradients.add(span, slopes, coefficients)
        else:
            gradients.add(span, slopes, coefficients / sums)
    return losses, normalisers


def _add_all(gradients: _Gradients, task: _Task, normalisers: Tensor, coefficients: Tensor) -> None:
    """The gradients of all rows from logits made once more, their normalisers known."""
    layer = gradients.layer
    buffer = _buffer(layer, task.rows)
    minus_one = -torch.ones_like(normalisers).unsqueeze(1)
    for span in task.spans(layer.hidden.shape[0], whole_units=False):
        slopes = _logits(layer, span, buffer).sub_(normalisers[span].unsqueeze(1)).exp_()
        slopes.scatter_add_(1, layer.targets[span].unsqueeze(1), minus_one[span])
        gradients.add(span, slopes, coefficients[span])


def _buffer(layer: _Layer, rows: int) -> Tensor | None:
    """Memory for the logits of a chunk, used again and again; a compiler plans memory itself."""
    if torch.compiler.is_compiling():
        return None
    return layer.hidden.new_empty(min(rows, layer.hidden.shape[0]), layer.weight.shape[0])


def _logits(layer: _Layer, span: slice, buffer: Tensor | None) -> Tensor:
    """The logits of a span in float32 at least, in memory that may be written to."""
    hidden, columns = layer.hidden[span], layer.weight.t()
    room = None if buffer is None else buffer[: hidden.shape[0]]
    if layer.bias is None:
        return widen(torch.mm(hidden, columns) if room is None else torch.mm(hidden, columns, out=room))
    if room is None:
        return widen(torch.addmm(layer.bias, hidden, columns))
    return widen(torch.addmm(layer.bias, hidden, columns, out=room))


def _rows_at_once(chunk: int | Literal["auto"], n: int, classes: int) -> int:
    """How many rows of logits to hold, in chunks of about equal size."""
    if chunk != "auto":
        return chunk
    most = min(max(_BYTES // (4 * max(classes, 1)), _FEWEST), _MOST)
    chunks = max(-(-n // most), 1)
    return max(-(-n // chunks), 1)


def _as_autocast(hidden: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
    """The inputs as autocast would hand them to a linear layer, if it is on."""
    device = hidden.device.type
    if not torch.is_autocast_enabled(device) or hidden.dtype == torch.float64:
        return hidden, weight, bias
    dtype = torch.get_autocast_dtype(device)
    return hidden.to(dtype), weight.to(dtype), None if bias is None else bias.to(dtype)


def _check_options(objective: Objective, level: str, reduction: str, count: Any, chunk: Any) -> None:
    if objective.stateful:
        raise TypeError(
            f"{objective!r} remembers something between steps, and a function does not. Take the plain losses, "
            "objective=Mean() with reduction='none', and pass them to `objective.apply(losses, state, mask=...)`."
        )
    if objective.takes:
        raise TypeError(
            f"{objective!r} weighs by more than the loss. Take the plain losses, objective=Mean() with "
            "reduction='none', and pass them on: objective(losses, signal=..., mask=...)."
        )
    validate.one_of("level", level, ("token", "sequence"))
    validate.one_of("reduction", reduction, ("mean", "sum", "none"))
    if count is not None:
        if reduction != "mean":
            raise ValueError(f"`count` is the denominator of the mean, got it with reduction={reduction!r}.")
        validate.positive("count", count, "It is the number of tokens to divide by.")
    if chunk != "auto":
        validate.whole("chunk", chunk, 1)


def _check_shapes(hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, level: str) -> None:
    """Say which of the shapes does not fit; nothing here looks at values."""
    if not hidden.is_floating_point() or hidden.ndim < 2:
        raise ValueError(
            f"`hidden` must be floating-point of shape (..., d), got {hidden.dtype} of shape {tuple(hidden.shape)}. "
            "Pass what the last linear layer gets, not what it returns."
        )
    if weight.ndim != 2 or weight.shape[1] != hidden.shape[-1]:
        raise ValueError(
            f"`weight` must have shape (V, {hidden.shape[-1]}) for hidden states of shape {tuple(hidden.shape)}, got "
            f"{tuple(weight.shape)}. It is the weight of the last linear layer."
        )
    if bias is not None and bias.shape != weight.shape[:1]:
        raise ValueError(f"`bias` must have shape ({weight.shape[0]},), one entry a class, got {tuple(bias.shape)}.")
    if targets.is_floating_point() or targets.shape != hidden.shape[:-1]:
        raise ValueError(
            f"`targets` must be class indices of shape {tuple(hidden.shape[:-1])}, got {targets.dtype} of shape "
            f"{tuple(targets.shape)}. Shift beforehand: hidden[:, :-1] predicts tokens[:, 1:]."
        )
    if level == "sequence" and targets.ndim != 2:
        raise ValueError(
            f"level='sequence' needs targets of shape (B, T), got {tuple(targets.shape)}. Use level='token' for rows "
            "that are no sequences."
        )
