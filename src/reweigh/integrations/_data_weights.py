"""Weights that come with the data: from a row, its messages or its packed sequences to the tokens they belong to."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

__all__ = ["KEY", "SIGNAL", "WeightedCollator", "on_tokens", "weigh_messages"]

#: What a batch calls the weights of its labels, until the loss takes them out.
KEY = "reweigh_weight"
#: The same for what an objective weighs by besides the losses.
SIGNAL = "reweigh_signal"


def on_tokens(weight: Any, tokens: int, lengths: Sequence[int] | None = None) -> Tensor:
    """The weight of each token of a row.

    Parameters
    ----------
    weight
        One number for the whole row, one per packed sequence, or one per token.
    tokens
        How many tokens the row has.
    lengths
        The lengths of the sequences that are packed into the row, if there are several.

    Returns
    -------
    Tensor
        Shape (tokens,), float32.

    Examples
    --------
    >>> on_tokens(2.0, 3).tolist(), on_tokens([1.0, 0.5], 3, lengths=[1, 2]).tolist()
    ([2.0, 2.0, 2.0], [1.0, 0.5, 0.5])
    """
    given = torch.as_tensor(weight, dtype=torch.float32)
    if given.ndim == 0:
        return given.expand(tokens)
    if given.shape == (tokens,):
        return given
    if lengths is not None and given.shape == (len(lengths),) and sum(lengths) == tokens:
        return given.repeat_interleave(torch.as_tensor(lengths))
    packed = "" if lengths is None else f", {len(lengths)} numbers, one per packed sequence,"
    raise ValueError(
        f"the weight of a row must be one number{packed} or {tokens} numbers, one per token, got shape "
        f"{tuple(given.shape)}."
    )


def weigh_messages(
    example: Mapping[str, Any],
    tokenizer: Any,
    *,
    messages: str = "messages",
    weight: str = "weight",
    **options: Any,
) -> dict[str, list[Any]]:
    """A conversation as tokens with the weight of the message that each belongs to: a function for `Dataset.map`.

    Parameters
    ----------
    example
        Has a list of messages, dicts with `role` and `content` and, where it is not one, a `weight`.
    tokenizer
        With a chat template.
    messages, weight
        What the list and the weight of a message are called; the weights of the tokens get the latter name.
    **options
        Those of `tokenizer.apply_chat_template`.

    Returns
    -------
    dict
        `input_ids`, `labels` and the column `weight`, each with one entry per token.

    Notes
    -----
    The tokens of a message are those that the template adds with it, its header included. A template that changes what
    came before when a message is added is refused: its tokens belong to no message.
    """
    conversation = [
        {key: value for key, value in message.items() if key != weight and value is not None}
        for message in example[messages]
    ]
    own = [message.get(weight) for message in example[messages]]
    tokens: list[int] = []
    weights: list[float] = []
    for number in range(1, len(conversation) + 1):
        encoded = tokenizer.apply_chat_template(conversation[:number], return_dict=True, **options)["input_ids"]
        if encoded[: len(tokens)] != tokens:
            raise ValueError(
                f"the chat template changes earlier tokens when message {number} is added, so that they belong to no "
                "message. Use a template that only appends, or give weights per token."
            )
        value = own[number - 1]
        weights += [1.0 if value is None else float(value)] * (len(encoded) - len(tokens))
        tokens = encoded
    return {"input_ids": tokens, "labels": list(tokens), weight: weights}


class WeightedCollator:
    """A collator that takes a column of weights out of the rows and puts them next to the labels of the batch.

    Parameters
    ----------
    collator
        What makes a batch of the rows without that column; it may pad on either side, or join all rows into one.
    column
        The name of the weights in a row: one number, one per packed sequence or one per token.
    key
        What the batch calls them: weights, which are never negative, or a signal, which is any number.
    """

    def __init__(self, collator: Callable[[list[Any]], Any], column: str, *, key: str = KEY) -> None:
        self.collator = collator
        self.column = column
        self.key = key

    @property
    def tokenizer(self) -> Any:
        """The tokenizer of the collator, if it has one."""
        return getattr(self.collator, "tokenizer", None)

    def __call__(self, rows: Sequence[Mapping[str, Any]]) -> Any:
        """The batch, with a weight for each label."""
        given = [row.get(self.column) for row in rows]
        batch = self.collator([{key: value for key, value in row.items() if key != self.column} for row in rows])
        if all(weight is None for weight in given):
            return batch
        if any(weight is None for weight in given):
            raise ValueError(f"some rows of a batch have {self.column!r} and some do not. Give every row one.")
        if texts := [weight for weight in given if _holds_text(weight)]:
            raise TypeError(f"the column {self.column!r} must hold numbers, or lists of numbers, got {texts[0]!r}.")
        weights = self._weights(given, rows, batch["labels"])
        if self.key == KEY and not bool((weights >= 0).all()):  # NaN is not either
            raise ValueError(
                f"weights must be zero or more, got {float(weights.min()):g} in the column {self.column!r}."
            )
        batch[self.key] = weights
        return batch

    def _weights(self, given: list[Any], rows: Sequence[Mapping[str, Any]], labels: Tensor) -> Tensor:
        if labels.ndim == 1 or labels.is_floating_point():  # a label, or several values, of a row
            return torch.as_tensor(given, dtype=torch.float32)
        of_rows = [
            on_tokens(weight, _tokens(row), row.get("seq_lengths")) for weight, row in zip(given, rows, strict=True)
        ]
        if labels.shape[0] == 1:
            of_rows = [torch.cat(of_rows)]
        left = getattr(self.tokenizer, "padding_side", "right") == "left"
        weights = torch.zeros(labels.shape, dtype=torch.float32)
        for place, weight in zip(weights, of_rows, strict=True):
            if len(weight) > len(place):
                raise ValueError(
                    f"a row has {len(weight)} tokens and its labels in the batch {len(place)}: the collator cuts rows, "
                    "so that weights no longer say which token they belong to. Cut the rows before."
                )
            place[len(place) - len(weight) if left else 0 :][: len(weight)] = weight
        return weights


def _tokens(row: Mapping[str, Any]) -> int:
    """How many labels a row has; where the collator makes them, there is one per input."""
    return len(row["labels"] if "labels" in row else row["input_ids"])


def _holds_text(weight: Any) -> bool:
    """Whether there is a text where a number should be, which torch says nothing helpful about."""
    return isinstance(weight, str) or (isinstance(weight, list) and any(isinstance(one, str) for one in weight))
