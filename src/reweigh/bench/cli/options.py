"""Options that several commands have."""

from __future__ import annotations

from typing import Annotated

from tyro.conf import UseAppendAction

from reweigh.bench.errors import UserError

#: An option that may be given several times.
Repeated = Annotated[tuple[str, ...], UseAppendAction]


def trials(text: str | None) -> int | None:
    """Learning rates that `--tune` asks for; None where the recipe or Optuna has a number of its own."""
    if text is None or text == "optuna":
        return None
    text = text.removeprefix("optuna:")
    named = {"none": 1, "grid": 5}
    if text in named:
        return named[text]
    if not text.isdigit() or int(text) < 1:
        raise UserError(f"`--tune` must be a number, none or grid, optuna or optuna:number, got {text!r}.")
    return int(text)
