"""From a file, a folder or a name to parts that can be trained on, one split per seed."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from torch import Tensor

from reweigh.bench import catalogue, draws, tables
from reweigh.bench.catalogue.images import Dataset, image_folder
from reweigh.bench.catalogue.tables import NamedTable
from reweigh.bench.compare import features as pretrained
from reweigh.bench.compare import text_folder
from reweigh.bench.compare.dealt import DealtSplit, Room, SplitFacts, in_memory
from reweigh.bench.compare.features import Frozen
from reweigh.bench.draws.seeds import Seeds
from reweigh.bench.errors import UserError
from reweigh.bench.files import sha256_of
from reweigh.bench.tables import Schema, Split, TableEncoder, TableError, values
from reweigh.bench.train import frozen
from reweigh.bench.train.pixels import as_tensor, normalize, pixel_statistics
from reweigh.bench.train.scores import ScoringRules
from reweigh.bench.train.task import Task

Array = np.ndarray[Any, Any]

#: What is compared on when nothing is named: scikit-learn's digits, thinned to a long tail.
EMBEDDED = "digits"
_EMBEDDED_IMBALANCE = 20.0
#: Shares of the rows that are tested on, and that choose hyper-parameters and corrections; and the folds of a round.
_TEST, _VAL, FOLDS = 0.2, 0.2, 5
_SAME_TEST = (
    "Every split tests on the same rows: intervals are about other training rows and seeds, given these test rows. "
    "Other test rows would add to them."
)
#: A class with fewer rows than this to test on cannot be judged.
_LEAST_TESTED = 10
#: Share of the training rows that each split leaves out, where time cuts all of them at the same rows.
_LEFT_OUT = 0.1
#: Images that become numbers at a time.
_PIECE = 256
#: Options about a table's columns and rows.
_FOR_TABLES = ("target", "task", "categorical", "drop", "group", "time", "test")


@dataclass(frozen=True, kw_only=True)
class DataQuestion:
    """Which data a comparison is about, as plain values: they are part of every run's identity.

    Parameters
    ----------
    source
        A file, a folder of class folders of images or texts, a named table, or `digits`.
    sha256
        Of the file, so that a changed file is another question.
    target, task, categorical, drop, group, time, test
        As on the command line; empty for what was not given.
    image_size
        Height and width that the images of a folder are scaled to.
    cost
        What a false positive and a false negative cost, such as `fp=1,fn=20`.
    positive
        The class of two that precision, recall, F1 and cost are about; the rarer one unless given.
    """

    source: str = EMBEDDED
    sha256: str = ""
    target: str = ""
    task: str = ""
    categorical: tuple[str, ...] = ()
    drop: tuple[str, ...] = ()
    group: str = ""
    time: str = ""
    test: str = ""
    image_size: int = 32
    cost: str = ""
    positive: str = ""


@dataclass(frozen=True, kw_only=True, eq=False)
class Images:
    """A folder of images in memory, small: uint8 NHWC, the class of each, and the file it came from."""

    x: Array
    y: Array
    files: tuple[str, ...]
    folder: Path = Path()

    @property
    def paths(self) -> list[Path]:
        """Where the files are."""
        return [self.folder / name for name in self.files]


@dataclass(frozen=True, kw_only=True, eq=False)
class Problem:
    """A question with its data read: what it is about, and where its rows are.

    `rows` counts rows with a target, `test_share` is the share of them that a split tests on, and `test_rows` are
    the rows that every split tests on, where they are given. `imbalance` thins the classes of the training rows, and
    `positions` are the places in their file of the rows that were kept of it. `files` are those of texts, each of which
    is a row, and `fingerprint` that of a folder's content. Where the rows are a sample,
    `sample` is the size that was asked for, and `sampled_from` how many rows there are.
    """

    name: str
    kind: str
    classes: tuple[str, ...]
    class_counts: tuple[int, ...]
    rows: int
    notes: tuple[str, ...]
    test_share: float
    groups: tuple[str, ...] = ()
    imbalance: float = 1.0
    judging: ScoringRules = field(default_factory=ScoringRules)
    test_rows: Array | None = field(default=None, repr=False)
    positions: Array | None = field(default=None, repr=False)
    frame: pl.DataFrame | None = field(default=None, repr=False)
    schema: Schema | None = field(default=None, repr=False)
    images: Images | None = field(default=None, repr=False)
    files: tuple[str, ...] = field(default=(), repr=False)
    fingerprint: str = ""
    sample: int = 0
    sampled_from: int = 0
    #: Columns of numbers that one split has read for all others.
    numbers: dict[str, Array] = field(default_factory=dict[str, Array], init=False, repr=False)

    @property
    def regression(self) -> bool:
        """Whether a number is predicted and not a class."""
        return self.kind == "regression"

    @property
    def table(self) -> tuple[pl.DataFrame, Schema]:
        """The rows of a table, and what is in them."""
        assert self.frame is not None
        assert self.schema is not None
        return self.frame, self.schema

    @property
    def train_share(self) -> float:
        """The share of rows that a split trains on: neither tested on nor held out for validation."""
        return (1 - self.test_share) * (1 - _VAL / (1 - _TEST))

    @property
    def test_over_train(self) -> float:
        """The rows that a split tests on over those it trains on, by which overlapping splits are corrected.

        Where the test rows are fixed, the rows that change sides are those held out for validation.
        """
        return _TEST / (1 - _TEST - _VAL) if self.test_rows is None else _VAL / (1 - _TEST - _VAL)

    @property
    def in_time(self) -> bool:
        """Whether rows are cut by a time column, at the same places for every seed."""
        return self.schema is not None and self.schema.time is not None

    def row_name(self, row: int) -> str | int:
        """What a person finds a row by: the file of an image, or the number in the file it came from, from 1.

        Rows of a file of its own to test on are numbered in that file; none of them is ever trained on or ranked.
        """
        if self.images is not None:
            return self.images.files[row]
        if self.files:
            return self.files[row if self.positions is None else self.positions[row]]
        return int(row if self.positions is None else self.positions[row]) + 1

    def picture(self, row: int) -> Array | None:
        """The image that a row is, uint8; None for a row that is not one."""
        if self.images is not None:
            return self.images.x[row]
        frame, schema = self.table
        names = [column.name for column in schema.features]
        side = math.isqrt(len(names))
        if names != [f"pixel_{i}_{j}" for i in range(side) for j in range(side)]:
            return None
        return np.array(frame.select(names).row(row), dtype=np.uint8).reshape(side, side)

    @property
    def labels(self) -> Array | None:
        """The class of every row as an index; None for a regression."""
        if self.regression:
            return None
        if self.images is not None:
            return self.images.y
        frame, schema = self.table
        return tables.ClassTarget(name=schema.target, classes=schema.classes).transform(frame.get_column(schema.target))


@dataclass(frozen=True, kw_only=True)
class Pixels:
    """How images become numbers: their size, and mean and deviation of the training images' channels."""

    size: int
    mean: tuple[float, ...]
    deviation: tuple[float, ...]

    def transform(self, x: Array) -> Tensor:
        """Images (uint8, NHWC) as a model takes them."""
        return normalize(as_tensor(np.ascontiguousarray(x)), self.mean, self.deviation)


