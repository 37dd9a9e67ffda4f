"""Many disjoint data sets from one large table, so that what an interval should cover is known.

Some thousand rows are the pool that stands for the population; the rest is cut into data sets that share no row. On
each of them cheap methods are tested in rounds of folds, on random splits and in nested folds. What a method trained on
a data set is worth is its balanced accuracy on the pool, and the mean of that over data sets is the truth.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
from sklearn.model_selection import StratifiedKFold, StratifiedShuffleSplit
from sklearn.tree import ExtraTreeClassifier

from reweigh.bench import catalogue
from reweigh.bench.catalogue.tables import NamedTable

Array = np.ndarray[Any, Any]

FOLDS, SPLITS, POOL, COMPONENTS = 5, 30, 8000, 16
#: Exponents of the class weights: from plain training (0) to classes that count alike (1).
EXPONENTS = (0.1, 0.25, 0.5, 1.0)
WEIGHTED = tuple(f"class weights ^ {exponent:g}" for exponent in EXPONENTS)
#: What is trained on each training part. Twins are the same method with other seeds.
METHODS = ("plain", *WEIGHTED, "half", "half, twin", "prior", "tree", "tree, twin")
#: What is compared: real differences of many sizes, and identical methods.
DIFFERENT = tuple((name, "plain") for name in (*WEIGHTED, "prior", "tree"))
IDENTICAL = (("half", "half, twin"), ("tree", "tree, twin"))

#: The rare class of each table, and columns that may not be used. `synthetic` needs no download.
TABLES: dict[str, tuple[tuple[Any, ...], tuple[str, ...]]] = {
    "adult": ((">50K",), ()),
    "bank": (("yes",), ("duration",)),
    "covtype": ((3, 4, 5, 6, 7), ()),
}


@dataclass(frozen=True, kw_only=True)
class Tested:
    """What was seen on one data set.

    `hits[method]` says which rows each round got right, `(rounds, rows)`; `splits[method]` has the balanced accuracy of
    each random split; `inner[method]` that of cross-validation without one fold, `(repeats, folds)`, where
    repeat r of the nested folds has the folds of round r, `folds[r]`; `truth[method]` is the one on the pool.
    """

    classes: Array
    hits: dict[str, Array]
    folds: Array
    splits: dict[str, Array]
    inner: dict[str, Array]
    truth: dict[str, float]


def table(name: str) -> tuple[Array, Array]:
    """The principal components of a table's encoded columns, and whether each row is of the rare class."""
    if name == "synthetic":
        rng = np.random.default_rng(0)
        y = rng.random(30_000) < 0.2
        return rng.normal(size=(30_000, 4)) + 0.7 * y[:, None], y.astype(np.int64)
    rare, dropped = TABLES[name]
    loaded = catalogue.load(name, NamedTable, download=True)
    frame = loaded.frame.drop(dropped)
    y = frame.get_column(loaded.target).is_in(list(rare)).cast(pl.Int64).to_numpy()
    columns: list[Array] = []
    for cells in frame.drop(loaded.target):
        if cells.dtype == pl.String:
            columns.append(cells.fill_null("").to_dummies().to_numpy().astype(np.float64))
        else:
            columns.append(cells.cast(pl.Float64).fill_null(0.0).to_numpy()[:, None])
    x = np.concatenate(columns, axis=1)
    x = (x - x.mean(0)) / np.maximum(x.std(0), 1e-12)
    values, vectors = np.linalg.eigh(np.cov(x.T))
    return x @ vectors[:, -COMPONENTS:] / np.sqrt(values[-COMPONENTS:]), y


