"""How many training examples each class has, counted once: what `class_counts="auto"` stands for."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from reweigh._array import to_numpy

__all__ = ["count_classes"]

#: What data sets call the labels of an example.
_NAMES = ("labels", "label", "label_ids")


def count_classes(data: Any, *, classes: int | None = None) -> tuple[int, ...]:
    """The number of examples of each class in a data set, in class order; labels below zero are ignored ones.

    Parameters
    ----------
    data
        Labels themselves, a data set with a column of them, or one whose examples are `(input, label)` or dicts.
    classes
        How many classes the model has, where that is known: classes without examples count as well.
    """
    labels = _labels(data)
    if labels.size and labels.dtype.kind not in "iub":
        raise ValueError(
            f"class_counts='auto' counts class indices, got labels of dtype {labels.dtype}. Pass the number of "
            "examples of each class, class_counts=[...]."
        )
    labels = labels[labels >= 0].astype(np.int64)
    return tuple(np.bincount(labels, minlength=classes or 0).tolist())


def _labels(data: Any) -> Any:
    """The labels of all examples as one vector."""
    columns = getattr(data, "column_names", None)
    if columns is not None:
        return _joined(data[next((name for name in _NAMES if name in columns), _NAMES[0])])
    if not hasattr(data, "__len__") or not hasattr(data, "__getitem__"):
        raise ValueError(
            f"class_counts='auto' counts a data set with a length, got {type(data).__name__}, which is read as it "
            "comes. Pass the number of examples of each class, class_counts=[...]."
        )
    if hasattr(data, "dataset") and hasattr(data, "indices"):  # a subset: the labels of its rows
        return _joined(_label(data.dataset[index]) for index in data.indices)
    if hasattr(data, "tensors"):  # a TensorDataset, whose rows need not be taken one by one
        return to_numpy(data.tensors[1]).ravel()
    targets = getattr(data, "targets", None)
    if targets is not None and len(targets) == len(data) and getattr(data, "target_transform", None) is None:
        return _joined(targets)
    return _joined(_label(data[index]) for index in range(len(data)))


def _label(example: Any) -> Any:
    """The label of an example; labels themselves are their own."""
    if hasattr(example, "keys"):
        name = next((name for name in _NAMES if name in example), None)
        if name is None:
            raise ValueError(
                f"class_counts='auto' looks for {', '.join(_NAMES)} in an example, got {', '.join(example.keys())}. "
                "Pass the number of examples of each class, class_counts=[...]."
            )
        return example[name]
    return example[1] if isinstance(example, (tuple, list)) else example


def _joined(labels: Iterable[Any]) -> Any:
    parts = [np.asarray(to_numpy(label)).ravel() for label in labels]
    return np.concatenate(parts) if parts else np.zeros(0, np.int64)
