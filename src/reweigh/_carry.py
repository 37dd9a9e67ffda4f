"""Which parts of a method a host carries, and the one sentence about a part that it does not."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from reweigh.method import Method, as_method
from reweigh.objectives import Objective
from reweigh.objectives.mean import Mean
from reweigh.objectives.rgd import RGD

__all__ = ["carried", "refuse_more_than_losses", "with_hyper_parameters"]

#: Why a host may have no place for a part.
_WHY: Mapping[str, str] = {
    "sampler": "it draws its batches itself",
    "loss": "it has a loss of its own",
    "step": "it makes its update from one gradient, which it computes itself",
    "average": "it keeps the weights of the last step",
    "post": "it does not predict classes",
}


def carried(
    given: Any, slots: Sequence[str], host: str, *, tau: float | None = None, why: Mapping[str, str] | None = None
) -> Method:
    """The method that `given` stands for, if the host has a place for each of its parts.

    Parameters
    ----------
    given, tau
        A method, its text, an objective or a weight function, and the `tau` to put in place of its own.
    slots
        The parts that the host carries: names of slots.
    host
        Who refuses, as the subject of a sentence.
    why
        The host's own reasons by slot, where the general ones do not fit: what follows "because".

    >>> carried("focal+rgd:tau=3+sam", ("loss", "objective"), "a Keras loss")
    Traceback (most recent call last):
    ValueError: a Keras loss carries loss and objective of a method, got 'focal+rgd:tau=3+sam' with the step 'sam': ...
    """
    chosen = as_method(given, tau=tau)
    for slot, part in chosen.parts():
        if slot not in slots:
            reason = {**_WHY, **(why or {})}[slot]
            name = type(part).__module__.rpartition(".")[2]
            raise ValueError(
                f"{host} carries {_listed(slots)} of a method, got {str(chosen)!r} with the {slot} {name!r}: {reason}. "
                f"Leave {name!r} out, or use `built.{slot}` of `built = reweigh.method({str(chosen)!r}).build("
                "reweigh.Context(...))` in a training loop of your own: docs/loop.md has one."
            )
    return chosen


def with_hyper_parameters(chosen: Method | None, hyper_parameters: Mapping[str, Any]) -> Method:
    """The method with `RGD(**hyper_parameters)` as its objective, unless it has one; plain RGD for no method."""
    if chosen is None:
        return Method(objective=RGD(**hyper_parameters))
    if not hyper_parameters:
        return chosen
    if chosen.objective != Mean():
        raise TypeError(
            f"give either an objective or hyper-parameters of RGD, got {str(chosen)!r} and "
            f"{', '.join(hyper_parameters)}. Put them into the objective."
        )
    return dataclasses.replace(chosen, objective=RGD(**hyper_parameters))


def refuse_more_than_losses(objective: Objective, host: str, *, but: Sequence[str] = ()) -> None:
    """Refuse an objective that weighs by more than the losses, where `host` is `but` able to give it these.

    >>> from reweigh.objectives.rho import Rho
    >>> refuse_more_than_losses(Rho(), "a booster")
    Traceback (most recent call last):
    ValueError: a booster gives an objective the losses and nothing else, got Rho(keep=0.6, sync=True), which needs ...
    """
    needed = [*objective.takes, *(["groups"] if "n_groups" in getattr(objective, "needs", ()) else [])]
    missing = [name for name in needed if name not in but]
    if missing:
        raise ValueError(
            f"{host} gives an objective the losses and nothing else, got {objective!r}, which needs "
            f"{' and '.join(f'`{name}`' for name in missing)} too. Use another objective, or this one with "
            "reweigh.torch.Reweighted in a training loop of your own: docs/loop.md has one."
        )


def _listed(slots: Sequence[str]) -> str:
    *first, last = slots
    return f"{', '.join(first)} and {last}" if first else f"the {last}"
