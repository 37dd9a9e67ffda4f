"""All pages at once: ranks, gains over settings, what to try first, and the files that are generated from summaries."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from scipy import stats

from reweigh.bench.lab import plan
from reweigh.bench.lab import recipe as recipes
from reweigh.bench.report.overview import OverviewPart, overview
from reweigh.bench.report.summary import knows_more

ROOT = Path(__file__).parents[3]


def experiment(settings: dict[str, dict[str, tuple[float, float, float, float]]], **more: Any) -> dict[str, Any]:
    """An experiment whose rows have a mean, a mean difference and its interval."""
    return {
        "title": "Made-up",
        "recipe": "made_up",
        "smallest": False,
        "unit": {"scale": 100.0, "digits": 2, "points": " points"},
        "headline": "A sentence.",
        "settings": [
            {
                "name": name,
                "trouble": "rare classes",
                "model": "MLP",
                "rows": {
                    label: {
                        "name": label,
                        "n": 20,
                        "mean": mean,
                        "knows_more": label == "oracle",
                        "difference": None
                        if label == plan.BASELINE
                        else {"n": 20, "mean": d, "low": low, "high": high, "p": 0.01, "p_holm": 0.02},
                    }
                    for label, (mean, d, low, high) in rows.items()
                },
            }
            for name, rows in settings.items()
        ],
        **more,
    }


THREE = {
    name: {
        "mean": (base, 0.0, 0.0, 0.0),
        "rgd": (base + 0.01, 0.01, 0.005, 0.015),
        "logit_adjusted": (base + gain, gain, gain - 0.01, gain + 0.01),
        "oracle": (0.99, 0.5, 0.4, 0.6),
        plan.SCALED_BASELINE: (0.98, 0.4, 0.3, 0.5),
    }
    for name, base, gain in (("a", 0.5, 0.04), ("b", 0.6, 0.06), ("c", 0.7, 0.05))
}


def only(parts: list[OverviewPart]) -> OverviewPart:
    (part,) = parts
    return part


def test_ranks_and_gains_over_three_settings() -> None:
    part = only(overview([experiment(THREE)], {"rgd": 1.04}))
    assert [row.label for row in part.rows] == ["logit_adjusted", "rgd", "mean"], "no oracle and no diagnostic"
    assert [row.rank for row in part.rows] == [1.0, 2.0, 3.0]
    best, rgd, _ = part.rows
    width = stats.t.ppf(0.975, 2) * np.std([4.0, 6.0, 5.0], ddof=1) / np.sqrt(3)
    assert (best.gain.mean, best.gain.high) == pytest.approx((5.0, 5.0 + width))
    assert rgd.cost == 1.04
    assert (rgd.better, rgd.worse) == (3, 0)
    # Demšar's table has q = 2.343 for three methods.
    assert part.critical == pytest.approx(2.343 * np.sqrt(3 * 4 / (6 * 3)), abs=0.01)
    assert part.first is not None
    assert part.first.label == "logit_adjusted"


def test_less_is_better_turns_gains_around() -> None:
    worse = experiment(THREE, smallest=True, unit={"scale": 1.0, "digits": 3, "points": ""})
    part = only(overview([worse]))
    assert part.rows[0].label == "mean"
    assert part.first is None, "nothing gains"
    row = part.row("rgd")
    assert row is not None
    assert row.gain.mean == pytest.approx(-0.01)
    assert (row.better, row.worse) == (0, 3)


def test_what_to_try_where_no_gain_is_certain_over_the_settings() -> None:
    uneven = {
        name: {
            "mean": (0.5, 0.0, 0.0, 0.0),
            "often": (0.5 + often, often, often - 0.01, often + 0.01),
            "once": (0.5 + once, once, once - 0.01, once + 0.01),
            plan.NORMALISED: (0.5 + often, often, often - 0.01, often + 0.01),
        }
        for name, often, once in (("a", 0.02, 0.2), ("b", 0.2, 0.0), ("c", 0.0, -0.02))
    }
    part = only(overview([experiment(uneven)]))
    assert part.first is None
    assert [(row.label, row.better, row.worse) for row in part.promising] == [("often", 2, 0)]


def test_gains_of_every_setting_are_certain_however_different() -> None:
    uneven = {
        name: {"mean": (0.5, 0.0, 0.0, 0.0), "always": (0.5 + gain, gain, gain - 0.01, gain + 0.01)}
        for name, gain in (("a", 0.02), ("b", 0.2), ("c", 0.02))
    }
    part = only(overview([experiment(uneven)]))
    assert part.first is not None
    assert part.first.label == "always"
    assert not part.first.gain.seen


def test_one_setting_has_the_interval_of_its_seeds_and_no_critical_difference() -> None:
    part = only(overview([experiment({"a": THREE["a"]})]))
    row = part.row("rgd")
    assert row is not None
    assert (row.gain.low, row.gain.high) == pytest.approx((0.5, 1.5))
    assert part.critical is None


def test_methods_that_a_setting_lacks_are_left_out() -> None:
    fewer = {"d": {label: THREE["a"][label] for label in ("mean", "rgd")}}
    part = only(overview([experiment(THREE), experiment(fewer)]))
    assert {row.label for row in part.rows} == {"mean", "rgd"}
    assert len(part.settings) == 4


@pytest.fixture
def index() -> ModuleType:
    spec = importlib.util.spec_from_file_location("reports_index", ROOT / "reports" / "index.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_and_the_tables_say_what_the_summaries_say(index: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "longtail.json").write_text(json.dumps({"format": 1, "experiments": [experiment(THREE)]}))
    pages = index.summaries(tmp_path)
    text = re.sub(r"<[^>]+>", " ", index.page(pages))
    assert "rare classes (MLP): logit_adjusted: +5.0 [+2.5, +7.5] points" in text
    assert "A sentence." in text
    assert "- **longtail.**" in index.claims_list(pages)
    assert "Not run again" in index.claim(pages, "noise")
    with pytest.raises(ValueError, match="no part between"):
        index.replaced("nothing", "new")


def test_generated_files_are_up_to_date(index: ModuleType) -> None:
    assert not index.stale(), "run `python reports/index.py`"


def test_every_recipe_of_the_paper_has_a_claim(index: ModuleType) -> None:
    from reweigh.bench.lab import recipe

    assert set(recipe.names()) == set(index.CLAIMS) | set(index.BESIDE)


def test_rows_that_learn_from_clean_data_know_more():
    longtail = recipes.load("longtail").table("cpu")
    labels = [*longtail.methods, plan.NORMALISED, plan.SCALED_BASELINE]
    assert [label for label in labels if knows_more(longtail, label)] == ["fine_tune", "l2rw", "meta_weight_net"]
