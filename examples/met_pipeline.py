"""Self-supervised features in a pipeline: a masked autoencoder on all rows, a classifier on the few with labels.

    python examples/met_pipeline.py

Breast-cancer rows of scikit-learn: features are learnt from all of them without labels, plainly and with rows
re-weighted by how badly they are reconstructed; a logistic regression learns from forty labels. Prints the accuracy on
the others, mean over draws, next to that of untrained features and of the columns themselves.
"""

from __future__ import annotations

import sys

import numpy as np
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from reweigh.bench.recipes.algorithms.tabular import METR, METS, RawColumns

SIZES = {"embedding": 7, "blocks": 1, "feed_forward": 16}
LABELLED = 40


def transformers(epochs: int) -> dict[str, object]:
    training = {"epochs": epochs, "batch_size": 32, "lr": 2e-3, "dropout": 0.0, "random_state": 0}
    return {
        "columns themselves": RawColumns(),
        "MET-R (untrained)": METR(**SIZES, random_state=0),
        "MET-S": METS(**SIZES, **training),
        "MET-S, rgd": METS(objective="rgd:tau=1", **SIZES, **training),
    }


def accuracy(transformer, X: np.ndarray, y: np.ndarray, draws: int) -> float:
    """Mean accuracy over draws of the labelled rows; features are learnt once, from all rows."""
    features = make_pipeline(StandardScaler(), clone(transformer), StandardScaler()).fit_transform(X)
    scores: list[float] = []
    for draw in range(draws):
        order = np.random.default_rng(draw).permutation(len(y))
        few, others = order[:LABELLED], order[LABELLED:]
        head = LogisticRegression(C=0.1, max_iter=5000).fit(features[few], y[few])
        scores.append(head.score(features[others], y[others]))
    return float(np.mean(scores))


def main(epochs: int = 30, draws: int = 10) -> dict[str, float]:
    X, y = load_breast_cancer(return_X_y=True)
    found = {name: accuracy(transformer, X, y, draws) for name, transformer in transformers(epochs).items()}
    for name, score in found.items():
        print(f"{name:22s}{score:7.1%}")
    return found


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
