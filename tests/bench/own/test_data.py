"""`reweigh.compare` of a table, from a file or a frame: the answer of the command, as the same kind of result."""

from __future__ import annotations

import json

import polars as pl
import pytest
from sklearn.datasets import load_wine

import reweigh
from reweigh.bench.cli.main import run_command

OPTIONS = {"target": "kind", "methods": ["rgd"], "models": ["logistic"], "budget": "30s", "jobs": 1, "quiet": True}


@pytest.fixture(scope="module")
def wine():
    data = load_wine()
    frame = pl.DataFrame(data.data[:, :4], schema=["a", "b", "c", "d"])
    return frame.with_columns(kind=pl.Series(data.target_names[data.target]))


@pytest.mark.processes
def test_a_frame_and_a_file_have_the_answer_of_the_command(wine, tmp_path, capsys):
    wine.write_parquet(tmp_path / "wine.parquet")
    of_frame = reweigh.compare(wine, out=tmp_path / "frame", **OPTIONS)
    answer = json.loads((of_frame.root / "answer.json").read_text())
    assert of_frame.verdict.startswith(answer["headline"])
    assert of_frame.best in {"mean", "rgd", "mean+prior", "mean+threshold", "rgd+prior"}
    assert of_frame.page.name == "report.html"
    assert of_frame.model is not None
    assert (of_frame.model / "model.json").exists()
    assert {"mean", "rgd"} <= set(of_frame.table()["method"])
    options = ["--target", "kind", "--method", "rgd", "--model", "logistic", "--budget", "30s", "--jobs", "1"]
    path = str(tmp_path / "wine.parquet")
    assert run_command(["compare", path, *options, "--runs-dir", str(tmp_path / "command")]) == 0
    capsys.readouterr()
    (folder,) = (tmp_path / "command").iterdir()
    of_file = reweigh.compare(path, out=tmp_path / "command", **OPTIONS)
    assert of_file.root == folder  # it resumed what the command had done
    assert of_file.verdict.startswith(json.loads((folder / "answer.json").read_text())["headline"])


def test_what_does_not_fit_is_refused(wine, tmp_path):
    with pytest.raises(ValueError, match="'sort'"):
        reweigh.compare(wine, target="sort", out=tmp_path, quiet=True)
    with pytest.raises(TypeError, match=r"takes no 'group': that is an option for data"):
        reweigh.compare(lambda run: {}, metric="test/a", select="val/a", group="x")
