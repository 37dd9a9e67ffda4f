"""Makes the pictures of the documentation: `python docs/figures.py` rewrites docs/images/*.svg."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D
from scipy.optimize import root_scalar

import reweigh

Floats = np.ndarray[Any, np.dtype[np.float64]]

# Okabe and Ito's palette: told apart by colour-blind readers and in grey print.
BLUE, GREEN, ORANGE, SKY, PURPLE, GREY = "#0072B2", "#009E73", "#D55E00", "#56B4E9", "#CC79A7", "#555555"
STYLE: dict[Any, Any] = {
    "svg.hashsalt": "reweigh",  # the same picture is the same file
    "font.size": 10.5,
    "axes.titlesize": 11,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": GREY,
    "xtick.color": GREY,
    "ytick.color": GREY,
    "lines.linewidth": 2.0,
    "legend.frameon": False,
}


def weights() -> Figure:
    """The weight functions: tau on the left, the divergences on the right."""
    figure = Figure(figsize=(8.6, 3.3), layout=ConstrainedLayoutEngine(w_pad=0.12))  # room for the labels at the ends
    left, right = figure.subplots(1, 2, sharey=True)
    losses = np.linspace(0.0, 6.0, 601)
    for tau, colour in ((1.0, BLUE), (3.0, GREEN), (9.0, SKY)):
        left.plot(losses, reweigh.KL(tau=tau)(losses), color=colour)
        end = float(reweigh.KL(tau=tau)(losses[-1:])[0])
        shift = {1.0: -5, 9.0: 5}.get(tau, 0)  # keep two neighbours apart
        left.annotate(
            f"τ = {tau:g}", (6.0, end), xytext=(5, shift), textcoords="offset points", color=colour, va="center"
        )
    curves: list[tuple[str, Any, str, Any]] = [
        ("RevKL", reweigh.ReverseKL(tau=1.0), ORANGE, "-"),
        ("chi2, scaled", reweigh.ChiSquare(tau=1.0, scaled=True), PURPLE, (0, (4, 2))),
        ("KL (default)", reweigh.KL(tau=1.0), BLUE, "-"),
        ("min-min,\nγ = −1/2", reweigh.KL(tau=1.0, gamma=-0.5), GREY, "-"),
    ]
    nudge = {"RevKL": 7, "chi2, scaled": -7}
    for name, weight, colour, dashes in curves:
        right.plot(losses, weight(losses), color=colour, linestyle=dashes)
        end = float(weight(losses[-1:])[0])
        right.annotate(
            name, (6.0, end), xytext=(5, nudge.get(name, 0)), textcoords="offset points", color=colour, va="center"
        )
    left.set(title="RGD (KL): weights stay in [1, e)", ylabel="weight", xlabel="loss of the unit", ylim=(0.4, 2.85))
    right.set(title="the divergences, τ = 1", xlabel="loss of the unit")
    left.axhline(np.e, color=GREY, linewidth=0.8, linestyle=":")
    left.annotate("e", (6.0, np.e), xytext=(5, 0), textcoords="offset points", color=GREY, va="center")
    for axis in (left, right):
        axis.axhline(1.0, color=GREY, linewidth=0.8, linestyle=":", zorder=0)
        axis.set_xlim(0, 6)
    left.annotate("plain training", (0.1, 1.0), xytext=(0, -4), textcoords="offset points", color=GREY, va="top")
    return figure


def divergence(masses: Floats) -> float:
    """The Kullback-Leibler divergence of a distribution from the uniform one."""
    n = len(masses)
    positive = masses[masses > 0]
    return float(np.sum(positive * np.log(positive * n)))


def worst_case(losses: Floats, radius: float) -> Floats:
    """The distribution of largest mean loss among those within a KL `radius` of the uniform one."""

    def tilted(log_scale: float) -> Floats:
        exponent = np.exp(log_scale) * (losses - losses.max())
        return np.exp(exponent) / np.exp(exponent).sum()

    if radius <= 0:
        return np.full(len(losses), 1.0 / len(losses))
    found = root_scalar(lambda s: divergence(tilted(s)) - radius, bracket=(-10.0, 10.0), xtol=1e-13)
    return tilted(float(found.root))


def perturbation() -> Figure:
    """How the worst case within a KL ball moves mass to hard examples, for three examples and for twelve."""
    figure = Figure(figsize=(8.6, 3.7), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(1, 1.25))
    _simplex(left)
    losses = -0.85 * np.log1p(-(np.arange(12) + 0.5) / 12)  # many easy, few hard, as after some training
    looks = [(0.0, GREY), (0.05, SKY), (0.3, BLUE), (0.8, ORANGE)]
    for radius, colour in looks:
        mass = worst_case(losses, radius)
        label = "ρ = 0: what we sampled" if radius == 0 else f"ρ = {radius:g}"
        right.plot(losses, 100 * mass, "o-", color=colour, markersize=5, linewidth=1.2, label=label)
    right.set(
        title="twelve examples: mass against loss", xlabel="loss of the example", ylabel="mass, %", ylim=(0, None)
    )
    right.legend(loc="upper left")
    return figure


def _simplex(axis: Any) -> None:
    """Distributions over three examples: KL balls round the sample, and where their worst cases lie."""
    corners = np.array([[0.0, 0.0], [1.0, 0.0], [0.5, np.sqrt(3) / 2]])
    losses = np.array([0.3, 1.0, 2.2])
    axis.fill(*corners.T, facecolor="#F4F4F4", edgecolor=GREY, linewidth=1.0)
    for radius, colour in ((0.05, SKY), (0.3, BLUE), (0.8, ORANGE)):
        axis.plot(*(_ball(radius) @ corners).T, color=colour, linewidth=1.3)
        axis.plot(*(worst_case(losses, radius) @ corners), "o", color=colour, markersize=7, zorder=3)
    path = np.stack([worst_case(losses, r) for r in np.linspace(0.0, 0.8, 60)]) @ corners
    axis.plot(*path.T, color="black", linewidth=1.2)
    axis.plot(*path[0], "o", color=GREY, markersize=7, zorder=3)
    axis.annotate("the sample", path[0], xytext=(0, -39), textcoords="offset points", ha="center", color=GREY)
    places = [((0, -6), "center", "top"), ((0, -6), "center", "top"), ((0, 5), "center", "bottom")]
    names = [f"easy\n(loss {losses[0]:g})", f"medium\n(loss {losses[1]:g})", f"hard (loss {losses[2]:g})"]
    for name, corner, (offset, horizontal, vertical) in zip(names, corners, places, strict=True):
        axis.annotate(name, corner, xytext=offset, textcoords="offset points", ha=horizontal, va=vertical)
    axis.set_title("three examples: KL balls and their worst cases", pad=16)
    axis.set(aspect="equal", xlim=(-0.12, 1.12), ylim=(-0.16, 0.93))
    axis.axis("off")


def _ball(radius: float) -> Floats:
    """The boundary, inside the simplex of three, of the KL ball round its centre."""
    centre = np.full(3, 1 / 3)
    angles = np.linspace(0, 2 * np.pi, 721)
    first, second = np.array([1.0, -1.0, 0.0]) / np.sqrt(2), np.array([1.0, 1.0, -2.0]) / np.sqrt(6)
    points: list[Floats] = []
    for angle in angles:
        direction = np.cos(angle) * first + np.sin(angle) * second
        edge = float(np.min(centre[direction < 0] / -direction[direction < 0]))
        reach = edge
        if divergence(np.clip(centre + edge * direction, 0, None)) > radius:

            def excess(r: float, direction: Floats = direction) -> float:
                return divergence(np.clip(centre + r * direction, 0, None)) - radius

            reach = float(root_scalar(excess, bracket=(0.0, edge)).root)
        points.append(centre + reach * direction if reach < edge else np.full(3, np.nan))
    return np.stack(points)


def points() -> Figure:
    """A small classification problem; each point is as large as its weight, early and late in training."""
    x, y = two_classes()
    weigh = reweigh.KL(tau=1.0)
    figure = Figure(figsize=(8.6, 3.9), layout="constrained")
    axes = figure.subplots(1, 2, sharex=True, sharey=True)
    for axis, steps, title in (
        (axes[0], 1, "after one step: all alike"),
        (axes[1], 3000, "trained: the hard ones count more"),
    ):
        coefficients = fit(x, y, weigh, steps)
        weight = weigh(losses_of(coefficients, x, y))
        for label, colour, marker in ((0, BLUE, "o"), (1, ORANGE, "^")):
            chosen = y == label
            axis.scatter(*x[chosen].T, s=area(weight[chosen]), c=colour, marker=marker, alpha=0.65, linewidths=0)
        _boundary(axis, coefficients)
        axis.set(title=title, xticks=[], yticks=[], xlim=(-3.2, 3.6), ylim=(-2.9, 3.0))
    hardest = float(weigh(np.array([1.0]))[0])
    handles: list[Line2D] = []
    for w in (1.0, 1.3, hardest):
        size = float(np.sqrt(area(np.array([w]))[0]))
        handles.append(
            Line2D([], [], marker="o", linestyle="", color=GREY, alpha=0.65, markeredgewidth=0, markersize=size)
        )
        handles[-1].set_label(f"weight {w:.2f}")
    handles.append(Line2D([], [], color="black", linewidth=1.6, label="decision boundary"))
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles))
    return figure


def area(weight: Floats) -> Floats:
    """The area of a point, drawn steeper than its weight, since weights differ by a factor e at most."""
    return 14.0 + 130.0 * (weight - 1.0)


def two_classes() -> tuple[Floats, Floats]:
    """A large class, and a small one of which a part sits on the wrong side."""
    rng = np.random.default_rng(7)
    many = rng.normal((-0.9, 0.1), (0.85, 0.85), size=(130, 2))
    few = np.concatenate([rng.normal((1.7, 1.2), 0.65, size=(18, 2)), rng.normal((-0.3, -1.6), 0.45, size=(12, 2))])
    return np.concatenate([many, few]), np.repeat([0.0, 1.0], [len(many), len(few)])


def fit(x: Floats, y: Floats, weigh: Callable[[Floats], Floats], steps: int) -> Floats:
    """Logistic regression by full-batch re-weighted gradient descent."""
    coefficients = np.zeros(3)
    inputs = np.c_[x, np.ones(len(x))]
    for _ in range(steps):
        probability = 1.0 / (1.0 + np.exp(-inputs @ coefficients))
        coefficients -= 0.3 * inputs.T @ (weigh(losses_of(coefficients, x, y)) * (probability - y)) / len(y)
    return coefficients


def losses_of(coefficients: Floats, x: Floats, y: Floats) -> Floats:
    """The cross entropy of each point."""
    margin = (x @ coefficients[:2] + coefficients[2]) * (2 * y - 1)
    return np.logaddexp(0.0, -margin)


def _boundary(axis: Any, coefficients: Floats) -> None:
    a, b, c = coefficients
    vertical = np.array([-3.1, 3.1])
    axis.plot(-(b * vertical + c) / a, vertical, color="black", linewidth=1.6)


FIGURES: dict[str, Callable[[], Figure]] = {"weights": weights, "perturbation": perturbation, "points": points}


def draw(out: Path) -> list[Path]:
    """All figures as SVG files in a folder."""
    out.mkdir(parents=True, exist_ok=True)
    paths: list[Path] = []
    for name, make in FIGURES.items():
        with mpl.rc_context(STYLE):
            figure = make()
            paths.append(out / f"{name}.svg")
            figure.savefig(paths[-1], facecolor="white", metadata={"Date": None})
    return paths


if __name__ == "__main__":
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent / "images"
    for path in draw(folder):
        print(path)