def hash_of(source: str) -> str:
    """The hash of a file; of a folder, that of its files' names and contents; empty for a name."""
    path = Path(source)
    if path.is_file():
        return sha256_of(path)[:16]
    if path.is_dir():
        listing = "\n".join(f"{p.relative_to(path)} {sha256_of(p)}" for p in sorted(path.rglob("*")) if p.is_file())
        return hashlib.sha256(listing.encode("utf-8", "surrogateescape")).hexdigest()[:16]
    return ""


@functools.lru_cache(maxsize=1)
def load(question: DataQuestion) -> Problem:
    """Read the data of a question; a process reads it once."""
    return _judged(_read(question), question.cost, question.positive)


def _read(question: DataQuestion) -> Problem:
    path = Path(question.source)
    if path.is_dir():
        if not image_folder.images_below(path) and text_folder.files_below(path):
            return _text_folder(path, question)
        _refuse(
            question,
            _FOR_TABLES,
            f"the folder of images {path.name}, whose classes are the names of its folders",
            " Images to test on go into a folder test/ next to train/." if question.test else "",
        )
        return _image_folder(path, question)
    if not path.exists() and question.source == EMBEDDED:
        _refuse(
            question,
            (*_FOR_TABLES, "image_size"),
            "the embedded digits",
            " To compare on a table, name its file: `reweigh compare FILE --target COLUMN`.",
        )
        return _digits()
    _refuse(question, ("image_size",), "a table", "")
    if not path.exists() and question.source.partition(":")[0] in catalogue.names("tables"):
        named = catalogue.load(question.source, NamedTable, download=True)
        test_rows = None if named.test_rows is None else np.asarray(named.test_rows)
        return _table(question, named.frame, question.target or named.target, test_rows, named.notes)
    notes: list[str] = []
    frame = tables.read(path, target=question.target or None, notes=notes)
    if not question.target:
        raise TableError(f"`--target` must name the column to predict; {path.name} has {tables.listed(frame.columns)}.")
    return _table(question, frame, question.target, None, tuple(notes))


