"""Pretrained encoders whose lower layers stay as they are, so that their output for a text is computed once.

What goes into the first layer that is trained is the same in every epoch of every run: it is kept in the cache, and
runs start from there. Dropout is off in the layers below, as in any frozen layer.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from reweigh.bench.catalogue import weights
from reweigh.bench.catalogue.cache import cache_folder
from reweigh.bench.catalogue.texts import TextPart
from reweigh.bench.files import replacing
from reweigh.bench.train.tokens import CLASS, PAD, SEPARATOR, learn

#: The checkpoint of that name is not pretrained: a tiny model of random weights, for trying things out.
RANDOM = "random"


@dataclass(frozen=True, eq=False)
class EncodedTexts:
    """What the trained part of a model sees of each text: keyword arguments with one row a text, and its label."""

    arguments: Mapping[str, Tensor]
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, row: int) -> dict[str, Tensor]:
        return {**{name: values[row] for name, values in self.arguments.items()}, "labels": self.labels[row]}

    def take(self, rows: Any) -> EncodedTexts:
        """Some of the texts."""
        return EncodedTexts({name: values[rows] for name, values in self.arguments.items()}, self.labels[rows])

    def lengths(self) -> Tensor:
        """Tokens of each text."""
        return self.arguments["attention_mask"].sum(1)


def collate(rows: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Rows as a batch, cut to the longest of them."""
    return cut({name: torch.stack([row[name] for row in rows]) for name in rows[0]})


