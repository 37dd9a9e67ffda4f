"""`reweigh score`: the losses of a language model beside the rows of a file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import Positional, arg

from reweigh.bench.cli import devices
from reweigh.bench.cli.console import SafeConsole, print_plainly
from reweigh.bench.train.precision import Precision


def score(
    source: Annotated[Path, Positional, arg(metavar="DATA.JSONL")],
    /,
    model: Path,
    out: Annotated[Path | None, arg(aliases=("-o",))] = None,
    per: Literal["token", "row"] = "token",
    column: str = "reference",
    length: int = 0,
    batch_size: int = 8,
    device: str = "auto",
    precision: Precision = "float32",
) -> int:
    """Write the losses of a causal language model beside the rows of a JSONL file: what `rho` weighs by.

    Rows have `text`, `prompt` and `completion`, `messages`, of which the last one is learnt, or `input_ids`. One loss
    per token comes with the tokens it belongs to, as `input_ids` and `labels`, and a trainer takes these as they are.

    For example:
        reweigh score --model base-model/ train.jsonl
        reweigh score --model base-model/ train.jsonl --per row -o scored.jsonl

    Args:
        source: The rows, one JSON object per line.
        model: A Hugging Face folder with a causal language model and its tokenizer: the reference.
        out: Where to write the rows; DATA.scored.jsonl if not given.
        per: One loss per token, or their mean for each row.
        column: What the losses are called.
        length: Tokens that a row is cut to; as many as the model has positions for if not given.
        batch_size: Rows at once.
        device: Where to run the model: auto takes an accelerator where there is one; cpu; cuda, cuda:1, mps.
        precision: float32, or bfloat16 or float16 for the model's weights.
    """
    from rich.progress import Progress

    from reweigh.bench.train import scoring

    console = SafeConsole()
    place = devices.chosen(device, precision, console)
    page = source.with_suffix(".scored.jsonl") if out is None else out
    with Progress(console=console, transient=True) as progress:
        bar = progress.add_task("scoring", total=None)
        summary = scoring.score_file(
            source,
            page,
            model,
            per=per,
            column=column,
            length=length,
            batch_size=batch_size,
            device=place,
            precision=precision,
            tell=lambda done, total: progress.update(bar, completed=done, total=total),
        )
    print_plainly(console, f"{page}: {summary}")
    return 0
