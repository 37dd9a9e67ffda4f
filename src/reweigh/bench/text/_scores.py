"""How well logits do on labelled texts: GLUE's metrics."""

from __future__ import annotations

from typing import Any

import numpy as np

from reweigh.bench.text._text import Labelled, Labels

#: Columns of a report about single classes have room for so many.
_SHOWN_CLASSES = 12


def scores(logits: np.ndarray[Any, Any], labels: Labels, data: Labelled) -> dict[str, Any]:
    """Accuracy, log-loss, F1, Matthews correlation, and as `score` the one that the task is judged by."""
    classes = len(data.classes)
    confusion = np.zeros((classes, classes), np.int64)  # rows are true classes
    np.add.at(confusion, (labels, logits.argmax(1)), 1)
    per_class = _f1(confusion)
    found: dict[str, Any] = {
        "accuracy": float(np.trace(confusion) / len(labels)),
        "macro_f1": float(per_class[confusion.sum(1) > 0].mean()),
        "matthews": matthews(confusion),
        "loss": _log_loss(logits, labels),
    }
    if classes == 2:
        found["f1"] = float(per_class[1])
    if classes <= _SHOWN_CLASSES:
        found["class_accuracy"] = (np.diag(confusion) / np.maximum(confusion.sum(1), 1)).tolist()
    return {"score": found[data.metric], **found}


def matthews(confusion: np.ndarray[Any, Any]) -> float:
    """Matthews correlation of any number of classes; 0 where truth or prediction is constant."""
    total, right = float(confusion.sum()), float(np.trace(confusion))
    truth, said = confusion.sum(1).astype(float), confusion.sum(0).astype(float)
    spread = np.sqrt(total**2 - truth @ truth) * np.sqrt(total**2 - said @ said)
    return float((right * total - truth @ said) / spread) if spread > 0 else 0.0


def _f1(confusion: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The F1 of each class; 0 for one that is never said and never true."""
    return 2 * np.diag(confusion) / np.maximum(confusion.sum(0) + confusion.sum(1), 1)


def _log_loss(logits: np.ndarray[Any, Any], labels: Labels) -> float:
    wide = logits.astype(np.float64)
    shifted = wide - wide.max(1, keepdims=True)
    return float(np.mean(np.log(np.exp(shifted).sum(1)) - shifted[np.arange(len(labels)), labels]))
