"""The demonstration follows the numbers worked out for it, and agrees with autograd on the real rows."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import children
import numpy as np
import pytest

import reweigh

ROOT = Path(__file__).parent.parent
EXAMPLE = ROOT / "examples" / "rare_features.py"


@pytest.fixture(scope="module")
def toy() -> SimpleNamespace:
    # Registered under its name, because its dataclass looks its own module up.
    namespace = runpy.run_path(str(EXAMPLE), run_name="rare_features")
    return SimpleNamespace(**namespace)


def curves(toy: SimpleNamespace, weigh: Any, seeds: range, steps: int) -> Any:
    return toy.descend(weigh, toy.targets(seeds), steps)


def test_the_problem_itself(toy: SimpleNamespace) -> None:
    np.testing.assert_allclose(
        toy.targets(range(1))[0],
        [0.1257, -0.1321, 0.6404, 0.1049, -0.5357, 0.3616, 1.3040, 0.9471, -0.7037, -1.2654],
        atol=5e-5,
    )
    assert toy.COUNTS.sum() == 255


# Worked out once, in another program, for seed 0: full batch, loss d²/2, step 4. (step: mse, frequent, rare)
Reference = dict[int, tuple[float, float, float]]
PLAIN: Reference = {
    0: (1.6428e-1, 8.610e-1, 2.1965),
    1: (2.5094e-2, 1.857e-1, 2.1621),
    5: (1.6153e-2, 4.019e-4, 2.0296),
    10: (1.3791e-2, 1.876e-7, 1.8753),
    20: (1.0052e-2, 4.1e-14, 1.6010),
    50: (3.8930e-3, 0.0, 0.9963),
    100: (8.0100e-4, 0.0, 0.4519),
    200: (3.3911e-5, 0.0, 0.0930),
    400: (6.0780e-8, 0.0, 0.0039),
}
TAU_1: Reference = {
    1: (2.1258e-2, 1.271e-1, 2.1479),
    5: (1.5230e-2, 2.733e-4, 1.9707),
    10: (1.2427e-2, 1.276e-7, 1.7801),
    20: (8.4933e-3, 2.8e-14, 1.4717),
    50: (3.0017e-3, 0.0, 0.8749),
    100: (5.9297e-4, 0.0, 0.3889),
    200: (2.4862e-5, 0.0, 0.0796),
    400: (4.4543e-8, 0.0, 0.0034),
}


@pytest.mark.parametrize(("name", "reference"), [("plain", PLAIN), ("RGD tau=1", TAU_1)])
def test_reference_trajectory(toy: SimpleNamespace, name: str, reference: Reference) -> None:
    run = curves(toy, toy.METHODS[name], range(1), 400)
    for step, (mse, frequent, rare) in reference.items():
        assert run.mse[0, step] == pytest.approx(mse, rel=1e-4)
        # An error of 1e-14 is made of the last digits: only its size is meaningful.
        assert run.frequent[0, step] == pytest.approx(frequent, rel=1e-3, abs=2e-14)
        assert run.rare[0, step] == pytest.approx(rare, abs=5.1e-5)


@pytest.mark.parametrize(
    ("weight", "reference"),
    [
        (reweigh.KL(tau=3.0), {1: 2.1556, 5: 2.0020, 10: 1.8294, 20: 1.5360, 50: 0.9318, 100: 0.4177, 200: 0.0857}),
        (reweigh.KL(tau=9.0), {1: 2.1596, 5: 2.0190, 10: 1.8574, 20: 1.5750, 50: 0.9696, 100: 0.4375, 200: 0.0899}),
        (reweigh.ReverseKL(tau=1.0), {10: 1.759, 50: 0.8616, 100: 0.3831, 200: 0.0785}),
        (reweigh.ChiSquare(tau=1.0), {10: 1.722, 50: 0.8063, 100: 0.3540, 200: 0.0723}),
    ],
    ids=repr,
)
def test_reference_rare_error(toy: SimpleNamespace, weight: Any, reference: dict[int, float]) -> None:
    run = curves(toy, weight, range(1), 200)
    for step, rare in reference.items():
        assert run.rare[0, step] == pytest.approx(rare, abs=5.1e-4 if rare > 1.7 and step == 10 else 5.1e-5)


def test_mean_weight_of_rare_rows(toy: SimpleNamespace) -> None:
    target = toy.targets(range(1))
    weights = reweigh.KL(tau=1.0)(0.5 * target[:, toy.RARE] ** 2)
    assert weights.mean() == pytest.approx(1.288, abs=5e-4)


def test_averages_over_seeds(toy: SimpleNamespace) -> None:
    plain = curves(toy, np.ones_like, range(200), 200)
    assert plain.rare[:, 100].mean() == pytest.approx(0.427, abs=5e-4)
    for tau, error, ratio in ((1.0, 0.347, 0.833), (3.0, 0.375, 0.896), (5.0, 0.390, 0.926), (9.0, 0.403, 0.953)):
        run = curves(toy, reweigh.KL(tau=tau), range(200), 200)
        assert run.rare[:, 100].mean() == pytest.approx(error, abs=6e-4)
        assert np.mean(run.rare[:, 200] / plain.rare[:, 200]) == pytest.approx(ratio, abs=6e-4)
        assert (run.rare <= plain.rare).all()  # at every step of every seed


@pytest.mark.parametrize(
    ("weight", "percent"),
    [
        (reweigh.KL(tau=1.0), 0.0),
        (reweigh.KL(tau=9.0), 0.0),
        (reweigh.KL(tau=None, gamma=0.5), 24.3),
        (reweigh.KL(tau=None, gamma=1.0), 61.6),
        (reweigh.ReverseKL(tau=3.0), 14.6),
        (reweigh.ReverseKL(tau=5.0), 3.1),
        (reweigh.ChiSquare(tau=3.0), 100.0),
        (reweigh.ChiSquare(tau=3.0, scaled=True), 0.0),
    ],
    ids=repr,
)
def test_share_of_diverging_problems(toy: SimpleNamespace, weight: Any, percent: float) -> None:
    """Known for seeds 0 to 999; the first 300 must agree within three standard errors."""
    seeds = 300
    share = 100 * curves(toy, weight, range(seeds), 400).diverged.mean()
    assert share == pytest.approx(percent, abs=3 * np.sqrt(percent * (100 - percent) / seeds) + 1e-9)


def test_agrees_with_autograd_on_all_255_rows(toy: SimpleNamespace) -> None:
    torch = pytest.importorskip("torch")
    rows = np.repeat(np.eye(10), toy.COUNTS.astype(int), axis=0)
    x = torch.tensor(rows)
    target = torch.tensor(toy.targets(range(3, 4))[0])
    theta = torch.zeros(10, dtype=torch.float64, requires_grad=True)
    for _ in range(20):
        losses = 0.5 * (x @ theta - x @ target) ** 2
        (gradient,) = torch.autograd.grad(reweigh.rgd(losses, tau=1.0), theta)
        with torch.no_grad():
            theta -= 4.0 * gradient
    run = curves(toy, reweigh.KL(tau=1.0), range(3, 4), 20)
    error = (theta - target).detach().numpy()[5:]
    assert run.rare[0, -1] == pytest.approx(float(np.linalg.norm(error)), rel=1e-12)


def test_command_prints_a_table_a_verdict_and_saves_the_figure(tmp_path: Path) -> None:
    pytest.importorskip("rich")
    pytest.importorskip("tyro")
    done = children.run([sys.executable, EXAMPLE, "--seeds", "30", "--steps", "200", "--out", tmp_path / "out"])
    assert done.returncode == 0, done.stderr
    assert "RGD tau=1: 30 seeds done" in done.stdout  # plain lines, since this is not a terminal
    assert "30 of 30" in done.stdout
    assert "not a faster optimiser" in " ".join(done.stdout.split())
    assert (tmp_path / "out" / "rare_features.png").read_bytes()[1:4] == b"PNG"
    assert (tmp_path / "out" / "rare_features.svg").stat().st_size > 10_000


def test_command_refuses_no_seeds(tmp_path: Path) -> None:
    pytest.importorskip("tyro")
    done = children.run([sys.executable, EXAMPLE, "--seeds", "0", "--out", tmp_path])
    assert done.returncode != 0
    assert "--seeds" in done.stderr
