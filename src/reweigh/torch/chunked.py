"""Linear layer, cross entropy and re-weighting in one, for vocabularies whose logits do not fit."""

from __future__ import annotations

from typing import Any, Literal, overload

import torch
from torch import Tensor

from reweigh import _validate as validate
from reweigh.objectives._base import Objective, required
from reweigh.objectives.entropy import Entropy
from reweigh.objectives.rgd import RGD
from reweigh.torch._chunked_passes import Chunked, ChunkedTask, ChunkedTokens, Layer, Reduction, run

__all__ = ["chunked_cross_entropy"]

TokenLevel = Literal["token", "sequence"]

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
    low_rank: tuple[Tensor, Tensor] | None = None,
    scale: float = 1.0,
    softcap: float | None = None,
    ignore_index: int = -100,
    level: TokenLevel = "token",
    segments: Tensor | None = None,
    sample_weight: Tensor | None = None,
    signal: Tensor | None = None,
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
    low_rank: tuple[Tensor, Tensor] | None = None,
    scale: float = 1.0,
    softcap: float | None = None,
    ignore_index: int = -100,
    level: TokenLevel = "token",
    segments: Tensor | None = None,
    sample_weight: Tensor | None = None,
    signal: Tensor | None = None,
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
    low_rank: tuple[Tensor, Tensor] | None = None,
    scale: float = 1.0,
    softcap: float | None = None,
    ignore_index: int = -100,
    level: TokenLevel = "token",
    segments: Tensor | None = None,
    sample_weight: Tensor | None = None,
    signal: Tensor | None = None,
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
    memory, in less time. Where a weight depends on the unit's own loss alone, or the layer is frozen, gradients are
    made in the forward pass, from the same logits; otherwise logits are made a second time, once all losses are known.

    Parameters
    ----------
    hidden
        What the linear layer sees: (..., d).
    weight, bias
        Of the linear layer: (V, d) and (V,), as in `torch.nn.Linear`. Frozen ones cost no gradient.
    low_rank
        A pair of shapes (..., r) and (V, r) whose product is added to the logits. For a LoRA adapter of the layer:
        `(scaling * lora_A(dropout(hidden)), lora_B.weight)`.
    scale, softcap
        Logits are multiplied by the scale, and then bent to :math:`c \tanh(z / c)` by a cap c, as some models do.
    targets
        Class indices in the shape of `hidden` without its last axis. Nothing is shifted here.
    objective
        What turns losses into weights; `RGD()` unless given. `Mean()` is the plain cross entropy.
    ignore_index
        Targets that do not count. They cost as much as the others: leave rows out beforehand if most are ignored.
    level
        Which unit gets a weight: `"token"`, each on its own, or `"sequence"`, for targets of shape (B, T): the row by
        its mean loss. Both divide by the number of tokens.
    segments
        For packed rows, the sequence that each target belongs to, in the shape of the targets:
        :func:`reweigh.torch.segments` of the targets' positions. Units are then these sequences, not rows.
    sample_weight
        Weights of the caller's own, one per target or one per row. They multiply the objective's weights, which do not
        see them, and the mean divides by their sum.
    signal
        What an objective weighs by besides the loss, one number per target, or per row for sequences, which take the
        mean over their targets. :class:`~reweigh.objectives.entropy.Entropy` needs none: it is made from the logits.
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
    chunked = chunked_tokens(
        hidden,
        weight,
        targets,
        RGD() if objective is None else objective,
        bias=bias,
        low_rank=low_rank,
        scale=scale,
        softcap=softcap,
        ignore_index=ignore_index,
        level=level,
        segments=segments,
        sample_weight=sample_weight,
        signal=signal,
        reduction=reduction,
        count=count,
        chunk=chunk,
    )
    return (chunked.loss, chunked.losses) if return_losses else chunked.loss


def chunked_tokens(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    objective: Objective,
    *,
    bias: Tensor | None = None,
    low_rank: tuple[Tensor, Tensor] | None = None,
    scale: float = 1.0,
    softcap: float | None = None,
    ignore_index: int = -100,
    level: TokenLevel = "token",
    segments: Tensor | None = None,
    sample_weight: Tensor | None = None,
    signal: Tensor | None = None,
    reduction: Reduction = "mean",
    count: Tensor | float | None = None,
    chunk: int | Literal["auto"] = "auto",
    entropies: bool = False,
) -> Chunked:
    """What `chunked_cross_entropy` returns, with the facts of each token in the shape of the targets."""
    _check_options(objective, level, reduction, count, chunk, scale, softcap)
    _check_shapes(hidden, weight, bias, low_rank, targets)
    if level == "sequence" and segments is None and targets.ndim != 2:
        raise ValueError(
            f"level='sequence' needs targets of shape (B, T), got {tuple(targets.shape)}. Use level='token' for rows "
            "that are not sequences."
        )
    flat, size = targets.reshape(-1).long(), hidden.shape[-1]
    if segments is not None:
        segments = _of_tokens("segments", segments, targets, level, rows=False).long()
    if sample_weight is not None:
        sample_weight = _of_tokens("sample_weight", sample_weight.detach(), targets, level, rows=True)
    weighs_entropy = isinstance(objective, Entropy) and signal is None
    if "signal" in objective.takes and not weighs_entropy:
        given = required(objective, "signal", signal).detach()
        by_row = level == "sequence" and segments is None and given.shape == targets.shape[:1]
        signal = given if by_row else _of_tokens("signal", given, targets, level, rows=False)
    task = ChunkedTask(
        objective=objective,
        length=targets.shape[1] if level == "sequence" and segments is None else 1,
        rows=_rows_at_once(chunk, flat.shape[0], weight.shape[0]),
        reduction=reduction,
        count=count if reduction == "mean" else 1,
        scale=float(scale),
        softcap=softcap,
        weighs_entropy=weighs_entropy,
        entropies=entropies or weighs_entropy,
    )
    low_hidden, low_weight = (None, None) if low_rank is None else low_rank
    layer = _as_autocast(
        Layer(
            hidden.reshape(-1, size),
            weight,
            bias,
            None if low_hidden is None else low_hidden.reshape(-1, low_hidden.shape[-1]),
            low_weight,
        )
    )
    mask = flat != ignore_index
    wide = torch.promote_types(layer.hidden.dtype, torch.float32)
    tokens = ChunkedTokens(
        targets=torch.where(mask, flat, 0),
        mask=mask,
        amounts=None if sample_weight is None else sample_weight.to(wide),
        segments=segments,
        signal=signal.to(wide) if objective.takes and signal is not None else None,
    )
    chunked = run(layer, tokens, task)
    return Chunked(*(part.view(targets.shape) if part.shape == flat.shape else part for part in chunked))


