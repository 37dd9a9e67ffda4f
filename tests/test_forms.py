"""The table of RGD's forms is what the reports say."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def forms():
    spec = importlib.util.spec_from_file_location("forms", ROOT / "docs" / "forms.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_has_the_table_of_now(forms):
    assert forms.PAGE.read_text() == forms.written(), "run python docs/forms.py"


def setting(*rows):
    return {
        "rows": {label: {"difference": {"mean": mean, "low": low, "high": high}} for label, mean, low, high in rows}
    }


def test_means_and_counts_by_hand(forms):
    settings = [
        setting(("rgd", 0.02, 0.01, 0.03)),
        setting(("rgd", -0.01, -0.02, -0.001)),
        setting(("rgd", 0.005, -0.001, 0.011)),
        setting(("rgd", 0.5, None, None)),  # one seed
        setting(),
    ]
    assert forms.gains(settings, "rgd", 100.0) == "+0.50 (▲ 1 ▼ 1 of 3)"
    # Less is better: the same numbers, turned round.
    assert forms.gains(settings, "rgd", -100.0) == "−0.50 (▲ 1 ▼ 1 of 3)"
    assert forms.gains(settings, "other", 100.0) == "–"
