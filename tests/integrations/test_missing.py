"""An adapter whose framework is not installed says which extra brings it."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from typing import Any

import pytest


@pytest.mark.parametrize("name", ["lightning", "skorch", "keras", "jax"])
def test_the_error_names_the_extra(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec

    def without(asked: str, package: str | None = None) -> Any:
        return None if asked == name else find(asked, package)

    monkeypatch.setattr(importlib.util, "find_spec", without)
    monkeypatch.delitem(sys.modules, f"reweigh.integrations.{name}", raising=False)
    with pytest.raises(ModuleNotFoundError, match=rf'pip install "reweigh\[{name}\]"') as raised:
        importlib.import_module(f"reweigh.integrations.{name}")
    assert raised.value.name == name


def test_an_adapter_is_there_without_an_import_of_its_own():
    import reweigh

    assert callable(reweigh.integrations.cleanlab.to_cleanlab)
    with pytest.raises(AttributeError, match="nonsense"):
        _ = reweigh.integrations.nonsense
