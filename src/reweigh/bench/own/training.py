"""One training as the user's code sees it: which seed, which method, which learning rate, and where to keep things."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from reweigh.method import SLOTS, Built, Context, Method
from reweigh.monitor import Monitor

if TYPE_CHECKING:
    import torch

    from reweigh.torch.reweighted import Reweighted

Floats = np.ndarray[Any, np.dtype[np.float64]]


class Store(Protocol):
    """Where a training keeps the place to resume from."""

    @property
    def directory(self) -> Path:
        """The training's own folder."""
        ...

    def checkpoint(self, state: Any) -> None:
        """Keep `state` as the place to resume from."""

    def resume(self) -> Any | None:
        """What was kept last, or None."""


class Training:
    """One training, handed to your function as `run`: what it is told, and what it may ask for.

    Parameters
    ----------
    method
        What to train with. Reading `run.method` counts as using it.
    seed
        Seed of everything random: data order, splits, initial parameters.
    lr_factor
        What to multiply your learning rate with; tuning varies it.
    store
        Where checkpoints go.
    scale
        One factor on the loss per call of the criterion, where this training is a scale control.
    device
        A device's name; the first accelerator, or the processor, if not given.

    Examples
    --------
    A plain run, outside of any comparison:

    >>> import reweigh, torch
    >>> run = Training(reweigh.method("rgd:tau=1"), seed=0)
    >>> criterion = run.criterion(torch.nn.CrossEntropyLoss())
    >>> outputs = torch.zeros(4, 2, requires_grad=True)
    >>> round(criterion(outputs, torch.tensor([0, 1, 0, 1])).item(), 4)  # 0.6931 times a weight of 1.4142
    0.9803
    """

    def __init__(
        self,
        method: Method,
        seed: int,
        *,
        lr_factor: float = 1.0,
        store: Store | None = None,
        scale: Floats | None = None,
        device: str | None = None,
    ) -> None:
        self.seed = seed
        #: Whether the training asked for its learning rate, and which parts of its method it asked for.
        self.used_rate = False
        self._used: set[str] = set()
        self._lr_factor = lr_factor
        self._method = method
        self._store = store
        self._scale = scale
        self._device = device
        self._means: list[Any] = []
        self._monitor: Monitor | None = None

    @property
    def method(self) -> Method:
        """The method as a value: `str(run.method)` is its text, `run.method.build(reweigh.Context(...))` its parts."""
        self._used |= set(SLOTS)
        return self._method

    @property
    def lr_factor(self) -> float:
        """What to multiply your learning rate with."""
        self.used_rate = True
        return self._lr_factor

    @property
    def directory(self) -> Path:
        """A folder of this training's own."""
        return self._kept().directory

    @property
    def device(self) -> torch.device:
        """The device to train on: the one given, or the first accelerator, or the processor."""
        import torch

        if self._device is not None:
            return torch.device(self._device)
        return torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")

    def unused(self) -> list[str]:
        """The parts of the method that the training never asked for; plain training has one, the objective."""
        parts = [slot for slot, _ in self._method.parts()] or ["objective"]
        return [slot for slot in parts if slot not in self._used]

    def criterion(
        self,
        criterion: Any = None,
        *,
        class_counts: Sequence[int] | None = None,
        steps: int | None = None,
        n_groups: int | None = None,
        **options: Any,
    ) -> Reweighted:
        """The criterion to train with: re-weighted or plain, as this run says.

        Parameters
        ----------
        criterion
            Your own, such as `nn.CrossEntropyLoss()`. A method that names a loss uses that in its place.
        class_counts
            Training examples of each class, for methods that need them.
        steps
            Optimiser steps of the whole training, for methods that need them.
        n_groups
            How many groups there are, for `group_dro`; call the criterion with `groups=` then.
        **options
            `level`, `floor`, `nonfinite` and `accumulation` of :class:`reweigh.torch.Reweighted`.

        Returns
        -------
        Reweighted
            A module. In `eval()` it returns the criterion's own value.
        """
        from reweigh.torch.reweighted import Reweighted

        built = self._built("loss", "objective", class_counts=class_counts, steps=steps, n_groups=n_groups)
        own = self._method.loss is not None
        if own and criterion is not None and not _is_cross_entropy(criterion):
            raise ValueError(
                f"the method {str(self._method)!r} brings a loss for classes, which cannot take the place of "
                f"{criterion!r}. Leave that method out of the comparison."
            )
        chosen = built.loss if own or criterion is None else criterion
        reweighted = Reweighted(chosen, built.objective, **options)
        self.observe(reweighted)
        return reweighted

    def sampler(self, n: int, *, batch_size: int, targets: Any = None, groups: Any = None, **options: Any) -> Any:
        """A sampler over `n` examples that draws as the method says: iterate over its batches of indices.

        `targets` and `groups` are the class and the group of each example, for samplers that draw by them.
        """
        sampler = self._built("sampler", n=n, targets=targets, groups=groups).sampler
        return sampler.start(n, batch_size=batch_size, seed=self.seed, targets=targets, groups=groups, **options)

    def step(self, model: Any, **context: Any) -> Any:
        """What moves the parameters, as the method says: `step(optimizer, closure)`; docs/loop.md shows a loop."""
        return self._built("step", **context).step.start(model)

    def average(self, model: Any) -> Any | None:
        """What averages parameters over time, as the method says; None if it says nothing."""
        average = self._built("average").average
        return None if average is None else average.start(model)

    def transformers(self, trainer: Any, **options: Any) -> Any:
        """A Hugging Face Trainer that trains with this run's method at this run's learning rate.

        `options` are those of :func:`reweigh.integrations.transformers.loss`. Give the Trainer's arguments
        `seed=run.seed` yourself: the model is made before the Trainer is.
        """
        from reweigh.integrations.transformers import loss, watch

        function = loss(self._objective("the Hugging Face Trainer"), **options)
        trainer.compute_loss_func = function
        trainer.args.learning_rate *= self.lr_factor
        self.observe(function.reweighted)
        return watch(trainer)

    def lightning(self) -> Any:
        """A Lightning callback that logs what the weights do; the module's criterion is `run.criterion(...)`."""
        from reweigh.integrations.lightning import WeightLog

        return WeightLog()

    def checkpoint(self, state: Any) -> None:
        """Keep `state` (tensors, numbers and containers of them) as the place to resume from."""
        self._kept().checkpoint(state)

    def resume(self) -> Any | None:
        """What `checkpoint` kept last, if this training was interrupted; None at a fresh start."""
        return self._kept().resume()

    def observe(self, reweighted: Reweighted) -> None:
        """Note the mean weight of each call of a criterion, and multiply its loss where this run is a scale control."""
        import torch

        self._used.add("objective")
        if self._monitor is None:
            self._monitor = Monitor.of(reweighted.objective, every=sys.maxsize)

        def after(module: Any, inputs: Any, loss: Any) -> Any:
            weights = reweighted.weights
            if not (module.training and torch.is_grad_enabled()) or weights is None:
                return loss
            assert self._monitor is not None
            self._monitor.update(reweighted)
            mask = reweighted.mask
            # Kept on its device: the value is read when the training is over.
            self._means.append(weights.mean() if mask is None else weights[mask].mean())
            if self._scale is None:
                return loss
            return loss * float(self._scale[min(len(self._means), len(self._scale)) - 1])

        reweighted.register_forward_hook(after)

    def mean_weights(self) -> Floats | None:
        """The mean weight of every call of the criterion so far; None where there was none."""
        return np.array([float(mean) for mean in self._means]) if self._means else None

    def findings(self) -> list[str]:
        """What stands out about the weights: saturated, or never active."""
        if self._monitor is None or not self._means or self._method.objective == Method().objective:
            return []
        return self._monitor.findings()

    def _built(self, *slots: str, **context: Any) -> Built:
        """Some parts of the method, bound to what they need to know about the data: the fields of `reweigh.Context`."""
        self._used |= set(slots)
        return Method(**{slot: getattr(self._method, slot) for slot in slots}).build(Context(**context))

    def _objective(self, host: str) -> Any:
        others = [slot for slot, _ in self._method.parts() if slot != "objective"]
        if others:
            raise ValueError(
                f"{host} takes objectives, and the method {str(self._method)!r} has a {others[0]} as well. Leave it "
                "out of the comparison, or use `run.method` to build it yourself."
            )
        return self._method.objective

    def _kept(self) -> Store:
        if self._store is None:
            raise RuntimeError("this run has no folder: it does not belong to a comparison.")
        return self._store


def _is_cross_entropy(criterion: Any) -> bool:
    from torch import nn

    return isinstance(criterion, nn.CrossEntropyLoss) or type(criterion).__module__.startswith("reweigh.torch.losses")
