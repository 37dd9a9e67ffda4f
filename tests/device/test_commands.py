"""The commands on a second device, as a user calls them: worker processes, kept models, messages."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import second_device
from sklearn.datasets import load_iris


@pytest.fixture(scope="module")
def plugin(library: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return second_device.install(library, tmp_path_factory.mktemp("plugin"))


def _reweigh(folder: Path, *arguments: str, plugin: Path | None = None, code: int | None = 0) -> str:
    paths = [str(Path(__file__).parents[2] / "src"), *([] if plugin is None else [str(plugin)])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "COLUMNS": "200"}
    done = subprocess.run(
        [sys.executable, "-m", "reweigh", *arguments], cwd=folder, env=environment, capture_output=True, text=True
    )
    assert code in (None, done.returncode), done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    data = load_iris()
    frame = pl.DataFrame({f"x{k}": data.data[:, k] for k in range(4)})
    path = tmp_path_factory.mktemp("table") / "iris.csv"
    frame.with_columns(pl.Series("kind", np.array(["a", "b", "c"])[data.target])).write_csv(path)
    return path


def test_run_spreads_over_the_devices_there_are(tmp_path, plugin):
    shown = _reweigh(
        tmp_path, "run", "sam", "--preset", "smoke", "--seeds", "2", "--tune", "none", "--device", "auto", plugin=plugin
    )
    assert "Device: second, one of 2" in shown
    done = [json.loads(path.read_text()) for path in tmp_path.glob("runs/sam/*/done")]
    assert {summary["device"] for summary in done} == {"second:0", "second:1"}


def test_compare_and_predict(tmp_path, table, plugin):
    call = ("compare", str(table), "--target", "kind", "--model", "logistic", "--method", "rgd")
    models: list[Path] = []
    attempts = ("auto", "8s"), ("second:1", "30s"), ("second:1", "150s"), ("second:1", "900s")  # for a busy machine
    for device, budget in attempts:
        shown = _reweigh(tmp_path, *call, "--device", device, "--budget", budget, plugin=plugin, code=None)
        assert ("Device: second, one of 2" in shown) == (device == "auto")
        if models := list(tmp_path.glob("runs/*/model")):
            break
    (model,) = models
    predicted = {}
    for device in ("second", "cpu"):
        out = tmp_path / f"{device}.csv"
        _reweigh(
            tmp_path, "predict", str(model), str(table), "-o", str(out), "--device", device,
            plugin=plugin if device == "second" else None,
        )  # fmt: skip
        predicted[device] = pl.read_csv(out)
    there, here = (predicted[device].select("^probability.*$").to_numpy() for device in ("second", "cpu"))
    np.testing.assert_allclose(there, here, atol=1e-5)


def test_a_device_or_precision_that_is_not_there_is_one_sentence(tmp_path, table, plugin):
    compare = ("compare", str(table), "--target", "kind")
    for arguments, message in (
        ((*compare, "--device", "gpu"), "`device` must be auto, cpu, or an accelerator such as cuda, cuda:1 or mps"),
        ((*compare, "--device", "cuda"), "device 'cuda' is not there: this machine has 2 x second."),
        (("run", "sam", "--device", "second:7"), "device 'second:7' is not there: this machine has 2 x second."),
    ):
        shown = _reweigh(tmp_path, *arguments, plugin=plugin, code=2)
        assert message in shown
        assert len(shown.strip().splitlines()) == 1
