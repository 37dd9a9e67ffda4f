"""Numbers in the prose about finished experiments are numbers of their pages."""

from __future__ import annotations

import html
import re
from pathlib import Path

import pytest

REPORTS = Path(__file__).parents[1] / "reports"
#: The pages that each paragraph of the summary is about.
PAGES = {
    "Long tails": ("longtail", "longtail_earlier"),
    "Wrong labels": ("noise", "noise_earlier"),
    "Hidden groups": ("groups",),
    "Sharpness-aware minimisation": ("sam",),
    "Cost": ("cost",),
    "Suspected label errors": ("suspects",),
    "Few-shot tasks": ("meta",),
    "Language models from scratch": ("gpt", "bert"),
    "Fine-tuning on texts": ("glue",),
    "Fine-tuning on a new domain": ("sft",),
    "Tables and self-supervision": ("tabular",),
    "Unseen domains": ("domains",),
    "ImageNet's recipe, small": ("imagenet",),
}
DECIMAL = re.compile(r"(?<![\w.])\d+\.\d+(?![\w.])")
NUMBER = r"[-+−]?\d+\.\d+"
#: A number with its interval, a few words between them at most.
ESTIMATE = re.compile(rf"({NUMBER})[^\d\[\];.]{{0,40}}\[({NUMBER}), ({NUMBER})\]")
#: A whole number of percent or points, one of two that share the unit included.
WHOLE = re.compile(r"(?<![\w.,])(\d+)(?=(?: (?:and|to) \d+)? (?:%|points))")
SEEDS = re.compile(r"(\w+) (?:paired )?seeds")
WORDS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")


def paragraphs() -> dict[str, str]:
    """The paragraphs of the summary by their first words."""
    prose = (REPORTS / "README.md").read_text().partition("## In short")[2]
    found = re.findall(r"^\*\*(.+?)\.\*\*(.*?)(?=^\*\*|\Z)", prose, flags=re.MULTILINE | re.DOTALL)
    return dict(found)


def pages(names: tuple[str, ...]) -> str:
    """The text of some pages and their tables."""
    text = ""
    for name in names:
        page = re.sub(r"<(script|style)\b.*?</\1>", "", (REPORTS / f"{name}.html").read_text(), flags=re.DOTALL)
        text += html.unescape(re.sub(r"<[^>]+>", " ", page)) + (REPORTS / f"{name}.md").read_text()
    return re.sub(r"\s+", " ", text)


def numbers(names: tuple[str, ...]) -> set[float]:
    """All decimal numbers of some pages and their tables, without signs."""
    return {float(number) for number in DECIMAL.findall(pages(names))}


def estimates(text: str) -> list[tuple[str, ...]]:
    """All differences with their intervals, as they are written."""
    return [tuple(number.replace("−", "-") for number in found) for found in ESTIMATE.findall(text)]


def stray(text: str, page: str) -> list[tuple[str, ...]]:
    """The differences of a text that stand with another interval, or not at all, on the page.

    A loss may be told as a positive number: then both ends of its interval change sign, and places.
    """
    known = [[float(number) for number in found] for found in estimates(page)]
    known += [[-difference, -high, -low] for difference, low, high in known]
    return [
        found
        for found in estimates(re.sub(r"\s+", " ", text))
        if not any(
            all(
                abs(value - float(number)) <= 0.5001 * 10.0 ** -len(number.partition(".")[2])
                for value, number in zip(candidate, found, strict=True)
            )
            for candidate in known
        )
    ]


def strange(text: str, page: str) -> list[str]:
    """The whole percentages and points of a text that are neither on the page nor a rounding of a number there."""
    known = [float(number) for number in DECIMAL.findall(page)]
    return [
        number
        for number in WHOLE.findall(text)
        if not re.search(rf"(?<![\d.]){number}(?![\d.])", page)
        and not any(abs(value - float(number)) <= 0.5001 for value in known)
    ]


def whole(word: str) -> int | None:
    """The number that digits or a word stand for; None for other words."""
    return int(word) if word.isdigit() else WORDS.index(word.lower()) if word.lower() in WORDS else None


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


@pytest.mark.parametrize("title", PAGES)
def test_intervals_in_prose_belong_to_their_numbers(title: str):
    assert stray(paragraphs()[title], pages(PAGES[title])) == []


@pytest.mark.parametrize("title", PAGES)
def test_whole_numbers_in_prose_are_on_the_page(title: str):
    assert strange(re.sub(r"\s+", " ", paragraphs()[title]), pages(PAGES[title])) == []


def test_a_wrong_whole_number_would_be_found():
    assert strange("gains of 14 and 18 points at 40 %", "uniform 40%; 76.83 to 90.69 is 13.86") == ["18"]


@pytest.mark.parametrize("title", PAGES)
def test_seeds_in_prose_are_those_of_the_page(title: str):
    told = {whole(word) for word in SEEDS.findall(paragraphs()[title])} - {None}
    page = pages(PAGES[title])
    run = {int(number) for group in re.findall(r"over ((?:\d+, )*\d+) seeds", page) for number in group.split(", ")}
    assert told <= run, f"{sorted(told - run)} seeds are told of, and the pages have {sorted(run)}"


def test_a_wrong_interval_would_be_found():
    page = "rgd 57.79 (+1.47 [-0.56, +3.49])"
    assert stray("RGD gains 1.5 points [−0.6, 3.5]; it is +1.47 [-0.56, +3.49]", page) == []
    assert stray("it loses −1.47 [−3.49, 0.56]", page) == []
    assert stray("it loses 1.47 [−0.56, 3.4]", page) == [("1.47", "-0.56", "3.4")]
    assert stray("behind by 5.19 [−12.43, +2.04]", "(-5.19 [-12.43, +2.04])") == [("5.19", "-12.43", "+2.04")]
