"""A folder of class folders of images as a problem, its images decoded once for all processes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from reweigh.bench import tables
from reweigh.bench.catalogue.images import image_folder
from reweigh.bench.compare.problem import SAME_TEST, TEST_SHARE, Array, DataQuestion, Images, Problem, hash_of
from reweigh.bench.errors import UserError
from reweigh.bench.tables import TableError
from reweigh.bench.train import frozen


def image_problem(path: Path, question: DataQuestion) -> Problem:
    """The images of a folder, at the size of the question; a part that is named for it is tested on."""
    files = list(image_folder.find(path.resolve().parent, path.resolve().name, question.image_size).values())
    if not files:
        raise TableError(
            f"the folder {path} has no images in subfolders. Put the images of each class into a folder named after it."
        )
    fingerprint = question.sha256 or hash_of(str(path))
    x, files, unreadable = _decoded(files, question.image_size, fingerprint)
    y, classes = image_folder.labels(files)
    counts = np.bincount(y, minlength=len(classes))
    if counts.min() < 5:
        rare = classes[int(counts.argmin())]
        raise TableError(
            f"the class {tables.quoted(rare)} has {counts.min()} images, and a split needs at least 5 of each. Add "
            "images, or remove the folder."
        )
    names = tuple(str(file.relative_to(path.resolve())) for file in files)
    tested = image_folder.held_out(names)
    test_rows = None if tested is None else np.flatnonzero(tested)
    return Problem(
        name=path.resolve().name,
        kind="binary" if len(classes) == 2 else "multiclass",
        classes=classes,
        class_counts=tuple(counts.tolist()),
        rows=len(y),
        notes=(
            f"{len(y)} images of {len(classes)} classes, scaled to {x.shape[1]} x {x.shape[2]} (`--image-size`).",
            *about_parts(names, "images"),
            *image_folder.skipped(unreadable, path.resolve()),
        ),
        test_share=TEST_SHARE if test_rows is None else len(test_rows) / len(y),
        test_rows=test_rows,
        images=Images(x=x, y=y, files=names, folder=path.resolve()),
        fingerprint=fingerprint,
    )


def _decoded(files: list[Path], size: int, fingerprint: str) -> tuple[Array, list[Path], list[str]]:
    """Small images, their files, and why others cannot be used.

    Every folder is decoded once, by one process, image by image into a file that all processes map.
    """
    reasons: list[str] = []
    key = f"2 pixels {size} {fingerprint}"

    def decode(out: Array) -> None:
        _, kept, unreadable = image_folder.readable(files, size, grey=False, out=out)
        reasons.extend(unreadable)
        readable = set(kept)
        frozen.kept(f"{key} which", lambda: np.array([file in readable for file in files]))

    x = frozen.kept_rows(key, (len(files), size, size, 3), decode)
    which = frozen.kept(f"{key} which", lambda: np.ones(len(files), dtype=bool))
    if not which.all() and not reasons:  # decoded before: ask the files themselves again
        reasons = [_fault(file) for file, good in zip(files, which, strict=True) if not good]
    return x[: int(which.sum())], [file for file, good in zip(files, which, strict=True) if good], reasons


def _fault(file: Path) -> str:
    try:
        image_folder.pixels([file], 1, grey=False)
    except UserError as error:
        return str(error)
    return f"{file} could not be read before."


def about_parts(names: Sequence[str], files: str) -> list[str]:
    """Notes on which parts of a divided folder are trained on and tested on; none where it is not divided."""
    parts = image_folder.parts(names)
    if not parts:
        return []
    trained = " and ".join(f"{part}/" for part, tested in parts.items() if not tested)
    (tested,) = (part for part, tested in parts.items() if tested)
    return [f"Every split trains on {files} of {trained} and tests on those of {tested}/.", SAME_TEST]
