"""The table of what to try first is what the reports say, by the rule that stands below it."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

import pytest

from reweigh.bench.report.summary import FORMAT

ROOT = Path(__file__).parent.parent


@pytest.fixture
def first(monkeypatch):
    spec = importlib.util.spec_from_file_location("first", ROOT / "docs" / "first.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "first", module)  # where its dataclasses look for their names
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("page", ["README.md", "docs/when.md"])
def test_pages_have_the_table_of_now(first, page):
    assert (ROOT / page).read_text() == first.written(page), "run python docs/first.py"


REPORT = """| method | imbalance 100 | imbalance 10 | imbalance 1 |
| --- | --- | --- | --- |
| mean | 50.00 ± 1.00 | 70.00 ± 1.00 | 90.00 ± 1.00 |
| rgd | 51.00 ± 1.00 ▲ (+1.00 [+0.50, +1.50]) | 69.00 ± 1.00 ▼ (-1.00 [-1.50, -0.50]) | 90.00 (+0.00 [-1.00, +1.00]) |
| rgd\\_auto | 53.00 ± 1.00 ▲ (+3.00 [+2.00, +4.00]) | 71.00 ± 1.00 (+1.00 [-1.00, +3.00]); last 72.00 |  |
| class\\_balanced | 52.00 ▲ (+2.00 [+1.00, +3.00]) | 71.00 ▲ (+1.00 [+0.10, +1.90]); paper 75.00† |  |
| l2rw | 60.00 ▲ (+10.00 [+9.00, +11.00]) | 80.00 ▲ (+10.00 [+9.00, +11.00]) |  |
| rgd, mean weight one | 60.00 ▲ (+10.00 [+9.00, +11.00]) | 80.00 ▲ (+10.00 [+9.00, +11.00]) |  |
| focal | 60.00 ▲ (+10.00 [+9.00, +11.00]) |  |  |

accuracy on the test set in percent
"""


def test_the_rule_on_a_small_report(first, tmp_path, monkeypatch):
    """Most decisions first, whatever the mean; half-run methods, controls and those with a clean set are left out."""
    (tmp_path / "reports").mkdir()
    report = tmp_path / "reports" / "longtail.md"
    report.write_text(REPORT)
    monkeypatch.setattr(first, "ROOT", tmp_path)
    rare = first.Trouble("rare", (("longtail", r"imbalance (?!1$)"),))
    assert [(record.name, str(record)) for record in first.records(rare)] == [
        ("class_balanced", "+1.5 (▲ 2 of 2)"),
        ("rgd_auto", "+2.0 (▲ 1 of 2)"),
        ("rgd", "+0.0 (▲ 1 ▼ 1 of 2)"),
    ]
    even = first.Trouble("even", (("longtail", r"imbalance 1$"),))
    monkeypatch.setattr(first, "TROUBLES", (rare, even))
    assert [line.split(" | ")[1:] for line in first.table("{}.html").splitlines()[2:]] == [
        [
            "`class_balanced` +1.5 (▲ 2 of 2), `rgd_auto` +2.0 (▲ 1 of 2)",
            "+0.0 (▲ 1 ▼ 1 of 2)",
            "[longtail](longtail.html) |",
        ],
        ["plain training", "+0.0 (▲ 0 of 1)", "[longtail](longtail.html) |"],
    ]
    report.write_text(REPORT.replace("in percent", "as a share").replace("+2.00 [", "+0.02 ["))
    assert str(first.records(rare)[0]) == "+51.0 (▲ 2 of 2)"  # shares are a hundred points each


def row(mean: float, difference: float, decided: bool = True) -> dict[str, object]:
    p = 0.01 if decided else 0.5
    own = {"n": 20, "mean": difference, "low": difference - 0.01, "high": difference + 0.01, "p": p, "p_holm": p}
    return {"name": "", "n": 20, "mean": mean, "knows_more": False, "difference": own}


def test_summaries_are_ranked_as_on_the_page_of_all_experiments(first, tmp_path, monkeypatch):
    (tmp_path / "reports").mkdir()
    (tmp_path / "reports" / "longtail.md").write_text(REPORT)
    baseline = {**row(0.5, 0.0), "difference": None}
    settings = [
        {
            "name": f"{model} {number}",
            "trouble": "rare classes",
            "model": model,
            "rows": {
                "mean": baseline,
                "rgd": row(0.52, 0.02, decided=number > 0),
                "logit_adjusted": row(0.55, 0.05 + 0.001 * number),
                "vs": row(0.54, 0.04 + 0.001 * number),
                "focal": row(0.49, -0.01),
            },
        }
        for model, count in (("MLP", 4), ("CNN", 3))
        for number in range(count)
    ]
    experiment = {
        "title": "Made-up",
        "recipe": "longtail",
        "smallest": False,
        "unit": {"scale": 100.0, "digits": 2, "points": " points"},
        "settings": settings,
    }
    (tmp_path / "reports" / "longtail.json").write_text(json.dumps({"format": FORMAT, "experiments": [experiment]}))
    monkeypatch.setattr(first, "ROOT", tmp_path)
    rare = first.Trouble("rare", (("longtail", r"imbalance (?!1$)"),), "rare classes")
    monkeypatch.setattr(first, "TROUBLES", (rare, first.Trouble("other", (("longtail", ""),))))
    lines = [line.split(" | ") for line in first.table("{}").splitlines()[2:]]
    assert [line[0] for line in lines] == ["| rare (MLP)", "| rare (CNN)", "| other"]
    assert lines[0][1:3] == [
        "`logit_adjusted` +5.2 (▲ 4 of 4), `vs` +4.2 (▲ 4 of 4), `rgd` +2.0 (▲ 3 of 4)",
        "+2.0 (▲ 3 of 4)",
    ]
    assert len(first.table("{}", short=True).splitlines()) == 4


def test_known_groups_are_a_trouble_of_their_own(first):
    unknown, known = (
        {record.name for record in first.records(trouble)} for trouble in first.TROUBLES if "group" in trouble.name
    )
    assert "group_dro" in known
    assert not unknown & known
