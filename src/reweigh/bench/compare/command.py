"""What `reweigh compare` and `reweigh predict` do, from arguments to files and words."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import Progress
from rich.table import Table as Shown

from reweigh.bench import plan, results
from reweigh.bench.compare import boosters, hardest, metrics, page, recipe
from reweigh.bench.compare.answer import Answer, ModelAnswer, Score, answer
from reweigh.bench.compare.model import Model, train_and_save
from reweigh.bench.compare.problem import EMBEDDED, Problem, Question, deal, hash_of, load, parts_of
from reweigh.bench.compare.search import Found, search
from reweigh.bench.display import RunDisplay
from reweigh.bench.recipes._table import Table
from reweigh.bench.results import Results
from reweigh.bench.runs import Run, write_atomically
from reweigh.bench.tables import TableError, duplicates_across
from reweigh.method import method

_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0}


@dataclass(frozen=True, kw_only=True)
class Asked:
    """The arguments of `reweigh compare`."""

    question: Question
    models: tuple[str, ...] = ()
    methods: tuple[str, ...] = ()
    metric: str = ""
    budget: float = 120.0
    jobs: int = 2
    runs_dir: Path = Path("runs")


def seconds(text: str) -> float:
    """A budget such as `90s`, `2m` or `1h` in seconds.

    Examples
    --------
    >>> seconds("2m"), seconds("1.5h")
    (120.0, 5400.0)
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smh])", text.strip().lower())
    if match is None or not float(match[1]):
        raise ValueError(f"`--budget` must be a time such as 90s, 2m or 1h, got {text!r}.")
    return float(match[1]) * _UNITS[match[2]]


def compare(asked: Asked, console: Console) -> int:
    """Answer the question, write the report, the hardest rows and the model; returns the exit code."""
    problem = load(asked.question)
    question = _plan(asked, problem)
    table = question.table
    root = asked.runs_dir / f"{_slug(asked.question.source)}-{_identity(asked, table.metric)}"
    root.mkdir(parents=True, exist_ok=True)
    _describe(console, problem, table)
    facts = {"classes": list(problem.classes), "groups": list(problem.groups), "kind": problem.kind}

    def tell(found: Found) -> None:
        said = _answer(_note(root, table, found, facts), facts)
        if said is not None:
            console.print(f"[bold]so far:[/bold] {escape(said.details[0])}", highlight=False)

    with RunDisplay(console, table.metric) as display:
        found = search(question, root, jobs=asked.jobs, budget=asked.budget, display=display, tell=tell)
    gathered = _note(root, table, found, facts)
    return _finish(console, problem, root, table, found, gathered, _answer(gathered, facts))


def _plan(asked: Asked, problem: Problem) -> plan.Question:
    """What to run: every model with the methods it can have. What does not fit is told here, before anything runs."""
    rows, primary = _rows(asked.methods)
    models = _models(asked.models, problem)
    metric = recipe.metric_named(asked.metric, problem)
    task, _ = deal(problem, parts_of(problem, 0))
    cells = tuple(recipe.cell(model, problem, rows, asked.methods) for model in models)
    for cell in cells:
        _check_rows(cell.name, cell.methods or (), task, problem)
    table = recipe.table(problem, cells, rows, primary, metric)
    table = dataclasses.replace(table, notes=(*table.notes, *_duplicates(problem)))
    settings = recipe.settings(asked.question, problem, task.x_train[0].numel())
    return plan.Question(recipe=recipe.NAME, table=table, settings=settings)


def predict(folder: Path, rows: Path, out: Path, console: Console) -> int:
    """Write predictions for a file of rows."""
    model = Model.load(folder)
    frame = model.predict(rows)
    temporary = out.with_name(f".{out.name}.tmp")
    try:
        if out.suffix == ".parquet":
            frame.write_parquet(temporary)
        elif out.suffix in (".csv", ".tsv", ""):
            frame.write_csv(temporary, separator="\t" if out.suffix == ".tsv" else ",")
        else:
            raise ValueError(f"`-o` must end in .csv, .tsv or .parquet, got {out.name!r}.")
        temporary.replace(out)
    finally:
        temporary.unlink(missing_ok=True)
    console.print(f"{frame.height} rows predicted: {escape(str(out))}", highlight=False)
    return 0


def results_at(root: Path, runs: Sequence[Run]) -> Results:
    """The results of a comparison in a folder, as they were last answered."""
    noted = json.loads((root / "compare.json").read_text())
    chosen, tuning = set(noted["runs"]), set(noted["tuning"])
    kept = [run for run in runs if run.spec.id in chosen | tuning]
    gathered = results.of_runs(recipe.NAME, recipe.table_at(root), kept)
    return page.with_answer(gathered, _answer(gathered, noted["facts"]))


def _rows(asked: Sequence[str]) -> tuple[tuple[str, ...], str]:
    """The rows of the table, and the one declared beforehand: the first that was asked for, or RGD."""
    if not asked:
        return recipe.METHODS, "rgd"
    for text in asked:
        method(text)  # a misspelt one is told before anything is read or run
    others = [text for text in asked if text != plan.BASELINE]
    if not others:
        raise ValueError("`--method` must name a method beside mean, which is what all are compared with.")
    return tuple(dict.fromkeys((plan.BASELINE, *others))), others[0]


