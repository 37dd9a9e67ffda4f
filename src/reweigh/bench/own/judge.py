"""The verdict over trainings that exist already: paired where seeds are shared, corrected, over several data sets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import polars as pl

from reweigh.bench.errors import UserError
from reweigh.bench.lab import plan, stats
from reweigh.bench.lab.ranks import Ranks, ranks
from reweigh.bench.lab.results import ColumnResults, Outcome, Results, RowResults
from reweigh.bench.lab.runs import Run, Spec
from reweigh.bench.lab.stats import Difference
from reweigh.bench.lab.table import Column, Table
from reweigh.bench.own.ask import less_is_better
from reweigh.bench.own.result import Comparison
from reweigh.bench.own.scores import ONLY, TrainingScore, read_scores
from reweigh.bench.registry import near
from reweigh.bench.report.numbers import Unit, unit

NAME = "judge"

#: Scores of one method on one data set by seed; trainings without seeds are numbered.
Scores = dict[str, float]


def judge(
    scores: Path | str | pl.DataFrame,
    *,
    baseline: str = plan.BASELINE,
    metric: str,
    method: str = "method",
    seed: str = "seed",
    data: str = "",
    smallest: bool | None = None,
    out: Path | str = ".",
) -> Comparison:
    """Judge scores of trainings that exist already against a baseline.

    Parameters
    ----------
    scores
        A CSV, TSV or Parquet file, or a polars frame, with one row per training; exports of Weights & Biases and MLflow
        work as they are.
    baseline
        The method that all others are compared with.
    metric
        The score to judge by.
    method, seed, data
        The columns with the method, the seed and the data set.
    smallest
        Whether less is better; inferred from the score's name if not given.
    out
        The folder for the page.

    Returns
    -------
    Comparison
        Every method against the baseline on every data set. All of these comparisons are corrected together (Holm).
    """
    read = read_scores(
        Path(scores) if isinstance(scores, str) else scores, metric=metric, method=method, seed=seed, data=data
    )
    methods = list(dict.fromkeys(score.method for score in read))
    if baseline not in methods:
        raise UserError(f"no training has the baseline {baseline!r} as its method. {near(baseline, methods)}")
    if len(methods) < 2:
        raise UserError(f"there is only one method, {baseline!r}: a verdict needs two.")
    less = less_is_better(metric) if smallest is None else smallest
    by_data = _by_data(read)
    measured = unit(metric, (score.value for score in read))
    differences, notes = _differences(by_data, baseline)
    corrected = stats.corrected({f"{i}": d for i, d in enumerate(differences.values())})
    final = dict(zip(differences, corrected.values(), strict=True))
    overall = _ranks(by_data, methods, smallest=less)
    others = [name for name in methods if name != baseline]
    table = Table(
        title=f"{metric} of {len(read)} trainings",
        question=f"Which method is better than {baseline}?",
        columns=tuple(Column(name=name, settings={}) for name in by_data),
        methods=tuple(_label(name, baseline) for name in (baseline, *others)),
        metric=metric,
        metric_name=metric,
        select="",
        primary="",  # nothing was declared before these trainings were made
        smallest=less,
        controls=False,
        names={plan.BASELINE: baseline},
        notes=("Trainings were made elsewhere; epochs and settings are as they were chosen there.",),
    )
    headline, *details = _words(final, by_data, baseline, metric, measured, overall, smallest=less)
    results = Results(
        recipe=NAME,
        table=table,
        columns=[_column(name, rows, final, baseline) for name, rows in by_data.items()],
        unfinished=(),
        headline=headline,
        details=(*details, *notes),
        provenance={"runs": len(read), "tuning_runs": 0, "compute_hours": 0.0, "recorded": False, "environments": [],
                    "finished": None, "settings": {}},
    )  # fmt: skip
    return Comparison(results=results, root=Path(out))


def _by_data(scores: Sequence[TrainingScore]) -> dict[str, dict[str, Scores]]:
    grouped: dict[str, dict[str, Scores]] = {}
    for score in scores:
        row = grouped.setdefault(score.data, {}).setdefault(score.method, {})
        row[f"#{len(row)}" if score.seed is None else score.seed] = score.value
    return grouped


def _differences(
    by_data: Mapping[str, Mapping[str, Scores]], baseline: str
) -> tuple[dict[tuple[str, str], Difference], list[str]]:
    """Every method against the baseline on every data set, and what there is to know about how they were paired."""
    differences: dict[tuple[str, str], Difference] = {}
    notes: list[str] = []
    for data, rows in by_data.items():
        where = "" if data == ONLY else f" on {data}"
        if baseline not in rows:
            notes.append(f"There is no training of {baseline}{where}: nothing is compared there.")
            continue
        plain = rows[baseline]
        for name, row in rows.items():
            if name == baseline:
                continue
            shared = [seed for seed in row if seed in plain and not seed.startswith("#")]
            if len(shared) >= 2:
                differences[data, name] = stats.paired([row[s] for s in shared], [plain[s] for s in shared])
                alone = (len(row) - len(shared), len(plain) - len(shared))
                if any(alone):
                    notes.append(
                        f"{name}{where}: {len(shared)} seeds are shared with {baseline} and compared; {alone[0]} of "
                        f"its own and {alone[1]} of {baseline} have no partner."
                    )
            elif min(len(row), len(plain)) >= 2:
                differences[data, name] = stats.unpaired(list(row.values()), list(plain.values()))
                notes.append(
                    f"{name}{where}: no seeds are shared with {baseline}, so the two are compared unpaired (Welch), "
                    "which sees less. Use the same seeds for both next time."
                )
            else:
                notes.append(f"{name}{where}: one training shows nothing; run more seeds.")
    return differences, notes


def _ranks(by_data: Mapping[str, Mapping[str, Scores]], methods: Sequence[str], *, smallest: bool) -> Ranks | None:
    """Average ranks over the data sets that have every method."""
    whole = [rows for rows in by_data.values() if set(methods) <= set(rows)]
    if len(whole) < 2:
        return None
    means = {name: [stats.mean_and_sd(list(rows[name].values()))[0] for rows in whole] for name in methods}
    return ranks(means, smallest=smallest)


def _words(
    differences: Mapping[tuple[str, str], Difference],
    by_data: Mapping[str, Mapping[str, Scores]],
    baseline: str,
    metric: str,
    measured: Unit,
    overall: Ranks | None,
    *,
    smallest: bool,
) -> list[str]:
    """The headline, and a sentence for every comparison."""
    if not differences:
        return ["No verdict: no two methods have enough trainings."]
    sentences = [
        ("" if data == ONLY else f"{data}: ")
        + difference.verdict(
            name,
            baseline,
            metric,
            scale=measured.scale,
            unit=measured.points,
            digits=measured.digits,
            smallest=smallest,
        )
        for (data, name), difference in differences.items()
    ]
    better = {key: d for key, d in differences.items() if d.conclusion(smallest=smallest) == "better"}
    count = f"after correction for {len(differences)} comparison{'s' * (len(differences) > 1)}"
    if not better:
        headline = f"No method is shown to be better than {baseline} in {metric}, {count}."
    elif len(by_data) == 1:
        (_, name), best = max(better.items(), key=lambda item: abs(item[1].mean))
        amount = f"{measured.signed(best.mean)}{measured.points} {measured.interval(best)}"
        headline = f"Use {name}: it is better than {baseline} in {metric}, {amount}, {count}."
    else:
        wins = {name: sum(key[1] == name for key in better) for _, name in better}
        listed = ", ".join(f"{name} on {n} of {len(by_data)}" for name, n in sorted(wins.items(), key=lambda i: -i[1]))
        headline = f"Better than {baseline} in {metric}, {count}: {listed} data sets."
    if overall is not None:
        order = sorted(overall.average.items(), key=lambda item: item[1])
        listed = ", ".join(f"{name} {rank:.2f}" for name, rank in order)
        sentences.append(
            f"Average ranks over {overall.sets} data sets: {listed}. Two methods differ where their ranks are more "
            f"than {overall.critical:.2f} apart (Nemenyi, 5 %)."
        )
    return [headline, *sentences]


def _column(
    name: str, rows: Mapping[str, Scores], differences: Mapping[tuple[str, str], Difference], baseline: str
) -> ColumnResults:
    return ColumnResults(
        column=Column(name=name, settings={}),
        rows={_label(m, baseline): _row(name, _label(m, baseline), scores) for m, scores in rows.items()},
        differences={_label(m, baseline): d for (data, m), d in differences.items() if data == name},
    )


def _row(data: str, label: str, scores: Scores) -> RowResults:
    outcomes: dict[int, Outcome] = {}
    for i, value in enumerate(scores.values()):
        spec = Spec(recipe=NAME, column=data, label=label, settings={}, method=label, seed=i)
        outcomes[i] = Outcome(run=Run(spec, Path()), records=[{}], chosen=0, value=value, last=value)
    return RowResults(label=label, outcomes=outcomes)


def _label(name: str, baseline: str) -> str:
    """The table's label of a method: the baseline has a fixed one, and nothing else may have it."""
    if name == baseline:
        return plan.BASELINE
    return f"{name} " if name == plan.BASELINE else name
