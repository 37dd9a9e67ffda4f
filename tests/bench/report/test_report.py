from __future__ import annotations

import csv
import html.parser
import io
import itertools
import json
import math
import re
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from markupsafe import Markup
from rich.console import Console
from scipy import stats as scipy_stats
from synthetic_runs import GAINS, make_recipe, make_runs, make_table, store_question, value, write_run

import reweigh
from reweigh.bench import report
from reweigh.bench.lab import plan, questions
from reweigh.bench.lab import recipe as recipes
from reweigh.bench.lab.results import Figure, Results, collect, of_runs
from reweigh.bench.lab.runs import Run, Spec, load_runs
from reweigh.bench.lab.table import Column, Endpoint, Table
from reweigh.bench.report import numbers, svg, weights
from reweigh.bench.report.last_epoch import last_epoch
from reweigh.bench.report.tuning import edges
from reweigh.bench.report.verdict import sentences, verdict

EVIL = '<script>alert("x")</script>&\'`"'
VOID = {"meta", "input", "br", "wbr", "hr", "img", "link"}


class Outline(html.parser.HTMLParser):
    """Checks that tags are balanced, and collects text and attributes."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.seen: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert len(attrs) == len(dict(attrs)), f"<{tag}> repeats an attribute"
        self.seen.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] not in ("script", "style"):
            self.text.append(data)


def outline(page: str) -> Outline:
    parsed = Outline()
    parsed.feed(page)
    parsed.close()
    assert parsed.open == []
    return parsed


def words(page: str) -> str:
    """The page's text, without tags and with single spaces."""
    return re.sub(r"\s+", " ", "".join(outline(page).text))


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch):
    """Make one table the recipe of every run."""

    def use_table(table: Table, **more: Any) -> None:
        monkeypatch.setattr(recipes, "names", lambda: ["made_up"])
        monkeypatch.setattr(recipes, "load", lambda name: make_recipe(table, **more))

    return use_table


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two columns, four methods, five seeds, with tuning and controls."""
    root = tmp_path_factory.mktemp("runs")
    make_runs(root, make_table())
    return root


@pytest.fixture(scope="module")
def found(finished: Path) -> list[Results]:
    """What these runs say."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recipes, "load", lambda name: make_recipe(make_table()))
        return collect(finished)


def page_of(results: list[Results], folder: Path) -> str:
    return report.write(results, folder / "page.html").read_text()


def columns(column: int, label: str, seeds: int = 5) -> tuple[list[float], list[float]]:
    return [value(label, column, s) for s in range(seeds)], [value("mean", column, s) for s in range(seeds)]


def minus(text: str) -> str:
    return text.replace("-", "−")


# ── the page ──


@pytest.fixture(scope="module")
def page(found: list[Results], tmp_path_factory: pytest.TempPathFactory) -> str:
    """The page of these runs."""
    return page_of(found, tmp_path_factory.mktemp("page"))


@pytest.mark.parametrize("column", [0, 1])
@pytest.mark.parametrize("label", ["rgd", "term:t=0.5", plan.NORMALISED, plan.SCALED_BASELINE])
def test_page_has_the_numbers_of_the_runs(page: str, column: int, label: str):
    ours, plain = columns(column, label)
    text = words(page)
    assert f"{100 * np.mean(ours):.2f} ± {100 * np.std(ours, ddof=1):.2f}" in text
    test = scipy_stats.ttest_rel(ours, plain)
    low, high = test.confidence_interval(0.95)
    difference = np.mean(np.subtract(ours, plain))
    assert minus(f"{100 * difference:+.2f} [{100 * low:+.2f}, {100 * high:+.2f}]") in text


def test_page_says_the_verdict_first(page: str):
    text = words(page)
    head = "Of 2 settings, rgd improves on plain training in 1, shows no evidence of a difference in 1, "
    head += "and is worse in none; corrected for 2 declared comparisons."
    assert head in text
    assert text.index(head) < text.index("All methods") < text.index("Where the numbers come from")
    assert "imbalance 100. rgd improves on plain training in accuracy on the test set: +" in text
    assert "imbalance 10. No evidence of a difference in accuracy on the test set" in text
    assert "the gain survives in the one setting that gained" in text
    assert "does not gain there" in text


def test_page_has_the_papers_figures_the_rule_and_the_stand_in(page: str):
    text = words(page)
    assert "paper 73.75†" in text
    assert "The paper: +3.39†. The interval excludes it; the chance to see it was 1.00." in text
    assert "The chance to see 1.00 points was 0." in text, "where the paper has no gain"
    assert "largest val/accuracy, earliest epoch on ties" in text
    assert "† Our data stand in for the paper’s: its figures are for CIFAR-10 with ResNet-32." in text
    assert "Nothing here was measured." in text


