"""Numbers in the prose about finished experiments are numbers of their pages."""

from __future__ import annotations

import html
import re
from pathlib import Path

import pytest

REPORTS = Path(__file__).parents[1] / "reports"
#: The pages that each paragraph of the summary is about.
PAGES = {
    "Long tails": ("longtail",),
    "Wrong labels": ("noise",),
    "Hidden groups": ("groups",),
    "Sharpness-aware minimisation": ("sam",),
    "Cost": ("cost",),
    "Suspected label errors": ("suspects",),
    "Few-shot tasks": ("meta",),
    "Language models from scratch": ("gpt", "bert"),
    "Fine-tuning on texts": ("glue",),
    "Tables and self-supervision": ("tabular",),
    "Unseen domains": ("domains",),
    "ImageNet's recipe, small": ("imagenet",),
}
DECIMAL = re.compile(r"(?<![\w.])\d+\.\d+(?![\w.])")


def paragraphs() -> dict[str, str]:
    """The paragraphs of the summary by their first words."""
    prose = (REPORTS / "README.md").read_text().partition("## In short")[2]
    found = re.findall(r"^\*\*(.+?)\.\*\*(.*?)(?=^\*\*|\Z)", prose, flags=re.MULTILINE | re.DOTALL)
    return dict(found)


def numbers(names: tuple[str, ...]) -> set[float]:
    """All decimal numbers of some pages and their tables, without signs."""
    text = ""
    for name in names:
        page = re.sub(r"<(script|style)\b.*?</\1>", "", (REPORTS / f"{name}.html").read_text(), flags=re.DOTALL)
        text += html.unescape(re.sub(r"<[^>]+>", " ", page)) + (REPORTS / f"{name}.md").read_text()
    return {float(number) for number in DECIMAL.findall(text)}


def unknown(text: str, known: set[float]) -> list[str]:
    """The decimal numbers of a text that are no rounding of a known one."""
    return [
        number
        for number in DECIMAL.findall(text)
        if not any(abs(value - float(number)) <= 0.5001 * 10.0 ** -len(number.partition(".")[2]) for value in known)
    ]


def test_every_paragraph_is_checked():
    assert set(paragraphs()) == set(PAGES)


@pytest.mark.parametrize("title", PAGES)
def test_decimals_in_prose_are_on_the_page(title: str):
    assert unknown(paragraphs()[title], numbers(PAGES[title])) == []


def test_a_wrong_decimal_would_be_found():
    assert unknown("plain training 50.6 %, RGD −6.25", {51.37, 6.251}) == ["50.6"]
