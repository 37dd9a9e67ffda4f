"""Learning from several domains for one that is not seen, one algorithm per file: the file name is its name.

An algorithm turns equally many examples of each training domain into a step. Its *classification losses*, one per
example, go through the method's objective, whichever that is; what it adds of its own, penalties and adversaries, stays
as it is.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from reweigh.bench import registry
from reweigh.bench.recipes.algorithms.domains._base import (
    DomainAlgorithm,
    DomainBatch,
    DomainNetwork,
    Learner,
    Setup,
    Weigher,
)
from reweigh.bench.recipes.algorithms.domains._law import one_of, power_of_ten, power_of_two

__all__ = [
    "DomainAlgorithm",
    "DomainBatch",
    "Learner",
    "DomainNetwork",
    "Setup",
    "Weigher",
    "build",
    "names",
    "one_of",
    "power_of_ten",
    "power_of_two",
]

_FOLDER = Path(__file__).parent


def names() -> list[str]:
    """The algorithms there are: the files of this folder."""
    return registry.listing(_FOLDER)


def build(name: str, **options: Any) -> DomainAlgorithm:
    """The algorithm of this name.

    Parameters
    ----------
    name
        A file of this folder.
    options
        Hyper-parameters; those that the algorithm does not have are an error.

    Examples
    --------
    >>> build("irm", weight=10.0)
    IRM(weight=10.0, anneal=0.1)
    """
    return registry.instance(__name__, _FOLDER, name, "algorithm", options)