def test_no_evidence_is_kept_for_designs_that_could_have_seen_the_gain(found: list[Results]):
    # The second setting gains next to nothing: five seeds could have seen one point, but not 0.3 of the paper.
    (results,) = found
    first, second = results.columns
    seen = sentences(results)[1]
    second = replace(second, column=replace(second.column, paper={"mean": 70.0, "rgd": 70.3}))
    missed = sentences(replace(results, columns=[first, second]))[1]
    assert seen.text.startswith("No evidence of a difference in accuracy on the test set")
    assert missed.text.startswith("Undecided whether rgd and plain training differ in accuracy on the test set: ")
    assert missed.conclusion == "undecided"
    assert missed.remark.startswith("The interval excludes it; the chance to see it was 0.")


def test_rgd_tuned_to_plain_trainings_rate_is_shown_at_that_rate(found: list[Results], page: str):
    column = found[0].columns[0]
    assert column.rows["rgd"].lr == column.rows["mean"].lr
    assert column.rows[plan.AT_PLAIN_RATE].values == column.rows["rgd"].values
    assert "rgd, plain training's rate" in words(page)


def test_a_choice_at_an_edge_of_the_grid_is_told(tmp_path: Path, monkeypatch):
    table = make_table(trials=3, methods=("mean", "rgd"))
    monkeypatch.setattr(recipes, "names", lambda: ["made_up"])
    monkeypatch.setattr(recipes, "load", lambda name: make_recipe(table))
    make_runs(tmp_path, table, seeds=2)
    (results,) = collect(tmp_path)
    # Validation is best at the baseline's rate, in the middle; which tau it chooses is in the row.
    tau = reweigh.method(results.columns[0].rows["rgd"].method).objective.tau
    expected = {1.0: "smallest tau (1)", 9.0: "largest tau (9)"}
    assert tau in expected, "else the test needs other scores"
    assert edges(results) == [f"{column.name}: rgd with the {expected[tau]}." for column in results.columns]


def test_declared_comparisons_and_other_rows_are_two_families_and_controls_are_in_neither(found: list[Results]):
    (results,) = found
    assert results.declared == 2
    p = {(c.name, label): d.p for c in results.columns for label, d in c.differences.items()}
    holm = {(c.name, label): d.p_holm for c in results.columns for label, d in c.differences.items()}
    for family in (["rgd"], ["focal", "term:t=0.5"]):
        keys = sorted((key for key in p if key[1] in family), key=lambda key: p[key])
        steps = [min(1.0, (len(keys) - i) * p[key]) for i, key in enumerate(keys)]
        assert [holm[key] for key in keys] == pytest.approx(np.maximum.accumulate(steps))
    assert {holm[key] for key in p if key[1] in plan.CONTROLS} == {None}


def test_page_has_the_last_epoch_and_the_tuned_settings(found: list[Results], page: str):
    row = found[0].columns[0].rows["rgd"]
    last = [run.records()[-1]["test/accuracy"] for run in (o.run for o in row.outcomes.values())]
    assert f"last epoch {100 * np.mean(last):.2f} ± {100 * np.std(last, ddof=1):.2f}" in words(page)
    assert np.mean(last) < np.mean(row.values)
    assert "rgd:normalize=mean" in words(page)
    assert "lr 0.1" in words(page)


def test_page_is_balanced_self_contained_and_small(page: str):
    seen = outline(page).seen
    assert len(page.encode()) < 1_500_000
    assert not re.findall(r"https?://", page)
    assert not re.findall(r"url\(|@import", page)
    tags = {tag for tag, _ in seen}
    assert not tags & {"link", "img", "iframe", "object", "embed"}
    for tag, attributes in seen:
        assert not {"src", "srcset"} & set(attributes), tag
        assert not any(name.startswith("on") for name in attributes), tag
        assert (attributes.get("href") or "#").startswith("#")
    assert sum(tag == "script" for tag, _ in seen) == 1


def test_every_figure_is_there_and_named(page: str):
    text = words(page)
    for heading in (
        "More than a larger step?",
        "All methods",
        "Differences to plain training",
        "Learning curves",
        "What the weights did",
        "Class by class, head to tail",
        "Tuning",
        "Where the numbers come from",
    ):
        assert heading in text
    charts = re.findall(r'<svg[^>]*role="img"[^>]*>(.{7})', page)
    assert len(charts) > 20
    assert set(charts) == {"<title>"}
    assert not re.search(r"\b(nan|inf)\b", "".join(re.findall(r"<svg.*?</svg>", page, re.S)))


def test_page_is_the_same_twice_and_written_whole(found: list[Results], tmp_path: Path):
    first = page_of(found, tmp_path)
    assert page_of(found, tmp_path) == first
    assert sorted(p.name for p in tmp_path.iterdir()) == ["page.html"]
    broken = [replace(found[0], table=replace(found[0].table, metric="nothing"))]
    with pytest.raises(Exception):  # noqa: B017, PT011 - whatever it is, the old page must survive it
        report.write([*broken, None], tmp_path / "page.html")  # pyright: ignore
    assert (tmp_path / "page.html").read_text() == first


