"""The wheel at work where it was installed: the command, and one line of each framework."""

from __future__ import annotations

import sysconfig
from pathlib import Path

import distribution
import pytest

import reweigh

pytestmark = pytest.mark.processes


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of a new environment that holds the wheel, and sees all other packages of this one."""
    wheel = distribution.build(tmp_path_factory.mktemp("dist"))
    interpreter, packages = distribution.new_environment(tmp_path_factory.mktemp("complete") / "env", wheel)
    (packages / "lent.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")
    return interpreter


def test_the_command_compares(python: Path, tmp_path: Path) -> None:
    pytest.importorskip("tyro")
    command = python.with_name("reweigh")
    assert distribution.call(command, "--version", cwd=tmp_path).stdout == f"reweigh {reweigh.__version__}\n"
    question = [command, "compare", "--model", "logistic", "--method", "rgd", "--jobs", "1", "--budget"]
    for budget in ("10s", "1m", "10m"):  # on a busy machine ten seconds may not be enough; the same command resumes
        done = distribution.call(*question, budget, cwd=tmp_path, check=False)
        if done.returncode == 0:
            break
        assert "No answer yet" in done.stdout, done.stdout + done.stderr
    assert "report:" in done.stdout
    (report,) = tmp_path.glob("runs/*/report.html")
    assert report.stat().st_size > 10_000


def test_one_line_of_each_framework(python: Path, tmp_path: Path) -> None:
    lines = (
        "import sys, reweigh, numpy, torch, jax",
        "assert sys.prefix in reweigh.__file__, reweigh.__file__",
        "print(float(reweigh.rgd(numpy.array([0.5, 2.0]), tau=1.0)))",
        "print(float(reweigh.rgd(torch.tensor([0.5, 2.0], dtype=torch.float64), tau=1.0)))",
        "print(float(reweigh.rgd(jax.numpy.array([0.5, 2.0]), tau=1.0)))",
    )
    values = distribution.call(python, "-c", "\n".join(lines), cwd=tmp_path).stdout.split()
    # exp(1/4) / 4 + exp(1/2), by hand
    assert [float(value) for value in values] == pytest.approx([1.96973] * 3, abs=1e-4)
