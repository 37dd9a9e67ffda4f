"""A large table is compared on a sample first, and on larger ones while time allows; the reader is told."""

import dataclasses
import io
import json

import numpy as np
import polars as pl
import pytest
from rich.console import Console

from reweigh.bench.compare import answering, folder, sample
from reweigh.bench.compare import search as searching
from reweigh.bench.compare.problem import DataQuestion
from reweigh.bench.compare.reading import load
from reweigh.bench.compare.request import Request, data_question
from reweigh.bench.compare.search import SearchOutcome
from reweigh.bench.compare.splits import parts_of
from reweigh.bench.lab.display import RunDisplay
from reweigh.bench.tables import keeps_groups_whole


def table(folder, rows=4000, **columns):
    draw = np.random.default_rng(0)
    a = draw.normal(size=rows)
    odd = draw.permutation(rows) < 60  # a rare class
    frame = {
        "number": np.arange(rows) + 0.5,
        "a": a,
        "b": draw.normal(size=rows),
        "t": np.where(odd, "odd", np.where(a + draw.normal(size=rows) > 0, "no", "yes")),
    }
    pl.DataFrame(frame | columns).write_csv(folder / "t.csv")
    return DataQuestion(source=str(folder / "t.csv"), target="t")


@pytest.fixture
def small(monkeypatch):
    """Samples of tables that a test can afford."""
    monkeypatch.setattr(sample, "_LARGE", 3_000)
    monkeypatch.setattr(sample, "_CELLS", 900)
    monkeypatch.setattr(sample, "_FEWEST", 200)


@pytest.mark.parametrize(
    ("rows", "width", "expected"),
    [
        (1_000_000, 50, (15_625, 62_500, 250_000, 0)),
        (200_000, 500, (12_500, 50_000, 0)),
        (1_000, 10_000, (0,)),
        (48_842, 14, (0,)),
        (80_000, 50, (0,)),
        (100_000, 50, (6_250, 25_000, 0)),
    ],
)
def test_sizes_of_samples(rows, width, expected, tmp_path):
    problem = load(table(tmp_path))
    assert problem.schema is not None
    wide = dataclasses.replace(problem.schema, columns=(problem.schema.column("a"),) * width)
    assert sample.sizes(dataclasses.replace(problem, rows=rows, schema=wide)) == expected


def test_samples_are_nested_stratified_and_name_the_rows_of_the_file(tmp_path, small):
    problem = load(table(tmp_path))
    assert sample.sizes(problem) == (250, 1000, 0)
    first, second = (sample.sampled(problem, size) for size in (250, 1000))
    assert sample.sampled(problem, 0) is problem
    assert first.frame is not None
    assert second.frame is not None
    assert problem.frame is not None
    numbers = [set(p.frame.get_column("number").to_list()) for p in (first, second)]
    assert numbers[0] < numbers[1]
    # Classes keep their shares, but for the one of 60 rows, which keeps 50.
    counts = dict(zip(problem.classes, problem.class_counts, strict=True))
    for one, share in ((first, 1 / 16), (second, 1 / 4)):
        kept = dict(zip(one.classes, one.class_counts, strict=True))
        assert kept == {name: max(round(share * n), 50) for name, n in counts.items()}
        assert one.rows == one.frame.height == sum(kept.values())
        assert one.sampled_from == 4000
    for row in (0, 7, first.rows - 1):  # the number in the file, from 1
        assert first.row_name(row) == first.frame.get_column("number")[row] + 0.5
    again = sample.sampled(problem, 250)
    assert again.frame is not None
    assert again.frame.equals(first.frame)
    assert sample.about(first) == f"a random sample of {first.rows} of the 4,000 rows"


def test_a_sample_keeps_groups_whole_and_test_rows_apart(tmp_path, small):
    draw = np.random.default_rng(1)
    question = table(tmp_path, patient=[f"p{k}" for k in draw.integers(0, 400, 4000)])
    problem = load(dataclasses.replace(question, group="patient"))
    assert problem.frame is not None
    one = sample.sampled(problem, 400)
    assert one.frame is not None
    sizes = dict(problem.frame.get_column("patient").value_counts().iter_rows())
    kept = dict(one.frame.get_column("patient").value_counts().iter_rows())
    assert kept == {name: sizes[name] for name in kept}
    assert keeps_groups_whole(*one.table)
    assert dict(zip(one.classes, one.class_counts, strict=True))["odd"] >= 50
    tested = dataclasses.replace(load(question), test_rows=np.arange(3000, 4000))
    other = sample.sampled(tested, 400)
    assert other.frame is not None
    assert other.test_rows is not None
    numbers = other.frame.get_column("number").to_numpy()
    assert (numbers[other.test_rows] > 3000).all()
    assert (np.delete(numbers, other.test_rows) < 3000).all()
    assert set(parts_of(other, 0).test) == set(other.test_rows)


def test_few_groups_are_thinned_alike(tmp_path, small):
    draw = np.random.default_rng(1)
    question = table(tmp_path, where=draw.choice(["north", "south"], 4000, p=[0.9, 0.1]))
    problem = load(dataclasses.replace(question, group="where"))
    one = sample.sampled(problem, 1000)
    assert one.frame is not None
    assert not keeps_groups_whole(*one.table)
    cells = one.frame.group_by("where", "t").len()
    assert cells.height == 6
    assert dict(cells.filter(pl.col("where") == "north").select("t", "len").iter_rows())["odd"] >= 50


