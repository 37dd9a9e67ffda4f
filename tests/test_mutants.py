"""The bugs that `make test-mutants` plants can still be planted."""

from __future__ import annotations

import ast
import json
from pathlib import Path

from mutants_drawn import MODULES, drawn, planted
from mutants_known import EQUIVALENT, PLANTED

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "reweigh"


def test_every_mutant_is_a_module_that_differs_from_the_source():
    mutants = [*planted(SOURCE), *drawn(SOURCE, 2 * len(MODULES), 0, "")]
    assert len(mutants) == len(PLANTED) + 2 * len(MODULES)
    for mutant in mutants:
        original = (SOURCE / mutant.module).read_text()
        assert ast.dump(ast.parse(mutant.source)) != ast.dump(ast.parse(original)), mutant


def test_excluded_mutants_name_lines_that_exist():
    for module, line, _ in EQUIVALENT:
        assert line in (SOURCE / module).read_text(), (module, line)


def test_the_score_in_the_documentation_is_that_of_the_stored_run():
    outcomes = [one["outcome"] for one in json.loads((ROOT / "tests" / "mutants.json").read_text())["mutants"]]
    counted = [outcome for outcome in outcomes if outcome != "not counted"]
    noticed = sum(outcome in ("killed", "out of time") for outcome in counted)
    text = " ".join((ROOT / "docs" / "reliability.md").read_text().split())
    assert f"{len(outcomes)} have been tried" in text
    assert (
        f"Of the other {len(counted)}, {noticed} were noticed ({noticed / len(counted):.0%}".replace("%", " %") in text
    )
