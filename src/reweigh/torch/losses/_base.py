"""The contract of every loss, `(output, target) -> losses`, and the shape checks they share."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch
from torch import Tensor
from torch.nn import functional as F

from reweigh import _validate as validate
from reweigh._array import widen

__all__ = ["ClassLoss", "Loss"]

# Without an ignored label none may be ignored silently, and torch has no way to say so but an impossible index.
NONE_IGNORED = -(2**31)


class Loss(ABC):
    """How wrong each unit is: a vector, never reduced.

    A concrete loss is a frozen value that defines `__call__`. Losses are computed in float32 at least, whatever
    the precision of the output, and they never weigh: class weights come from `sample_weight`, so that
    re-weighting sees the unweighted loss and the class weight multiplies after it.
    """

    #: Values worth trying for each hyper-parameter: what tuning searches.
    search: ClassVar[Mapping[str, tuple[Any, ...]]] = {}
    #: Cost beyond plain cross entropy, in words.
    cost: ClassVar[str] = "O(B C)"
    #: What `bind` must be given before the first call: `"class_counts"` or nothing.
    needs: ClassVar[tuple[str, ...]] = ()

    @abstractmethod
    def __call__(self, output: Tensor, target: Tensor) -> Tensor:
        """The loss of each unit, float32 at least."""

    def bind(self, class_counts: Sequence[int] | None = None) -> Self:
        """The same loss with what it needs from the data filled in; losses that need nothing return themselves."""
        return self

    def sample_weight(self, target: Tensor, progress: float = 1.0) -> Tensor | None:
        """The class weight of each unit, to multiply *after* re-weighting, or None when all count the same.

        `progress` is the share of training done, from 0 to 1, for schemes that start late.
        """
        return None

    def class_factors(self, class_counts: Sequence[int] | None) -> Sequence[float] | None:
        """How many times its share each class counts in training; None where each counts its share.

        It is what `prior` must not correct for a second time.
        """
        return None

    @staticmethod
    def stacked(losses: Sequence[Loss]) -> Loss:
        """One loss for the units of several trainings, one after the other and equally many of each.

        The losses are alike but for their class counts; each unit meets those of its own training.
        """
        own = copy.copy(losses[0])
        for name, value in vars(losses[0]).items():
            peers = [vars(loss)[name] for loss in losses]
            if isinstance(value, PerClass):
                object.__setattr__(own, name, PerMember(peers))
            elif isinstance(value, Loss):
                object.__setattr__(own, name, Loss.stacked(peers))
        return own

    def mask(self, target: Tensor) -> Tensor | None:
        """Which units are real, or None when all are."""
        return None

    def floor(self, target: Tensor, classes: int | None = None) -> Tensor | float:
        """The smallest value the loss can take for each target: what an objective's `offset` should subtract.

        Zero unless targets are soft or smoothed. `classes` is needed where neither target nor loss has it.
        """
        return 0.0


@dataclass(frozen=True, kw_only=True)
class ClassLoss(Loss):
    """A loss of class indices, which may hold a label that marks units as not real (padding).

    Units with the label `ignore_index` have loss 0 and `mask` leaves them out. None, the default, ignores nothing:
    a label outside the classes is then an error. Language models use -100.
    """

    ignore_index: int | None = None

    def __post_init__(self) -> None:
        if self.ignore_index is not None:
            validate.whole("ignore_index", self.ignore_index, NONE_IGNORED)

    def mask(self, target: Tensor) -> Tensor | None:
        """Units whose label is not the ignored one."""
        if self.ignore_index is None or is_soft(target):
            return None
        return target.long() != self.ignore_index  # against labels of one byte a negative number would wrap round

    def labels(self, target: Tensor) -> tuple[Tensor, Tensor | None]:
        """Class indices that can be looked up, the first class where the label is ignored, and the mask."""
        mask = self.mask(target)
        index = target.long()  # labels of one byte would select by truth and not by number
        return (index if mask is None else index.where(mask, 0)), mask


def only_real(losses: Tensor, mask: Tensor | None) -> Tensor:
    """The losses, zero where the label is ignored."""
    return losses if mask is None else losses.where(mask, 0.0)


def cross_entropy_of(logits: Tensor, index: Tensor, ignored: int | None = None) -> Tensor:
    """Cross entropy of class indices, one value per unit, of which torch ignores none by default."""
    ignore_index = NONE_IGNORED if ignored is None else ignored
    return F.cross_entropy(logits, index, ignore_index=ignore_index, reduction="none")


def check_floating(output: Tensor) -> Tensor:
    """The output in float32 at least, or an error if it does not hold real numbers."""
    if not output.is_floating_point():
        raise TypeError(
            f"`output` must hold floating-point numbers, got dtype {output.dtype}. Pass the model's raw output "
            "(logits), not predicted classes, and see that output and target are not swapped."
        )
    return widen(output)


def check_classes(output: Tensor, target: Tensor, *, soft: bool = False, classes: int | None = None) -> Tensor:
    """Wide logits with the classes on axis 1, once the target fits them; nothing here looks at values.

    Targets are class indices of shape (B, ...) or, where `soft` allows it, probabilities of the shape of the output.
    """
    logits = check_floating(output)
    shape = tuple(output.shape)
    if output.ndim < 2:
        raise ValueError(
            f"`output` must have shape (B, C) or (B, C, ...), got {shape}. For one logit per unit use the loss `bce`."
        )
    if shape[1] < 2:
        raise ValueError(
            f"`output` must have at least two classes on axis 1, got shape {shape}: a softmax over one class is "
            "always right. For one logit per unit use the loss `bce` with output.squeeze(1)."
        )
    if classes is not None and shape[1] != classes:
        raise ValueError(
            f"`output` must have as many classes on axis 1 as there are class counts, {classes}, got shape {shape}. "
            "Give one count for each class, zeros included."
        )
    if is_soft(target):
        _check_soft(shape, target, soft)
    elif tuple(target.shape) != (shape[0], *shape[2:]):
        hint = "target.squeeze(1)" if target.ndim == output.ndim and target.shape[1] == 1 else "one index per unit"
        raise ValueError(
            f"`target` must have shape {(shape[0], *shape[2:])} for an output of shape {shape}, got "
            f"{tuple(target.shape)}. Pass {hint}; shapes are not broadcast, because a silent (B, B) would be worse."
        )
    return logits


def is_soft(target: Tensor) -> bool:
    """Whether the target holds probabilities rather than class indices."""
    return target.is_floating_point()


def _check_soft(shape: tuple[int, ...], target: Tensor, allowed: bool) -> None:
    if allowed and tuple(target.shape) == shape:
        return
    wanted = f"probabilities of shape {shape} or class indices" if allowed else "class indices"
    raise ValueError(
        f"`target` must hold {wanted}, got {target.dtype} of shape {tuple(target.shape)}. "
        "Class indices are integers: target.long()."
    )


def check_same_shape(output: Tensor, target: Tensor) -> Tensor:
    """The wide output, once the target has its very shape and a unit axis."""
    wide = check_floating(output)
    if output.ndim == 0:
        raise ValueError("`output` must have a unit axis, got a single number. Pass one entry (or row) per unit.")
    if output.shape != target.shape:
        raise ValueError(
            f"`target` must have the shape of the output, {tuple(output.shape)}, got {tuple(target.shape)}. "
            "Use squeeze, unsqueeze or one_hot to say what is meant; shapes are not broadcast, because (B, 1) "
            "against (B,) would silently compare every pair."
        )
    return wide


def per_unit_mean(values: Tensor) -> Tensor:
    """The mean over all axes but the first."""
    return values if values.ndim == 1 else values.flatten(1).mean(1)


def pick(values: Tensor, target: Tensor) -> Tensor:
    """Along the class axis 1, the entry of each unit's own class."""
    return values.gather(1, target.long().unsqueeze(1)).squeeze(1)


