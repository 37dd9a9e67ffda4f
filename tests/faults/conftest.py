"""A recipe made for these tests takes the place of those that are there."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

import pytest
import tiny_training as tiny

from reweigh.bench.lab import recipe as recipes
from reweigh.bench.train import driver


@pytest.fixture
def tiny_recipe(monkeypatch: pytest.MonkeyPatch) -> None:
    known = recipes.complete(SimpleNamespace(Settings=tiny.Settings, train=tiny.train))
    monkeypatch.setattr(recipes, "load", lambda name: known)


@pytest.fixture(autouse=True, scope="session")
def checkpoints_after_every_epoch() -> Iterator[None]:
    """However short an epoch is: trainings of milliseconds can be interrupted and resumed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(driver, "SECONDS_APART", 0.0)
        yield
