"""Any torch criterion, repaired: one loss per element, and what its own mean divides by."""

from __future__ import annotations

import copy
import functools
import inspect
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from reweigh._array import is_readable
from reweigh.torch.losses._base import ClassLoss, Loss

_of_all_modules: Any = nn.modules.module


class Elements(NamedTuple):
    """What a criterion gives before anything is averaged, element by element.

    `own` is the criterion's loss with its class weights, `seen` the same without them and less its floor, as a
    constant: what a weight function may look at. The criterion's own mean is `own.sum() / measure.sum()`, where no
    measure means that every element counts one. `mask` separates ignored elements from real ones.
    """

    own: Tensor
    seen: Tensor
    measure: Tensor | None = None
    mask: Tensor | None = None


#: Functions people pass, and the module that says the same with its options as attributes.
_MODULE_OF: dict[Callable[..., Any], type[nn.Module]] = {
    F.cross_entropy: nn.CrossEntropyLoss,
    F.nll_loss: nn.NLLLoss,
    F.binary_cross_entropy: nn.BCELoss,
    F.binary_cross_entropy_with_logits: nn.BCEWithLogitsLoss,
    F.mse_loss: nn.MSELoss,
    F.l1_loss: nn.L1Loss,
    F.smooth_l1_loss: nn.SmoothL1Loss,
    F.huber_loss: nn.HuberLoss,
    F.kl_div: nn.KLDivLoss,
    F.ctc_loss: nn.CTCLoss,
}


#: torch's own criteria with class or element weights.
_WEIGHTED = (
    nn.CrossEntropyLoss,
    nn.NLLLoss,
    nn.BCELoss,
    nn.BCEWithLogitsLoss,
    nn.MultiMarginLoss,
    nn.MultiLabelSoftMarginLoss,
)


