"""Corrections of probabilities after training, for estimators that know classes by their labels."""

from __future__ import annotations

from typing import Any

import numpy as np

from reweigh._carry import carried, refuse_more_than_losses
from reweigh.method import Context, Method
from reweigh.objectives import Objective
from reweigh.post import Correction, Post

__all__ = ["corrected", "correction_for", "held_out", "log_probabilities", "objective_and_post", "refuse_classifier"]


def objective_and_post(objective: Any, tau: float | None, who: str) -> tuple[Objective, Post | None]:
    """The objective of a method, and what the method does after training; `who` has no other slot."""
    chosen = carried(objective, ("objective", "post"), who, tau=tau)
    refuse_classifier(chosen, who)
    refuse_more_than_losses(chosen.objective, who)
    return chosen.objective, chosen.post


def refuse_classifier(chosen: Method, who: str) -> None:
    """Refuse a correction that looks at a network's last layer."""
    if chosen.post is not None and chosen.post.needs_classifier:
        raise ValueError(
            f"{str(chosen)!r} looks at the last layer of a network, which {who} does not have. Use prior, threshold, "
            "temperature or isotonic."
        )


def held_out(post: Post | None, eval_set: Any) -> tuple[Any, Any] | None:
    """The rows, with their labels, that a booster's correction is fitted to; None where it needs none."""
    if post is None or not post.needs_rows:
        return None
    if isinstance(eval_set, tuple) and len(eval_set) == 2:
        return eval_set
    if not isinstance(eval_set, list) or not eval_set or not isinstance(eval_set[-1], tuple):
        raise ValueError(
            f"{post!r} learns from held-out rows, which a booster takes from `eval_set`. Give fit eval_set=[(X, y)] "
            "with rows that are not trained on."
        )
    return eval_set[-1]


def log_probabilities(probabilities: Any) -> Any:
    """Their logarithm, never minus infinity."""
    p = np.asarray(probabilities, np.float64)
    return np.log(np.maximum(p, np.finfo(np.float64).tiny))


def correction_for(
    post: Post | None,
    outputs: Any,
    codes: Any,
    trained_on: Any,
    classes: int,
    sample_weight: Any = None,
    classifier: tuple[Any, Any] | None = None,
    loss: Any = None,
) -> Correction | None:
    """The correction that suits the outputs of held-out rows.

    Parameters
    ----------
    post
        What to fit, if anything.
    outputs, codes
        Log-probabilities of the held-out rows and their classes; None where `post` needs no rows.
    trained_on, classes, sample_weight
        Classes of the training rows, how many classes there are, and the weights of the rows: what a row counted in
        training is what it counts in the shares of the classes.
    classifier
        Weight and bias of the last layer, where there is one.
    loss
        The loss of the training, where the method names one: what it has corrected already is not corrected again.
    """
    if post is None:
        return None
    if outputs is None:
        outputs, codes = np.zeros((0, classes)), np.zeros(0, np.int64)
    counts = np.bincount(trained_on, weights=sample_weight, minlength=classes)
    if loss is not None:
        post = post.after([loss], np.bincount(trained_on, minlength=classes).tolist())
    return post.fit(outputs, codes, Context(class_counts=counts.tolist(), classifier=classifier))


def corrected(correction: Correction | None, probabilities: Any) -> Any:
    """Probabilities after the correction; as they are without one."""
    if correction is None:
        return probabilities
    outputs = correction(log_probabilities(probabilities))
    odds = np.exp(outputs - outputs.max(axis=1, keepdims=True))
    return odds / odds.sum(axis=1, keepdims=True)