def costs_of(text: str) -> tuple[float, float] | None:
    """What a false positive and a false negative cost, from a text such as `fp=1,fn=20`.

    Examples
    --------
    >>> costs_of("fp=1, fn=20")
    (1.0, 20.0)
    """
    if not text:
        return None
    pairs = [part.partition("=") for part in text.replace(" ", "").lower().split(",")]
    try:
        given = {name: float(value) for name, _, value in pairs}
    except ValueError:
        given = {}
    if set(given) != {"fp", "fn"} or not all(0 < value < float("inf") for value in given.values()):
        raise UserError(
            f'`--cost` must give what a false positive and a false negative cost, such as "fp=1,fn=20", got {text!r}.'
        )
    return given["fp"], given["fn"]


def _judged(problem: Problem, cost: str, positive_class: str) -> Problem:
    """The problem with what its scores depend on, and notes about it."""
    costs = costs_of(cost)
    for name, value in (("cost", cost), ("positive", positive_class)):
        if value and len(problem.classes) != 2:
            raise UserError(f"`--{name}` is for two classes, and the target is {problem.kind}. Leave it out.")
    labels = problem.labels
    if labels is None:
        return problem
    notes: list[str] = []
    counts = np.bincount(
        labels if problem.test_rows is None else labels[problem.test_rows], minlength=len(problem.classes)
    )
    counted = counts >= _LEAST_TESTED
    if not counted.all():
        rare = tables.listed([problem.classes[k] for k in np.flatnonzero(~counted)])
        noun, verb = ("The class", "has") if int((~counted).sum()) == 1 else ("The classes", "have")
        few = f"{noun} {rare} {verb} fewer than {_LEAST_TESTED} rows to test on"
        if counted.sum() >= 2:
            notes.append(f"{few} and cannot be judged: left out of balanced accuracy and of the worst class.")
        else:
            notes.append(f"{few}: every score rests on these few rows.")
            counted[:] = True
    positive = 1
    if len(problem.classes) == 2:
        positive, note = _positive(problem, positive_class)
        notes.append(note)
    if costs is not None:
        name = tables.quoted(problem.classes[positive])
        notes.append(f"A false {name} costs {costs[0]:g}, a missed one {costs[1]:g} (`--cost`).")
    judging = ScoringRules(counted=None if counted.all() else tuple(counted.tolist()), positive=positive, costs=costs)
    return dataclasses.replace(problem, judging=judging, notes=(*problem.notes, *notes))


def _positive(problem: Problem, given: str) -> tuple[int, str]:
    """Which of two classes is the positive one, and why: as given, or the rarer one, or the second of two as rare."""
    if given and given not in problem.classes:
        names = " or ".join(map(tables.quoted, problem.classes))
        raise UserError(f"`--positive` must be one of the two classes, {names}, got {given!r}.")
    first, second = problem.class_counts
    positive = problem.classes.index(given) if given else int(first >= second)
    why = "as given" if given else "the rarer class" if first != second else "the second of two as frequent"
    name = tables.quoted(problem.classes[positive])
    return positive, f"Precision, recall, F1 and cost are about {name}, {why} (`--positive`)."


