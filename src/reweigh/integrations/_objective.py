"""What a user may write for an objective, in the estimators and boosters alike."""

from __future__ import annotations

import dataclasses
from typing import Any

from reweigh.method import Method, method
from reweigh.objectives._base import Objective
from reweigh.objectives.rgd import RGD
from reweigh.weights import KL, ChiSquare, ReverseKL

#: A method's text, an objective of the family or a bare weight function.
ObjectiveLike = str | Objective | KL | ReverseKL | ChiSquare


def as_method(objective: Any, tau: float | None = None) -> Method:
    """The method that `objective` stands for, with `tau` in place of its own if that is given.

    >>> as_method("rgd:divergence=revkl", tau=3.0).objective.weight
    ReverseKL(tau=3.0, offset=0.0)
    """
    named = method(objective) if isinstance(objective, str) else Method(objective=_as_objective(objective))
    if tau is None:
        return named
    if "tau" not in {field.name for field in dataclasses.fields(named.objective)}:  # pyright: ignore[reportArgumentType]
        raise ValueError(
            f"`tau` belongs to objectives that have one, got tau={tau!r} with {named.objective!r}. Drop it."
        )
    own: Any = named.objective
    return dataclasses.replace(named, objective=dataclasses.replace(own, tau=tau))


def objective_alone(objective: Any, tau: float | None, who: str) -> Objective:
    """The objective of a method that fills no other slot: `who` has its own loss, steps and sampling."""
    named = as_method(objective, tau)
    others = [slot for slot, _ in named.parts() if slot != "objective"]
    if others:
        raise ValueError(
            f"{who} re-weights by an objective alone, got {str(named)!r}, which names a {others[0]} too. "
            "Leave that part out; it belongs to training loops in PyTorch."
        )
    return named.objective


def _as_objective(given: Any) -> Objective:
    if isinstance(given, Objective):
        return given
    if isinstance(given, KL):
        return RGD(tau=given.tau, gamma=given.gamma, offset=given.offset)
    if isinstance(given, ReverseKL):
        return RGD(divergence="revkl", tau=given.tau, offset=given.offset)
    if isinstance(given, ChiSquare):
        return RGD(divergence="chi2", tau=given.tau, scaled=given.scaled, offset=given.offset)
    raise TypeError(
        f"`objective` must be a method's text, an objective or a weight function, got {type(given).__name__}. "
        'For example "rgd:tau=3", reweigh.RGD(tau=3.0) or reweigh.KL(tau=3.0).'
    )
