"""Files made to do harm: a payload is never run, whatever file it hides in."""

from __future__ import annotations

import hashlib
import io
import json
import pickle
from pathlib import Path

import numpy as np
import pytest
import tiny_training as tiny
import torch

from reweigh.bench.compare.model import Model
from reweigh.bench.lab.executors.local import work
from reweigh.bench.tables import TableError


class Payload:
    """Leaves a file behind when it is unpickled."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self):
        return Path.touch, (self.trace,)


@pytest.fixture
def trace(tmp_path):
    path = tmp_path / "trace"
    pickle.loads(pickle.dumps(Payload(path)))
    assert path.exists(), "the payload works where a pickle is trusted"
    path.unlink()
    return path


def test_a_checkpoint_is_not_unpickled(tmp_path, trace, tiny_recipe):
    run = tiny.run(tmp_path / "runs")
    content = io.BytesIO()
    torch.save({"records": 0, "state": Payload(trace)}, content)
    content.write(hashlib.sha256(content.getbuffer()).digest())  # somebody who knows the format
    with run.open():
        (run.directory / "checkpoint.pt").write_bytes(content.getvalue())
    assert work([run.spec.as_dict()], str(run.root)) == []
    assert run.done
    assert not trace.exists()


def test_an_array_is_not_unpickled(tmp_path, trace):
    run = tiny.run(tmp_path / "runs")
    with run.open() as writer:
        with pytest.raises(ValueError, match="pickle"):
            writer.array("mean_weight", np.array([Payload(trace)], dtype=object))
        (run.directory / "arrays").mkdir(exist_ok=True)
        np.save(run.directory / "arrays" / "mean_weight.npy", np.array([Payload(trace)], dtype=object))
    with pytest.raises(ValueError, match="pickle"):
        run.array("mean_weight")
    assert not trace.exists()


@pytest.mark.parametrize("write", ["pickle", "torch"])
def test_a_model_is_not_unpickled(tmp_path, trace, write):
    """A folder that says it is a model, with a pickle where the weights should be."""
    folder = tmp_path / "model"
    folder.mkdir()
    if write == "pickle":
        (folder / "weights.safetensors").write_bytes(pickle.dumps(Payload(trace)))
    else:
        torch.save({"weight": Payload(trace)}, folder / "weights.safetensors")
    for card in ({"format": 1}, {"format": 1, "model": "mlp", "pickle": "weights.safetensors"}):
        (folder / "model.json").write_text(json.dumps(card))
        with pytest.raises(TableError):
            Model.load(folder)
    assert not trace.exists()