def parts_of(problem: Problem, seed: int, *, share: float = 1.0) -> Split:
    """Which rows a seed trains on, chooses on and tests on; with a `share`, that part of the training rows alone.

    Five seeds in a row are a round: its folds test every row once. Where test rows are given, or are the latest, all
    seeds test on the same.
    """
    if share != 1.0:
        return _thinned(problem, parts_of(problem, seed), seed, away=1.0 - share)
    round_, fold = divmod(seed, FOLDS)
    if problem.frame is not None and problem.imbalance == 1.0:
        test_rows = problem.test_rows
        dealt = _folds(problem, round_)
        if dealt is not None:
            test_rows = np.flatnonzero(dealt == fold)
        parts = tables.split(*problem.table, seed=seed, test=_TEST, val=_VAL, test_rows=test_rows)
        return _thinned(problem, parts, seed) if problem.in_time else parts
    labels, draw = problem.labels, Seeds(seed).numpy("data")
    assert labels is not None
    test = problem.test_rows
    if test is None:
        test = np.flatnonzero(draws.folds(labels, FOLDS, Seeds(round_).numpy("folds")) == fold)
    rest = np.setdiff1d(np.arange(len(labels)), test)
    if problem.imbalance != 1.0:
        rest = rest[draws.longtail_indices(labels[rest], problem.imbalance, draw)]
    train, val = draws.split(labels[rest], _VAL / (1 - _TEST), draw)
    return Split(np.sort(rest[train]), np.sort(rest[val]), np.sort(test))


def tests_in_folds(problem: Problem) -> bool:
    """Whether the splits of a round test every row once; otherwise every split is a round of its own."""
    if problem.frame is None:
        return problem.test_rows is None
    return _folds(problem, 0) is not None


def _folds(problem: Problem, round_: int) -> Array | None:
    return None if problem.test_rows is not None else tables.folds(*problem.table, seed=round_, count=FOLDS)


def _thinned(problem: Problem, parts: Split, seed: int, *, away: float = _LEFT_OUT) -> Split:
    """Parts without a random share of the training rows, a tenth unless given.

    Time cuts at the same rows whatever the seed. Without this, repetitions of what has no other randomness (boosters)
    would be copies of one result, and their spread zero.
    """
    labels, draw = problem.labels, Seeds(seed).numpy("left out")
    strata = np.zeros(len(parts.train), dtype=np.int64) if labels is None else labels[parts.train]
    stay, _ = draws.split(strata, away, draw)
    return dataclasses.replace(parts, train=parts.train[stay])


def with_test_rows(problem: Problem, parts: Split, *, hold_out: bool) -> Split:
    """The parts for a model to keep: all rows but given test rows are trained on, unless some are to be held out.

    The validation part takes the place of the test part; nothing is reported of it. With `hold_out` it is not trained
    on, since a correction of outputs is fitted to it.
    """
    away = [] if problem.test_rows is None else [np.asarray(problem.test_rows)]
    away += [parts.val] if hold_out else []
    if problem.imbalance != 1.0:  # the rows that thinning left out stay out
        train = parts.train if hold_out else np.union1d(parts.train, parts.val)
    else:
        train = np.setdiff1d(np.arange(problem.rows), np.concatenate(away)) if away else np.arange(problem.rows)
    return Split(train, parts.val, parts.val)


def deal(problem: Problem, parts: Split, *, features: str = "") -> tuple[Task, TableEncoder | Pixels | Frozen]:
    """The task on these parts, and the preprocessing that its training rows made.

    With `features`, photos or texts are what the frozen network of that name makes of them.
    """
    split, preprocessing = dealt(problem, parts, features=features)
    return split.task(), preprocessing


