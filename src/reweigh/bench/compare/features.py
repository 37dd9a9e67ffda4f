"""What frozen, pretrained networks make of photos and texts: computed once for a content.

Features are kept in the cache by the fingerprint of what they were made from: processes, splits and later comparisons
share them, and many heads learn from them. What is fitted, the centre and one scale, is fitted on training rows alone.
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.util
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch

from reweigh.bench import catalogue
from reweigh.bench.catalogue.images import image_folder
from reweigh.bench.catalogue.weights import PretrainedWeights
from reweigh.bench.errors import MissingPackageError, UserError
from reweigh.bench.tables import Schema, TableEncoder, TableError, quoted, restored
from reweigh.bench.train import frozen

Array = np.ndarray[Any, Any]

#: The networks, as the catalogue names their weights, and the features they give.
PHOTOS, TEXTS = "efficientnet_lite0", "minilm"
#: What the network for photos knows before its last convolution, which is then trained: 320 channels of 5 x 5.
MAPS = "efficientnet_lite0 before its last convolution"
WIDTHS = {PHOTOS: 1280, TEXTS: 384, MAPS: 320 * 5 * 5}
#: Photos are scaled to this side, texts cut to so many tokens.
_SIDE, _TOKENS = 160, 128
#: Photos or texts that are in memory at once.
_BATCH = 64
#: More texts than this take longer to embed than a comparison should wait.
MOST_TEXTS = 10_000
#: Length of a typical row after centring and scaling: that of 64 standardised columns, so that the usual rates suit.
_LENGTH = 8.0

EncodingProgress = Callable[[float], None]


def available(encoder: str) -> bool:
    """Whether a network's weights are on this machine, and the library that reads them."""
    if encoder == TEXTS and importlib.util.find_spec("transformers") is None:
        return False
    try:
        catalogue.load(PHOTOS if encoder == MAPS else encoder, PretrainedWeights)
    except UserError:
        return False
    return True


def of_photos(
    files: Sequence[Path],
    fingerprint: str = "",
    progress: EncodingProgress = lambda share: None,
    *,
    encoder: str = PHOTOS,
) -> Array:
    """The features of image files, `(files, 1280)`; with the fingerprint of their content, from the cache or into it.

    With the encoder `MAPS` they are those before the last convolution.

    Files are read a batch at a time: a folder need not fit into memory.
    """

    def compute() -> Array:
        network, parts = frozen.pretrained(f"{PHOTOS}:weights=imagenet"), list[Array]()
        trunk = network.before_last if encoder == MAPS else network.embed
        for start in range(0, len(files), _BATCH):
            parts.append(frozen.activations(trunk, image_folder.pixels(files[start : start + _BATCH], _SIDE, False)))
            progress(min(start + _BATCH, len(files)) / len(files))
        return np.concatenate(parts)

    key = f"1 photos {encoder} {_SIDE} {fingerprint} {len(files)}"
    return frozen.kept(key, compute) if fingerprint else compute()


def of_texts(texts: Sequence[str], progress: EncodingProgress = lambda share: None) -> Array:
    """The embeddings of texts, `(texts, 384)`, of length one, from the cache if the same texts were embedded before."""
    digest = hashlib.sha256()
    for text in texts:
        digest.update(text.encode("utf-8", "surrogatepass") + b"\0")
    return frozen.kept(f"1 texts {TEXTS} {_TOKENS} {digest.hexdigest()}", lambda: _embeddings(texts, progress))


@torch.no_grad()
def _embeddings(texts: Sequence[str], progress: EncodingProgress) -> Array:
    """The mean over a text's tokens of the last hidden states, as the network was tuned to be read."""
    from transformers import AutoModel, AutoTokenizer
    from transformers.utils import logging

    folder = str(catalogue.load(TEXTS, PretrainedWeights).folder)
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    tokenizer: Any = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    network: Any = AutoModel.from_pretrained(folder, local_files_only=True).eval()
    different, position = np.unique(np.array(texts, dtype=object), return_inverse=True)
    out = np.empty((len(different), WIDTHS[TEXTS]), np.float32)
    order = np.argsort([len(text) for text in different], kind="stable")  # texts of a batch are about as long
    for start in range(0, len(order), _BATCH):
        rows = order[start : start + _BATCH]
        batch = tokenizer(
            [different[i] for i in rows], truncation=True, max_length=_TOKENS, padding=True, return_tensors="pt"
        )
        mask = batch["attention_mask"][..., None]
        mean = (network(**batch).last_hidden_state * mask).sum(1) / mask.sum(1)
        out[rows] = torch.nn.functional.normalize(mean).numpy()
        progress(min(start + _BATCH, len(order)) / len(order))
    return out[position]


