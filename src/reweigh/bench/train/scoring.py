"""The losses of a causal language model beside the rows of a JSONL file: `reweigh score`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from reweigh.bench.errors import UserError
from reweigh.bench.files import replacing
from reweigh.bench.train.instructions import IGNORED, TokenRow, encode, read

__all__ = ["Per", "score_file", "scored"]

Per = Literal["token", "row"]


def score_file(
    source: Path,
    out: Path,
    folder: Path,
    *,
    per: Per = "token",
    column: str = "reference",
    length: int = 0,
    batch_size: int = 8,
    device: str = "cpu",
    precision: str = "float32",
    tell: Callable[[int, int], object] = lambda done, total: None,
) -> str:
    """Write the rows of a file with the losses that the model of a Hugging Face folder has on them.

    Parameters
    ----------
    source, out
        JSONL files; the second is complete or absent.
    folder
        Holds a causal language model and its tokenizer.
    per, column, length, batch_size, device, precision
        As in `reweigh score`.
    tell
        Is told how many rows are done, of how many.

    Returns
    -------
    str
        What was done, in one sentence.
    """
    if batch_size < 1 or length < 0:
        raise UserError(f"`--batch-size` and `--length` must be positive, got {batch_size} and {length}.")
    if out.resolve() == source.resolve():
        raise UserError(f"the scored rows would replace {source}. Name another file with `-o`.")
    rows = read(source)
    taken = next((row for row in rows if column in row), None)
    if taken is not None:
        raise UserError(f"rows have {column!r} already. Name another column with `--column`.")
    model, tokenizer = _load(folder, device, precision)
    longest = length or getattr(model.config.get_text_config(), "max_position_embeddings", 0) or 1 << 30
    encoded = [encode(row, tokenizer) for row in rows]
    tokens, total = 0, 0.0
    with replacing(out) as temporary, temporary.open("w", encoding="utf-8") as file:
        losses = scored(model, encoded, length=longest, batch_size=batch_size)
        for number, (row, ids, own) in enumerate(zip(rows, encoded, losses, strict=True), 1):
            labels = ids.labels[:longest]
            counts = sum(label != IGNORED for label in labels[1:])
            tokens, total = tokens + counts, total + sum(own)
            if per == "token":
                added = {"input_ids": ids.ids[:longest], "labels": labels, column: own}
            else:
                added = {column: round(sum(own) / max(counts, 1), 6)}
            file.write(json.dumps(row | added, ensure_ascii=False) + "\n")
            tell(number, len(rows))
    if not tokens:
        return f"{len(rows)} rows, in which nothing is to be predicted."
    return f"{len(rows)} rows, {tokens} tokens to predict, {total / tokens:.4f} nats each in `{column}`."


def scored(model: Any, rows: Sequence[TokenRow], *, length: int, batch_size: int) -> Iterator[list[float]]:
    """The loss of each token of each row, cut to some length; zero for the first token and those that do not count."""
    from reweigh.integrations.causal import losses_of

    for start in range(0, len(rows), batch_size):
        cut = [TokenRow(row.ids[:length], row.labels[:length]) for row in rows[start : start + batch_size]]
        width = max(2, *(len(row.ids) for row in cut))
        ids, mask, labels = (_padded(cut, width, kind).to(model.device) for kind in ("ids", "mask", "labels"))
        losses = losses_of(model, {"input_ids": ids, "attention_mask": mask, "labels": labels}).float().cpu()
        if not bool(losses.isfinite().all()):
            raise UserError("the reference model's losses are not finite: try another --precision, or another model.")
        for row, own in zip(cut, losses.tolist(), strict=True):
            yield [0.0, *(round(loss, 6) for loss in own)][: len(row.ids)]


def _padded(rows: Sequence[TokenRow], width: int, kind: str) -> Tensor:
    made = torch.full((len(rows), width), IGNORED if kind == "labels" else 0)
    for place, row in zip(made, rows, strict=True):
        values = {"ids": row.ids, "labels": row.labels, "mask": [1] * len(row.ids)}[kind]
        place[: len(values)] = torch.tensor(values)
    return made


def _load(folder: Path, device: str, precision: str) -> tuple[Any, Any]:
    if find_spec("transformers") is None:
        raise UserError("this needs the package transformers: pip install 'reweigh[language]'.")
    from transformers import AutoModelForCausalLM, AutoTokenizer

    if not (folder / "config.json").is_file():
        raise UserError(f"{folder} is not a Hugging Face folder: it has no config.json.")
    tokenizer: Any = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    model: Any = AutoModelForCausalLM.from_pretrained(folder, local_files_only=True, dtype=getattr(torch, precision))
    return model.to(device).eval(), tokenizer