class Criterion(nn.Module):
    """A criterion that returns `Elements`, whatever kind of criterion it was made from.

    `total` is the denominator a `reduction="sum"` asks for: 1, or None for a mean. `progress` is the share of training
    done, from 0 to 1, for losses whose class weights start late: 0 until the caller says otherwise, because what is
    deferred must not act at the first step.
    """

    def __init__(self, criterion: Callable[..., Any], *, floor: bool) -> None:
        super().__init__()
        self.floor = floor
        self.inner = _without_reduction(criterion)
        # Made once, here: a compiled forward cannot copy modules.
        self.free = _copy_without(self.inner, "weight", "pos_weight") if isinstance(self.inner, _WEIGHTED) else None
        reduction = _reduction(criterion)
        self.total = 1 if reduction == "sum" else None
        self.sums_the_rest = reduction == "batchmean"
        self.averages_labels = isinstance(self.inner, nn.CTCLoss) and reduction == "mean"
        self.progress = 0.0
        # Looked up once: a compiled forward cannot ask for signatures.
        self._names, self._takes_others = _input_names(self.inner)

    @property
    def takes_logits(self) -> bool:
        """Whether the output has the logits of classes, or their logarithms, on its second axis."""
        under = getattr(self.inner, "under", self.inner)
        if isinstance(under, ClassLoss):
            return getattr(under, "form", "softmax") == "softmax"
        return isinstance(under, (nn.CrossEntropyLoss, nn.NLLLoss))

    def logits(self, output: Tensor) -> Tensor:
        """The output as logits: cosines are not, until the loss multiplies them."""
        cosines = getattr(self.inner, "head", "linear") == "cosine"
        return output * float(getattr(self.inner, "scale", 1.0)) if cosines else output

    def bind(self, inputs: tuple[Any, ...], keywords: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Inputs given by name as positions, and the keywords that have none."""
        keywords = dict(keywords)
        if "input" in keywords and isinstance(self.inner, Loss):  # torch's name for what our own losses call the output
            keywords["output"] = keywords.pop("input")
        placed = list(inputs)
        for name in self._names[len(inputs) :]:
            if name not in keywords:
                break
            placed.append(keywords.pop(name))
        if keywords and not self._takes_others:
            raise TypeError(
                f"the criterion takes {', '.join(self._names)}, got {', '.join(sorted(keywords))} as well, or too few "
                "of those before. Reweighted itself takes sample_weight, groups and count."
            )
        return tuple(placed), keywords

    def forward(self, *inputs: Any, **keywords: Any) -> Elements:
        """The elements of the loss of one batch."""
        inner = self.inner
        if isinstance(inner, (nn.CrossEntropyLoss, nn.NLLLoss)):
            return self._class_index(inner, *inputs)
        if isinstance(inner, Loss):
            return self._of_our_own(inner, _of_labels(inner, *inputs), *inputs)
        _check_same_shape(inputs)
        if isinstance(inner, (nn.BCELoss, nn.BCEWithLogitsLoss)):
            return self._binary(inner, *inputs)
        own = inner(*inputs, **keywords)
        _check_units(own)
        _check_not_broadcast(own, inputs)
        if self.averages_labels:
            own = _per_label(own, *inputs)
        seen = self._free(own, inner, *inputs)
        if self.sums_the_rest:
            own, seen = own.flatten(1).sum(1), seen.flatten(1).sum(1)
        return Elements(own, seen)

    def _class_index(self, inner: nn.CrossEntropyLoss | nn.NLLLoss, output: Tensor, target: Tensor) -> Elements:
        """Cross entropy and NLL: class weights, ignored labels, smoothing, soft targets."""
        class_weight = inner.weight
        smoothing = float(getattr(inner, "label_smoothing", 0.0))
        if target.is_floating_point():  # probabilities: torch's mean counts every row, whatever its weight
            own = inner(output, target)
            _check_units(own)
            seen = self._free(own, inner, output, target)
            return Elements(own, seen - _entropy_of_rows(target, smoothing) if self.floor else seen)
        if class_weight is not None and smoothing and type(inner) is nn.CrossEntropyLoss and _is_wide_matrix(output):
            return elements_of_logs(torch.log_softmax(output, 1), target, inner, self.floor)
        mask = _mask(target, inner.ignore_index)
        measure = None if class_weight is None else _of_target(class_weight, target, mask)
        if class_weight is None or measure is None:
            measure = mask
            own = inner(output, target)
            seen = own.detach()
        elif smoothing:
            own = inner(output, target)
            seen = self._free(own, inner, output, target)
        else:  # without smoothing the class weight is a factor, and one pass over the logits is enough
            assert self.free is not None
            plain = self.free(output, target)
            own, seen = plain * measure, plain.detach()
        _check_units(own)
        # Counted in float32 at least: half precision cannot represent 2049.
        wide = own.dtype if own.dtype.itemsize >= 4 else torch.float32
        measure = None if measure is None else measure.to(wide)
        if self.floor and smoothing:
            seen = _above_floor(seen, mask, smoothing, output.shape[1 if output.ndim > 1 else 0])
        return Elements(own, seen, measure, mask)

    def _binary(self, inner: nn.BCELoss | nn.BCEWithLogitsLoss, output: Tensor, target: Tensor) -> Elements:
        """Binary cross entropy: element weights, positive weights, soft targets."""
        own = inner(output, target)
        _check_units(own)
        seen = self._free(own, inner, output, target)
        if self.floor:
            wide = target.detach().to(torch.promote_types(seen.dtype, torch.float32))
            seen = seen - torch.special.entr(wide) - torch.special.entr(1 - wide)
        return Elements(own, seen)

    def _of_our_own(self, loss: Loss, own: Tensor, output: Tensor, target: Tensor) -> Elements:
        """Our own losses say what they ignore, how classes weigh and how low they can get."""
        seen, mask, class_weight = own.detach(), loss.mask(target), loss.sample_weight(target, self.progress)
        if self.floor:
            lowest = loss.floor(target, output.shape[1] if output.ndim > 1 else None)
            seen = seen - lowest if mask is None else torch.where(mask, seen - lowest, 0.0)
        if mask is not None:
            own = torch.where(mask, own, 0.0)
        measure = None if mask is None else mask.to(own.dtype)
        if class_weight is not None:
            class_weight = class_weight.to(own.dtype)
            own, measure = own * class_weight, class_weight if measure is None else class_weight * measure
        return Elements(own, seen, measure, mask)

    def _free(self, own: Tensor, inner: Callable[..., Any], *inputs: Any) -> Tensor:
        """The same loss without class weights, as a constant."""
        free = self.free
        if free is None or (getattr(inner, "weight", None) is None and getattr(inner, "pos_weight", None) is None):
            return own.detach()
        with torch.no_grad():
            return free(*inputs)


def _of_labels(loss: Loss, output: Tensor, target: Tensor) -> Tensor:
    """The losses, or the error that names a label which is none of the classes."""
    try:
        return loss(output, target)
    except (IndexError, RuntimeError) as error:
        # Looked at only here: otherwise every batch would pay for it, and a device would have to be waited for.
        if not is_readable(target) or target.is_floating_point() or output.ndim < 2:
            raise
        classes = output.shape[1]
        outside = _outside_here(target, classes)
        if not outside:
            raise
        example = f"ignore_index={outside[0]}"
        raise ValueError(
            f"labels must be whole numbers from 0 to {classes - 1}, got {', '.join(map(str, outside))}. If that "
            f"marks units that do not count, say so in the loss: {type(loss).__name__}({example}), or "
            f"'{type(loss).__module__.rpartition('.')[2]}:{example}' in a text."
        ) from error


def _check_units(own: Any) -> None:
    if not isinstance(own, Tensor):
        raise TypeError(f"the criterion must return a tensor of losses, got {type(own).__name__}.")
    if own.ndim == 0:
        raise ValueError(
            "the criterion returned a single number, so there is no unit axis to re-weight: it averages inside. "
            "Give one that returns a loss per unit (reduction='none'), or a module with a `reduction` attribute."
        )


def _check_not_broadcast(own: Tensor, inputs: tuple[Any, ...]) -> None:
    tensors = [x for x in inputs if isinstance(x, Tensor)]
    if tensors and own.numel() > max(x.numel() for x in tensors):
        shapes = " and ".join(str(tuple(x.shape)) for x in tensors)
        raise ValueError(
            f"output and target were broadcast against each other: shapes {shapes} gave losses of shape "
            f"{tuple(own.shape)}. Make them equal, for example output.squeeze(-1) for one value per unit."
        )


def _check_same_shape(inputs: tuple[Any, ...]) -> None:
    """Refuse `(B, 1)` against `(B,)`, which torch would broadcast to `(B, B)` with a warning at most."""
    if len(inputs) < 2:
        return
    output, target = inputs[0], inputs[1]
    if not (isinstance(output, Tensor) and isinstance(target, Tensor)):
        return
    if output.ndim == target.ndim + 1 and output.shape[-1] == 1 and output.shape[:-1] == target.shape:
        raise ValueError(
            f"the output has shape {tuple(output.shape)} and the target {tuple(target.shape)}: they would be broadcast "
            "against each other. Use output.squeeze(-1), or target.unsqueeze(-1)."
        )


def _as_module(criterion: Callable[..., Any]) -> Callable[..., Any]:
    """A known function, or a partial of one, as the module that says the same."""
    if isinstance(criterion, functools.partial):
        made = _MODULE_OF.get(criterion.func)
        if made is None or criterion.args:
            return criterion
        if unknown := criterion.keywords.keys() - inspect.signature(made).parameters.keys():
            raise TypeError(
                f"{criterion.func.__name__} with {', '.join(sorted(unknown))} averages in a way of its own. Leave it "
                "out, and give weights of single units at each call as `sample_weight`."
            )
        return made(**criterion.keywords)
    made = next((module for function, module in _MODULE_OF.items() if function is criterion), None)
    return criterion if made is None else made()


def _reduction(criterion: Callable[..., Any]) -> str:
    """How the criterion reduces when called as it is: a module's attribute, a function's default or bound keyword."""
    criterion = _as_module(criterion)
    if isinstance(criterion, nn.Module):
        return getattr(criterion, "reduction", "mean")
    parameter = _parameters(criterion).get("reduction")
    return "mean" if parameter is None else parameter.default


def _parameters(function: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    """What a function takes; nothing for those without a signature."""
    try:
        return inspect.signature(function).parameters
    except (TypeError, ValueError):
        return {}


def _input_names(inner: Callable[..., Any]) -> tuple[tuple[str, ...], bool]:
    """What a criterion calls its inputs, in order, and whether it takes keywords as well."""
    given = _parameters(inner.forward if isinstance(inner, nn.Module) else inner).values()
    places = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    bound = inner.keywords.keys() if isinstance(inner, functools.partial) else set[str]()
    names = tuple(parameter.name for parameter in given if parameter.kind in places and parameter.name not in bound)
    others = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.VAR_KEYWORD)
    free = any(parameter.kind in others and parameter.name not in bound for parameter in given)
    return names, free or not names


def _without_reduction(criterion: Callable[..., Any]) -> Callable[..., Any]:
    """The criterion with `reduction="none"`; the caller's own object is left as it is."""
    if not callable(criterion):
        raise TypeError(f"the criterion must be a module or a function, got {criterion!r}.")
    criterion = _as_module(criterion)
    if isinstance(criterion, nn.Module):
        if not hasattr(criterion, "reduction"):
            return criterion
        unreduced = _copy(criterion)
        unreduced.__dict__["reduction"] = "none"
        return unreduced
    target = criterion.func if isinstance(criterion, functools.partial) else criterion
    return functools.partial(criterion, reduction="none") if "reduction" in _parameters(target) else criterion


def _copy(module: nn.Module) -> nn.Module:
    """A shallow copy with registers of its own, so that setting an attribute leaves the original alone.

    Parameters stay shared: a criterion that learns still trains the caller's tensors.
    """
    twin = copy.copy(module)
    for register in ("_parameters", "_buffers", "_modules"):
        twin.__dict__[register] = dict(module.__dict__[register])
    return twin


def _copy_without(module: nn.Module, *names: str) -> nn.Module:
    twin = _copy(module)
    for name in names:
        if getattr(twin, name, None) is not None:
            setattr(twin, name, None)
    return twin


def _per_label(own: Tensor, output: Tensor, target: Tensor, output_lengths: Any, target_lengths: Any) -> Tensor:
    """CTC losses as its mean takes them: each is divided by its number of labels, and then the batch is averaged."""
    return own / torch.as_tensor(target_lengths, device=own.device).clamp(min=1)


def _mask(target: Tensor, ignore_index: int) -> Tensor | None:
    """Which labels are real; None where all are known to be, so that nothing has to be done about others."""
    # Unsigned labels cannot be negative, and comparing them with a negative number would wrap it round.
    if not target.dtype.is_signed and ignore_index < 0:
        return None
    if is_readable(target) and not _occurs_here(target, ignore_index):
        return None
    return target != ignore_index


def _occurs_here(target: Tensor, label: int) -> bool:
    """Whether a label occurs among labels that lie in the host's memory."""
    return bool(np.count_nonzero(target.numpy() == label))


def _outside_here(target: Tensor, classes: int) -> list[int]:
    """Some labels that are none of the classes, among labels that lie in the host's memory."""
    labels = target.numpy()
    return np.unique(labels[(labels < 0) | (labels >= classes)])[:5].tolist()


def _is_wide_matrix(output: Tensor) -> bool:
    return output.ndim > 1 and output.dtype.itemsize >= 4


def is_hooked(module: Any) -> bool:
    """Whether something besides its own code runs when a module is called."""
    return bool(
        module._forward_hooks
        or module._forward_pre_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
        or _of_all_modules._global_forward_hooks
        or _of_all_modules._global_forward_pre_hooks
        or _of_all_modules._global_backward_hooks
        or _of_all_modules._global_backward_pre_hooks
    )


def elements_of_logs(logs: Tensor, target: Tensor, inner: nn.CrossEntropyLoss, floor: bool) -> Elements:
    """The cross entropy of integer labels from the logarithms of the probabilities: all of it in one pass over them."""
    class_weight, smoothing = inner.weight, inner.label_smoothing
    mask = _mask(target, inner.ignore_index)
    hit = F.nll_loss(logs, target, reduction="none", ignore_index=inner.ignore_index)
    measure = None if class_weight is None else _of_target(class_weight, target, mask)
    own, seen = hit if measure is None else hit * measure, hit.detach() if hit.requires_grad else hit
    if smoothing:
        rest = smoothing / logs.shape[1]
        own_part, seen_part = _spread(logs, class_weight)
        if mask is not None:
            own_part, seen_part = torch.where(mask, own_part, 0.0), torch.where(mask, seen_part, 0.0)
        own, seen = (1.0 - smoothing) * own - rest * own_part, (1.0 - smoothing) * seen - rest * seen_part
        if floor:
            seen = _above_floor(seen, mask, smoothing, logs.shape[1])
    measure = mask if measure is None else measure
    return Elements(own, seen, None if measure is None else measure.to(own.dtype), mask)


def _spread(logs: Tensor, class_weight: Tensor | None) -> tuple[Tensor, Tensor]:
    """The sum of the logarithms over the classes with the class weights, and without as a constant."""
    constant = logs.detach().sum(1)
    if class_weight is None:
        return (logs.sum(1) if logs.requires_grad else constant), constant
    # Products of matrices lose digits under autocast, and are several times as fast as a product and a sum elsewhere.
    kind = logs.device.type
    if torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind):
        return (logs * class_weight.view(-1, *[1] * (logs.ndim - 2))).sum(1), constant
    weighted = torch.matmul(class_weight.to(logs.dtype), logs.flatten(2) if logs.ndim > 2 else logs.t())
    return weighted.view_as(constant), constant


