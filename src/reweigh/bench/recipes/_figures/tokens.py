"""Token view: a text whose tokens are shaded by their weight."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup


def token_view(pieces: Sequence[str], weights: Sequence[float], losses: Sequence[float]) -> Markup:
    """The text, each token the darker the larger its weight; its loss and weight appear under the pointer.

    Parameters
    ----------
    pieces
        The text of each token, in order.
    weights, losses
        Of each token. Shades run from the smallest weight shown to the largest; equal weights are all pale.
    """
    low, high = min(weights), max(weights)
    span = high - low if high - low > 1e-9 * max(abs(high), 1.0) else 0.0
    marks: list[Markup] = []
    for piece, weight, loss in zip(pieces, weights, losses, strict=True):
        share = (weight - low) / span if span else 0.0
        tip = f"weight {weight:.3f}, loss {loss:.2f}"
        shade = f"background: color-mix(in srgb, var(--primary) {5 + 60 * share:.0f}%, transparent)"
        shown = piece.replace("\n", "↵ ")
        marks.append(Markup('<span title="{}" style="{}">{}</span>').format(tip, shade, shown))
    text = Markup("").join(marks)
    key = f"weights from {low:.3f} (pale) to {high:.3f} (dark)"
    return Markup(
        '<p style="line-height: 1.9; white-space: pre-wrap; overflow-wrap: anywhere; max-width: 44em">{}</p><p '
        'class="quiet">{}</p>'
    ).format(text, key)