def test_everything_from_data_is_escaped(tmp_path: Path, use: Any):
    columns = tuple(
        Column(name=f"{EVIL} {k}", settings={"imbalance": float(k), EVIL: EVIL}, paper={EVIL: 1.0}, stand_in=EVIL)
        for k in (1, 2, 3)
    )
    table = make_table(
        title=EVIL,
        question=EVIL,
        metric_name=EVIL,
        notes=(EVIL,),
        columns=columns,
        methods=("mean", EVIL),
        primary=EVIL,
    )
    for column in columns:
        for label, method in (("mean", "mean"), (EVIL, EVIL), (plan.NORMALISED, EVIL), (plan.SCALED_BASELINE, EVIL)):
            for seed in range(3):
                spec = Spec(
                    recipe="made_up",
                    column=column.name,
                    label=label,
                    settings={"lr": 0.1, "data": EVIL, EVIL: 1},
                    method=method,
                    seed=seed,
                )
                write_run(tmp_path, spec, 0.7 + 0.01 * seed * len(label) ** 0.5, 4, 3, {"class_names": [EVIL] * 3})
                tried = replace(spec, stage="tune", settings={**spec.settings, "lr": 0.1 + seed})
                write_run(tmp_path, tried, 0.6, 4, 3, {})
    unfinished = Run(replace(spec, seed=99), tmp_path)
    with unfinished.open():
        pass
    use(table)
    store_question(tmp_path, table)
    results = [replace(r, extra=(Figure(title=EVIL, markup="<svg></svg>", caption=EVIL),)) for r in collect(tmp_path)]
    page = page_of(results, tmp_path)
    assert sum(tag == "script" for tag, _ in outline(page).seen) == 1
    assert "<script>alert" not in page
    assert page.count("&lt;script&gt;") > 100
    report.terminal(results, Console(file=io.StringIO(), width=100))
    assert "<script>" not in report.tables(results, "markdown").replace(r"\<script\>", "")


# ── the edges ──


def test_nothing_finished_is_a_page_too(tmp_path: Path):
    assert "No run has finished yet" in words(page_of([], tmp_path))


def test_unfinished_missing_and_short_rows_are_named(finished: Path, tmp_path: Path, use: Any):
    table = make_table()
    root = Path(shutil.copytree(finished, tmp_path / "runs"))
    for run in load_runs(root):
        if run.spec.label == "focal" and run.spec.column == "imbalance 10" and run.spec.seed in (1, 3):
            (run.directory / "done").unlink()
    more = replace(
        table, methods=(*table.methods, "absgd"), columns=(*table.columns, Column(name="imbalance 7", settings={}))
    )
    use(more)
    shutil.rmtree(root / "made_up" / "questions")
    store_question(root, more)
    results = collect(root)
    text = words(page_of(results, tmp_path))
    assert "imbalance 10: focal, seeds 1, 3" in text
    assert "imbalance 10: fewer than 5 seeds for focal (3)" in text
    assert "imbalance 100: absgd." in text
    assert "imbalance 7: no finished run." in text
    assert "n = 3" in text
    assert results[0].columns[1].differences["focal"].n == 3


def test_a_diverged_row_is_reported_and_not_averaged(tmp_path: Path, use: Any):
    table = make_table(
        columns=(Column(name="only", settings={}),), methods=("mean", "rgd", "focal"), metric="test/loss"
    )
    for label in table.methods:
        for seed in range(4):
            spec = Spec(recipe="made_up", column="only", label=label, settings={"lr": 1.0}, method=label, seed=seed)
            diverged = label == "focal" and seed == 2
            with Run(spec, tmp_path).open() as writer:
                writer.record(
                    {"epoch": 1, "val/accuracy": 0.5, "test/loss": math.inf if diverged else 1.0 + 0.1 * seed**2}
                )
                writer.finish({"seconds": 1.0})
    use(table)
    store_question(tmp_path, table)
    results = collect(tmp_path)
    assert "focal" not in results[0].columns[0].differences
    assert "rgd" in results[0].columns[0].differences
    text = words(page_of(results, tmp_path))
    assert "diverged" in text
    assert "in 1 of 4 seeds" in text
    assert "| focal | diverged |" in report.tables(results, "markdown")


@pytest.mark.parametrize("smallest", [False, True])
def test_less_can_be_better(finished: Path, tmp_path: Path, use: Any, smallest: bool):
    table = make_table(smallest=smallest)
    use(table)
    root = Path(shutil.copytree(finished, tmp_path / "runs"))
    shutil.rmtree(root / "made_up" / "questions")
    store_question(root, table)
    lines = csv.DictReader(io.StringIO(report.tables(collect(root), "csv")))
    conclusions = {line["label"]: line["conclusion"] for line in lines if line["column"] == "imbalance 100"}
    assert conclusions["term:t=0.5"] == ("better" if smallest else "worse")


def test_one_seed_and_one_epoch_are_shown_without_claims(tmp_path: Path, use: Any):
    table = make_table(columns=(Column(name="only", settings={}),), methods=("mean", "rgd"))
    for label in table.methods:
        spec = Spec(recipe="made_up", column="only", label=label, settings={"lr": 1.0}, method=label, seed=0)
        with Run(spec, tmp_path).open() as writer:
            writer.record({"val/accuracy": 0.5, "test/accuracy": 0.5 + 0.1 * (label == "rgd")})
            writer.finish({})
    use(table)
    store_question(tmp_path, table)
    text = words(page_of(collect(tmp_path), tmp_path))
    assert "One pair says nothing about rgd against plain training: run more seeds." in text
    assert "60.00" in text
    assert "Learning curves" not in text
    assert "nan" not in text