def _above_floor(seen: Tensor, mask: Tensor | None, smoothing: float, classes: int) -> Tensor:
    """What a smoothed loss is above the smallest that it can be; zero where the label is ignored."""
    seen = seen - _entropy_of_smoothing(smoothing, classes)
    return seen if mask is None else torch.where(mask, seen, 0.0)


def _of_target(class_weight: Tensor, target: Tensor, mask: Tensor | None) -> Tensor:
    """The class weight of each element; zero where the label is ignored."""
    index = target.long()  # labels of one byte would select by truth and not by number
    if mask is None:
        return class_weight[index]
    return torch.where(mask, class_weight[torch.where(mask, index, 0)], 0.0)


def _entropy_of_smoothing(smoothing: float, classes: int) -> float:
    """The smallest cross entropy against a smoothed one-hot target, which is its entropy."""
    rest = smoothing / classes
    top = 1.0 - smoothing + rest
    entropy = -top * math.log(top) if top > 0 else 0.0
    return entropy - (classes - 1) * rest * math.log(rest) if rest > 0 else entropy


def _entropy_of_rows(target: Tensor, smoothing: float) -> Tensor:
    """The smallest cross entropy against soft targets: their entropy, also for rows that do not sum to one."""
    axis = 1 if target.ndim > 1 else 0
    target = target.detach().float() if target.dtype.itemsize < 4 else target.detach()
    smoothed = target * (1.0 - smoothing) + smoothing / target.shape[axis]
    return torch.special.entr(smoothed).sum(axis) - torch.special.entr(smoothed.sum(axis))