def _models(asked: Sequence[str], problem: Problem) -> tuple[str, ...]:
    fitting = ("cnn", "mlp", "logistic") if problem.images is not None else ("mlp", "logistic", *boosters.LIBRARIES)
    for model in asked:
        if model not in fitting:
            kind = "images" if problem.images is not None else "a table"
            raise ValueError(f"`--model` for {kind} must be one of {', '.join(fitting)}, got {model!r}.")
        if model in boosters.LIBRARIES and not boosters.installed(model):
            raise ImportError(f"`--model {model}` needs {model}: pip install 'reweigh[boosting]'.")
    if asked:
        return tuple(dict.fromkeys(asked))
    if problem.images is not None:
        return ("cnn",)
    if problem.imbalance != 1.0 or not boosters.installed("lightgbm"):
        return ("mlp",)
    return ("mlp", "lightgbm")


def _check_rows(model: str, rows: Sequence[str], task: Any, problem: Problem) -> None:
    """Build every method once, so that what does not fit is told now and not in the middle."""
    for text in rows:
        row = method(text)
        if model in boosters.LIBRARIES:
            if not boosters.takes(row):
                raise ValueError(
                    f"{model} takes objectives whose weights depend on a row's own loss alone (rgd, redescending, dft "
                    f"…), got {text!r}. Leave it out, or use `--model mlp`."
                )
        elif problem.regression and row.loss is not None:
            raise ValueError(f"{text!r} is for classes, and the target is a number. Leave it out.")
        else:
            row.build(task.context(steps=1))


def _duplicates(problem: Problem) -> list[str]:
    """Rows of the first split that are in training and in test alike."""
    if problem.frame is None or problem.schema is None or problem.imbalance != 1.0:
        return []
    parts = parts_of(problem, 0)
    used = problem.frame.select([column.name for column in problem.schema.features] + [problem.schema.target])
    train, test = used[parts.train], used[parts.test]
    count = duplicates_across(train, test)
    if not count:
        return list(parts.notes)
    return [
        *parts.notes,
        f"{count} of {test.height} test rows of the first split are also among the training rows, cell by cell: scores "
        "may be better than on new data. `--group COL` keeps rows that belong together on one side.",
    ]


def _describe(console: Console, problem: Problem, table: Table) -> None:
    """Say what was read and what will be done, before doing it."""
    what = f"{problem.rows} rows, {problem.kind}"
    if problem.classes:
        pairs = sorted(zip(problem.class_counts, problem.classes, strict=True), reverse=True)
        few = [f"{name}: {count}" for count, name in pairs]
        few = few if len(few) <= 6 else [*few[:3], "…", *few[-2:]]
        what += f" of {len(problem.classes)} classes ({', '.join(few)})"
    console.print(f"[bold]{escape(problem.name)}[/bold]: {escape(what)}.", highlight=False)
    for note in table.notes:
        console.print(f"  · {escape(note)}", highlight=False)
    console.print(
        f"Comparing {len(table.methods)} methods with {', '.join(cell.name for cell in table.cells)} by "
        f"{table.metric_name}; declared beforehand: {escape(table.primary)} against mean (plain training).",
        highlight=False,
    )


def _note(root: Path, table: Table, found: Found, facts: dict[str, Any]) -> Results:
    """Write down what an answer would rest on, and look at it."""
    noted = {
        "table": dataclasses.asdict(table),
        "facts": facts,
        "runs": [run.spec.id for run in found.runs],
        "tuning": [run.spec.id for run in found.tuning],
        "tuned": found.tuned,
        "trials": found.trials,
        "ended": found.ended,
        "failed": {f"{cell}: {label}": reason for (cell, label), reason in found.failed.items()},
    }
    if found.runs or not (root / "compare.json").exists():  # an earlier answer is worth more than none
        write_atomically(root / "compare.json", json.dumps(noted, indent=1))
    return results.of_runs(recipe.NAME, table, [*found.runs, *found.tuning])


def _answer(gathered: Results, facts: dict[str, Any]) -> Answer | None:
    known = metrics.REGRESSION if facts["kind"] == "regression" else metrics.CLASSIFICATION
    return answer(gathered, known, facts["classes"], facts["groups"])


