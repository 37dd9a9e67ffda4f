"""The passes over the logits of :func:`reweigh.torch.chunked_cross_entropy`, a few rows at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from reweigh._array import widen
from reweigh.objectives._base import Objective, Weighed, total
from reweigh.torch._segments import sum_by_segment

Reduction = Literal["mean", "sum", "none"]


@dataclass(frozen=True, kw_only=True)
class ChunkedTask:
    """The task: the objective over units of `length` tokens, `rows` of logits at a time."""

    objective: Objective
    length: int
    rows: int
    reduction: Reduction
    count: Any
    scale: float
    softcap: float | None
    weighs_entropy: bool
    entropies: bool

    def spans(self, n: int, *, whole_units: bool) -> list[slice]:
        """The chunks of `n` rows, ending between units if asked."""
        step = self.rows // self.length * self.length if whole_units else self.rows
        return [slice(start, min(start + step, n)) for start in range(0, n, max(step, 1))]


class Layer(NamedTuple):
    """The linear layer and what it sees; the last two are those of a low-rank part, added to the logits."""

    hidden: Tensor
    weight: Tensor
    bias: Tensor | None
    low_hidden: Tensor | None
    low_weight: Tensor | None


class ChunkedTokens(NamedTuple):
    """What is known of each token beforehand: targets are valid everywhere, and `mask` says which of them count.

    `amounts` is how much each counts, `segments` the sequence it belongs to where rows hold several.
    """

    targets: Tensor
    mask: Tensor
    amounts: Tensor | None
    segments: Tensor | None
    signal: Tensor | None

    def of(self, span: slice) -> ChunkedTokens:
        """Those of a span."""
        return ChunkedTokens(*(None if part is None else part[span] for part in self))  # pyright: ignore[reportArgumentType]


class Chunked(NamedTuple):
    """The reduced loss, and of each token what is known of it.

    That is its plain loss, the entropy of its prediction in nats, which is empty unless requested, and whether the
    target is the most probable token.
    """

    loss: Tensor
    losses: Tensor
    entropies: Tensor
    correct: Tensor


def run(layer: Layer, tokens: ChunkedTokens, task: ChunkedTask) -> Chunked:
    """The loss as a node of the autograd graph."""
    apply: Callable[..., Any] = _ChunkedCrossEntropy.apply
    return Chunked(*apply(*layer, *tokens, task))


class _ChunkedUnits(NamedTuple):
    """The mean loss of each unit, how much it counts, and its signal."""

    seen: Tensor
    shares: Tensor
    signal: Tensor | None


def _units(task: ChunkedTask, tokens: ChunkedTokens, losses: Tensor, signal: Tensor | None) -> _ChunkedUnits:
    real = tokens.mask.to(losses.dtype)
    amounts = real if tokens.amounts is None else tokens.amounts * real
    if tokens.segments is None and task.length == 1:
        return _ChunkedUnits(losses, amounts, signal)

    def gather(values: Tensor) -> Tensor:
        if tokens.segments is not None:
            return sum_by_segment(values, tokens.segments)
        return values.view(-1, task.length).sum(1)

    sizes = gather(real).clamp(min=1)
    if signal is not None and signal.shape == losses.shape:
        signal = gather(signal * real) / sizes
    return _ChunkedUnits(gather(losses) / sizes, gather(amounts), signal)


def _weigh(
    task: ChunkedTask, tokens: ChunkedTokens, losses: Tensor, entropies: Tensor, classes: int
) -> tuple[_ChunkedUnits, Weighed]:
    """The units and what the objective makes of them."""
    signal = tokens.signal
    if task.weighs_entropy:
        signal = entropies / torch.log(entropies.new_tensor(float(classes)))
    units = _units(task, tokens, losses, signal)
    more = {} if units.signal is None else {"signal": units.signal}
    return units, task.objective.weigh(units.seen, (), measure=units.shares, **more)


def _coefficients(task: ChunkedTask, tokens: ChunkedTokens, weighed: Weighed) -> Tensor:
    """What multiplies the loss of each token, zero where it is ignored."""
    weights = weighed.weights
    if tokens.segments is not None:
        weights = weights[tokens.segments]
    elif task.length > 1:
        weights = weights.repeat_interleave(task.length)
    weights = weights * tokens.mask
    return weights if tokens.amounts is None else weights * tokens.amounts


class _Gradients:
    """Gradients of the sum over rows of coefficient times loss, chunk by chunk; None for what needs none.

    They are held in float32 at least: a sum of hundreds of chunks in half precision would lose the small ones.
    """

    def __init__(self, layer: Layer, wanted: Sequence[bool]) -> None:
        wide = widen(layer.hidden.new_empty(0)).dtype
        self.layer = layer
        empty: list[Tensor | None] = [
            torch.zeros_like(part, dtype=wide) if part is not None and wants else None
            for part, wants in zip(layer, wanted, strict=True)
        ]
        self.parts = Layer(*empty)  # pyright: ignore[reportArgumentType]

    def add(self, span: slice, slopes: Tensor, coefficients: Tensor) -> None:
        """Add the rows of a span, where the derivative by a row's logits is coefficient times slope."""
        narrow = slopes.to(self.layer.hidden.dtype)
        column = coefficients.unsqueeze(1)
        layer, parts = self.layer, self.parts
        _add_product(layer.hidden, layer.weight, parts.hidden, parts.weight, span, narrow, column)
        if layer.low_hidden is not None and layer.low_weight is not None:
            _add_product(layer.low_hidden, layer.low_weight, parts.low_hidden, parts.low_weight, span, narrow, column)
        if parts.bias is not None:
            parts.bias.add_(slopes.t() @ coefficients)

    def times(self, coefficients: Tensor) -> _Gradients:
        """Those of the rows of hidden states, each times a coefficient."""
        scaled = _Gradients(self.layer, [False] * len(self.layer))
        rows = [None if part is None else part * coefficients.unsqueeze(1) for part in self.parts]
        scaled.parts = Layer(*rows)  # pyright: ignore[reportArgumentType]
        return scaled

    def scaled(self, factor: Tensor) -> tuple[Tensor | None, ...]:
        """The gradients times a factor, in the precision of the inputs; used up by this, to save a copy."""
        return tuple(
            None if gradient is None or part is None else gradient.mul_(factor).to(part.dtype)
            for gradient, part in zip(self.parts, self.layer, strict=True)
        )


