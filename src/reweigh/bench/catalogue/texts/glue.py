"""GLUE: its seven classification tasks, from the official tab-separated files.

The test labels are not public, so the development part is what is tested on, as everybody does; a validation part is
then to be split from the training part.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from reweigh.bench.catalogue.card import DataCard
from reweigh.bench.catalogue.texts import Labelled, TextMetric, TextPart, part, tsv
from reweigh.bench.errors import UserError

CARD = DataCard(
    size="CoLA, SST-2, MRPC, QQP, MNLI, QNLI and RTE",
    licence="see each task",
    source="Wang et al., GLUE, ICLR 2019",
    official="the official folders (CoLA/train.tsv, CoLA/dev.tsv, SST-2/..., MRPC, QQP, MNLI, QNLI, RTE) into "
    "DATA_ROOT/glue/.",
)


@dataclass(frozen=True, kw_only=True)
class _GlueTask:
    """Where the columns of a task are, and what its labels mean. The paper's average takes `metric`."""

    first: str
    second: str | None
    label: str
    classes: tuple[str, ...]
    names: tuple[str, ...] = ()
    metric: TextMetric = "accuracy"
    header: bool = True
    dev: str = "dev.tsv"


_ENTAILS = ("entailment", "not_entailment")
TASKS: Mapping[str, _GlueTask] = {
    # Columns of CoLA: source, label, the author's own mark, sentence.
    "CoLA": _GlueTask(
        first="column_4", second=None, label="column_2", classes=("0", "1"), names=("unacceptable", "acceptable"),
        metric="matthews", header=False,
    ),
    "SST-2": _GlueTask(
        first="sentence", second=None, label="label", classes=("0", "1"), names=("negative", "positive")
    ),
    "MRPC": _GlueTask(
        first="#1 String", second="#2 String", label="Quality", classes=("0", "1"), names=("other", "paraphrase"),
        metric="f1",
    ),
    "QQP": _GlueTask(
        first="question1", second="question2", label="is_duplicate", classes=("0", "1"), names=("other", "duplicate")
    ),
    "MNLI": _GlueTask(
        first="sentence1", second="sentence2", label="gold_label", classes=("entailment", "neutral", "contradiction"),
        dev="dev_matched.tsv",
    ),
    "QNLI": _GlueTask(first="question", second="sentence", label="label", classes=_ENTAILS),
    "RTE": _GlueTask(first="sentence1", second="sentence2", label="label", classes=_ENTAILS),
}  # fmt: skip


def find(root: Path, task: str = "SST-2") -> dict[str, Path]:
    """The training and development files of a task."""
    files = {"train": root / "glue" / task / "train.tsv", "dev": root / "glue" / task / _task(task).dev}
    return files if all(path.is_file() for path in files.values()) else {}


def read(contents: Mapping[str, bytes], task: str = "SST-2") -> Labelled:
    """The training part, and the development part to test on."""
    chosen = _task(task)

    def of(key: str) -> TextPart:
        content = contents[key].removeprefix("\ufeff".encode())  # MRPC begins with a byte-order mark
        frame = tsv(content, has_header=chosen.header)
        return part(frame, chosen.first, chosen.label, chosen.classes, chosen.second)

    train, test = of("train"), of("dev")
    if not len(train.labels) or not len(np.unique(test.labels)) > 1:
        raise UserError(f"the files of {task} hold no labels {chosen.classes}. Are they the official ones?")
    return Labelled(train=train, val=None, test=test, classes=chosen.names or chosen.classes, metric=chosen.metric)


def _task(name: str) -> _GlueTask:
    if name not in TASKS:
        raise UserError(f"GLUE has no task {name!r} of classes; it has {', '.join(TASKS)}.")
    return TASKS[name]
