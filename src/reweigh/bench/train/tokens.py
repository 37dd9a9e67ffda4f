"""Documents as streams of sub-word tokens, with Hugging Face's `tokenizers`."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from reweigh.bench.catalogue.cache import cache_folder
from reweigh.bench.catalogue.texts import Corpus
from reweigh.bench.files import replacing

if TYPE_CHECKING:
    from tokenizers import Tokenizer

Ids = np.ndarray[Any, Any]

#: Tokens that are no part of a text. The first ends a document; the others are for masked language models.
END, CLASS, SEPARATOR, MASK, PAD = "<end>", "<class>", "<separator>", "<mask>", "<pad>"
SPECIAL = (END, CLASS, SEPARATOR, MASK, PAD)


@dataclass(frozen=True, eq=False)
class Tokens:
    """A corpus as tokens: the ids of each document, in parts, and the tokenizer that made them."""

    train: Sequence[Ids]
    val: Sequence[Ids]
    test: Sequence[Ids]
    tokenizer: Tokenizer

    @property
    def vocabulary(self) -> int:
        """How many tokens there are."""
        return self.tokenizer.get_vocab_size()

    def special(self, token: str) -> int:
        """The id of a token that is not part of a text."""
        return SPECIAL.index(token)

    def stream(self, part: str) -> Ids:
        """All documents of a part one after another, each with the token that ends it."""
        end = np.array([self.special(END)], np.int32)
        return np.concatenate([ids for document in getattr(self, part) for ids in (document, end)])

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """The text of each token."""
        return [self.tokenizer.decode([int(i)], skip_special_tokens=False) for i in ids]


def tokens(corpus: Corpus, vocabulary: int) -> Tokens:
    """The corpus as byte-level pairs learnt from its training documents; ids and tokenizer are kept in the cache.

    Every tenth document is for testing (those set aside by its makers, where they did), every tenth for validation.
    """
    from tokenizers import Tokenizer

    parts = split(corpus)
    digest = hashlib.sha256(f"1 {vocabulary}".encode())
    for documents in parts.values():
        for text in documents:
            digest.update(hashlib.sha256(text.encode()).digest())
    cached = cache_folder() / "tokens" / digest.hexdigest()[:16]
    path, ids_path = cached.with_suffix(".json"), cached.with_suffix(".npz")
    if not (path.exists() and ids_path.exists()):
        tokenizer = learn(parts["train"], vocabulary)
        encoded = {name: _encoded(tokenizer, documents) for name, documents in parts.items()}
        with replacing(ids_path) as temporary, temporary.open("wb") as file:
            np.savez(file, allow_pickle=False, **{k: v for name in parts for k, v in _packed(name, encoded[name])})
        with replacing(path) as temporary:
            tokenizer.save(str(temporary))
    with np.load(ids_path, allow_pickle=False) as file:
        unpacked = {name: np.split(file[name], np.cumsum(file[f"{name} sizes"])[:-1]) for name in parts}
    return Tokens(**unpacked, tokenizer=Tokenizer.from_file(str(path)))


def split(corpus: Corpus) -> dict[str, list[str]]:
    """The documents for training, validation and testing."""
    held = list(corpus.held)
    return {
        "train": [text for i, text in enumerate(corpus.documents) if i % 10 not in ((3,) if held else (3, 7))],
        "val": [text for i, text in enumerate(corpus.documents) if i % 10 == 3],
        "test": held or [text for i, text in enumerate(corpus.documents) if i % 10 == 7],
    }


def encoded_by(tokenizer: Tokenizer, corpus: Corpus) -> Tokens:
    """The corpus as tokens that were learnt from another one."""
    return Tokens(**{part: _encoded(tokenizer, texts) for part, texts in split(corpus).items()}, tokenizer=tokenizer)


def learn(texts: Sequence[str], vocabulary: int) -> Tokenizer:
    """A tokenizer of byte pairs, so that no text is beyond it."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def _encoded(tokenizer: Tokenizer, documents: Sequence[str]) -> list[Ids]:
    encodings = tokenizer.encode_batch(list(documents), add_special_tokens=False)
    return [np.array(encoding.ids, np.int32) for encoding in encodings]


def _packed(name: str, documents: Sequence[Ids]) -> list[tuple[str, Ids]]:
    sizes = np.array([len(ids) for ids in documents], np.int64)
    return [(name, np.concatenate([np.zeros(0, np.int32), *documents])), (f"{name} sizes", sizes)]
