"""What editors and type checkers see: the names that are loaded lazily, and the types that come out."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

import reweigh
from reweigh.method import SLOTS, names

SOURCE = Path(reweigh.__file__).parent

PROGRAM = """
from typing import Any, assert_type

import numpy as np
import torch

import reweigh
from reweigh import KL, RGD, rgd
from reweigh.objectives import CVaR, TERM, TERMEma
from reweigh.torch import Reweighted, losses, steps

numpy_losses: np.ndarray[Any, np.dtype[np.float64]] = np.ones(3)
tensor = torch.ones(3)
assert_type(rgd(tensor, tau=1.0), torch.Tensor)
assert_type(KL(tau=1.0)(numpy_losses), np.ndarray[Any, np.dtype[np.float64]])
assert_type(TERM(t=1.0)(tensor), torch.Tensor)
assert_type(CVaR(alpha=0.5).apply(tensor, ())[0], torch.Tensor)
assert_type(RGD(weight=KL(tau=3.0)).tau, float | None)
assert_type(reweigh.objectives.TERMEma(), TERMEma)
assert_type(reweigh.torch.steps.SAM(), steps.SAM)
criterion = Reweighted(torch.nn.CrossEntropyLoss(), tau=1.0, divergence="revkl", normalize="mean")
Reweighted(losses.Focal(), "cvar:alpha=0.1", level="token")
"""
WRONG = {
    "Reweighted(torch.nn.MSELoss(), tua=1.0)": "tua",
    'Reweighted(torch.nn.MSELoss(), tau="one")': "tau",
    "RGD(tua=1.0)": "tua",
    'RGD(divergence="kld")': "divergence",
    "rgd(tensor, tua=1.0)": "tua",
    "TERM(tau=1.0)": "tau",
    "Reweighted(torch.nn.MSELoss(), RGD)": "objective",
}


@pytest.mark.processes
def test_a_type_checker_sees_what_the_user_writes(tmp_path: Path) -> None:
    pytest.importorskip("pyright")
    path = tmp_path / "program.py"
    path.write_text(PROGRAM + "\n".join(WRONG) + "\n", encoding="utf-8")
    config = {"extraPaths": [str(SOURCE.parent)], "typeCheckingMode": "basic"}
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(config), encoding="utf-8")
    command = [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable, "-p", str(tmp_path)]
    report = json.loads(subprocess.run(command, capture_output=True, text=True, check=False).stdout)
    found = {
        d["range"]["start"]["line"]: d["message"] for d in report["generalDiagnostics"] if d["severity"] == "error"
    }
    first = PROGRAM.count("\n")
    assert {line: text for line, text in found.items() if line < first} == {}
    for number, (line, name) in enumerate(WRONG.items()):
        assert name in found.get(first + number, ""), line


def test_static_lists_are_the_folders() -> None:
    classes = {getattr(module, module.__all__[0]) for module in map(_objective, names("objective"))}
    objectives = importlib.import_module("reweigh.objectives")
    listed = {getattr(objectives, name) for name in objectives.__all__}
    assert classes <= listed
    assert set(objectives.__all__) - {kind.__name__ for kind in classes} == {"Objective", "State", "Weighed"}
    text = (SOURCE / "objectives/__init__.py").read_text(encoding="utf-8")
    assert all(f"import {kind.__name__}\n" in text for kind in classes)
    folder = SOURCE / "integrations"
    files = {path.stem for path in folder.iterdir() if not path.name.startswith("_")}
    assert set(importlib.import_module("reweigh.integrations").__all__) == files


def _objective(name: str):
    return importlib.import_module(f"{SLOTS['objective']}.{name}")


@pytest.mark.parametrize(
    "package",
    [
        "reweigh",
        "reweigh.objectives",
        "reweigh.post",
        "reweigh.torch",
        "reweigh.integrations",
        "reweigh.integrations.boosting",
    ],
)
def test_lazy_names_can_be_completed(package: str) -> None:
    """In a new process, where nothing has been loaded that would add them by itself."""
    code = f"import {package} as m; missing = set(m.__all__) - set(dir(m)); assert not missing, missing"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("name", ["averages", "losses", "samplers", "steps"])
def test_the_parts_of_torch_need_no_import_of_their_own(name: str) -> None:
    code = f"import reweigh; assert reweigh.torch.{name}.__all__"
    subprocess.run([sys.executable, "-c", code], check=True)
    with pytest.raises(AttributeError, match="has no attribute 'lossses'"):
        _ = reweigh.torch.lossses


def test_the_version_is_printed_without_the_command() -> None:
    done = subprocess.run([sys.executable, "-m", "reweigh", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"reweigh {reweigh.__version__}\n"


def test_no_card_shows_markup() -> None:
    for card in reweigh.method.__globals__["cards"]():
        assert ":" not in card.summary.replace(": ", ""), card.summary
        assert not set("\\`$") & set(card.summary + card.cost), card.summary
