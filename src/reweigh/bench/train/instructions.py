"""Rows of a JSONL file as tokens to learn: texts, prompts with completions, conversations, or tokens."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from reweigh.bench.errors import UserError

__all__ = ["IGNORED", "Examples", "TokenRow", "encode", "padded", "read"]

#: Marks targets that are not to be predicted.
IGNORED = -100


class TokenRow(NamedTuple):
    """A row as tokens: `labels` has one per token, -100 where it belongs to a prompt."""

    ids: list[int]
    labels: list[int]


class Examples(NamedTuple):
    """Sequences of equal length: what a causal model sees, and the token after each, -100 where it does not count."""

    ids: Tensor
    targets: Tensor

    def take(self, rows: Any) -> Examples:
        """Some of the rows, without the columns that count in none of them."""
        ids, targets = self.ids[rows], self.targets[rows]
        used = (targets != IGNORED).any(0).nonzero()
        end = int(used[-1]) + 1 if len(used) else 1
        return Examples(ids[:, :end], targets[:, :end])


def read(path: Path) -> list[dict[str, Any]]:
    """The rows of a JSONL file."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise UserError(
            f"{path} cannot be read: {error.strerror}. It is a file with one JSON object per line."
        ) from None
    rows: list[dict[str, Any]] = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise UserError(f"line {number} of {path} is not JSON: {error.msg}.") from None
        if not isinstance(row, dict):
            raise UserError(f"line {number} of {path} is a {type(row).__name__}, and a JSON object is needed.")
        rows.append(row)  # pyright: ignore[reportUnknownArgumentType]
    if not rows:
        raise UserError(f"{path} has no rows.")
    return rows


def encode(row: Mapping[str, Any], tokenizer: Any) -> TokenRow:
    """A row as tokens.

    Parameters
    ----------
    row
        Has `input_ids` (and `labels`, if not every token counts), `messages`, of which the last one is learnt, `prompt`
        and `completion`, or `text`.
    tokenizer
        A Hugging Face tokenizer; its end-of-sequence token follows texts and completions.
    """
    if "input_ids" in row:
        return TokenRow(list(row["input_ids"]), list(row.get("labels") or row["input_ids"]))
    if "messages" in row:
        options: dict[str, Any] = {"tokenize": True, "return_dict": True}
        *before, _ = row["messages"]
        prompt = tokenizer.apply_chat_template(before, add_generation_prompt=True, **options)["input_ids"]
        whole = tokenizer.apply_chat_template(row["messages"], **options)["input_ids"]
    else:
        missing = [name for name in ("prompt", "completion") if name not in row]
        if missing and "text" not in row:
            raise UserError(
                f"a row has {', '.join(row)}; it needs `text`, `prompt` and `completion`, `messages`, or `input_ids`."
            )
        first, second = ("", row["text"]) if missing else (row["prompt"], row["completion"])
        prompt = tokenizer(first)["input_ids"] if first else []
        whole = tokenizer(first + second + (tokenizer.eos_token or ""))["input_ids"]
    return TokenRow(list(whole), [IGNORED] * len(prompt) + list(whole[len(prompt) :]))


def padded(rows: Sequence[TokenRow], length: int) -> Examples:
    """Rows cut to `length + 1` tokens and padded on the right; rows in which nothing is left to predict are dropped."""
    cut = [TokenRow(row.ids[: length + 1], row.labels[: length + 1]) for row in rows]
    usable = [row for row in cut if any(label != IGNORED for label in row.labels[1:])]
    if not usable:
        raise UserError(f"no row has a token to predict among its first {length + 1}. Take a larger `length`.")
    width = max(len(row.ids) for row in usable) - 1
    ids = torch.zeros(len(usable), width, dtype=torch.long)
    targets = torch.full((len(usable), width), IGNORED)
    for i, row in enumerate(usable):
        ids[i, : len(row.ids) - 1] = torch.tensor(row.ids[:-1])
        targets[i, : len(row.ids) - 1] = torch.tensor(row.labels[1:])
    return Examples(ids, targets)
