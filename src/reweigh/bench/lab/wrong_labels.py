"""How many labels are wrong, and which: what models say that did not see them, beside the losses of training."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

__all__ = ["WrongLabels", "wrong_labels"]

Array = np.ndarray[Any, Any]

#: The share of rows, those whose class is predicted with the most confidence, that shows how many labels are wrong.
CONFIDENT = 0.25
#: Beyond this share of disagreement that wrong labels do not explain, classes overlap and nothing is called wrong.
OVERLAPPING = 0.28
#: Two clusters of scores explain at least this share of their variance, or nothing is called wrong: a normal
#: distribution cut in half has 0.64, an even one 0.75.
TWO_CLUSTERS = 0.7
#: How many times confident learning's count are called wrong, if the confident rows allow it.
BEYOND_COUNT = 1.1
#: How many times the share among the confident rows may be called wrong, for rows that are more difficult have more.
BEYOND_CONFIDENT = 1.5
#: How much of the overlap may have reached the confident rows.
REACHED = 0.1
#: What training itself says of a label counts this many times what models say that did not see it.
TRAINING = 3.0


class WrongLabels(NamedTuple):
    """What is wrong: `called` and `score`, from 0 to 1, have one entry for every example.

    `confident` is the share of disagreement among the rows predicted with most confidence, an estimate of the share of
    wrong labels; `overlap` is the share of disagreement among all other labels, which wrong labels do not explain;
    `apart` is the share of the scores' variance that lies between two clusters.
    """

    called: Array
    score: Array
    confident: float
    overlap: float
    apart: float


def wrong_labels(labels: Array, probabilities: Array, fitted: Array) -> WrongLabels:
    r"""Call labels wrong: as many as the data show to be, the least likely ones first.

    **How many.** Where classes can be told apart, models that did not see a label are right about the rows they are
    most sure of, so that their disagreement with the labels *there* is the share f of labels that are wrong; a label
    drawn at random is as wrong in an easy row as in a hard one. Let w be the share of disagreement among all rows,
    :math:`v = (w - f) / (1 - f)` what wrong labels do not explain, and c confident learning's share: rows in which a
    class other than the label has a probability above the mean one of the examples labelled so. Called wrong is a share

    .. math:: \min\{\max(1.1\,c, f),\; w,\; 1.5\,(f - 0.1\,v)^+\}

    of the rows; none where v is above 0.28, or where the scores below lie in one cluster rather than two (the best two
    explain less than 0.7 of their variance): there classes overlap so much that a rare outcome and a wrong label look
    alike.

    **Which.** Those with the largest :math:`m_i - 3 h_i`: m is the largest probability of another class minus that of
    the label, by models that did not see it, and h the mean probability of the label over the epochs of training.

    Parameters
    ----------
    labels
        Classes from 0 to C-1, `(n,)`.
    probabilities
        Of every class by models that were not trained on the row, `(n, C)`; NaN in rows without any.
    fitted
        The mean probability of the label while it was trained on, `(n,)`; NaN where it never was.

    Notes
    -----
    Confident learning: Northcutt, Jiang and Chuang (JAIR 2021). That a classifier's most confident rows show the noise
    is the anchor points of Liu and Tao (TPAMI 2016); the mean probability in training is the area under a learning
    curve, after Pleiss et al. (NeurIPS 2020); the two clusters are Otsu's (1979). Putting them together, and the
    numbers, are ours. They were chosen on digits, Fashion-MNIST, frozen features of CIFAR-10 and fifteen small tables,
    with and without planted noise, on other draws than the suspects page reports on. Tables whose classes overlap keep
    false alarms, since a rare outcome and a wrong label differ in nothing: 2 to 19 % of the labels of six of these
    tables, where confident learning has 2 to 23 %. A rare class that no model learns is one such outcome: then most of
    its labels are called wrong.
    """
    _check(labels, probabilities)
    n, known = len(labels), np.isfinite(probabilities[:, 0])
    # Without models that did not see a row, training stands in: all that the label lacks is another class's.
    margin = 1.0 - 2.0 * fitted.astype(np.float64)
    margin[known] = _margin(labels[known], probabilities[known].astype(np.float64))
    score = (1.0 + TRAINING + margin - TRAINING * fitted) / (2.0 + TRAINING)
    trained = np.isfinite(fitted)
    score = np.where(trained, np.clip(score, 0.0, 1.0), 0.0)
    share, confident, overlap = _share(labels[known], probabilities[known].astype(np.float64))
    candidates = np.flatnonzero(known & trained)
    apart = _between_two_clusters(score[candidates])
    if overlap > OVERLAPPING or apart < TWO_CLUSTERS:
        share = 0.0
    called = np.zeros(n, bool)
    called[candidates[np.argsort(-score[candidates], kind="stable")[: round(share * len(candidates))]]] = True
    return WrongLabels(called, score, confident, overlap, apart)


def _margin(labels: Array, probabilities: Array) -> Array:
    rows = np.arange(len(labels))
    own, others = probabilities[rows, labels], probabilities.copy()
    others[rows, labels] = 0.0
    return others.max(1, initial=0.0) - own


def _share(labels: Array, probabilities: Array) -> tuple[float, float, float]:
    """The share to call wrong, the disagreement among confident rows, and the overlap."""
    first = len(labels) // round(1 / CONFIDENT)
    if not first:
        return 0.0, 0.0, 0.0  # too few rows to know anything of them
    disagrees = probabilities.argmax(1) != labels
    surest = np.argsort(-probabilities.max(1), kind="stable")[:first]
    confident, everywhere = float(disagrees[surest].mean()), float(disagrees.mean())
    overlap = max(everywhere - confident, 0.0) / (1.0 - confident) if confident < 1.0 else 0.0
    counted = max(BEYOND_COUNT * _confidently_other(labels, probabilities), confident)
    share = min(counted, everywhere, BEYOND_CONFIDENT * max(confident - REACHED * overlap, 0.0))
    return share, confident, overlap


def _confidently_other(labels: Array, probabilities: Array) -> float:
    """The share of rows in which the likeliest of the classes above their own mean is not the label."""
    limits = np.full(probabilities.shape[1], np.inf)
    for c in np.unique(labels):
        limits[c] = probabilities[labels == c, c].mean()
    above = np.where(probabilities >= limits, probabilities, -1.0)
    return float(((above.max(1) >= 0.0) & (above.argmax(1) != labels)).mean())


def _between_two_clusters(values: Array) -> float:
    """The share of the variance that lies between the two clusters which one cut makes best (Otsu's)."""
    total = float(values.var()) if values.size else 0.0
    if total < 1e-12:
        return 0.0
    ordered, below = np.sort(values), np.arange(1, values.size)
    sums = ordered.cumsum()
    distance = (sums[-1] - sums[:-1]) / (values.size - below) - sums[:-1] / below
    return float((below * (values.size - below) * distance**2).max()) / values.size**2 / total


def _check(labels: Array, probabilities: Array) -> None:
    if probabilities.ndim != 2 or len(probabilities) != len(labels) or probabilities.dtype.kind != "f":
        raise ValueError(
            f"`probabilities` must be an array of floats of shape ({len(labels)}, classes), one row for each label, "
            f"got shape {probabilities.shape}, dtype {probabilities.dtype}."
        )
    classes = probabilities.shape[1]
    if labels.dtype.kind not in "iu" or (labels.size and not (labels.min() >= 0 and labels.max() < classes)):
        raise ValueError(
            f"with `probabilities`, `labels` must be whole numbers from 0 to {classes - 1}, the columns' classes. "
            "Encode names with `numpy.unique(labels, return_inverse=True)`."
        )
    missing = np.isnan(probabilities)
    given = probabilities[~missing.all(1)]
    if missing.any(1).sum() != missing.all(1).sum() or (given < 0).any() or (np.abs(given.sum(1) - 1) > 1e-2).any():
        raise ValueError(
            "each row of `probabilities` must be NaN throughout, or not negative with a sum of one. For logits take a "
            "softmax first."
        )