@dataclass(frozen=True, kw_only=True)
class Frozen:
    """Preprocessing by a frozen network: its features, centred and scaled, beside the other columns of a table.

    Parameters
    ----------
    encoder
        The network.
    mean, scale
        What is subtracted from the features of a row, and what they are then multiplied by: one number for all, so
        that distances keep their proportions.
    columns
        The columns of text that are embedded one by one; none for photos.
    table
        How all other columns become numbers, and the target.
    """

    encoder: str
    mean: tuple[float, ...]
    scale: float
    columns: tuple[str, ...] = ()
    table: TableEncoder | None = None

    @classmethod
    def fit(cls, encoder: str, features: Array, **fields: Any) -> Frozen:
        """From the features of training rows; maps stay as they are, since what follows was trained on such."""
        if encoder == MAPS:
            return cls(encoder=encoder, mean=(0.0,) * WIDTHS[MAPS], scale=1.0, **fields)
        mean = features.mean(axis=0, dtype=np.float64)
        spread = math.sqrt(float(((features - mean) ** 2).sum(axis=1).mean()))
        return cls(encoder=encoder, mean=tuple(mean.tolist()), scale=_LENGTH / max(spread, 1e-12), **fields)

    @property
    def width(self) -> int:
        """Numbers that a row becomes."""
        return len(self.mean) + (0 if self.table is None else self.table.width)

    def scaled(self, features: Array) -> Array:
        """Features as a model takes them."""
        return ((features - np.asarray(self.mean)) * self.scale).astype(np.float32)

    def photos(self, files: Sequence[Path]) -> Array:
        """New photos as a model takes them."""
        self._demand()
        return self.scaled(of_photos(files, encoder=self.encoder))

    def rows(self, frame: pl.DataFrame, rows: Array | None = None) -> Array:
        """Rows of a table as a model takes them, all of them unless some are named."""
        self._demand()
        assert self.table is not None
        absent = [name for name in self.columns if name not in frame.columns]
        if absent:
            raise TableError(f"the table lacks the column {quoted(absent[0])} that the model was trained on.")
        embedded = text_columns(frame, self.columns)
        embedded = embedded if rows is None else embedded[rows]
        return np.concatenate([self.table.transform(frame, rows), self.scaled(embedded)], axis=1)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        table = None if self.table is None else self.table.to_dict()
        return {
            "encoder": self.encoder, "mean": list(self.mean), "scale": self.scale, "columns": list(self.columns),
            "table": table,
        }  # fmt: skip

    @classmethod
    def from_dict(cls, saved: Mapping[str, Any]) -> Frozen:
        """The inverse of `to_dict`."""
        encoder, scale = restored(str, saved["encoder"]), restored(float, saved["scale"])
        mean, columns = restored(tuple[float, ...], saved["mean"]), restored(tuple[str, ...], saved["columns"])
        table = None if saved["table"] is None else TableEncoder.from_dict(saved["table"])
        if (
            encoder not in WIDTHS
            or len(mean) != WIDTHS[encoder] * max(len(columns), 1)
            or (table is None) == bool(columns)
        ):
            raise UserError("its features are not those of the network it names")
        return cls(encoder=encoder, mean=mean, scale=scale, columns=columns, table=table)

    def _demand(self) -> None:
        if not available(self.encoder):
            extra = " and pip install 'reweigh[language]'" if self.encoder == TEXTS else ""
            raise MissingPackageError(
                f"this needs the network {self.encoder}: `reweigh data get {self.encoder.partition(' ')[0]}`{extra}."
            )


def text_columns(frame: pl.DataFrame, names: Sequence[str], progress: EncodingProgress = lambda share: None) -> Array:
    """The embeddings of columns of text side by side; a missing text is an empty one."""
    parts: list[Array] = []
    for k, name in enumerate(names):
        cells = frame.get_column(name).cast(pl.String).fill_null("").to_list()
        parts.append(of_texts(cells, lambda share, k=k: progress((k + share) / len(names))))
    return np.concatenate(parts, axis=1)


def texts_of(schema: Schema) -> tuple[str, ...]:
    """The columns of free text."""
    return tuple(column.name for column in schema.features if column.kind == "text")


def without_texts(schema: Schema) -> Schema:
    """What a table holds besides free text."""
    names = texts_of(schema)
    return dataclasses.replace(schema, columns=tuple(column for column in schema.columns if column.name not in names))