def cut(batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A batch without the columns that are padding in every row."""
    longest = int(batch["attention_mask"].sum(1).max())
    return {name: values[:, :longest] if values.ndim > 1 else values for name, values in batch.items()}


class TextEncoder:
    """A checkpoint with its tokenizer; `frozen` counts the layers that are not trained, embeddings not counted.

    Parameters
    ----------
    checkpoint
        A folder that Hugging Face reads, the name of a checkpoint, or `"random"`.
    frozen
        Lower layers to keep as they are, from which what they make of a text is computed once. -1 trains everything,
        embeddings and all, from the tokens; that works for every architecture, others need one that is built like BERT.
    length
        Tokens a text is cut to.
    texts
        Only for `"random"`: what its tokenizer learns from.
    """

    def __init__(self, checkpoint: str, frozen: int, length: int, texts: tuple[str, ...] = ()) -> None:
        self.frozen, self.length = frozen, length
        self.name, self.tokenizer, self._load = _open(checkpoint, texts)

    def inputs(self, part: TextPart) -> EncodedTexts:
        """What the trained layers see of these texts, from the cache where they were seen before."""
        labels = torch.from_numpy(part.labels)
        pairs = () if part.second is None else (list(part.second),)
        encoded: Any = self.tokenizer(
            list(part.first), *pairs, truncation=True, max_length=self.length, padding="max_length",
            return_tensors="pt",
        )  # fmt: skip
        if self.frozen < 0:
            return EncodedTexts(dict(encoded), labels)
        digest = hashlib.sha256(f"1 {self.name} {self.frozen} {self.length}".encode())
        digest.update(encoded["input_ids"].numpy().tobytes())
        cached = cache_folder() / "features" / f"{digest.hexdigest()[:16]}.npy"
        if not cached.exists():
            with replacing(cached) as temporary, temporary.open("wb") as file:
                np.save(file, self._features(encoded), allow_pickle=False)
        hidden = torch.from_numpy(np.load(cached, allow_pickle=False))
        return EncodedTexts({"inputs_embeds": hidden, "attention_mask": encoded["attention_mask"]}, labels)

    def model(self, classes: int) -> nn.Module:
        """A fresh classifier whose new layers are initialised from torch's ambient generator."""
        if self.frozen < 0:
            return self._load(classes)
        whole = self._load(classes)
        body: Any = whole.base_model
        encoder = _layers(body)
        if not 0 <= self.frozen < len(encoder.layer):
            raise ValueError(
                f"`frozen` must be less than the {len(encoder.layer)} layers there are, got {self.frozen}."
            )
        encoder.layer = encoder.layer[self.frozen :]
        encoder.layer[-1] = _FirstToken(encoder.layer[-1])
        body.embeddings = _PassedOn()
        return _Widened(whole)

    @torch.no_grad()
    def _features(self, encoded: Any) -> np.ndarray[Any, Any]:
        """What the frozen layers make of each text, in half precision."""
        body: Any = self._load(2).eval().base_model
        encoder = _layers(body)
        encoder.layer = encoder.layer[: self.frozen]
        rows = len(encoded["input_ids"])
        parts = [
            body(**{name: values[i : i + 64] for name, values in encoded.items()}).last_hidden_state.half()
            for i in range(0, rows, 64)
        ]
        return torch.cat(parts).numpy()


class _Widened(nn.Module):
    """A classifier that takes hidden states in the half precision they are kept in."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.config: Any = model.config

    def forward(self, inputs_embeds: Tensor, attention_mask: Tensor) -> Any:
        """The output of the classifier."""
        return self.model(inputs_embeds=inputs_embeds.float(), attention_mask=attention_mask)


class _FirstToken(nn.Module):
    """A last layer that is computed for the first token alone, which is all that a classifier reads.

    The first token still attends to all others. The same numbers for a fifth of the time.
    """

    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, hidden_states: Tensor, attention_mask: Tensor | None = None, *_: Any, **__: Any) -> Tensor:
        layer, attention = self.layer, self.layer.attention.self
        first = hidden_states[:, :1]

        def heads(x: Tensor) -> Tensor:
            return x.unflatten(-1, (attention.num_attention_heads, -1)).transpose(1, 2)

        mixed = F.scaled_dot_product_attention(
            heads(attention.query(first)),
            heads(attention.key(hidden_states)),
            heads(attention.value(hidden_states)),
            attn_mask=None if attention_mask is None else attention_mask[..., :1, :],
            dropout_p=attention.dropout.p if self.training else 0.0,
        )
        attended = layer.attention.output(mixed.transpose(1, 2).flatten(2), first)
        return layer.output(layer.intermediate(attended), attended)


class _PassedOn(nn.Module):
    """In the place of embeddings: hidden states are there already."""

    def forward(self, *, inputs_embeds: Tensor, **_: Any) -> Tensor:
        return inputs_embeds


def _open(checkpoint: str, texts: tuple[str, ...]) -> tuple[str, Any, Any]:
    """The checkpoint's identity, its tokenizer, and a function that loads it with so many classes."""
    from transformers import AutoModelForSequenceClassification, AutoTokenizer
    from transformers.utils import logging

    if checkpoint == RANDOM:
        return _random(texts)
    folder = weights.checkpoint(checkpoint)
    # That a new head is not in the checkpoint is what fine-tuning is about.
    logging.set_verbosity_error()
    logging.disable_progress_bar()

    def load(classes: int) -> nn.Module:
        return AutoModelForSequenceClassification.from_pretrained(
            str(folder), num_labels=classes, local_files_only=True
        )

    tokenizer = AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
    return _identity(folder), tokenizer, load


def _random(texts: tuple[str, ...]) -> tuple[str, Any, Any]:
    """A two-layer BERT that has learnt nothing, and a tokenizer that has learnt these texts."""
    from transformers import BertConfig, BertForSequenceClassification, PreTrainedTokenizerFast

    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=learn(texts, 400), pad_token=PAD, cls_token=CLASS, sep_token=SEPARATOR
    )

    def load(classes: int) -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)  # as a checkpoint, it is the same for every seed of a run
            config = BertConfig(
                vocab_size=len(tokenizer),
                hidden_size=32,
                num_hidden_layers=2,
                num_attention_heads=2,
                intermediate_size=64,
                max_position_embeddings=64,
            )
            config.num_labels = classes
            return BertForSequenceClassification(config)

    return RANDOM, tokenizer, load


def _layers(body: Any) -> Any:
    encoder = getattr(body, "encoder", None)
    layers = getattr(encoder, "layer", ())
    if not layers or not hasattr(body, "embeddings") or not hasattr(getattr(layers[0], "attention", None), "self"):
        raise ValueError(
            f"{type(body).__name__} is not built like BERT (embeddings, encoder.layer, attention.self), so its lower "
            "layers cannot be kept apart. Use frozen=-1, which trains everything."
        )
    return encoder


def _identity(folder: Path) -> str:
    """A checkpoint by its content: configuration and the size of its weights."""
    digest = hashlib.sha256((folder / "config.json").read_bytes())
    for path in sorted(folder.glob("*.safetensors")):
        with path.open("rb") as file:
            digest.update(f"{path.name} {path.stat().st_size}".encode() + file.read(1 << 20))
    return digest.hexdigest()[:16]
