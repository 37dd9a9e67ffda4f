"""The smallest training of every recipe, alone and stacked, gives the processor's numbers on a second device."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from host_reads import assert_alike

from reweigh.bench.lab import recipe as recipes
from reweigh.bench.lab.runs import Run, Spec
from reweigh.bench.recipes.algorithms import domains as domain_algorithms
from reweigh.bench.recipes.algorithms import meta as meta_algorithms
from reweigh.method import method

#: Trainings of NumPy and of trees have no step on a device; the Trainer drives itself.
_NO_STEPS = ("convergence", "glue", "toy")
_MIXED = ("ablation", "bert", "cost", "domains", "gpt", "imagenet", "longtail", "meta", "noise", "sam", "tabular")


def _run(name: str, folder: Path, text: str = "rgd", **changes: Any) -> list[dict[str, Any]]:
    recipe = recipes.load(name)
    preset = recipe.PRESETS["smoke"]
    changes = {**(_short(preset) if not changes else {}), **changes}
    settings = dataclasses.replace(preset, **changes)
    spec = Spec(recipe=name, column="", label="", settings=dataclasses.asdict(settings), method=text, seed=0)
    with Run(spec, folder / torch.randint(10**9, ()).__str__()).open() as writer:
        return list(recipe.train(settings, method(text), 0, writer, None))


def _short(preset: Any) -> dict[str, Any]:
    """One epoch where a preset has epochs."""
    return {"epochs": 1} if hasattr(preset, "epochs") else {}


@pytest.mark.parametrize("name", recipes.names())
def test_every_recipe(on_both, tmp_path, name):
    expected, computed, reads = on_both(lambda: _run(name, tmp_path))
    assert not reads.places
    assert (reads.steps == 0) == (name in _NO_STEPS)
    if name == "cost":  # its records are times
        assert computed[0].keys() == expected[0].keys()
    elif name == "meta":
        _assert_alike_before_learning(computed, expected)
    else:
        assert_alike(computed, expected)


def _assert_alike_before_learning(computed: Any, expected: Any) -> None:
    """Second derivatives of few examples magnify rounding, and Adam takes a sign of it: exact is the first step."""
    assert_alike(computed, expected, atol=0.1)


@pytest.mark.parametrize("name", domain_algorithms.names())
def test_every_domain_algorithm(on_both, tmp_path, name):
    changes = {"algorithm": name, "steps": 4, "check": 2, "batch_size": 8}
    expected, computed, reads = on_both(lambda: _run("domains", tmp_path, **changes))
    assert reads.steps
    assert not reads.places
    assert_alike(computed, expected, atol=2e-2)


@pytest.mark.parametrize("name", meta_algorithms.names())
def test_every_meta_algorithm(on_both, tmp_path, name):
    changes = {"algorithm": name, "steps": 1, "epochs": 1}
    expected, computed, reads = on_both(
        lambda: _run("meta", tmp_path, "mean" if name == "reptile" else "rgd", **changes)
    )
    assert reads.steps == 1
    assert not reads.places
    early = {key: value for key, value in expected[0].items() if key.startswith(("train/", "weights/m"))}
    assert_alike({key: computed[0][key] for key in early}, early)
    _assert_alike_before_learning(computed, expected)


@pytest.mark.parametrize("algorithm", ["met", "met_r", "vime", "dacl", "subtab", "tabnet", "mlp", "rf_g"])
def test_every_tabular_network(on_both, tmp_path, algorithm):
    changes = {"algorithm": algorithm, "pretrain_epochs": 2, "warmup_epochs": 1, "epochs": 1}
    expected, computed, reads = on_both(lambda: _run("tabular", tmp_path, **changes))
    assert reads.steps
    assert not reads.places
    assert_alike(computed, expected, atol=2e-2)


@pytest.mark.parametrize("name", ["longtail", "sinusoid"])
def test_stacked_trainings(on_both, name):
    recipe = recipes.load(name)
    settings = dataclasses.replace(recipe.PRESETS["smoke"], epochs=1)
    members = [
        (dataclasses.replace(settings, lr=rate), method(text), seed, None)
        for rate, text, seed in ((0.01, "rgd", 0), (0.02, "rgd", 1), (0.01, "rgd:tau=2.0", 0))
    ]
    assert len({recipe.group(own, text) for own, text, _, _ in members}) == 1

    def train() -> list[dict[str, Any]]:
        (records,) = recipe.train_group(members)
        return [{key: value for key, value in record.items() if key != "arrays"} for record in records]

    expected, computed, reads = on_both(train)
    assert reads.steps
    assert not reads.places
    assert_alike(computed, expected)


@pytest.mark.parametrize("name", _MIXED)
def test_mixed_precision_of_every_recipe_that_has_one(on_both, tmp_path, name):
    full = _run(name, tmp_path)
    expected, computed, reads = on_both(lambda: _run(name, tmp_path, **_short_in_bfloat16(name)))
    assert not reads.places
    assert computed[-1].keys() == expected[-1].keys() == full[-1].keys()
    if "train/loss" in full[-1]:
        assert computed[-1]["train/loss"] == pytest.approx(full[-1]["train/loss"], rel=0.1)
        assert computed[-1]["train/loss"] != full[-1]["train/loss"]


def _short_in_bfloat16(name: str) -> dict[str, Any]:
    return {**_short(recipes.load(name).PRESETS["smoke"]), "precision": "bfloat16"}


def test_the_trainer_trains_where_it_is_told(tmp_path, monkeypatch):
    from reweigh.bench.recipes import glue
    from reweigh.bench.train import device as devices

    places: list[str] = []
    predict = glue.predict

    def noted(model: Any, *arguments: Any, **options: Any) -> Any:
        places.append(next(model.parameters()).device.type)
        return predict(model, *arguments, **options)

    monkeypatch.setattr(glue, "predict", noted)
    for device in ("second", "cpu"):
        devices.use(device)
        _run("glue", tmp_path)
    assert set(places[: len(places) // 2]) == {"second"}
    assert set(places[len(places) // 2 :]) == {"cpu"}
