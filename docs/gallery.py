"""The report's pictures, cut out of the finished reports when the documentation is built."""

from __future__ import annotations

import re
from pathlib import Path

REPORTS = Path(__file__).parent.parent / "reports"
#: Which picture: the report, the heading it is under, its number there, and what it shows.
PICTURES = {
    "settings": ("longtail", "From setting to setting", 0, "The score of each method as classes get rarer."),
    "learning_curves": ("longtail", "Learning curves", 0, "Learning curves, with the spread over seeds."),
    "weights": ("longtail", "What the weights did", 0, "The spread of the weights while training goes on."),
    "mean_weight": ("longtail", "What the weights did", 1, "The mean weight, by which steps are longer."),
    "tuning": ("longtail", "Tuning", 0, "What every trial of the tuning scored, method by method."),
}


def pictures() -> dict[str, str]:
    """Every picture as an SVG file of its own, which carries the report's style."""
    return {name: _standalone(*place[:3]) for name, place in PICTURES.items()}


def page() -> str:
    """The gallery as Markdown."""
    parts = [
        "# Gallery\n\nPictures from the pages that `reweigh run` and `reweigh compare` write, cut out of "
        "the [finished reports](../results.md).\n"
    ]
    for name, (report, heading, _, caption) in PICTURES.items():
        parts.append(f"![{caption}](gallery/{name}.svg)\n\n*{caption} From `{report}`, section “{heading}”.*\n")
    return "\n".join(parts)


def _standalone(report: str, heading: str, number: int) -> str:
    text = (REPORTS / f"{report}.html").read_text(encoding="utf-8")
    style = re.search(r"<style>(.*?)</style>", text, re.DOTALL)
    start = text.find(f"<h2>{heading}</h2>")
    if style is None or start < 0:
        raise ValueError(f"reports/{report}.html has no section {heading!r}: correct docs/gallery.py.")
    charts = [match.start() for match in re.finditer(r'<svg [^>]*class="chart"', text) if match.start() > start]
    chart = _element(text, charts[number])
    body = chart[chart.index(">") + 1 :]
    opening = chart[: chart.index(">")].replace("<svg", '<svg xmlns="http://www.w3.org/2000/svg"', 1)
    escaped = style[1].replace("&", "&amp;").replace("<", "&lt;")
    return f"{opening}><style>{escaped}\nsvg {{ background: var(--page); }}</style>{body}"


def _element(text: str, start: int) -> str:
    """The SVG element that starts here, with the ones inside it."""
    depth = 0
    for tag in re.finditer(r"<svg\b|</svg>", text[start:]):
        depth += 1 if tag[0] == "<svg" else -1
        if depth == 0:
            return text[start : start + tag.end()]
    raise ValueError("an <svg> is never closed.")
