"""Laws that random search draws hyper-parameters from."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

Law = Callable[[np.random.Generator], Any]


def power_of_ten(low: float, high: float) -> Law:
    """Ten to the power of a number that is uniform between two."""
    return lambda rng: float(10.0 ** rng.uniform(low, high))


def power_of_two(low: float, high: float) -> Law:
    """Two to the power of a number that is uniform between two, as a whole number."""
    return lambda rng: int(2.0 ** rng.uniform(low, high))


def one_of(*values: Any) -> Law:
    """One of these, all equally likely."""
    return lambda rng: values[int(rng.integers(len(values)))]


def uniform(low: float, high: float) -> Law:
    """A number between two."""
    return lambda rng: float(rng.uniform(low, high))
