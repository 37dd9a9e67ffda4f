"""A recipe made for these tests takes the place of those that are there."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import tiny_training as tiny

from reweigh.bench.lab import recipe as recipes


@pytest.fixture
def tiny_recipe(monkeypatch: pytest.MonkeyPatch) -> None:
    known = recipes.complete(SimpleNamespace(Settings=tiny.Settings, train=tiny.train))
    monkeypatch.setattr(recipes, "load", lambda name: known)