def data_sets(name: str, rows: int, sets: int, *, rounds: int, nested: int, splits: int = SPLITS) -> Iterator[Tested]:
    """At most so many disjoint data sets of a table, tested."""
    x, y = table(name)
    order = np.random.default_rng(1).permutation(len(y))
    pool, rest = order[:POOL], order[POOL:]
    for number in range(min(sets, len(rest) // rows)):
        own = rest[number * rows : (number + 1) * rows]
        yield tested(x[own], y[own], x[pool], y[pool], number, rounds=rounds, nested=nested, splits=splits)


def tested(
    x: Array, y: Array, pool: Array, pool_y: Array, seed: int, *, rounds: int, nested: int, splits: int
) -> Tested:
    """One data set, tested in rounds of folds, on random splits and in nested folds; the pool has the truth."""
    rng = np.random.default_rng([seed, len(y)])
    folds = np.stack([_folds(y, rng) for _ in range(rounds)])
    left_out = folds[:, None] == np.arange(FOLDS)[:, None]  # (rounds, folds, rows)
    by_fold = predictions(x, y, ~left_out.reshape(-1, len(y)), x, rng)
    hits = {
        method: np.take_along_axis(rows.reshape(rounds, FOLDS, -1) == y, folds[:, None], axis=1)[:, 0]
        for method, rows in by_fold.items()
    }
    return Tested(
        classes=y,
        hits=hits,
        folds=folds,
        splits=_splits(x, y, rng, splits) if splits else {},
        inner=_inner(x, y, folds[:nested], rng) if nested else {},
        truth={
            method: balanced(rows[0] == pool_y, pool_y)
            for method, rows in predictions(x, y, np.ones((1, len(y)), dtype=bool), pool, rng).items()
        },
    )


def balanced(hits: Array, classes: Array) -> float:
    """Balanced accuracy."""
    return float(np.mean([hits[classes == label].mean() for label in np.unique(classes)]))


def predictions(x: Array, y: Array, trained: Array, at: Array, rng: np.random.Generator) -> dict[str, Array]:
    """The class of each row of `at`, `(trainings, rows)`, by every method trained on the rows that `trained` marks."""
    share = (trained @ y) / trained.sum(1)  # of the rare class, per training
    rows = trained.astype(np.float64)
    weights = {"plain": rows}
    for name, exponent in zip(WEIGHTED, EXPONENTS, strict=True):
        own = rows * np.where(y, share[:, None] ** -exponent, (1 - share[:, None]) ** -exponent)
        weights[name] = own * (rows.sum(1) / own.sum(1))[:, None]
    for name in ("half", "half, twin"):
        weights[name] = rows * (rng.random(rows.shape) < 0.5)
    names = list(weights)
    scores = (
        np.concatenate([np.ones((len(at), 1)), at], axis=1) @ logistic(x, y, np.concatenate(list(weights.values()))).T
    )
    by_method = dict(zip(names, scores.T.reshape(len(names), len(rows), -1), strict=True))
    by_method["prior"] = by_method["plain"] + np.log((1 - share) / share)[:, None]
    found = {name: (values > 0).astype(np.int64) for name, values in by_method.items()}
    for name in ("tree", "tree, twin"):
        trees = [ExtraTreeClassifier(max_depth=8, random_state=int(rng.integers(2**31))) for _ in trained]
        found[name] = np.stack([t.fit(x[own], y[own]).predict(at) for t, own in zip(trees, trained, strict=True)])
    return found


def logistic(x: Array, y: Array, weights: Array, *, penalty: float = 1.0, steps: int = 10) -> Array:
    """Many logistic regressions on the same rows, weighted differently: `(trainings, columns + 1)`, intercept first.

    Newton's method on all at once: the Hessians are one product of matrices. One by one, scikit-learn takes ten times
    as long, and hundreds of thousands are needed.
    """
    x = np.concatenate([np.ones((len(x), 1)), x], axis=1)
    columns = x.shape[1]
    products = (x[:, :, None] * x[:, None, :]).reshape(len(x), -1)
    ridge = np.diag([1e-6, *[penalty] * (columns - 1)])
    beta = np.zeros((len(weights), columns))
    for _ in range(steps):
        chance = 1.0 / (1.0 + np.exp(-(beta @ x.T)))
        gradient = (weights * (chance - y)) @ x + beta @ ridge
        hessian = ((weights * chance * (1 - chance)) @ products).reshape(-1, columns, columns) + ridge
        beta = beta - np.linalg.solve(hessian, gradient[:, :, None])[:, :, 0]
    return beta


def _folds(y: Array, rng: np.random.Generator) -> Array:
    folds = np.empty(len(y), dtype=np.int64)
    dealt = StratifiedKFold(FOLDS, shuffle=True, random_state=int(rng.integers(2**31))).split(np.zeros(len(y)), y)
    for fold, (_, held) in enumerate(dealt):
        folds[held] = fold
    return folds


def _splits(x: Array, y: Array, rng: np.random.Generator, count: int) -> dict[str, Array]:
    """Balanced accuracy on a fifth of the rows, trained on three fifths: one fifth is left for validation."""
    dealt = StratifiedShuffleSplit(count, test_size=0.2, train_size=0.6, random_state=int(rng.integers(2**31)))
    parts = list(dealt.split(x, y))
    trained = np.zeros((count, len(y)), dtype=bool)
    for k, (train, _) in enumerate(parts):
        trained[k, train] = True
    found = predictions(x, y, trained, x, rng)
    return {
        method: np.array([balanced((rows[k] == y)[test], y[test]) for k, (_, test) in enumerate(parts)])
        for method, rows in found.items()
    }


def _inner(x: Array, y: Array, folds: Array, rng: np.random.Generator) -> dict[str, Array]:
    """Balanced accuracy of cross-validation on all folds but one. Leaving out i and j serves both i and j."""
    pairs = [(i, j) for i in range(FOLDS) for j in range(i)]
    inner = {method: np.empty((len(folds), FOLDS)) for method in METHODS}
    for r, own in enumerate(folds):
        found = predictions(x, y, np.stack([(own != i) & (own != j) for i, j in pairs]), x, rng)
        for method, rows in found.items():
            right = rows == y
            for i in range(FOLDS):
                hits = np.zeros(len(y), dtype=bool)
                for k, pair in enumerate(pairs):
                    if i in pair:
                        other = own == (pair[0] + pair[1] - i)
                        hits[other] = right[k, other]
                inner[method][r, i] = balanced(hits[own != i], y[own != i])
    return inner
