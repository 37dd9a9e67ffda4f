"""Hard rows and suspects: which labels are probably wrong, read off the losses that training saw anyway.

A wrong label keeps a high loss while the rest of its class is learnt; a hard but rightly labelled example comes down
late, or goes up and down. Every run keeps the newest loss of every example after every epoch (`loss_trajectory`); no
further training is needed. Where models predicted the rows that they were not trained on, as in cross-validation,
`reweigh.bench.lab.wrong_labels` decides with these.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal, NamedTuple, overload

import numpy as np

from reweigh import _validate as validate
from reweigh.bench.files import write_atomically
from reweigh.bench.lab.wrong_labels import WrongLabels, wrong_labels
from reweigh.bench.spreadsheet import harmless

__all__ = ["SuspectKind", "PrecisionRecall", "Ranking", "Suspect", "precision_recall", "suspects", "write_csv"]

Array = np.ndarray[Any, Any]
SuspectKind = Literal["suspected label error", "hard", "ordinary", "never seen"]

#: The share of a class whose losses count as its hardest.
HARDEST = 0.05
#: Robust deviations above the class at which the score is one half; losses have a long tail, so three are not rare.
DEVIATIONS = 5.0
#: Classes with fewer examples have no distribution worth using: they are compared with all examples.
FEWEST = 10
#: Training is looked at in this many parts, to see whether a loss stays high.
PARTS = 4
#: A median absolute deviation times this is a standard deviation, for normal data.
_TO_DEVIATION = 1.4826
#: Beyond what float16 holds, a loss was kept as infinity.
_LARGEST = float(np.finfo(np.float16).max)


@dataclass(frozen=True, kw_only=True)
class Suspect:
    """One example of a ranking.

    `loss` is its mean loss in the last part of training and `class_median` that of its class's median; `hardest_share`
    is the share of epochs in which it was among the hardest of its class, `fall` how much of its largest excess over
    the class is gone at the end (1: all of it).
    """

    index: int
    label: Any
    kind: SuspectKind
    score: float
    loss: float
    class_median: float
    hardest_share: float
    fall: float
    reason: str


@dataclass(frozen=True, kw_only=True, eq=False)
class Ranking(Sequence[Suspect]):
    """Examples, most suspicious first; rows are made when they are looked at.

    `order` has the indices of the ranked examples, all other arrays have one entry for every example of the data;
    `wrong` is what was made of `probabilities`, where these were given.
    """

    order: Array
    score: Array
    kind: Array
    loss: Array
    class_median: Array
    hardest_share: Array
    excess: Array
    labels: Array | None
    compared_with_all: Array
    epochs: int
    wrong: WrongLabels | None = None
    probabilities: Array | None = None

    def __len__(self) -> int:
        return len(self.order)

    @overload
    def __getitem__(self, index: int) -> Suspect: ...
    @overload
    def __getitem__(self, index: slice) -> list[Suspect]: ...
    def __getitem__(self, index: int | slice) -> Suspect | list[Suspect]:
        if isinstance(index, slice):
            return [self._row(int(i)) for i in self.order[index]]
        return self._row(int(self.order[index]))

    def of_kind(self, kind: SuspectKind) -> Array:
        """The ranked indices of one kind, in their order."""
        return self.order[self.kind[self.order] == kind]

    def _row(self, i: int) -> Suspect:
        peak = float(self.excess[:, i].max())
        fall = 1.0 - float(self.excess[-1, i]) / peak if peak > 0 else 0.0
        return Suspect(
            index=i,
            label=None if self.labels is None else self.labels[i].item(),
            kind=self.kind[i].item(),
            score=float(self.score[i]),
            loss=float(self.loss[i]),
            class_median=float(self.class_median[i]),
            hardest_share=float(self.hardest_share[i]),
            fall=fall,
            reason=self._reason(i, peak),
        )

    def _reason(self, i: int, peak: float) -> str:
        if self.kind[i] == "never seen":
            return "never drawn in training"
        all_examples = self.labels is None or bool(self.compared_with_all[i])
        late = _last_epochs(self.epochs)
        text = (
            f"loss {self.loss[i]:.2g} in the last {'epoch' if late == 1 else f'{late} epochs'}, "
            f"{'median of all' if all_examples else 'class median'} {self.class_median[i]:.2g}; "
            f"among the hardest {100 * HARDEST:g} % of {'all' if all_examples else 'its class'} "
            f"in {100 * self.hardest_share[i]:.0f} % of epochs"
        )
        if self.kind[i] == "hard":
            text += f"; above the median by {peak:.2g} at its worst, by {self.excess[-1, i]:.2g} at the end"
        if self.probabilities is not None and self.labels is not None and np.isfinite(self.probabilities[i, 0]):
            own, others = self.probabilities[i, self.labels[i]], np.delete(self.probabilities[i], self.labels[i])
            text += (
                f"; models that did not see it give its label {100 * own:.0f} %, "
                f"another one {100 * others.max(initial=0.0):.0f} %"
            )
        return text


def suspects(
    trajectory: Array,
    labels: Sequence[Any] | Array | None = None,
    *,
    probabilities: Array | None = None,
    k: int | None = None,
) -> Ranking:
    r"""Rank examples by how likely their label is wrong.

    In epoch t the example i of class c has the excess :math:`e_{it} = \max(\ell_{it} - m_{ct}, 0)` over the median
    :math:`m_{ct}` of its class. Its mean over the epochs, :math:`e_i`, gives the score :math:`e_i / (e_i + s)` from 0
    to 1, where s is five robust standard deviations of the mean losses around their classes. What is high and stays
    high adds up; what is high for a while adds up to less.

    An example with a score of at least one half is a suspected label error if its excess is above s throughout the
    later half of training and has not fallen below half of its peak at the end; otherwise it is hard: its loss fell
    or varied.

    With `probabilities` score and suspected label errors are those of `reweigh.bench.lab.wrong_labels` instead, which
    finds far more of them and estimates how many there are; what the losses alone would suspect is hard then.

    Parameters
    ----------
    trajectory
        The newest training loss of each example after each epoch, `(epochs, n)`, NaN before its first visit: the array
        `loss_trajectory` of a run.
    labels
        The labels that were trained on, `(n,)`; without them (regression) every example is compared with all.
    probabilities
        Of every class for every example by models that were not trained on it, `(n, C)`, NaN in rows without any.
        Labels are whole numbers from 0 to C-1 then, and losses cross entropies.
    k
        How many examples to rank; all of them if not given.

    Returns
    -------
    Ranking
        A sequence of `Suspect`, most suspicious first.

    Examples
    --------
    >>> import numpy as np
    >>> epochs = np.arange(20)[:, None]
    >>> losses = 2 * np.exp(-epochs / np.linspace(2, 4, 40))  # forty examples that are learnt, some sooner
    >>> losses[:, 7] = 3.0  # and one that is not
    >>> suspects(losses, np.zeros(40, int), k=1)[0].reason
    'loss 3 in the last 5 epochs, class median 0.0081; among the hardest 5 % of its class in 100 % of epochs'

    Notes
    -----
    Every epoch counts, not the late ones alone: a network large enough learns wrong labels by heart, and its last
    losses have forgotten them. Such labels are called hard, since their loss fell; the score ranks them high all the
    same, so that the ranking finds more than its suspected errors alone. The deviation is pooled over the classes,
    because a class with many wrong labels has a wide distribution, and measuring its members by it would hide them.
    Averaging losses over training to find wrong labels goes back to Huang et al., O2U-Net (ICCV 2019), and Pleiss et
    al., Area Under the Margin (NeurIPS 2020); comparing with the median of the class is ours.
    """
    trajectory = np.asarray(trajectory)
    groups, given, with_all = _groups(trajectory, labels)
    if k is not None:
        validate.whole("k", k, 1)
    medians, hardest = _class_statistics(trajectory, groups)
    totals = _accumulate(trajectory, groups, medians, hardest)
    wrong = None
    if probabilities is not None:
        if given is None:
            raise TypeError("`probabilities` are of classes and need `labels`.")
        probabilities = np.asarray(probabilities)
        wrong = wrong_labels(given, probabilities, _mean_probability(trajectory))
    limit = DEVIATIONS * _deviation(totals.centred, totals.seen)
    # A run whose losses hardly differ has no suspects, however small its deviation is.
    score = totals.mean_excess / np.maximum(totals.mean_excess + limit, 1e-12)
    kind = _kinds(score, totals, limit, wrong)
    if wrong is not None:
        score = wrong.score
    order = np.argsort(-score, kind="stable")
    return Ranking(
        order=order[:k],
        score=score,
        kind=kind,
        loss=totals.late_loss,
        class_median=totals.late_median,
        hardest_share=totals.hardest_share,
        excess=totals.excess,
        labels=given,
        compared_with_all=with_all,
        epochs=len(trajectory),
        wrong=wrong,
        probabilities=probabilities,
    )


class PrecisionRecall(NamedTuple):
    """How well a ranking finds what was planted: after each of its entries, and in two numbers.

    `at_planted` is the precision, and the recall, of as many entries as were planted.
    """

    precision: Array
    recall: Array
    average_precision: float
    at_planted: float


def precision_recall(ranking: Ranking | Sequence[int] | Array, truth: Sequence[bool] | Array) -> PrecisionRecall:
    """Precision and recall of a ranking.

    Parameters
    ----------
    ranking
        What `suspects` returns, or the indices of another ranking, most suspicious first.
    truth
        For every example of the data, whether its label is wrong.

    Examples
    --------
    >>> curve = precision_recall([2, 0, 1], [True, False, True])
    >>> curve.precision.tolist(), curve.recall.tolist(), curve.at_planted
    ([1.0, 1.0, 0.6666666666666666], [0.5, 1.0, 1.0], 1.0)
    """
    order = ranking.order if isinstance(ranking, Ranking) else np.asarray(ranking, dtype=np.int64)
    wrong = np.asarray(truth, dtype=bool)
    if wrong.ndim != 1 or not wrong.any():
        raise ValueError("`truth` must be a vector with at least one wrong label: recall is undefined without.")
    if order.size and not (order.min() >= 0 and order.max() < wrong.size):
        raise ValueError(f"`ranking` must have indices from 0 to {wrong.size - 1}, as many as `truth` has entries.")
    hits = wrong[order]
    precision = np.cumsum(hits) / np.arange(1, hits.size + 1)
    planted = int(wrong.sum())
    return PrecisionRecall(
        precision=precision,
        recall=np.cumsum(hits) / planted,
        average_precision=float(precision[hits].sum() / planted),
        at_planted=float(hits[:planted].sum() / planted),
    )


def write_csv(path: Path, rows: Iterable[Suspect]) -> Path:
    """Write rows of a ranking as CSV; the file is either whole or as it was before."""
    text = io.StringIO()
    writer = csv.DictWriter(text, [field.name for field in fields(Suspect)], lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({name: _cell(value) for name, value in asdict(row).items()})
    write_atomically(path, text.getvalue())
    return path


def _cell(value: Any) -> Any:
    if isinstance(value, float):
        return f"{value:.6g}"
    return harmless(value) if isinstance(value, str) else value  # a label may be any text


class _Groups(NamedTuple):
    """Examples sorted by class: class c is `order[starts[c]:starts[c + 1]]`; `of` is the class of each example."""

    order: Array
    starts: Array
    of: Array


def _groups(trajectory: Array, labels: Sequence[Any] | Array | None) -> tuple[_Groups, Array | None, Array]:
    """The classes, the labels as an array, and who is compared with all examples: the last group."""
    if trajectory.ndim != 2 or trajectory.shape[0] < 1 or trajectory.dtype.kind != "f":
        raise ValueError(
            f"`trajectory` must be an array of floats of shape (epochs, n), got shape {trajectory.shape}, "
            f"dtype {trajectory.dtype}."
        )
    n = trajectory.shape[1]
    if labels is None:
        of, given = np.zeros(n, np.int64), None
        few = np.ones(n, bool)
    else:
        given = np.asarray(labels)
        if given.shape != (n,):
            raise ValueError(f"`labels` must have one entry for each of the {n} examples, got shape {given.shape}.")
        _, of, counts = np.unique(given, return_inverse=True, return_counts=True)
        few = counts[of] < FEWEST
    order = np.argsort(of, kind="stable")
    starts = np.concatenate([[0], np.cumsum(np.bincount(of))]) if n else np.zeros(1, np.int64)
    # Every example is also a member of one last group, which small classes are compared with.
    return _Groups(order, starts, np.where(few, len(starts) - 1, of)), given, few


def _class_statistics(trajectory: Array, groups: _Groups) -> tuple[Array, Array]:
    """The median and the limit of the hardest of each class and of all examples together, `(epochs, classes + 1)`."""
    spans = [slice(a, b) for a, b in zip(groups.starts[:-1], groups.starts[1:], strict=True)] + [slice(None)]
    medians = np.full((len(trajectory), len(spans)), np.nan, np.float32)
    hardest = medians.copy()
    for t, row in enumerate(trajectory):
        losses = _finite(row)[groups.order]
        for c, span in enumerate(spans):
            members = losses[span]
            members = members[~np.isnan(members)]
            if members.size:
                middle, high = (members.size - 1) // 2, min(int((1 - HARDEST) * members.size), members.size - 1)
                members.partition((middle, high))
                medians[t, c], hardest[t, c] = members[middle], members[high]
    return medians, hardest


class _Totals(NamedTuple):
    """What the epochs add up to, for every example; `excess` is `(parts, n)`."""

    seen: Array
    centred: Array
    mean_excess: Array
    excess: Array
    late_loss: Array
    late_median: Array
    hardest_share: Array


def _accumulate(trajectory: Array, groups: _Groups, medians: Array, hardest: Array) -> _Totals:
    """One pass over the epochs, so that memory stays a few vectors whatever their number."""
    epochs, n = trajectory.shape
    parts = min(PARTS, epochs)
    excess, visits = np.zeros((parts, n), np.float32), np.zeros((parts, n), np.float32)
    centred, among, late_loss, late_median = (np.zeros(n, np.float32) for _ in range(4))
    late = _last_epochs(epochs)
    late_visits = np.zeros(n, np.float32)
    for t in range(epochs):
        losses, part = _finite(trajectory[t]), t * parts // epochs
        seen = ~np.isnan(losses)
        median = np.where(seen, medians[t, groups.of], 0.0)
        losses = np.where(seen, losses, 0.0)
        above = losses - median
        visits[part] += seen
        centred += above
        excess[part] += np.maximum(above, 0.0)
        # Where a class has one loss throughout, nobody is its hardest.
        among += seen & (losses >= np.where(seen, hardest[t, groups.of], np.inf)) & (above > 0)
        if t >= epochs - late:
            late_loss += losses
            late_median += median
            late_visits += seen
    total = np.maximum(visits.sum(0), 1.0)
    return _Totals(
        seen=visits.sum(0) > 0,
        centred=centred / total,
        mean_excess=excess.sum(0) / total,
        excess=excess / np.maximum(visits, 1.0),
        late_loss=late_loss / np.maximum(late_visits, 1.0),
        late_median=late_median / np.maximum(late_visits, 1.0),
        hardest_share=among / total,
    )


def _kinds(score: Array, totals: _Totals, limit: float, wrong: WrongLabels | None) -> Array:
    if wrong is None:
        later = totals.excess[len(totals.excess) // 2 :]
        stays = (later > limit).all(0) & (totals.excess[-1] >= 0.5 * totals.excess.max(0))
        suspected = stays & (score >= 0.5)
    else:
        suspected = wrong.called
    kinds = np.where(suspected, "suspected label error", np.where(score < 0.5, "ordinary", "hard"))
    return np.where(totals.seen, kinds, "never seen")


def _mean_probability(trajectory: Array) -> Array:
    """The mean probability of each label over the epochs that saw it; NaN where none did."""
    total, seen = np.zeros(trajectory.shape[1]), np.zeros(trajectory.shape[1])
    for row in trajectory:
        losses = _finite(row)
        visited = ~np.isnan(losses)
        total += np.where(visited, np.exp(-np.maximum(losses, 0.0)), 0.0)
        seen += visited
    return np.where(seen > 0, total / np.maximum(seen, 1.0), np.nan)


def _deviation(centred: Array, seen: Array) -> float:
    """The standard deviation of mean losses around their classes, from the median absolute deviation."""
    values = np.abs(centred[seen])
    return _TO_DEVIATION * float(np.median(values)) if values.size else 0.0


def _last_epochs(epochs: int) -> int:
    """Epochs in the last part of training."""
    parts = min(PARTS, epochs)
    return sum(t * parts // epochs == parts - 1 for t in range(epochs))


def _finite(losses: Array) -> Array:
    """Losses as single precision, with infinities as the largest loss a trajectory can hold; NaN stays."""
    return np.clip(losses.astype(np.float32), -_LARGEST, _LARGEST)