def _finish(
    console: Console,
    problem: Problem,
    root: Path,
    table: Table,
    found: Found,
    gathered: Results,
    said: Answer | None,
) -> int:
    for (cell, label), reason in found.failed.items():
        console.print(f"[red]{escape(cell)} · {escape(label)} failed:[/red] {escape(reason)}", highlight=False)
    if said is None:
        console.print(
            "Nothing can be said yet: no split was finished by all methods. The same command goes on from here; "
            "give it more time with --budget.",
            style="yellow",
        )
        return 130 if found.ended == "interrupted" else 1
    caveats = _caveats(found, said, table)
    rows = [run for run in found.runs if (run.spec.cell, run.spec.label) == (said.model, said.row)]
    weighing = said.row if said.row != plan.BASELINE else table.primary
    weighed_by = next((run.spec.method for run in found.runs if run.spec.label == weighing), weighing)
    ranking = hardest.write(problem, rows, root / "hardest.csv", weighed_by=weighed_by)
    shown = page.with_answer(gathered, said, caveats=caveats, ranking=ranking, problem=problem)
    report = page.write(shown, root / "report.html")
    model = None
    if found.ended != "interrupted":
        with Progress(console=console, transient=True) as progress:
            bar = progress.add_task("training the model to keep", total=1.0)
            model = train_and_save(
                problem,
                rows[0].spec,
                table,
                root / "model",
                expected=_expected(said),
                progress=lambda share: progress.update(bar, completed=share),
            )
    write_atomically(root / "answer.json", json.dumps(page.as_data(said, caveats), indent=1, allow_nan=False))
    _print(console, said, caveats, table.metric_name)
    flagged = {kind: len(ranking.of_kind(kind)) for kind in ("hard", "suspected label error")}
    if caution := hardest.caution(ranking):
        console.print(caution, highlight=False)
    for what, path in (
        ("report", report),
        (
            f"hardest rows ({flagged['hard']} hard, {flagged['suspected label error']} suspected label errors)",
            root / "hardest.csv",
        ),
        ("model", model),
    ):
        if path is not None:
            console.print(f"{what}: {escape(str(path))}", highlight=False, soft_wrap=True)
    return 130 if found.ended == "interrupted" else 0


def _expected(said: Answer) -> dict[str, float]:
    best = next(m for m in said.models if m.model == said.model)
    return {score.metric.name: score.mean for score in best.scores[said.row]}


def _caveats(found: Found, said: Answer, table: Table) -> list[str]:
    lines: list[str] = []
    judged = {one.model for one in said.models}
    lines += [f"{cell.name}: no split has finished yet." for cell in table.cells if cell.name not in judged]
    if found.ended == "interrupted":
        lines.append("Stopped by you: this rests on what had finished. The same command goes on from here.")
    if not found.tuned:
        lines.append(
            "Nothing was tuned: every method ran as written, for want of time. A larger --budget tunes all alike."
        )
    if any(m.splits < 5 for m in said.models):
        lines.append("Few splits: the same command with a larger --budget goes on from here and narrows the interval.")
    return lines


def _print(console: Console, said: Answer, caveats: Sequence[str], metric: str) -> None:
    console.print()
    console.print(f"[bold]{escape(said.headline)}[/bold]", highlight=False)
    for line in (*said.details, *caveats):
        console.print(escape(line), highlight=False)
    console.print()
    for one in said.models:
        console.print(_scores_table(one, console.width, metric))
    console.print(
        "Means over splits, at the epoch that validation chose. ▲ better, ▼ worse than mean, corrected.", style="dim"
    )


def _scores_table(one: ModelAnswer, width: int, judged_by: str) -> Shown:
    """The scores of every row, as many metrics as there is room for: first the one that the answer rests on."""
    shown = Shown(title=escape(one.model), title_justify="left", box=None, padding=(0, 1), header_style="bold")
    shown.add_column("method", max_width=26, overflow="fold")
    kept = max(1, (width - 28) // 12)

    def ordered(scores: Sequence[Score]) -> list[Score]:
        return sorted(scores, key=lambda score: score.metric.name != judged_by)[:kept]

    for metric in (score.metric for score in ordered(one.scores[plan.BASELINE])):
        shown.add_column(metric.name + (" ↓" if metric.smallest else ""), justify="right", max_width=11)
    for label, scores in one.scores.items():
        marks = {"better": "▲", "worse": "▼"}
        texts = [
            f"{s.unit.value(s.mean)} "
            + (marks.get(s.difference.conclusion(smallest=s.metric.smallest), " ") if s.difference else " ")
            for s in ordered(scores)
        ]
        shown.add_row(escape(label), *texts, style="bold" if label == one.chosen else "")
    return shown


def _slug(source: str) -> str:
    """A folder's name from that of the data."""
    return re.sub(r"[^a-z0-9]+", "-", Path(source).name.partition(".")[0].lower()).strip("-")[:40] or "data"


def _identity(asked: Asked, metric: str) -> str:
    """Another question, metric, model or method is another answer, and must not overwrite this one."""
    text = json.dumps([dataclasses.asdict(asked.question), metric, asked.models, asked.methods], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:6]


def question_of(source: str | None, **given: Any) -> Question:
    """The question about a source; its hash makes a changed file another question."""
    source = source or EMBEDDED
    path = Path(source)
    if path.exists():
        source = str(path.resolve())
    test = given.get("test") or ""
    if test:
        if not Path(test).is_file():
            raise TableError(f"there is no file {test}, named by `--test`.")
        given["test"] = str(Path(test).resolve())
    return Question(source=source, sha256=hash_of(source) + (hash_of(given["test"]) if test else ""), **given)