def _add_product(
    hidden: Tensor,
    weight: Tensor,
    of_hidden: Tensor | None,
    of_weight: Tensor | None,
    span: slice,
    slopes: Tensor,
    column: Tensor,
) -> None:
    """Add the gradients of one matrix product whose result has these slopes."""
    if of_hidden is not None:
        of_hidden[span] = torch.mm(slopes, weight) * column
    if of_weight is not None:
        # Scaling the d numbers of a row of `hidden` rather than the V of its slopes saves a pass over the logits.
        scaled = (hidden[span] * column).to(hidden.dtype)
        if of_weight.dtype == slopes.dtype:
            of_weight.addmm_(slopes.t(), scaled)
        else:
            of_weight.add_(torch.mm(slopes.t(), scaled))


class _ChunkedCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *given: Any) -> tuple[Tensor, ...]:
        """The reduced loss and what is known of each token; gradients too where they can already be known."""
        layer, tokens, task = Layer(*given[:5]), ChunkedTokens(*given[5:10]), given[10]
        wanted: tuple[bool, ...] = ctx.needs_input_grad[:5]
        # The gradient by a hidden state is that token's alone, so it can be weighed once all losses are known.
        ctx.by_row = any(wanted) and not any(wanted[part] for part in (1, 2, 4))
        fits = task.objective.separable and tokens.segments is None and task.length <= task.rows
        ctx.weighs_at_once = fits and task.reduction != "none" and not ctx.by_row
        now = any(wanted) and (ctx.by_row or task.reduction != "none")
        gradients = _Gradients(layer, wanted) if now else None
        with torch.autocast(layer.hidden.device.type, enabled=False):
            first = gradients if ctx.by_row or ctx.weighs_at_once else None
            losses, normalisers, entropies, correct = _losses(layer, tokens, task, first, weigh=ctx.weighs_at_once)
            units, weighed = _weigh(task, tokens, losses, entropies, layer.weight.shape[0])
            coefficients = _coefficients(task, tokens, weighed)
            if gradients is not None and ctx.by_row and task.reduction != "none":
                gradients = gradients.times(coefficients)
            elif gradients is not None and first is None:
                _add_all(gradients, tokens, task, normalisers, coefficients)
        denominator = total(units.shares, units.seen) if task.count is None else task.count
        denominator = torch.as_tensor(denominator, dtype=losses.dtype, device=losses.device)
        ctx.save_for_backward(*layer, *tokens, normalisers, coefficients, denominator)
        ctx.task, ctx.wanted, ctx.gradients = task, wanted, gradients
        ctx.mark_non_differentiable(losses, entropies, correct)
        if task.reduction == "none":
            return losses * coefficients, losses, entropies, correct
        loss = torch.dot(coefficients, losses) / denominator
        if weighed.value is not None:
            loss = weighed.value if task.count is None else weighed.value * (units.shares.sum() / denominator)
            loss = torch.as_tensor(loss, dtype=losses.dtype, device=losses.device).clone()
        return loss, losses, entropies, correct

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """The gradients of the forward pass times what comes in, or recomputed from the logits."""
        if torch.is_grad_enabled() and not torch.compiler.is_compiling():
            # Left alone, the second derivative of this part would silently be taken for zero.
            raise RuntimeError(
                "chunked_cross_entropy has gradients of the first order only, and create_graph=True asks for more. Use "
                "F.linear and F.cross_entropy with reduction='none' for those, and the objective on the losses."
            )
        gradient, task = grad_outputs[0], ctx.task
        *parts, normalisers, coefficients, denominator = ctx.saved_tensors
        gradients: _Gradients | None = ctx.gradients
        if task.reduction == "none":
            coefficients, gradient, denominator = coefficients * gradient, torch.ones_like(denominator), 1.0
        if gradients is not None and task.reduction == "none":
            gradients = gradients.times(coefficients)
        else:
            ctx.gradients = None  # used up below: a second backward through the same graph makes them again
        if gradients is None:
            gradients = _Gradients(Layer(*parts[:5]), ctx.wanted)
            with torch.autocast(gradient.device.type, enabled=False):
                _add_all(gradients, ChunkedTokens(*parts[5:]), task, normalisers, coefficients)
        return *gradients.scaled(gradient / denominator), *(None,) * 6