def test_settings_that_differ_make_separate_tables(tmp_path: Path, use: Any):
    table = make_table(columns=(Column(name="only", settings={"imbalance": 1.0}),), methods=("mean", "rgd"))
    for data, shift in (("digits", 0.0), ("letters", 0.2)):
        for label in table.methods:
            for seed in range(3):
                settings = {"lr": 0.1, "data": data, "imbalance": 1.0}
                spec = Spec(recipe="made_up", column="only", label=label, settings=settings, method=label, seed=seed)
                write_run(tmp_path, spec, 0.5 + shift + 0.01 * seed, 3, 3, {})
        question = plan.Question(recipe="made_up", table=table, settings={"lr": 0.1, "data": data})
        specs = [run.spec for run in load_runs(tmp_path) if run.spec.settings["data"] == data]
        questions.store(tmp_path, question, specs)
    use(table)
    results = collect(tmp_path)
    assert [r.variant for r in results] == ["data=digits", "data=letters"]
    assert [np.mean(r.columns[0].rows["mean"].values) for r in results] == pytest.approx([0.51, 0.71])
    text = words(page_of(results, tmp_path))
    assert "Made-up images · data=letters" in text


def test_a_row_that_was_tuned_again_is_not_mixed(tmp_path: Path, use: Any):
    table = make_table(columns=(Column(name="only", settings={}),), methods=("mean", "rgd"))

    def final(label: str, method: str, seed: int, at: float) -> Spec:
        spec = Spec(recipe="made_up", column="only", label=label, settings={"lr": 0.1}, method=method, seed=seed)
        write_run(tmp_path, spec, at, 3, 3, {})
        return spec

    for seed in range(3):
        final("mean", "mean", seed, 0.5 + 0.01 * seed)
        old = final("rgd", "rgd:tau=9", seed, 0.9) if seed < 2 else None
        new = final("rgd", "rgd:tau=3", seed, 0.6 + 0.01 * seed)
        for source in filter(None, (old, new)):
            control = replace(source, label=plan.SCALED_BASELINE, method="mean", scale_from=source.id)
            write_run(tmp_path, control, 0.55 if source is new else 0.99, 3, 3, {})
    use(table)
    store_question(tmp_path, table)
    (results,) = collect(tmp_path)
    rows = results.columns[0].rows
    assert rows["rgd"].method == "rgd:tau=3"
    assert rows["rgd"].values == pytest.approx([0.60, 0.61, 0.62])
    assert rows[plan.SCALED_BASELINE].values == pytest.approx([0.55] * 3)
    assert len(results.superseded) == 4
    assert "4 finished runs whose row was tuned again" in words(page_of([results], tmp_path))


def test_questions_that_ask_for_other_columns_and_rows_share_a_table(tmp_path: Path, use: Any):
    table = make_table(controls=False, trials=1)
    first, second = (replace(table, columns=(column,)) for column in table.columns)
    second = replace(second, methods=("mean", "rgd", "absgd"))
    for part in (first, second):
        make_runs(tmp_path, part, seeds=2)
    make_runs(tmp_path, replace(first, primary="focal", methods=("mean", "focal")), seeds=2)
    use(table)
    other, joined = collect(tmp_path)
    assert other.variant == "primary=focal"
    assert list(other.columns[0].rows) == ["mean", "focal"]
    assert {column.name: list(column.rows) for column in joined.columns} == {
        "imbalance 10": ["mean", "rgd", "absgd"],
        "imbalance 100": ["mean", "rgd", "focal", "term:t=0.5"],
    }
    assert not joined.unfinished
    assert "Not runNone: all planned runs have finished" in words(page_of([joined], tmp_path))


def test_a_report_reads_the_runs_of_its_questions_and_no_others(finished: Path, tmp_path: Path, use: Any):
    root = Path(shutil.copytree(finished, tmp_path / "runs"))
    foreign = root / "made_up" / "000000000000"
    foreign.mkdir()
    (foreign / "spec.json").write_text("{")
    use(make_table())
    (results,) = collect(root)
    assert not results.damaged
    assert collect(root, recipe="longtail") == collect(root, preset="paper") == []


def test_comparisons_have_no_preset_and_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """What a person compared is in the report of its folder, unless the report is to be about something else."""
    mine: Any = object()
    own = SimpleNamespace(results_at=lambda root: mine)
    monkeypatch.setattr("reweigh.bench.lab.recipe.self_reporting_at", lambda root: {"compare": own})
    assert collect(tmp_path) == collect(tmp_path, recipe="compare") == [mine]
    assert collect(tmp_path, recipe="longtail") == collect(tmp_path, preset="cpu") == []
    assert collect(tmp_path, recipe="compare", preset="cpu") == []