class Fake:
    """Searches that take as long as they are told, on samples of 250, 1,000 and 4,000 rows."""

    def __init__(self, monkeypatch, *, seconds, unfinished=(), interrupted=()):
        self.now, self.seconds, self.unfinished, self.interrupted = 0.0, seconds, unfinished, interrupted
        self.rows, self.saved = [], []
        monkeypatch.setattr(answering.time, "monotonic", lambda: self.now)
        monkeypatch.setattr(answering, "search", self.search)
        monkeypatch.setattr(answering.folder, "save", self.save)

    def search(self, question, root, *, budget, grow, **others):
        size = question.settings.get("sample", 0) or 4000
        self.rows.append(size)
        taken = self.seconds[size]
        if size in self.unfinished:
            self.now += budget
            return SearchOutcome(ended="interrupted" if size in self.interrupted else "time")
        self.now += taken
        grown = grow(taken, budget - taken)
        return SearchOutcome(grows=grown, first_round=True)

    def save(self, root, table, outcome, problem, *, jobs):
        self.saved.append(problem.rows)
        return "results", None


def ask(tmp_path, budget):
    question = data_question(str(tmp_path / "t.csv"), target="t")
    given = Request(question=question, models=("logistic",), budget=budget, runs_dir=tmp_path / "runs")
    prepared = answering.prepare(given)
    assert prepared.sizes == (250, 1000, 0)
    return answering.run(prepared, RunDisplay(Console(quiet=True), ""), lambda answer, problem: None)


@pytest.mark.parametrize(
    ("budget", "seconds", "expected"),
    [
        (100.0, {250: 10.0, 1000: 30.0, 4000: 100.0}, [250, 1000]),  # four times 30 s do not fit into 60 s
        (100.0, {250: 20.0, 1000: 30.0, 4000: 100.0}, [250]),  # 80 s are more than 60 % of 80 s
        (1000.0, {250: 10.0, 1000: 30.0, 4000: 100.0}, [250, 1000, 4000]),
    ],
)
def test_the_sample_grows_while_a_round_on_the_next_should_fit(tmp_path, small, monkeypatch, budget, seconds, expected):
    table(tmp_path)
    fake = Fake(monkeypatch, seconds=seconds)
    searched = ask(tmp_path, budget)
    assert fake.rows == expected
    assert searched.outcome.ended == "finished"
    assert searched.problem.sample == (expected[-1] if expected[-1] < 4000 else 0)
    assert searched.outcome.seconds == sum(seconds[size] for size in expected)


@pytest.mark.parametrize("how", ["time", "interrupted"])
def test_an_answer_rests_on_the_largest_sample_whose_first_round_is_whole(tmp_path, small, monkeypatch, how):
    table(tmp_path)
    interrupted = (1000,) if how == "interrupted" else ()
    fake = Fake(monkeypatch, seconds={250: 10.0, 1000: 30.0}, unfinished=(1000,), interrupted=interrupted)
    searched = ask(tmp_path, 100.0)
    assert fake.rows == [250, 1000]
    assert searched.problem.sample == 250
    assert searched.outcome.ended == how
    assert fake.saved[-1] == searched.problem.rows  # what `report` shows later, too


@pytest.mark.processes
def test_the_reader_is_told_of_the_sample(tmp_path, monkeypatch, small):
    """Terminal, page, answer.json, and the page that is made again later."""
    from reweigh.bench.cli.comparing import compare

    table(tmp_path)
    monkeypatch.setattr(sample, "_CELLS", 200)  # one sample, of 250 rows and those of the rare class
    question = data_question(str(tmp_path / "t.csv"), target="t")
    given = Request(
        question=question, models=("logistic",), methods=("rgd",), budget=1500.0, runs_dir=tmp_path / "runs", jobs=1
    )
    monkeypatch.setattr(answering, "_GROWING_SHARE", 0.0)
    monkeypatch.setattr(searching, "MOST", searching.ROUND)  # a round as written, however long that takes
    monkeypatch.setattr(searching, "_TUNING_SHARE", 0.0)
    console = Console(width=400, record=True, file=io.StringIO())
    assert compare(given, console) == 0, console.export_text()
    (root,) = (tmp_path / "runs").iterdir()
    rows = sample.sampled(load(question), 250).rows
    words = f"Compared on a random sample of {rows} of the 4,000 rows"
    text = console.export_text()
    assert text.count(words) == 2  # before and after
    assert f"so far ({rows} of 4,000 rows)" in text
    assert words in (root / "report.html").read_text()
    saved = json.loads((root / "answer.json").read_text())
    assert saved["rows"] == {"compared on": rows, "of": 4000}
    assert saved["caveats"][0].startswith(words)
    assert not (root / "encoded").exists()
    assert json.loads((root / "model" / "model.json").read_text())["rows"]["trained on"] == rows
    assert any(words in note for note in folder.results_at(root).table.notes)
    tested = np.load(root / "splits-250" / "0.npy")[0]
    assert set(tested) == set(parts_of(sample.sampled(load(question), 250), 0).test)
