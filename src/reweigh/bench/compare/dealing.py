"""From the rows of a split to the numbers that a model takes, and the preprocessing that the training rows made."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from torch import Tensor

from reweigh.bench.compare import features as pretrained
from reweigh.bench.compare.dealt import Array, DealtSplit, Room, SplitFacts, in_memory
from reweigh.bench.compare.features import Frozen
from reweigh.bench.compare.problem import Images, Problem
from reweigh.bench.tables import Split, TableEncoder
from reweigh.bench.train.pixels import as_tensor, normalize, pixel_statistics
from reweigh.bench.train.task import Task

#: Images that become numbers at a time.
_PIECE = 256


@dataclass(frozen=True, kw_only=True)
class Pixels:
    """How images become numbers: their size, and mean and deviation of the training images' channels."""

    size: int
    mean: tuple[float, ...]
    deviation: tuple[float, ...]

    def transform(self, x: Array) -> Tensor:
        """Images (uint8, NHWC) as a model takes them."""
        return normalize(as_tensor(np.ascontiguousarray(x)), self.mean, self.deviation)


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
    groups = problem.group_indices
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