def dealt(
    problem: Problem, parts: Split, *, features: str = "", room: Room = in_memory
) -> tuple[DealtSplit, TableEncoder | Pixels | Frozen]:
    """The rows of these parts as arrays, written to `room` a piece at a time, and the preprocessing."""
    rows = {"train": parts.train, "val": parts.val, "test": parts.test}
    if problem.images is not None:
        preprocessing: TableEncoder | Pixels | Frozen
        x, preprocessing = _dealt_images(problem, problem.images, rows, features, room)
        labels = problem.labels
        assert labels is not None
        y, scale = {part: labels[chosen] for part, chosen in rows.items()}, 1.0
    else:
        x, y, scale, preprocessing = _dealt_table(problem, rows, features, room)
    groups = group_indices(problem)
    facts = SplitFacts(
        kind=problem.kind,
        classes=problem.classes,
        n_groups=len(problem.groups),
        judging=problem.judging,
        scale=scale,
    )
    own: dict[str, Array] = {} if groups is None else {part: groups[chosen] for part, chosen in rows.items()}
    return DealtSplit(x=x, y=y, groups=own, facts=facts), preprocessing


def _dealt_images(
    problem: Problem, images: Images, rows: dict[str, Array], features: str, room: Room
) -> tuple[dict[str, Array], Pixels | Frozen]:
    if features:
        made = pretrained.of_photos(images.paths, problem.fingerprint, encoder=features)
        frozen = Frozen.fit(features, made[rows["train"]])
        return {part: _into(room, part, frozen.scaled(made[chosen])) for part, chosen in rows.items()}, frozen
    mean, deviation = pixel_statistics(images.x, rows["train"])
    size = int(images.x.shape[1])
    pixels = Pixels(size=size, mean=mean, deviation=tuple(max(d, 1e-6) for d in deviation))
    x: dict[str, Array] = {}
    for part, chosen in rows.items():
        x[part] = room(part, (len(chosen), *images.x.shape[1:]))
        for top in range(0, len(chosen), _PIECE):
            piece = pixels.transform(images.x[chosen[top : top + _PIECE]])
            x[part][top : top + _PIECE] = piece.permute(0, 2, 3, 1).numpy()
    return x, pixels


def _dealt_table(
    problem: Problem, rows: dict[str, Array], features: str, room: Room
) -> tuple[dict[str, Array], dict[str, Array], float, TableEncoder | Frozen]:
    frame, schema = problem.table
    x: dict[str, Array] = {}
    if features:
        encoder = TableEncoder.fit(frame, pretrained.without_texts(schema), rows["train"])
        names = pretrained.texts_of(schema)
        made = pretrained.text_columns(frame, names)[rows["train"]]
        preprocessing: TableEncoder | Frozen = Frozen.fit(features, made, columns=names, table=encoder)
        for part, chosen in rows.items():
            x[part] = _into(room, part, preprocessing.rows(frame, chosen))
    else:
        preprocessing = encoder = TableEncoder.fit(frame, schema, rows["train"], read=problem.numbers)
        for part, chosen in rows.items():
            out = room(part, (len(chosen), encoder.width))
            x[part] = encoder.transform(frame, chosen, out=out, read=problem.numbers)
    y = {part: encoder.transform_target(frame, chosen) for part, chosen in rows.items()}
    return x, y, float(getattr(encoder.target, "deviation", 1.0)), preprocessing


def _into(room: Room, part: str, rows: Array) -> Array:
    out = room(part, rows.shape)
    out[:] = rows
    return out


def _refuse(question: DataQuestion, names: Sequence[str], source: str, hint: str) -> None:
    """Refuse options that mean nothing for a source: a user who gives one expects it to do something."""
    usual = DataQuestion()
    given = [f"`--{name.replace('_', '-')}`" for name in names if getattr(question, name) != getattr(usual, name)]
    if given:
        several = len(given) > 1
        raise TableError(
            f"{', '.join(given)} {'mean' if several else 'means'} nothing for {source}. "
            f"Leave {'them' if several else 'it'} out.{hint}"
        )


