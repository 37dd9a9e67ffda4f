"""What a configuration of torchtune names as its tokenizer: eighteen words, and no file to download."""

from __future__ import annotations

from typing import Any

from torchtune.modules.transforms.tokenizers import ModelTokenizer  # pyright: ignore[reportMissingImports]

TEXT = "the cat sat on a mat and saw two red birds fly over green hills at noon"
WORDS = TEXT.split()


class Words(ModelTokenizer):
    """Numbers words; prompts are masked, and a sequence ends with token 1."""

    max_seq_len = 64
    pad_id = 0

    def tokenize_messages(self, messages: Any, **kwargs: Any) -> tuple[list[int], list[bool]]:
        tokens: list[int] = []
        mask: list[bool] = []
        for message in messages:
            own = [WORDS.index(word) + 2 for word in message.text_content.split()]
            own = own if message.masked else [*own, 1]
            tokens += own
            mask += [message.masked] * len(own)
        return tokens, mask

    def __call__(self, sample: dict[str, Any], inference: bool = False) -> dict[str, Any]:
        sample["tokens"], sample["mask"] = self.tokenize_messages(sample.pop("messages"))
        return sample


def words() -> Words:
    """The tokenizer."""
    return Words()