@pytest.mark.parametrize("name", ["spec.json", "records.jsonl", "done"])
def test_a_damaged_run_is_named_and_left_out(finished: Path, tmp_path: Path, use: Any, name: str):
    root = Path(shutil.copytree(finished, tmp_path / "runs"))
    (damaged,) = (
        run
        for run in load_runs(root)
        if (run.spec.stage, run.spec.label, run.spec.column, run.spec.seed) == ("final", "focal", "imbalance 10", 1)
    )
    (damaged.directory / name).write_text("{\n")
    use(make_table())
    (results,) = collect(root)
    (line,) = results.damaged
    assert damaged.spec.id in line
    assert "spec.json" in line or "records.jsonl" in line or "`done`" in line
    assert len(results.columns[1].rows["focal"].values) == 4
    assert len(results.columns[1].rows["rgd"].values) == 5


def test_the_last_epoch_is_compared_too_where_another_was_chosen(tmp_path: Path, use: Any):
    table = make_table(columns=(Column(name="only", settings={}),), methods=("mean", "rgd"), trials=1)
    make_runs(tmp_path / "runs", table, seeds=4)
    use(table)
    (results,) = collect(tmp_path / "runs")
    found = last_epoch(results)["only"]
    shrunk = 1 - 0.5 * math.exp(-5)  # what synthetic runs have at their end, of what they had the epoch before
    for label, difference in (("rgd", found.primary), (plan.NORMALISED, found.normalised)):
        pairs = [(value(label, 0, seed) - value("mean", 0, seed)) * shrunk for seed in range(4)]
        assert difference is not None
        assert difference.mean == pytest.approx(np.mean(pairs))
        interval = scipy_stats.ttest_1samp(pairs, 0.0).confidence_interval(0.95)
        assert (difference.low, difference.high) == pytest.approx((interval.low, interval.high))
    text = words(page_of([results], tmp_path))
    assert "The same at the last epoch" in text
    assert re.search(r"At the last epoch: [+−]\d", text)

    unchosen = [replace(o, chosen=len(o.records) - 1) for o in results.columns[0].rows["mean"].outcomes.values()]
    rows = {label: replace(row, outcomes=dict(enumerate(unchosen))) for label, row in results.columns[0].rows.items()}
    assert last_epoch(replace(results, columns=[replace(results.columns[0], rows=rows)])) == {}


def test_a_control_that_has_not_finished_is_not_counted_as_one_that_does_not_gain(tmp_path: Path, use: Any):
    table = make_table(columns=(Column(name="only", settings={}),), methods=("mean", "rgd"), trials=1)
    make_runs(tmp_path, table, seeds=6)
    for run in load_runs(tmp_path):
        if run.spec.scale_from:
            shutil.rmtree(run.directory)
    use(table)
    (results,) = collect(tmp_path)
    said = verdict(results)
    assert said.sentences[0].conclusion == "better"
    assert "has not finished there" in said.scale[1]
    assert "does not gain" not in " ".join(said.scale)


def test_the_scale_controls_are_named_after_the_row_they_control(tmp_path: Path, use: Any):
    table = make_table(columns=(Column(name="only", settings={}),), methods=("mean", "rgd_auto"), primary="rgd_auto")
    make_runs(tmp_path / "runs", table, seeds=3)
    use(table)
    results = collect(tmp_path / "runs")
    text = words(page_of(results, tmp_path)) + report.tables(results, "csv")
    assert "rgd_auto, mean weight one" in text
    assert "mean × mean weight of rgd_auto" in text
    assert not re.search(r"weight of rgd\b(?!_)|\brgd, mean", text)


def test_a_recipe_may_add_figures(tmp_path: Path, use: Any):
    table = make_table(columns=(Column(name="only", settings={}),), methods=("mean", "rgd"))
    make_runs(tmp_path / "runs", table, seeds=2)

    def figures(results: Results) -> list[Figure]:
        return [
            Figure(title="Own figure", markup=svg.element("svg", role="img"), caption=f"{len(results.columns)} columns")
        ]

    use(table, figures=figures)
    results = collect(tmp_path / "runs")
    assert [f.title for f in results[0].extra] == ["Own figure"]
    text = words(page_of(results, tmp_path))
    assert "Own figure" in text
    assert "1 columns" in text


def test_three_settings_of_a_number_make_a_figure(tmp_path: Path, use: Any):
    columns = tuple(Column(name=f"imbalance {k:g}", settings={"imbalance": k}) for k in (1.0, 10.0, 100.0))
    table = make_table(columns=columns)
    make_runs(tmp_path / "runs", table, seeds=3)
    use(table)
    page = page_of(collect(tmp_path / "runs"), tmp_path)
    assert "accuracy on the test set against imbalance" in words(page)
    assert "imbalance (logarithmic)" in words(page)
    assert 'class="line other"' in page


