"""`--device`, `--precision` and `--compile`: what they mean on this machine, before anything runs."""

from __future__ import annotations

import dataclasses
import os

from rich.console import Console

from reweigh.bench.errors import UserError, of_user
from reweigh.bench.lab import recipe as recipes
from reweigh.bench.train.precision import Precision


def chosen(device: str, precision: Precision | None, console: Console) -> str:
    """The device by a name that holds for every process of this machine; prints what `auto` took.

    A device or a precision that is not there is refused.
    """
    if device == "cpu" and precision in (None, "float32"):  # torch takes a second to import
        return "cpu"
    from reweigh.bench.train.device import check_precision, described
    from reweigh.torch.devices import count, resolve

    with of_user("`--device`"):
        place = resolve(device)
    with of_user("`--precision`"):
        check_precision(place, precision or "float32")
    if device == "auto":
        more = f", one of {count()}" if count() > 1 else ""
        console.print(f"Device: {described(place)}{more}", markup=False, highlight=False)
    # A number means that one; without a number processes take turns with all there are.
    return place.type if ":" not in device else str(place)


def processes(jobs: int | None, device: str) -> int:
    """Processes at once by default: one per core, or one per accelerator where these train."""
    if jobs is not None:
        return max(jobs, 1)
    if device == "cpu":
        return os.cpu_count() or 1
    from reweigh.torch.devices import count

    return 1 if ":" in device else count()


def settings(recipe: str, precision: Precision | None, compiled: bool) -> tuple[tuple[str, str], ...]:
    """`--precision` and `--compile` as settings of a recipe; they are part of what a run is."""
    recipes.check(recipe)
    named = {
        "precision": ("--precision", precision),
        "compiled": ("--compile", "true" if compiled else None),
    }
    changes = tuple((name, value) for name, (_, value) in named.items() if value is not None)
    if not changes:
        return ()
    fields = {field.name for field in dataclasses.fields(next(iter(recipes.load(recipe).PRESETS.values())))}
    for name, _ in changes:
        if name not in fields:
            raise UserError(f"recipe {recipe!r} does not use `{named[name][0]}`. Leave it out.")
    return changes
