"""The example of each host runs and learns."""

from __future__ import annotations

import re
import runpy
from importlib.util import find_spec
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent.parent / "examples"


@pytest.mark.filterwarnings("ignore")  # the hosts' own, at import and for small runs
@pytest.mark.parametrize(
    ("name", "host", "models"),
    [
        ("lightning_digits", "lightning", 1),
        ("skorch_digits", "skorch", 1),
        ("keras_digits", "keras", 1),
        # Tens of seconds of compiling: not for the fast tier.
        pytest.param("jax_optax", "optax", 2, marks=pytest.mark.processes),
        pytest.param("flax_nnx", "flax", 1, marks=pytest.mark.processes),
    ],
)
def test_it_runs_and_learns(name: str, host: str, models: int, capsys: pytest.CaptureFixture[str]) -> None:
    for package in (host, "sklearn"):
        if find_spec(package) is None:
            pytest.skip(f"needs {package}, which is not installed")
    runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
    accuracies = re.findall(r"accuracy (\S+)", capsys.readouterr().out)
    assert len(accuracies) == models
    assert all(float(accuracy) > 0.85 for accuracy in accuracies)
