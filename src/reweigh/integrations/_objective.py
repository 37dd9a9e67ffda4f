"""What a user may write for an objective, in the estimators and boosters alike."""

from __future__ import annotations

from typing import Any

from reweigh.method import ObjectiveLike, as_method
from reweigh.objectives import Objective

__all__ = ["ObjectiveLike", "as_method", "objective_alone"]


def objective_alone(objective: Any, tau: float | None, who: str) -> Objective:
    """The objective of a method that fills no other slot: `who` has its own loss, steps and sampling."""
    chosen = as_method(objective, tau=tau)
    others = [slot for slot, _ in chosen.parts() if slot != "objective"]
    if others:
        raise ValueError(
            f"{who} re-weights by an objective alone, got {str(chosen)!r}, which names a {others[0]} too. "
            "Leave that part out; it belongs to training loops in PyTorch."
        )
    return chosen.objective