def test_columns_may_have_rows_and_settings_of_their_own(tmp_path: Path, use: Any):
    columns = (
        Column(name="digits", settings={"imbalance": 1.0}),
        Column(
            name="letters",
            settings={"imbalance": 1.0, "data": "letters"},
            methods=("mean", "rgd", "absgd"),
            stand_in="A",
        ),
    )
    table = make_table(columns=columns, methods=("mean", "rgd"), controls=False)

    def final(column: str, label: str, seed: int, **settings: Any) -> None:
        settings = {"lr": 0.1, "imbalance": 1.0, "epochs": 9, **settings}
        spec = Spec(recipe="made_up", column=column, label=label, settings=settings, method=label, seed=seed)
        write_run(tmp_path, spec, 0.5 + 0.01 * seed * len(label), 3, 3, {})

    for seed in range(3):
        final("digits", "mean", seed, data="digits")
        final("digits", "rgd", seed, data="digits")
        final("digits", "mean", seed, data="digits", epochs=2)  # another preset in the same folder
        final("letters", "absgd", seed, data="letters")
    for preset, epochs in (("smoke", 2), ("cpu", 9)):
        question = plan.Question(recipe="made_up", table=table, settings={"epochs": epochs}, preset=preset)
        specs = [run.spec for run in load_runs(tmp_path) if run.spec.settings["epochs"] == epochs]
        questions.store(tmp_path, question, specs)
    use(table)
    results = {r.variant: r for r in collect(tmp_path)}
    assert list(results) == ["preset cpu", "preset smoke"]
    assert [c.name for c in results["preset cpu"].columns] == ["digits", "letters"]
    text = words(page_of([results["preset cpu"]], tmp_path))
    assert "letters: mean, rgd." in text
    assert "digits: absgd" not in text
    assert "scale controls" not in text


def test_many_classes_are_shown_as_groups_in_the_order_of_their_counts(tmp_path: Path, use: Any):
    table = make_table(columns=(Column(name="only", settings={}),), methods=("mean", "rgd"))
    make_runs(tmp_path / "runs", table, seeds=2, classes=30, class_counts=list(range(30)))
    use(table)
    text = words(page_of(collect(tmp_path / "runs"), tmp_path))
    assert "classes 1–3" in text
    row = collect(tmp_path / "runs")[0].columns[0].rows["mean"]
    recorded = np.mean([o.records[o.chosen]["test/class_accuracy"] for o in row.outcomes.values()], 0)
    assert f"classes 1–3: baseline {100 * recorded[27:].mean():.1f} %" in text


@pytest.mark.parametrize("classes", [3, 30])
def test_a_class_that_a_test_part_lacks_does_not_count_as_missed(tmp_path: Path, use: Any, classes: int):
    table = make_table(columns=(Column(name="only", settings={}),), methods=("mean", "rgd"), controls=False)
    lacks = [[math.nan, math.nan], [math.nan, 0.5], [0.9, 0.7]]  # of each class, the accuracies of two splits
    lacks += [[0.9, 0.7]] * (classes - 3)
    for label in ("mean", "rgd"):
        for seed in range(2):
            spec = Spec(recipe="made_up", column="only", label=label, settings={"lr": 0.1}, method=label, seed=seed)
            with Run(spec, tmp_path / "runs").open() as writer:
                shown = {"val/accuracy": 0.8, "test/accuracy": 0.8, "test/class_accuracy": [own[seed] for own in lacks]}
                writer.record({"epoch": 1, "progress": 1.0, **shown})
                writer.finish({"seconds": 1.0, "finished": 1_700_000_000.0})
    use(table)
    store_question(tmp_path / "runs", table)
    page = page_of(collect(tmp_path / "runs"), tmp_path)
    text = words(page)
    if classes == 3:
        assert "class 0: not tested" in text
        assert "class 1: baseline 50.0 %, primary 50.0 %" in text
        assert "class 2: baseline 80.0 %, primary 80.0 %" in text
    else:
        assert "classes 1–3: baseline 65.0 %, primary 65.0 %" in text  # of 50 and 80
    assert not re.search(r"\bnan\b", page.partition("<script>")[0], re.IGNORECASE)


def test_provenance_prefers_what_runs_recorded(found: list[Results], tmp_path: Path):
    text = words(page_of(found, tmp_path))
    assert "as of this page; the runs recorded none" in text
    assert "88 finished, 28 of them for tuning" in text
    assert "2023-11-14 22:13 UTC" in text
    recorded = {"versions": {"python": "3.99"}, "commit": "abc", "machine": "an abacus"}
    known = replace(found[0], provenance={**found[0].provenance, "recorded": True, "environments": [recorded]})
    text = words(page_of([known], tmp_path))
    assert "python 3.99; commit abc" in text
    assert "an abacus" in text


# ── text tables and the terminal ──


