"""Wikipedia toxicity: do most annotators find a talk-page comment toxic? One in ten is."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import polars as pl

from reweigh.bench.data._dataset import Card, Package
from reweigh.bench.text._text import Labelled, Part, ending, files, part, tsv

_NAMES = {"comments": "toxicity_annotated_comments.tsv", "annotations": "toxicity_annotations.tsv"}
CARD = Card(
    kind="text",
    size="95 692 + 32 128 + 31 866 comments, 2 classes (9.6 % toxic)",
    licence="labels CC0, text CC BY-SA 3.0",
    source="Wulczyn, Thain and Dixon, Ex Machina, WWW 2017",
    official="toxicity_annotated_comments.tsv and toxicity_annotations.tsv into DATA_ROOT/toxicity/.",
    packages=(
        Package(
            registry="pip",
            name="aif360",
            version="0.3.0rc0",
            sha256="0db86e749bd8c6814023663cae76e1d7826a4596d1228cdaa758df3b0dccfd0a",
            size=56_483_891,
        ),
    ),
    stand_in_for="GLUE",
)


def find(root: Path) -> dict[str, Path]:
    """The official two tables."""
    return files(root, "toxicity", _NAMES)


def member(path: str) -> str | None:
    """The same two tables, as they are."""
    return ending(path, {key: f"toxicity/{name}" for key, name in _NAMES.items()})


def read(contents: Mapping[str, bytes]) -> Labelled:
    """Comments in the official split; toxic where more than half of the annotators say so."""
    annotations = tsv(contents["annotations"]).with_columns(pl.col("toxicity").cast(pl.Float64))
    shares = annotations.group_by("rev_id").agg(pl.col("toxicity").mean())
    frame = tsv(contents["comments"]).join(shares, on="rev_id", maintain_order="left")
    label = pl.when(pl.col("toxicity") > 0.5).then(pl.lit("toxic")).otherwise(pl.lit("fine")).alias("label")
    text = pl.col("comment").str.replace_all("NEWLINE_TOKEN", " ").str.replace_all("TAB_TOKEN", " ")
    frame = frame.with_columns(label, text)

    def of(split: str) -> Part:
        return part(frame.filter(pl.col("split") == split), "comment", "label", ("fine", "toxic"))

    return Labelled(train=of("train"), val=of("dev"), test=of("test"), classes=("fine", "toxic"), metric="f1")