def hide(logits: Tensor, target: Tensor) -> Tensor:
    """The logits with minus infinity at each unit's own class, so that a softmax sees the wrong classes only."""
    return logits.scatter(1, target.long().unsqueeze(1), float("-inf"))


def counts_of(class_counts: Sequence[int] | None, name: str) -> tuple[int, ...]:
    """Class counts as a tuple of integers, or the error that says how to get them."""
    if class_counts is None:
        raise ValueError(
            f"`class_counts` must be given to {name}, got None. Pass `class_counts=` where the method is passed, or "
            "use `loss.bind(class_counts)`: the number of training examples of each class, in class order."
        )
    counts = tuple(int(count) for count in class_counts)
    if len(counts) < 2 or min(counts) < 0 or max(counts) == 0:
        raise ValueError(
            f"`class_counts` must be at least two whole numbers, none negative and not all zero, got {counts}. "
            "Give the number of training examples of each class, in class order."
        )
    return counts


class PerClass:
    """One number per class, kept on every device it has been used on: a training step must not copy from the host."""

    def __init__(self, values: Sequence[float]) -> None:
        self.values = tuple(values)
        self._on: dict[tuple[torch.device, bool], Tensor] = {}

    def on(self, device: torch.device) -> Tensor:
        """The values as a float32 vector on a device."""
        # Training has a copy of its own: backward refuses one that an evaluation made under `inference_mode`. Asking
        # whether gradients are on is the question about that mode that a compiled step may ask.
        place = device, torch.is_grad_enabled()
        if place not in self._on:
            self._on[place] = torch.tensor(self.values, dtype=torch.float32, device=device)
        return self._on[place]

    def of(self, target: Tensor, mask: Tensor | None = None) -> Tensor:
        """The value of each unit's class; for soft targets the mean under the target, for masked units the first."""
        values = self.on(target.device)
        if is_soft(target):
            shares = widen(target).movedim(1, -1)
            return shares @ values.to(shares.dtype)
        index = target.long()  # labels of one byte would select by truth and not by number
        return values[index if mask is None else index.where(mask, 0)]

    def along(self, logits: Tensor) -> Tensor:
        """The values in the dtype of the logits, along their class axis 1."""
        return self.on(logits.device).to(logits.dtype).view(1, -1, *(1,) * (logits.ndim - 2))


class PerMember(PerClass):
    """One number per class for each of several trainings, whose units come one training after the other."""

    def __init__(self, members: Sequence[PerClass]) -> None:
        super().__init__([value for member in members for value in member.values])
        self.members = len(members)

    def on(self, device: torch.device) -> Tensor:
        """The values, `(members, classes)`."""
        return super().on(device).view(self.members, -1)

    def of(self, target: Tensor, mask: Tensor | None = None) -> Tensor:
        """The value of each unit's class in its own training."""
        index = target.long() if mask is None else target.long().where(mask, 0)
        return self.on(target.device).gather(1, index.reshape(self.members, -1)).view(target.shape)

    def along(self, logits: Tensor) -> Tensor:
        """The values of each unit's training, along the class axis 1."""
        values = self.on(logits.device).to(logits.dtype)
        return values.repeat_interleave(len(logits) // self.members, 0).view(
            *logits.shape[:2], *(1,) * (logits.ndim - 2)
        )
