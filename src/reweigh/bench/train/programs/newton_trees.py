"""Gradient boosting with scikit-learn's trees, for machines without a boosting library.

A round is a regression tree of Newton steps: fitted to minus gradient over curvature with the curvature as weight, each
of its leaves is minus the sum of gradients over the sum of curvatures, and its splits gain what XGBoost's gain without
a penalty. Any objective that gives gradients and curvatures by row can be descended, which scikit-learn's own boosting
does not offer.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from reweigh.bench.files import write_atomically

Array = np.ndarray[Any, Any]

LEAVES = 31
#: Rows that a tree sees at most; scikit-learn sorts them at every node.
_ROWS = 20_000
_LEAST_CURVATURE = 1e-6
#: Far more than training makes.
_MOST_NODES, _MOST_TREES, _LARGEST_FILE = 10_000, 100_000, 1 << 28


class TreesFileError(ValueError):
    """A file does not hold the trees of a model that fits."""


@dataclass(frozen=True)
class Tree:
    """The nodes of a tree; `feature` is -1 at a leaf, and children stand behind their parents."""

    feature: Array
    threshold: Array
    left: Array
    right: Array
    value: Array

    def __call__(self, x: Array) -> Array:
        """The value of the leaf that each row falls into."""
        at = np.zeros(len(x), np.int64)
        inner = self.feature[at] >= 0
        while inner.any():
            rows = np.flatnonzero(inner)
            nodes = at[rows]
            goes_left = x[rows, self.feature[nodes]] <= self.threshold[nodes]
            at[rows] = np.where(goes_left, self.left[nodes], self.right[nodes])
            inner[rows] = self.feature[at[rows]] >= 0
        return self.value[at]


def newton_tree(x: Array, gradient: Array, curvature: Array, *, least: int, rng: np.random.Generator) -> Tree:
    """A tree whose leaves are Newton steps.

    Parameters
    ----------
    x
        Features, float32.
    gradient, curvature
        First and second derivatives by row.
    least
        Rows of a leaf at least.
    rng
        Draws the rows where there are many, and breaks ties of splits.
    """
    from sklearn.tree import DecisionTreeRegressor

    rows = np.arange(len(x)) if len(x) <= _ROWS else rng.choice(len(x), _ROWS, replace=False)
    weight = np.maximum(curvature[rows], _LEAST_CURVATURE)
    fitted = DecisionTreeRegressor(
        max_leaf_nodes=LEAVES, min_samples_leaf=least, random_state=int(rng.integers(2**31))
    ).fit(x[rows], -gradient[rows] / weight, sample_weight=weight)
    nodes = fitted.tree_
    leaf = nodes.children_left < 0
    return Tree(
        feature=np.where(leaf, -1, nodes.feature),
        # scikit-learn compares single-precision features with double-precision thresholds, as `Tree` does.
        threshold=np.where(leaf, 0.0, nodes.threshold),
        left=np.where(leaf, -1, nodes.children_left),
        right=np.where(leaf, -1, nodes.children_right),
        value=nodes.value[:, 0, 0].copy(),
    )


@dataclass(frozen=True, kw_only=True)
class BoostedTrees:
    """A boosted model: where margins start, the learning rate, and the trees of each output, round by round."""

    start: Array
    rate: float
    rounds: Sequence[Sequence[Tree]]

    def margins(self, x: Array) -> Array:
        """The margin of each output, `(rows, outputs)`."""
        total = np.tile(self.start, (len(x), 1)).astype(np.float64)
        for trees in self.rounds:
            for k, tree in enumerate(trees):
                total[:, k] += self.rate * tree(x)
        return total

    def save(self, path: Path) -> None:
        """Write the model as JSON."""
        trees = [
            [
                {name: getattr(tree, name).tolist() for name in ("feature", "threshold", "left", "right", "value")}
                for tree in own
            ]
            for own in self.rounds
        ]
        write_atomically(path, json.dumps({"start": self.start.tolist(), "rate": self.rate, "rounds": trees}))


def load(path: Path, *, width: int, outputs: int) -> BoostedTrees:
    """Read a model; a file that somebody may have crafted is checked node by node."""
    if path.stat().st_size > _LARGEST_FILE:
        raise TreesFileError(f"it has {path.stat().st_size} bytes")
    try:
        stored = json.loads(path.read_text())
        start, rate = np.asarray(stored["start"], np.float64), float(stored["rate"])
        rounds = [[_tree(tree, width) for tree in own] for own in stored["rounds"]]
    except (KeyError, TypeError, ValueError, RecursionError, OverflowError) as error:
        raise TreesFileError(f"it is not a model of trees ({error})") from None
    if start.shape != (outputs,) or not np.isfinite([*start, rate]).all() or len(rounds) > _MOST_TREES:
        raise TreesFileError("its outputs are not those of the model")
    if any(len(own) != outputs for own in rounds):
        raise TreesFileError(f"a round has not {outputs} trees")
    return BoostedTrees(start=start, rate=rate, rounds=rounds)


def _tree(stored: Mapping[str, Any], width: int) -> Tree:
    feature, left, right = (np.asarray(stored[name]) for name in ("feature", "left", "right"))
    threshold, value = (np.asarray(stored[name], np.float64) for name in ("threshold", "value"))
    count = len(feature)
    arrays = (feature, left, right, threshold, value)
    if not 0 < count <= _MOST_NODES or any(array.shape != (count,) for array in arrays):
        raise TreesFileError("a tree's lists differ")
    if any(array.dtype.kind != "i" for array in (feature, left, right)):
        raise TreesFileError("a tree's index is not whole")
    if not np.isfinite(threshold).all() or not np.isfinite(value).all():
        raise TreesFileError("a tree has a value that is not a number")
    inner, nodes = feature >= 0, np.arange(count)
    if (feature < -1).any() or (feature >= width).any():
        raise TreesFileError("a tree looks at a feature that there is not")
    for child in (left, right):  # behind their parents, so that no tree leads back to itself
        if (inner & ((child <= nodes) | (child >= count))).any():
            raise TreesFileError("a tree leads outside or back to itself")
    return Tree(feature=feature, threshold=threshold, left=left, right=right, value=value)
