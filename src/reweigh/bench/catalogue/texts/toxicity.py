"""Wikipedia toxicity: do most annotators find a talk-page comment toxic? One in ten is."""

from __future__ import annotations

from collections.abc import Mapping

from reweigh.bench.catalogue.card import DataCard
from reweigh.bench.catalogue.tables.adult import CARD as ADULT
from reweigh.bench.catalogue.texts import Labelled, TextPart, part, tsv

FILES = {"comments": "toxicity/toxicity_annotated_comments.tsv", "annotations": "toxicity/toxicity_annotations.tsv"}
MEMBERS = FILES
CARD = DataCard(
    size="95 692 + 32 128 + 31 866 comments, 2 classes (9.6 % toxic)",
    licence="labels CC0, text CC BY-SA 3.0",
    source="Wulczyn, Thain and Dixon, Ex Machina, WWW 2017",
    official="toxicity_annotated_comments.tsv and toxicity_annotations.tsv into DATA_ROOT/toxicity/.",
    packages=ADULT.packages,
    stand_in_for="GLUE",
)


def read(contents: Mapping[str, bytes]) -> Labelled:
    """Comments in the official split; toxic where more than half of the annotators find them so."""
    import polars as pl

    annotations = tsv(contents["annotations"]).with_columns(pl.col("toxicity").cast(pl.Float64))
    shares = annotations.group_by("rev_id").agg(pl.col("toxicity").mean())
    frame = tsv(contents["comments"]).join(shares, on="rev_id", maintain_order="left")
    label = pl.when(pl.col("toxicity") > 0.5).then(pl.lit("toxic")).otherwise(pl.lit("fine")).alias("label")
    text = pl.col("comment").str.replace_all("NEWLINE_TOKEN", " ").str.replace_all("TAB_TOKEN", " ")
    frame = frame.with_columns(label, text)

    def of(split: str) -> TextPart:
        return part(frame.filter(pl.col("split") == split), "comment", "label", ("fine", "toxic"))

    return Labelled(train=of("train"), val=of("dev"), test=of("test"), classes=("fine", "toxic"), metric="f1")
