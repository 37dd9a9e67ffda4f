"""cleanlab's table of label issues, out and in. Works on plain arrays; cleanlab itself is not needed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from reweigh import _validate as validate
from reweigh._array import is_array, to_numpy

__all__ = ["Trust", "from_cleanlab", "to_cleanlab"]

ArrayColumn = np.ndarray[Any, np.dtype[Any]]

#: The score's column in the tables of `CleanLearning` and of `Datalab`.
_SCORES = ("label_quality", "label_score")


class Trust(NamedTuple):
    """How far to trust each label: `mask` is False for label issues, `sample_weight` lies in [0, 1]."""

    mask: ArrayColumn
    sample_weight: ArrayColumn


def to_cleanlab(
    losses: Any,
    labels: Any,
    *,
    share: float | None = None,
    issues: Any = None,
    predictions: Any = None,
    score: str = "label_quality",
) -> dict[str, ArrayColumn]:
    r"""Label suspects as cleanlab's table of label issues.

    The label quality is :math:`e^{-\ell}`. For a cross entropy that is the probability the model gives to the label,
    which cleanlab calls self-confidence.

    Parameters
    ----------
    losses
        Each example's loss against its given label, by a model that was not fitted to that label (held out, or early
        in training): an array of any framework, one entry per example.
    labels
        The given labels.
    share
        Which share of the examples to call issues: those of largest loss. Either this or `issues`.
    issues
        Which examples are issues, decided elsewhere: booleans.
    predictions
        The predicted labels, or a score for each class, whose largest is taken. Without them the table has no column
        `predicted_label`.
    score
        Name of the score's column: `"label_quality"` as in `CleanLearning`, or `"label_score"` as in `Datalab`.

    Returns
    -------
    dict
        Columns `is_label_issue`, the score, `given_label` and, if known, `predicted_label`, in the order of the
        examples; `pandas.DataFrame(table)` is what cleanlab's functions take.

    Examples
    --------
    >>> import numpy as np
    >>> table = to_cleanlab(np.array([0.1, 3.0, 0.2, 0.7]), [0, 1, 1, 2], share=0.25, predictions=[0, 2, 1, 2])
    >>> list(table)
    ['is_label_issue', 'label_quality', 'given_label', 'predicted_label']
    >>> table["is_label_issue"].tolist(), table["label_quality"].round(3).tolist()
    ([False, True, False, False], [0.905, 0.05, 0.819, 0.497])
    """
    validate.one_of("score", score, _SCORES)
    values = _column("losses", losses).astype(np.float64)
    number = len(values)
    if not np.isfinite(values).all() or (values < 0).any():
        raise ValueError(
            "losses must be finite and not negative, so that exp(-loss) is a quality between 0 and 1. For other losses "
            "subtract the floor, or rank them and pass the ranks."
        )
    given = _column("labels", labels, number)
    if (share is None) == (issues is None):
        raise TypeError(f"give either `share` or `issues`, got share={share!r} and issues={issues!r}.")
    if issues is not None:
        flags = _column("issues", issues, number).astype(bool)
    else:
        validate.fraction("share", share, zero=True)
        assert share is not None
        flags = np.zeros(number, bool)
        # Sorted with ties in their order, so that exactly that share is chosen.
        flags[np.argsort(-values, kind="stable")[: round(share * number)]] = True
    table = {"is_label_issue": flags, score: np.exp(-values), "given_label": given}
    if predictions is not None:
        predicted = _array(predictions)
        table["predicted_label"] = _column(
            "predictions", predicted.argmax(1) if predicted.ndim == 2 else predicted, number
        )
    return table


def from_cleanlab(table: Any) -> Trust:
    """What cleanlab found, as a mask and sample weights to train with.

    Parameters
    ----------
    table
        The result of `CleanLearning.get_label_issues()`, `Datalab.get_issues("label")` or
        `cleanlab.filter.find_label_issues(...)`: a data frame, a mapping of columns, or the boolean mask itself.

    Returns
    -------
    Trust
        `mask`, True where the label is not an issue, for `objective.apply(..., mask=)`; and `sample_weight` for
        `sample_weight=`: the table's own if it has such a column, otherwise the label quality, otherwise the mask.

    Examples
    --------
    >>> trust = from_cleanlab({"is_label_issue": [False, True], "label_score": [0.9, 0.1]})
    >>> trust.mask.tolist(), trust.sample_weight.tolist()
    ([True, False], [0.9, 0.1])

    Notes
    -----
    Re-weighting by loss and distrust of labels pull in opposite directions: a wrong label has a large loss. Masking
    what cleanlab found before re-weighting gives hard examples their emphasis without that of wrong labels.
    """
    columns = getattr(table, "columns", None)
    names = list(table) if isinstance(table, Mapping) else [] if columns is None else list(columns)
    if not names:
        flags = _array(table)
        if flags.dtype != bool or flags.ndim != 1:
            raise TypeError(
                "expected cleanlab's table of label issues or its boolean mask, got "
                f"{type(table).__name__} of dtype {flags.dtype}. Indices of issues are "
                "returned by find_label_issues(..., return_indices_ranked_by=...): leave that out."
            )
        return Trust(~flags, (~flags).astype(np.float64))
    if "is_label_issue" not in names:
        raise ValueError(f"cleanlab's table has a column 'is_label_issue', got {', '.join(map(str, names))}.")
    mask = ~_column("is_label_issue", table["is_label_issue"]).astype(bool)
    chosen = next((name for name in ("sample_weight", *_SCORES) if name in names), None)
    weight = mask.astype(np.float64) if chosen is None else _column(chosen, table[chosen], len(mask)).astype(np.float64)
    return Trust(mask, weight)


def _array(values: Any) -> ArrayColumn:
    return to_numpy(values) if is_array(values) else np.asarray(values)


def _column(name: str, values: Any, number: int | None = None) -> ArrayColumn:
    column = _array(values)
    if column.ndim != 1 or number not in (None, len(column)):
        wanted = "one entry per example" if number is None else f"one entry for each of the {number} examples"
        raise ValueError(f"`{name}` must have {wanted}, got shape {column.shape}.")
    return column
