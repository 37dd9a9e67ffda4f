"""`reweigh predict`: the predictions of a model that `reweigh compare` kept."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from reweigh.bench.cli import devices
from reweigh.bench.cli.console import SafeConsole
from reweigh.bench.train.precision import Precision


def predict(
    model: Annotated[Path, Positional, arg(metavar="MODEL")],
    rows: Annotated[Path, Positional, arg(metavar="ROWS")],
    /,
    out: Annotated[Path, arg(aliases=["-o"])],
    device: str = "cpu",
    precision: Precision = "float32",
) -> int:
    """Predict with a model that `reweigh compare` kept: the rows, with predictions and probabilities added.

    Args:
        model: The model's folder; `reweigh compare` prints it.
        rows: A file with the columns of training, or a folder of images.
        out: Where to write: a name ending in .csv, .tsv or .parquet, or - for CSV on the standard output.
        device: Where to compute, whatever the model was trained on: auto takes an accelerator where there is one and
            prints which; cpu; cuda, cuda:1, mps and the like. Boosters always take the cpu.
        precision: float32, or bfloat16 or float16 for a network in mixed precision.
    """
    from reweigh.bench.cli import comparing

    console = SafeConsole(stderr=str(out) == "-")  # the standard output has the predictions and nothing else
    place = devices.chosen(device, precision, console)
    return comparing.predict(model, rows, out, console, device=place, precision=precision)
