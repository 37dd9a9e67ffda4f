"""The examples of comparing one's own training: each does what it says, in few and short trainings."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import children
import pytest

import reweigh

EXAMPLES = Path(__file__).parents[3] / "examples"
SCORES = {"metric": "test/accuracy", "select": "val/accuracy", "tune": 1, "jobs": 0, "quiet": True}


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore")  # the hosts' own, at import and for small runs
@pytest.mark.parametrize(
    ("name", "short", "least"),
    [
        ("compare_loop", {}, 0.9),
        ("compare_trainer", {"STEPS": 12}, 0.0),
        ("compare_lightning", {"EPOCHS": 2}, 0.6),
    ],
)
def test_the_training_of_an_example_is_compared(name, short, least, tmp_path):
    namespace = runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name=name)
    train = namespace["train"]
    train.__globals__.update(short)
    result = reweigh.compare(train, methods=["rgd"], seeds=2, out=tmp_path, **SCORES)
    rows = {row["method"]: row for row in result.table().to_dicts()}
    assert list(rows) == ["mean", "rgd", "rgd, mean weight one", "mean × mean weight of rgd"]
    assert all(row["mean"] > least for row in rows.values())
    assert rows["rgd"]["mean"] != rows["mean"]["mean"] or name != "compare_loop"


def test_the_estimator_of_an_example_is_compared(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    compare = reweigh.compare
    monkeypatch.setattr(reweigh, "compare", lambda *given, **options: compare(*given, **options, jobs=0), raising=False)
    runpy.run_path(str(EXAMPLES / "compare_estimator.py"), run_name="example")["main"](seeds=3)
    assert "test/balanced_accuracy" in capsys.readouterr().out
    assert (tmp_path / "out" / "compare_estimator" / "report.html").exists()


@pytest.mark.processes
def test_the_script_of_an_example_is_compared(tmp_path):
    command = f"python {EXAMPLES / 'compare_script.py'} --seed {{seed}} --lr {{lr}}"
    options = ["--lr", "0.2", "--metric", "test/accuracy", "--select", "val/accuracy", "--seeds", "2", "--tune", "none"]
    done = children.run(
        [sys.executable, "-m", "reweigh", "compare", "--script", command, *options, "--jobs", "1"],
        seconds=200,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr[-2000:] + done.stdout[-2000:]
    assert "mean weight one" in done.stdout
    assert "Report: runs/own-script/report.html" in done.stdout
