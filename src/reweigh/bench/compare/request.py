"""From the options of `reweigh compare` to the question that is run, and the folder of its runs."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reweigh.bench import tables
from reweigh.bench.compare import features, recipe, sample
from reweigh.bench.compare.dealing import deal
from reweigh.bench.compare.problem import EMBEDDED, DataQuestion, Problem, hash_of
from reweigh.bench.compare.splits import parts_of
from reweigh.bench.errors import MissingPackageError, UserError, of_user
from reweigh.bench.lab import plan
from reweigh.bench.lab.table import Column
from reweigh.bench.tables import TableError, duplicates_across, quoted
from reweigh.bench.train.precision import Precision
from reweigh.bench.train.programs import boosting as boosters
from reweigh.method import method


@dataclass(frozen=True, kw_only=True)
class Request:
    """The options of `reweigh compare`; `budget` is in seconds."""

    question: DataQuestion
    models: tuple[str, ...] = ()
    methods: tuple[str, ...] = ()
    metric: str = ""
    budget: float = 120.0
    jobs: int = 2
    runs_dir: Path = Path("runs")
    #: Where to train, by name: no part of the question. The precision is, since it changes the numbers.
    device: str = "cpu"
    precision: Precision = "float32"

    def folder(self, metric: str) -> Path:
        """Where the runs are kept: another question, metric, model or method must not overwrite this answer."""
        name = re.sub(r"[^a-z0-9]+", "-", Path(self.question.source).name.partition(".")[0].lower())
        identity = [dataclasses.asdict(self.question), metric, self.models, self.methods]
        if self.precision != "float32":  # as folders were named before there was a choice
            identity.append(self.precision)
        text = json.dumps(identity, sort_keys=True)
        return self.runs_dir / f"{name.strip('-')[:40] or 'data'}-{hashlib.sha256(text.encode()).hexdigest()[:6]}"


def data_question(source: str | None, **given: Any) -> DataQuestion:
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
    return DataQuestion(source=source, sha256=hash_of(source) + (hash_of(given["test"]) if test else ""), **given)


def question(
    request: Request, problem: Problem, progress: Callable[[float], None] = lambda share: None
) -> plan.Question:
    """What to run: every model with the methods that fit it. What does not fit is refused before anything runs.

    What frozen networks make of photos and texts is computed here, once for all processes, and reports its `progress`.
    """
    rows, primary = _rows(request.methods, problem)
    models = _models(request.models, problem)
    metric = recipe.metric_named(request.metric, problem)
    embedded, about_texts = _embedding(problem)
    _look_once(problem, embedded, models, progress)
    # Heads on the features of photos have a width of their own: `recipe.column` knows it.
    task, _ = deal(problem, parts_of(problem, 0), features=embedded)
    columns = tuple(recipe.column(model, problem, rows) for model in models)
    notes = [note for text in request.methods for note in _unfit(text, columns, problem)]
    for column in columns:
        for text in column.methods or ():  # built once, so that what does not fit is refused now, not in the middle
            with of_user(f"`--method {text}`"):
                method(text).build(task.context(steps=1))
    table = recipe.table(problem, columns, rows, primary, metric)
    about = (
        *_about_sample(problem),
        *about_texts,
        *_about_photos(models, problem),
        *notes,
        *_groups(rows, problem),
        *_duplicates(problem),
    )
    table = dataclasses.replace(table, notes=(*table.notes, *about))
    settings = recipe.settings(request.question, problem, task.x_train[0].numel(), request.precision, embedded)
    return plan.Question(recipe=recipe.NAME, table=table, settings=settings)


def _rows(methods: Sequence[str], problem: Problem) -> tuple[tuple[str, ...], str]:
    """The rows of the table, and the one declared beforehand: the first method given, or RGD."""
    if not methods:
        return recipe.methods(problem), "rgd"
    others = [text for text in methods if text != plan.BASELINE]
    if not others:
        raise UserError("`--method` must name a method other than mean, which all are compared with.")
    return tuple(dict.fromkeys((plan.BASELINE, *others))), others[0]


def _models(given: Sequence[str], problem: Problem) -> tuple[str, ...]:
    photos = ("pretrained", "finetuned", "cnn", "mlp", "logistic")
    fitting = photos if problem.images is not None else ("mlp", "logistic", *boosters.LIBRARIES)
    for model in given:
        if model not in fitting:
            kind = "images" if problem.images is not None else "a table"
            raise UserError(f"`--model` for {kind} must be one of {', '.join(fitting)}, got {model!r}.")
        if model in boosters.LIBRARIES and not boosters.installed(model):
            raise MissingPackageError(f"`--model {model}` needs {model}: pip install 'reweigh[boosting]'.")
        if model in ("pretrained", "finetuned") and not features.available(features.PHOTOS):
            raise MissingPackageError(f"`--model {model}` needs weights: `reweigh data get {features.PHOTOS}`.")
    if given:
        return tuple(dict.fromkeys(given))
    if problem.images is not None:
        return ("pretrained",) if features.available(features.PHOTOS) else ("cnn",)
    schema = problem.schema
    only_texts = schema is not None and len(features.texts_of(schema)) == len(schema.features)
    booster = next((name for name in boosters.LIBRARIES if boosters.installed(name)), None)
    if problem.imbalance != 1.0 or only_texts or booster is None:
        return ("logistic", "mlp")
    return ("logistic", booster, "mlp")


def _look_once(problem: Problem, embedded: str, models: Sequence[str], progress: Callable[[float], None]) -> None:
    """Put the features of photos and texts into the cache."""
    if problem.images is not None and "pretrained" in models:
        features.of_photos(problem.images.paths, problem.fingerprint, progress)
    if problem.images is not None and "finetuned" in models:
        features.of_photos(problem.images.paths, problem.fingerprint, progress, encoder=features.MAPS)
    if embedded:
        frame, schema = problem.table
        features.text_columns(frame, features.texts_of(schema), progress)


def _about_sample(problem: Problem) -> list[str]:
    """A note on the rows that are compared on, where they are not all."""
    if not problem.sampled_from:
        return []
    return [
        f"Compared on {sample.about(problem)}, in which every class keeps at least {sample.LEAST} rows if it has so "
        f"many. The sample grows {sample.GROWTH}-fold while the budget allows another round."
    ]


def _about_photos(models: Sequence[str], problem: Problem) -> list[str]:
    if problem.images is None:
        return []
    if "pretrained" in models:
        return [
            f"`pretrained` is a linear layer on what a frozen {features.PHOTOS} (ImageNet) makes of each photo; "
            "`--model finetuned` trains its last convolution too, and `--model cnn` a small network from scratch."
        ]
    if models == ("cnn",) and not features.available(features.PHOTOS):
        return [
            f"A small network is trained from scratch. `reweigh data get {features.PHOTOS}` fetches one (17 MB) that "
            "was trained on ImageNet: with it, photos are compared in seconds, and usually better."
        ]
    return []


def _embedding(problem: Problem) -> tuple[str, list[str]]:
    """The network that columns of text go through, if there are any and it is here, and a note on that."""
    names = () if problem.schema is None else features.texts_of(problem.schema)
    if not names:
        return "", []
    columns, here = tables.listed(names), features.available(features.TEXTS)
    if here and problem.rows <= features.MOST_TEXTS:
        return features.TEXTS, [f"The texts in {columns} are embedded by {features.TEXTS}, which stays as it is."]
    why = (
        f"more than {features.MOST_TEXTS} would take too long to embed"
        if here
        else f"`reweigh data get {features.TEXTS}` and pip install 'reweigh[language]' embed them, usually better"
    )
    return "", [f"The texts in {columns} become weighted words, reduced to fewer columns: {why}."]


def _unfit(text: str, columns: Sequence[Column], problem: Problem) -> list[str]:
    """A note on the models that cannot have a method; it is refused where none can."""
    without = [column.name for column in columns if text not in (column.methods or ())]
    if not without:
        return []
    if problem.regression:
        raise UserError(f"{text!r} is for classes, and the target is a number. Leave it out.")
    if len(without) == len(columns):
        raise UserError(
            f"{' and '.join(without)} cannot be trained with {text!r}: boosters take objectives whose weights depend "
            "on a row's own loss alone (rgd, redescending, dft …), the losses focal, class_weights, class_balanced and "
            "logit_adjusted, and corrections of outputs. Leave it out, or add `--model mlp`."
        )
    return [f"{text} runs with the models that can have it: not with {' and '.join(without)}."]


def _groups(rows: Sequence[str], problem: Problem) -> list[str]:
    """A note on the rows that use the groups of training rows."""
    grouped = [text for text in rows if recipe.uses_groups(text)]
    if not grouped or problem.schema is None:
        return []
    verb = "uses" if len(grouped) == 1 else "use"
    return [
        f"{' and '.join(grouped)} {verb} the column {quoted(problem.schema.group)} of training rows to weigh or draw "
        "them; no other row does, and no model predicts from it."
    ]


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
