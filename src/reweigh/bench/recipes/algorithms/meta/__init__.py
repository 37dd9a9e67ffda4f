"""Learning to learn, one algorithm per file: the file name is its name on the command line.

An algorithm turns the tasks of a meta-batch into one loss each, the mean loss of the task's queries after the task's
support set has been learnt from. Which number is made of these losses is the method's business: any objective of the
family weighs tasks here as it weighs examples elsewhere.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from reweigh.bench import registry
from reweigh.bench.recipes.algorithms.meta._base import Episodes, MetaAlgorithm, cross_entropy, squared_error
from reweigh.bench.recipes.algorithms.meta.maml import MAML
from reweigh.bench.recipes.algorithms.meta.matching import MatchingNetwork
from reweigh.bench.recipes.algorithms.meta.protonet import ProtoNet
from reweigh.bench.recipes.algorithms.meta.reptile import Reptile

__all__ = [
    "MAML",
    "ProtoNet",
    "MatchingNetwork",
    "Reptile",
    "MetaAlgorithm",
    "Episodes",
    "build",
    "cross_entropy",
    "names",
    "squared_error",
]

_FOLDER = Path(__file__).parent


def names() -> list[str]:
    """The algorithms there are: the files of this folder."""
    return registry.listing(_FOLDER)


def build(name: str, **options: Any) -> MetaAlgorithm:
    """The algorithm of this name.

    Parameters
    ----------
    name
        A file of this folder.
    options
        Hyper-parameters; those that the algorithm does not have are an error.

    Examples
    --------
    >>> build("maml", inner_lr=0.4).inner_steps
    1
    """
    return registry.instance(__name__, _FOLDER, name, "algorithm", options)
