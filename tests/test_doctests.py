"""Every example in a docstring runs and prints what it says."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

import reweigh

MODULES = [
    info.name
    for info in pkgutil.walk_packages(reweigh.__path__, "reweigh.")
    if not info.name.rsplit(".", 1)[-1].startswith("__main__")
]


def load(name: str):
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] == "reweigh":
            raise
        pytest.skip(f"needs {error.name}, which is not installed")


@pytest.mark.parametrize("name", ["reweigh", *MODULES])
def test_examples(name):
    result = doctest.testmod(load(name), optionflags=doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS)
    assert result.failed == 0


@pytest.mark.parametrize(
    "name", ["reweigh.weights", "reweigh.objectives.rgd", "reweigh.monitor", "reweigh.torch.reweighted"]
)
def test_there_are_examples(name):
    assert doctest.testmod(load(name)).attempted > 0