def _losses(
    layer: Layer, tokens: ChunkedTokens, task: ChunkedTask, gradients: _Gradients | None, *, weigh: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Of each row the loss, the log-normaliser, the entropy and whether it is right.

    With `gradients`, those are added on the way: weighed, or all with the coefficient one.
    """
    n = layer.hidden.shape[0]
    wide = widen(layer.hidden.new_empty(0)).dtype
    losses, normalisers = (layer.hidden.new_empty(n, dtype=wide) for _ in range(2))
    entropies = layer.hidden.new_empty(n if task.entropies else 0, dtype=wide)
    correct = torch.empty(n, dtype=torch.bool, device=layer.hidden.device)
    buffer = _buffer(layer, task.rows)
    for span in task.spans(n, whole_units=weigh):
        logits, bend = _logits(layer, task, span, buffer)
        own_tokens = tokens.of(span)
        targets, mask = own_tokens.targets.unsqueeze(1), own_tokens.mask
        own = logits.gather(1, targets).squeeze(1)
        top = logits.amax(1)
        correct[span] = (own >= top) & mask
        shifted = logits.sub_(top.unsqueeze(1))
        exponentials = shifted.exp() if task.entropies else shifted.exp_()
        sums = exponentials.sum(1)
        normalisers[span] = top + sums.log()
        losses[span] = torch.where(mask, top - own + sums.log(), 0.0)
        if task.entropies:
            # A logit of minus infinity has probability zero, and zero times any number is none.
            finite = shifted.clamp_(min=torch.finfo(wide).min)
            moments = torch.bmm(exponentials.unsqueeze(1), finite.unsqueeze(2)).flatten()
            entropies[span] = torch.where(mask, sums.log() - moments / sums, 0.0)
        if gradients is None:
            continue
        if weigh:
            seen = entropies[span] if task.entropies else entropies
            _, weighed = _weigh(task, own_tokens, losses[span], seen, layer.weight.shape[0])
            coefficients = _coefficients(task, own_tokens, weighed)
        else:
            coefficients = torch.ones_like(sums)
        # The slope by the logits is softmax less one-hot. Here both times `sums`, which the coefficients divide by.
        slopes = exponentials.scatter_add_(1, targets, -sums.unsqueeze(1))
        if bend is not None:
            slopes.mul_(bend)
        coefficients = coefficients * task.scale
        if layer.hidden.dtype != wide:  # half precision may not reach as far as a sum over the vocabulary
            slopes.div_(sums.unsqueeze(1))
            gradients.add(span, slopes, coefficients)
        else:
            gradients.add(span, slopes, coefficients / sums)
    return losses, normalisers, entropies, correct


def _add_all(
    gradients: _Gradients, tokens: ChunkedTokens, task: ChunkedTask, normalisers: Tensor, coefficients: Tensor
) -> None:
    """The gradients of all rows from recomputed logits whose normalisers are known."""
    layer = gradients.layer
    buffer = _buffer(layer, task.rows)
    minus_one = -torch.ones_like(normalisers).unsqueeze(1)
    for span in task.spans(layer.hidden.shape[0], whole_units=False):
        logits, bend = _logits(layer, task, span, buffer)
        slopes = logits.sub_(normalisers[span].unsqueeze(1)).exp_()
        slopes.scatter_add_(1, tokens.targets[span].unsqueeze(1), minus_one[span])
        if bend is not None:
            slopes.mul_(bend)
        gradients.add(span, slopes, coefficients[span] * task.scale)


def _buffer(layer: Layer, rows: int) -> Tensor | None:
    """Memory for the logits of a chunk, used again and again; a compiler plans memory itself."""
    if torch.compiler.is_compiling():
        return None
    return layer.hidden.new_empty(min(rows, layer.hidden.shape[0]), layer.weight.shape[0])


def _logits(layer: Layer, task: ChunkedTask, span: slice, buffer: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """The logits of a span in float32 at least, in memory that may be written to, and the slope of the soft cap."""
    hidden, columns = layer.hidden[span], layer.weight.t()
    room = None if buffer is None else buffer[: hidden.shape[0]]
    # pyright knows no `out=None`, which is what torch takes for its own memory.
    keywords: dict[str, Any] = {} if room is None else {"out": room}
    if layer.bias is None:
        logits = torch.mm(hidden, columns, **keywords)
    else:
        logits = torch.addmm(layer.bias, hidden, columns, **keywords)
    if layer.low_hidden is not None and layer.low_weight is not None:
        logits.addmm_(layer.low_hidden[span], layer.low_weight.t())
    logits = widen(logits)
    if task.scale != 1.0:
        logits.mul_(task.scale)
    if task.softcap is None:
        return logits, None
    shares = logits.div_(task.softcap).tanh_()
    return shares * task.softcap, shares.square_().neg_().add_(1.0)