def _table(
    question: DataQuestion,
    frame: pl.DataFrame,
    target: str,
    test_rows: Array | None,
    notes: tuple[str, ...],
) -> Problem:
    schema = tables.describe(
        frame,
        target=target,
        task=question.task or None,  # pyright: ignore[reportArgumentType]
        categorical=question.categorical,
        drop=question.drop,
        group=question.group or None,
        time=question.time or None,
    )
    height = frame.height
    if question.test:
        about_test: list[str] = []
        frame, test_rows = tables.append(frame, tables.read(question.test, target=target, notes=about_test), schema)
        notes = (*notes, *about_test, *_dropped(schema, frame[height:], Path(question.test).name))
    labels = schema.labels(frame)
    kept = np.flatnonzero(labels.is_not_null().to_numpy())
    labelled = schema.labelled(frame)
    if test_rows is not None:
        test_rows = np.flatnonzero(np.isin(kept, test_rows))
    share = _TEST if test_rows is None else len(test_rows) / labelled.height
    # Of all rows that are used, those of a test file among them; the schema has seen the training file alone.
    counts: list[int] = []
    if schema.task != "regression":
        counts = np.bincount(labels.drop_nulls().to_numpy(), minlength=len(schema.classes)).tolist()
    groups = () if schema.group is None else _names(labelled.get_column(schema.group)).unique().sort().to_list()
    if schema.time is not None:
        notes = (*notes, "Every split leaves out another tenth of the rows to train on.", _SAME_TEST)
    elif test_rows is not None:
        notes = (*notes, _SAME_TEST)
    return Problem(
        name=Path(question.source).name,
        kind=schema.task,
        classes=schema.classes,
        class_counts=tuple(counts),
        groups=tuple(groups),
        rows=labelled.height,
        notes=(*notes, *schema.notes, *tables.leaks(frame, schema)),
        test_share=share,
        frame=labelled,
        schema=schema,
        test_rows=test_rows,
        positions=np.where(kept < height, kept, kept - height),
    )


def _dropped(schema: Schema, test: pl.DataFrame, name: str) -> list[str]:
    """Notes on the rows of a test file that cannot be tested on; it is refused if none can."""
    cells, unusable = test.get_column(schema.target), schema.labels(test).is_null()
    foreign = cells.filter(unusable).drop_nulls()
    missing, examples = cells.null_count(), tables.listed(values.words(foreign).unique().sort().to_list())
    what = "not a number" if schema.task == "regression" else "not a class of the training file"
    target = tables.quoted(schema.target)
    if unusable.all():
        seen = f": {examples}" if len(foreign) else ""
        raise TableError(
            f"no row of the test file {name} has a usable target {target}{seen}. Write it as in the training file."
        )
    notes: list[str] = []
    if len(foreign):
        notes.append(
            f"{len(foreign)} of {test.height} rows of {name} are dropped: their {target} is {what} ({examples})."
        )
    if missing:
        notes.append(f"{missing} of {test.height} rows of {name} have no {target} and are dropped.")
    return notes


def _names(cells: pl.Series) -> pl.Series:
    return cells.cast(pl.String).fill_null("(missing)")


def group_indices(problem: Problem) -> Array | None:
    """The group of every row as an index; None without groups."""
    if problem.schema is None or problem.frame is None or problem.schema.group is None:
        return None
    names = _names(problem.frame.get_column(problem.schema.group))
    return names.replace_strict(list(problem.groups), list(range(len(problem.groups)))).to_numpy()


def _digits() -> Problem:
    """The embedded images as a table of pixels, so that a row to predict is a row of numbers."""
    digits = catalogue.load("digits", Dataset)
    x = np.concatenate([digits.x_train, digits.x_test])
    x = x.reshape(len(x), -1)
    columns = {f"pixel_{i // 8}_{i % 8}": x[:, i].astype(np.int16) for i in range(x.shape[1])}
    labels = np.concatenate([digits.y_train, digits.y_test])
    frame = pl.DataFrame(columns | {"digit": labels})
    counts = draws.longtail_counts(10, _EMBEDDED_IMBALANCE, int(digits.counts().min()))
    return Problem(
        name="scikit-learn's digits, thinned to a long tail",
        kind="multiclass",
        classes=digits.classes,
        class_counts=tuple(counts),
        rows=sum(counts) + len(digits.y_test),
        notes=(
            f"Of the images to train on, digit 0 keeps {counts[0]} and digit 9 keeps {counts[-1]}; the "
            f"{len(digits.y_test)} test images are balanced.",
            "Each split draws other images to keep, and other ones of them for validation.",
        ),
        test_share=len(digits.y_test) / len(labels),
        imbalance=_EMBEDDED_IMBALANCE,
        test_rows=np.arange(len(digits.y_train), len(labels)),
        frame=frame,
        schema=tables.describe(frame, target="digit", task="multiclass"),
    )


