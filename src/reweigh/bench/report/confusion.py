"""What rows of each class were taken for: a square of shares, with numbers where there is room for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from markupsafe import Markup

from reweigh.bench.report import svg

#: More classes than this have tiles too small for numbers, and more than that no names.
_WITH_NUMBERS, _WITH_NAMES = 8, 30
#: Letters of a class's name.
_LETTERS = 12


def confusion(counts: np.ndarray[Any, Any], names: Sequence[str], *, title: str) -> Markup:
    """The share of each class's rows that were taken for each class.

    Parameters
    ----------
    counts
        Rows by class and by what they were taken for, `(classes, classes)`.
    names
        Of the classes.
    title
        For people who cannot see it.
    """
    classes = len(names)
    totals = counts.sum(1, keepdims=True)
    shares = np.divide(counts, totals, out=np.zeros(counts.shape), where=totals > 0)
    short = [name if len(name) <= _LETTERS else name[: _LETTERS - 1] + "…" for name in names]
    margin = 6.2 * max(map(len, short)) if classes <= _WITH_NAMES else 0.0
    side = min(max(44.0 * classes, 150.0), 270.0)
    frame = svg.Frame(
        # The frame's own margin on the left is for numbers; what names need beyond it is part of the axis.
        x_domain=(-max(margin - 34, 0) / side * classes, classes),
        y_domain=(classes, 0),
        width=58 + side + max(margin - 34, 0),
        height=66 + side,
    )
    marks = _tiles(frame, shares, counts, names) if classes <= _WITH_NUMBERS else [_heat(frame, shares)]
    if classes <= _WITH_NAMES:
        size = frame.y(1) - frame.y(0)
        every = max(1, round(12 / size))
        marks += [
            svg.text(frame.x(0) - 6, frame.y(k + 0.5) + 4, short[k], class_="tick", anchor="end")
            for k in range(0, classes, every)
        ]
    right = float(np.trace(counts) / max(counts.sum(), 1))
    return svg.chart(
        frame,
        *marks,
        title=title,
        description=f"{classes} classes, {100 * right:.1f} % of rows right. {_largest(shares, names)}",
        x_label="taken for",
        x_ticks=[],
        y_ticks=[],
    )


def _tiles(frame: svg.Frame, shares: Any, counts: Any, names: Sequence[str]) -> list[Markup]:
    return [
        svg.tile(
            frame,
            (j, j + 1),
            (i + 1, i),
            float(shares[i, j]),
            f"{100 * shares[i, j]:.0f}",
            f"{names[i]} taken for {names[j]}: {100 * shares[i, j]:.1f} % ({int(counts[i, j])})",
        )
        for i in range(len(names))
        for j in range(len(names))
    ]


def _heat(frame: svg.Frame, shares: Any) -> Markup:
    classes = len(shares)
    edges = list(map(float, range(classes + 1)))
    # `shades` takes columns; a square root keeps single mistakes visible next to the diagonal.
    return svg.shades(frame, edges, edges, np.sqrt(shares.T))


def _largest(shares: Any, names: Sequence[str]) -> str:
    """The most frequent mistake, in words."""
    mistakes = shares - np.diag(np.diag(shares))
    i, j = np.unravel_index(int(mistakes.argmax()), mistakes.shape)
    if not mistakes[i, j]:
        return "No mistakes."
    share = f"{100 * mistakes[i, j]:.0f} % of its rows"
    return f"The most frequent mistake: {names[int(i)]} taken for {names[int(j)]}, {share}."
