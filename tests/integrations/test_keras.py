"""Keras: the same checks on each backend, in a process of its own, because a process has one backend."""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from pathlib import Path

import children
import pytest

pytestmark = pytest.mark.skipif(find_spec("keras") is None, reason="needs keras, which is not installed")

WORKER = Path(__file__).parent / "workers" / "keras_backend.py"
#: Programs of a few operations: compiling them well takes longer than running them.
QUICK_TO_COMPILE = {"XLA_FLAGS": "--xla_backend_optimization_level=0 --xla_force_host_platform_device_count=2"}
CHECKS = WORKER.read_text(encoding="utf-8").count("\ndef check_")


@pytest.mark.processes
@pytest.mark.shows("Keras", "loss", "objective", "post", "row weight", "token weight", "accumulation")
@pytest.mark.shows("Keras", "packing", "AMP", "compile", "DDP")
@pytest.mark.refuses("Keras", "sampler", "step", "average")
@pytest.mark.parametrize("backend", ["torch", "jax"])
def test_backend(backend: str) -> None:
    if find_spec(backend) is None:
        pytest.skip(f"needs {backend}, which is not installed")
    done = children.run(
        [sys.executable, WORKER],
        env=os.environ | {"KERAS_BACKEND": backend, "OMP_NUM_THREADS": "1", "JAX_ENABLE_X64": "0"} | QUICK_TO_COMPILE,
    )
    assert done.returncode == 0, done.stdout[-1000:] + done.stderr[-3000:]
    assert CHECKS > 8
    assert len(done.stdout.splitlines()) == CHECKS  # none was left out


@pytest.mark.skipif(find_spec("tensorflow") is not None, reason="TensorFlow, the default backend, is installed")
def test_without_a_backend_the_error_names_the_variable(tmp_path: Path) -> None:
    clean = {name: value for name, value in os.environ.items() if name != "KERAS_BACKEND"}
    code = "import reweigh.integrations.keras"
    # A home of its own: Keras also reads its backend from a file there.
    done = children.run([sys.executable, "-c", code], env=clean | {"KERAS_HOME": str(tmp_path)})
    last = done.stderr.strip().splitlines()[-1]
    assert "Set the environment variable KERAS_BACKEND to torch or jax" in last
