"""Every recipe keeps the contract, and the contract's defaults stand in for what a file leaves out."""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from reweigh.bench.lab import recipe as recipes
from reweigh.bench.lab.recipe import OPTIONAL, REQUIRED, Recipe, SelfReporting
from reweigh.bench.lab.table import Table

COMPARE = "reweigh.bench.compare.recipe"


def parameters(function: object) -> list[str]:
    return [name for name in inspect.signature(function).parameters if name != "self"]


@pytest.mark.parametrize("name", recipes.names())
def test_a_recipe_keeps_the_contract(name):
    module = importlib.import_module(f"reweigh.bench.recipes.{name}")
    for hook in ("table", "train", *(hook for hook in OPTIONAL if hook != "DISTRIBUTED" and hasattr(module, hook))):
        assert parameters(getattr(module, hook)) == parameters(getattr(Recipe, hook)), hook
    assert hasattr(module, "group") == hasattr(module, "train_group")
    assert module.Settings.__dataclass_params__.frozen
    assert "lr" in {field.name for field in dataclasses.fields(module.Settings)}
    assert list(module.PRESETS) == ["smoke", "cpu", "paper"]
    for preset, settings in module.PRESETS.items():
        assert isinstance(settings, module.Settings)
        assert isinstance(module.table(preset), Table)
    question = (module.__doc__ or "").partition("\n")[0]
    assert recipes.summaries()[name] == question
    assert question


def test_the_recipe_behind_a_command_of_its_own_keeps_its_part_of_it():
    module = importlib.import_module(COMPARE)
    for hook in ("train", "group", "train_group"):
        assert parameters(getattr(module, hook)) == parameters(getattr(Recipe, hook)), hook
    assert parameters(module.results_at) == parameters(SelfReporting.results_at)
    assert recipes.self_reporting("longtail") is None
    assert recipes.trainable("compare").train is module.train
    with pytest.raises(ValueError, match="command of its own: `reweigh compare`"):
        recipes.load("compare")


def test_what_a_file_leaves_out_has_a_default():
    least = recipes.complete(SimpleNamespace(train=lambda *_: iter([{"epoch": 1}])))
    assert list(least.train(None, None, 0, None, None)) == [{"epoch": 1}]
    assert least.group(None, None) is None
    assert not least.DISTRIBUTED
    assert tuple(least.figures(None)) == tuple(least.answer(None)) == ()
    with pytest.raises(NotImplementedError, match="2 trainings together"):
        least.train_group([None, None])


def test_a_file_without_a_required_name_is_a_bug_that_is_named(monkeypatch):
    broken = ModuleType("reweigh.bench.recipes.toy")
    broken.Settings = broken.PRESETS = broken.table = object()
    monkeypatch.setitem(sys.modules, broken.__name__, broken)
    with pytest.raises(TypeError, match="recipe 'toy' has no `train`"):
        recipes.load("toy")


def test_the_page_on_adding_shows_every_name():
    page = Path(__file__).parents[3] / "docs" / "adding.md"
    code = "\n".join(block.partition("```")[0] for block in page.read_text().split("```python\n")[1:])
    defined = {node.name for node in ast.walk(ast.parse(code)) if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
    shown = set(REQUIRED) | set(OPTIONAL) - {"DISTRIBUTED"}
    assert shown - {"PRESETS"} <= defined
    for name in (*REQUIRED, *OPTIONAL):
        assert f"| `{name}" in page.read_text()