def _text_folder(path: Path, question: DataQuestion) -> Problem:
    """A folder of texts as a table of two columns."""
    what = f"the folder of texts {path.name}, whose classes are the names of its folders"
    _refuse(question, (*_FOR_TABLES, "image_size"), what, "")
    frame, files = text_folder.classified(path.resolve())
    tested = image_folder.held_out(files)
    test_rows = None if tested is None else np.flatnonzero(tested)
    if frame.height < tables.LEAST_ROWS:
        raise TableError(
            f"the folder {path} has {frame.height} texts in class folders, and at least {tables.LEAST_ROWS} are needed."
        )
    problem = _table(question, frame, text_folder.CLASS, test_rows, tuple(_about_parts(files)))
    return dataclasses.replace(problem, files=files)


def _image_folder(path: Path, question: DataQuestion) -> Problem:
    files = list(image_folder.find(path.resolve().parent, path.resolve().name, question.image_size).values())
    if not files:
        raise TableError(
            f"the folder {path} has no images in subfolders. Put the images of each class into a folder named after it."
        )
    fingerprint = question.sha256 or hash_of(str(path))
    x, files, unreadable = _decoded(files, question.image_size, fingerprint)
    y, classes = image_folder.labels(files)
    counts = np.bincount(y, minlength=len(classes))
    if counts.min() < 5:
        rare = classes[int(counts.argmin())]
        raise TableError(
            f"the class {tables.quoted(rare)} has {counts.min()} images, and a split needs at least 5 of each. Add "
            "images, or remove the folder."
        )
    names = tuple(str(file.relative_to(path.resolve())) for file in files)
    tested = image_folder.held_out(names)
    test_rows = None if tested is None else np.flatnonzero(tested)
    return Problem(
        name=path.resolve().name,
        kind="binary" if len(classes) == 2 else "multiclass",
        classes=classes,
        class_counts=tuple(counts.tolist()),
        rows=len(y),
        notes=(
            f"{len(y)} images of {len(classes)} classes, scaled to {x.shape[1]} x {x.shape[2]} (`--image-size`).",
            *_about_parts(names),
            *image_folder.skipped(unreadable),
        ),
        test_share=_TEST if test_rows is None else len(test_rows) / len(y),
        test_rows=test_rows,
        images=Images(x=x, y=y, files=names, folder=path.resolve()),
        fingerprint=fingerprint,
    )


def _decoded(files: list[Path], size: int, fingerprint: str) -> tuple[Array, list[Path], list[str]]:
    """Small images, their files, and why others cannot be used.

    Every folder is decoded once, by one process, image by image into a file that all processes map.
    """
    reasons: list[str] = []
    key = f"2 pixels {size} {fingerprint}"

    def decode(out: Array) -> None:
        _, kept, unreadable = image_folder.readable(files, size, grey=False, out=out)
        reasons.extend(unreadable)
        readable = set(kept)
        frozen.kept(f"{key} which", lambda: np.array([file in readable for file in files]))

    x = frozen.kept_rows(key, (len(files), size, size, 3), decode)
    which = frozen.kept(f"{key} which", lambda: np.ones(len(files), dtype=bool))
    if not which.all() and not reasons:  # decoded before: ask the files themselves again
        reasons = [_fault(file) for file, good in zip(files, which, strict=True) if not good]
    return x[: int(which.sum())], [file for file, good in zip(files, which, strict=True) if good], reasons


def _fault(file: Path) -> str:
    try:
        image_folder.pixels([file], 1, grey=False)
    except UserError as error:
        return str(error)
    return f"{file} could not be read before."


def _about_parts(names: Sequence[str]) -> list[str]:
    """Which parts of a divided folder are trained on and tested on."""
    parts = image_folder.parts(names)
    if not parts:
        return []
    trained = " and ".join(f"{part}/" for part, tested in parts.items() if not tested)
    (tested,) = (part for part, tested in parts.items() if tested)
    return [f"Every split trains on images of {trained} and tests on those of {tested}/.", _SAME_TEST]