def test_markdown_latex_and_csv_agree(found: list[Results]):
    lines = list(csv.DictReader(io.StringIO(report.tables(found, "csv"))))
    markdown = report.tables(found, "markdown")
    latex = report.tables(found, "latex")
    assert len(lines) == 2 * 7
    table = {}
    for line in markdown.splitlines():
        if line.startswith("| ") and "---" not in line:
            label, *columns = (part.strip() for part in line.strip("| ").split(" | "))
            table[label] = columns
    rows = {}
    for line in latex.splitlines():
        if line.startswith(r"\texttt"):
            label, *columns = line.removesuffix(r" \\").split(" & ")
            rows[label] = columns
    assert len(rows) == 7
    for line in lines:
        column = ["imbalance 100", "imbalance 10"].index(line["column"])
        expected = [100 * float(line["mean"]), 100 * float(line["sd"])]
        expected += [100 * float(line[name]) for name in ("difference", "low", "high") if line[name]]
        expected += [100 * float(line["last_mean"])]
        expected += [float(line["paper"])] if line["paper"] else []
        in_latex = next(columns for label, columns in rows.items() if label == latex_label(line["label"]))[column]
        for text in (table[line["label"]][column], in_latex):
            printed = [float(n) for n in re.findall(r"[-+]?\d+\.\d+", text)]
            assert printed == pytest.approx(expected, abs=0.0051)


def latex_label(label: str) -> str:
    return rf"\texttt{{{label.replace('×', chr(36) + chr(92) + 'times' + chr(36)).replace('_', chr(92) + '_')}}}"


def test_csv_has_unrounded_numbers(found: list[Results]):
    lines = csv.DictReader(io.StringIO(report.tables(found, "csv")))
    line = next(line for line in lines if line["label"] == "rgd" and line["column"] == "imbalance 100")
    ours, plain = columns(0, "rgd")
    assert float(line["mean"]) == pytest.approx(np.mean(ours), abs=1e-15)
    assert float(line["p"]) == pytest.approx(scipy_stats.ttest_rel(ours, plain).pvalue)
    assert line["conclusion"] == "better"
    assert float(line["p_holm"]) == pytest.approx(2 * float(line["p"])), "the smaller of two declared comparisons"
    assert line["stand_in"] == "CIFAR-10 with ResNet-32"


def test_an_unknown_format_is_named(found: list[Results]):
    with pytest.raises(ValueError, match="'markdown', 'latex', 'csv', got 'docx'"):
        report.tables(found, "docx")  # pyright: ignore


@pytest.mark.parametrize("width", [80, 100])
def test_terminal_fits_and_gives_the_verdicts(found: list[Results], width: int):
    out = io.StringIO()
    report.terminal(found, Console(file=out, width=width))
    text = out.getvalue()
    assert max(map(len, text.splitlines())) <= width
    ours, _ = columns(0, "rgd")
    assert f"{100 * np.mean(ours):.2f} ± {100 * np.std(ours, ddof=1):.2f} ▲" in text
    assert "rgd improves on plain training" in text
    assert all(label.split(":")[0] in text for label in GAINS)


# ── drawing ──


@given(st.floats(-1e6, 1e6), st.floats(1e-6, 1e6), st.integers(2, 8))
def test_ticks_are_inside_few_and_evenly_spaced(low: float, width: float, count: int):
    high = low + width
    if not high - low > 1e-9 * abs(low):
        return
    ticks = svg.linear_ticks(low, high, count)
    assert len(ticks) <= count + 1
    assert all(low - 1e-6 * width <= t <= high + 1e-6 * width for t in ticks)
    assert np.ptp(np.diff(ticks)) <= 1e-6 * width if len(ticks) > 2 else True


@given(st.floats(0.001, 10), st.floats(1.5, 1e5))
def test_logarithmic_ticks_are_inside(low: float, factor: float):
    scale = svg.AxisScale(low, low * factor, 0, 100, log=True)
    assert all(-1e-6 <= scale(t) <= 100 + 1e-6 for t in scale.ticks())
    assert scale.ticks()


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8))
def test_names_of_lines_never_touch(ends: list[float]):
    frame = svg.Frame(x_domain=(0, 1), y_domain=(0, 1))
    markup = svg.end_labels(frame, [(y, f"n{i}", "other", None) for i, y in enumerate(ends)])
    heights = sorted(float(h) for h in re.findall(r' y="([\d.]+)"', markup))
    assert len(heights) == len(ends)
    assert all(b - a >= 12.9 for a, b in itertools.pairwise(heights))


def test_elements_escape_text_and_keep_markup():
    assert svg.element("g", "<b>", svg.element("i"), data_m='"') == Markup('<g data-m="&#34;">&lt;b&gt;<i></i></g>')
    assert svg.element("g", x=1.0, y=None, class_="a") == '<g x="1" class="a"></g>'


def test_lines_break_where_numbers_do():
    frame = svg.Frame(x_domain=(0, 4), y_domain=(0, 1))
    drawn = svg.line(frame, [0, 1, 2, 3, 4], [0, 1, math.nan, 1, 0], role="primary")
    assert drawn.count("M") == 2
    assert "nan" not in drawn


def test_histograms_keep_their_mass_and_place():
    edges = np.linspace(1.0, 3.0, 5)
    record = {"weights/min": 1.0, "weights/max": 2.0, "weights/histogram": [6, 2]}
    # 6 of 8 lie in [1, 1.5], 2 in [1.5, 2], none above.
    assert weights._rebinned(record, edges) == pytest.approx([0.75, 0.25, 0.0, 0.0])
    point = {"weights/min": 1.0, "weights/max": 1.0, "weights/histogram": [8, 0]}
    assert weights._rebinned(point, edges) == pytest.approx([1.0, 0.0, 0.0, 0.0])


