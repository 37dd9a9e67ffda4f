"""Checkpoints hold no trace of a device: what began on one resumes on another."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from host_reads import assert_alike

from reweigh.bench.lab import recipe as recipes
from reweigh.bench.lab.runs import Run, Spec
from reweigh.bench.train import device as devices
from reweigh.method import method

#: A method with a state of its own in every slot that has one, and recipes of every kind of program.
_CASES = (
    ("noise", "hardness+focal+term_ema:t=0.5+sam+ema:decay=0.9"),
    ("domains", "rgd_auto"),
    ("gpt", "term_ema:t=0.5"),
    ("imagenet", "term_ema:t=0.5+ema:decay=0.9"),
    ("sinusoid", "absgd"),
)


def _train(name: str, text: str, root: Path, *, stop: int | None = None) -> list[dict[str, Any]]:
    recipe = recipes.load(name)
    preset = recipe.PRESETS["smoke"]
    settings = dataclasses.replace(preset, epochs=2) if hasattr(preset, "epochs") else preset
    spec = Spec(recipe=name, column="", label="", settings=dataclasses.asdict(settings), method=text, seed=0)
    run = Run(spec, root)
    with run.open() as writer:
        for k, record in enumerate(recipe.train(settings, method(text), 0, writer, None)):
            writer.record(record)
            if k == stop:
                break
    return run.records()


@pytest.mark.parametrize(("name", "text"), _CASES)
@pytest.mark.parametrize(("first", "then"), [("second", "cpu"), ("cpu", "second")])
def test_resumes_elsewhere(tmp_path, name, text, first, then):
    expected = _train(name, text, tmp_path / "whole")
    devices.use(first)
    # The checkpoint of a record is written when the next one is asked for.
    begun = _train(name, text, tmp_path / "parts", stop=1)
    files = [path for path in (tmp_path / "parts").rglob("*") if path.suffix in (".pt", ".distcp", ".metadata")]
    assert len(begun) == 2
    assert files
    assert not any(b"second:" in path.read_bytes() for path in files)
    devices.use(then)
    assert_alike(_train(name, text, tmp_path / "parts"), expected, atol=1e-2)