def _rows_at_once(chunk: int | Literal["auto"], n: int, classes: int) -> int:
    """How many rows of logits to hold, in chunks of about equal size."""
    if chunk != "auto":
        return chunk
    most = min(max(_BYTES // (4 * max(classes, 1)), _FEWEST), _MOST)
    chunks = max(-(-n // most), 1)
    return max(-(-n // chunks), 1)


def _as_autocast(layer: Layer) -> Layer:
    """The inputs as autocast would hand them to a linear layer, if it is on."""
    device = layer.hidden.device.type
    if not torch.is_autocast_enabled(device) or layer.hidden.dtype == torch.float64:
        return layer
    dtype = torch.get_autocast_dtype(device)
    return Layer(*(None if part is None else part.to(dtype) for part in layer))  # pyright: ignore[reportArgumentType]


def _of_tokens(name: str, given: Tensor, targets: Tensor, level: str, *, rows: bool) -> Tensor:
    """One number per target as a vector; one per row is that of each of its targets."""
    if name == "segments" and level != "sequence":
        raise ValueError("`segments` are the sequences of packed rows, got them with level='token'. Leave them out.")
    if given.shape == targets.shape:
        return given.reshape(-1)
    if rows and given.shape == targets.shape[:1]:
        return given.reshape(-1, *(1,) * (targets.ndim - 1)).expand(targets.shape).reshape(-1)
    others = (
        f" or one per row, {tuple(targets.shape[:1])}" if rows or (name == "signal" and level == "sequence") else ""
    )
    raise ValueError(
        f"`{name}` must have the shape of the targets, {tuple(targets.shape)}{others}, got {tuple(given.shape)}."
    )


def _check_options(
    objective: Objective, level: str, reduction: str, count: Any, chunk: Any, scale: Any, softcap: Any
) -> None:
    if objective.stateful:
        raise TypeError(
            f"{objective!r} remembers something between steps, and a function does not. Take the plain losses, "
            "objective=Mean() with reduction='none', and pass them to `objective.apply(losses, state, mask=...)`."
        )
    if "index" in objective.takes:
        raise TypeError(
            f"{objective!r} remembers units of the data. Take the plain losses, objective=Mean() with "
            "reduction='none', and pass them on: objective(losses, index=..., mask=...)."
        )
    validate.one_of("level", level, ("token", "sequence"))
    validate.one_of("reduction", reduction, ("mean", "sum", "none"))
    if count is not None:
        if reduction != "mean":
            raise ValueError(f"`count` is the denominator of the mean, got it with reduction={reduction!r}.")
        validate.positive("count", count, "It is the number of tokens to divide by.")
    if chunk != "auto":
        validate.whole("chunk", chunk, 1)
    validate.non_zero("scale", scale)
    if softcap is not None:
        validate.positive("softcap", softcap)


def _check_shapes(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    low_rank: tuple[Tensor, Tensor] | None,
    targets: Tensor,
) -> None:
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
        raise ValueError(f"`bias` must have shape ({weight.shape[0]},), one entry per class, got {tuple(bias.shape)}.")
    if low_rank is not None and [x.shape for x in low_rank] != [
        (*hidden.shape[:-1], low_rank[0].shape[-1]),
        (weight.shape[0], low_rank[0].shape[-1]),
    ]:
        raise ValueError(
            f"`low_rank` must be two tensors of shapes {(*hidden.shape[:-1], 'r')} and {(weight.shape[0], 'r')}, got "
            f"{' and '.join(str(tuple(x.shape)) for x in low_rank)}."
        )
    if targets.is_floating_point() or targets.shape != hidden.shape[:-1]:
        raise ValueError(
            f"`targets` must be class indices of shape {tuple(hidden.shape[:-1])}, got {targets.dtype} of shape "
            f"{tuple(targets.shape)}. Shift beforehand: hidden[:, :-1] predicts tokens[:, 1:]."
        )