def test_units_follow_the_metric():
    assert numbers.unit("test/accuracy", [0.5]).value(0.5) == "50.00"
    assert numbers.unit("test/accuracy", [50.0]).scale == 1.0
    assert numbers.unit("test/loss", [0.0123]).value(0.0123) == "0.01230"
    assert numbers.unit("test/rmse", [123.4]).value(123.44) == "123.4"
    assert numbers.typeset("-1.5 [-2, +3], a-b, x-3") == "−1.5 [−2, +3], a-b, x-3"
    assert json.loads(json.dumps(str(numbers.breakable("a:b=<c>")))) == "a:<wbr>b=&lt;c&gt;"


def test_one_column_of_splits_is_corrected_and_the_others_are_not(tmp_path, use) -> None:
    table = make_table()
    first, second = table.columns
    table = replace(table, columns=(first, replace(second, overlap=0.25)))
    make_runs(tmp_path, table)
    use(table)
    (results,) = collect(tmp_path)
    for column, factor in zip(results.columns, (1.0, math.sqrt(1 + 5 * 0.25)), strict=True):
        ours, theirs = columns(results.columns.index(column), "rgd")
        error = np.std(np.subtract(ours, theirs), ddof=1) / math.sqrt(5)
        d = column.differences["rgd"]
        assert d.high - d.mean == pytest.approx(scipy_stats.t.ppf(0.975, 4) * error * factor)


def test_a_page_with_an_endpoint_opens_with_one_sentence_and_one_picture(found: list[Results], tmp_path: Path) -> None:
    (results,) = found
    declared = replace(results, table=replace(results.table, endpoint=Endpoint()))
    text = words(page_of([declared], tmp_path))
    head = "rgd against plain training, 2 settings: there is a gain, smaller than in the paper in 1, and "
    picture = "The diamond is the paper's gain."
    assert head in text
    assert text.index(head) < text.index(picture) < text.index("Setting by setting") < text.index("All methods")
    assert text.index("imbalance 100. rgd improves") > text.index("Setting by setting"), "sentences come later"
    console = Console(record=True, width=200)
    report.terminal([declared], console)
    assert head in console.export_text()


def test_a_summary_has_the_numbers_of_the_page(found: list[Results], tmp_path: Path) -> None:
    (results,) = found
    declared = replace(results, table=replace(results.table, endpoint=Endpoint()))
    (one,) = report.read_summary(report.write_summary([declared], tmp_path / "page.json"))
    row = one["settings"][0]["rows"]["rgd"]
    ours, plain = columns(0, "rgd")
    assert row["mean"] == pytest.approx(np.mean(ours))
    assert row["difference"]["mean"] == pytest.approx(np.mean(np.subtract(ours, plain)))
    assert one["conclusions"][0]["gain"] == pytest.approx(0.0339)
    assert one["conclusions"][0]["word"] == "smaller than in the paper"
    assert one["headline"].startswith("rgd against plain training, 2 settings")
    (tmp_path / "page.json").write_text('{"format": 0}')
    with pytest.raises(ValueError, match="has format 0, not 1"):
        report.read_summary(tmp_path / "page.json")


def test_splits_of_one_table_and_draws_show_no_row_at_plain_trainings_rate(tmp_path: Path):
    """There, tuning is `compare`'s own or another draw's: the row would be the same one twice."""
    table = make_table()
    make_runs(tmp_path, table)
    runs = list(load_runs(tmp_path))
    assert plan.AT_PLAIN_RATE in of_runs("made_up", table, runs).columns[0].rows
    overlapping = replace(table, overlap=1 / 3)
    assert plan.AT_PLAIN_RATE not in of_runs("made_up", overlapping, runs).columns[0].rows
    without = [run for run in runs if run.spec.label != plan.NORMALISED]  # a table that has no controls
    assert plan.AT_PLAIN_RATE not in of_runs("made_up", table, without).columns[0].rows


def test_a_run_whose_last_or_chosen_record_lacks_the_metric_is_left_out(tmp_path: Path):
    table = make_table(methods=("mean", "rgd"))
    for label, metrics in (("mean", ({"test/accuracy": 0.7}, {})), ("rgd", ({}, {"test/accuracy": 0.7}))):
        spec = Spec(recipe="made_up", column="imbalance 100", label=label, settings={}, method=label, seed=0)
        with Run(spec, tmp_path).open() as writer:
            for epoch, (own, validation) in enumerate(zip(metrics, (0.9, 0.8), strict=True)):
                writer.record({"epoch": epoch, "val/accuracy": validation, **own})
            writer.finish({"seconds": 1.0})
    results = of_runs("made_up", table, list(load_runs(tmp_path)))
    assert not results.columns
    assert len(results.damaged) == 2
    assert all("have no test/accuracy" in line for line in results.damaged)
