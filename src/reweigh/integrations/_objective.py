"""What a user may write for an objective, in the estimators and boosters alike."""

from __future__ import annotations

from typing import Any

from reweigh._carry import carried
from reweigh.method import ObjectiveLike
from reweigh.objectives import Objective

__all__ = ["ObjectiveLike", "objective_alone"]


def objective_alone(objective: Any, tau: float | None, who: str) -> Objective:
    """The objective of a method that fills no other slot: `who` has its own loss, steps and sampling."""
    return carried(objective, ("objective",), who, tau=tau).objective
