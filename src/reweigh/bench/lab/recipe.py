"""The contract of a recipe, and recipes by name: one file per experiment, imported when it is first needed.

A recipe is a module. `Recipe` lists everything that the bench ever asks of one: four required names, and hooks that a
file may leave out. `load` returns a recipe with every hook in place, so that no caller has to look whether one exists.
"""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from reweigh.bench import registry
from reweigh.bench.errors import UserError
from reweigh.bench.lab.table import Table
from reweigh.bench.train.records import Record, Writer
from reweigh.method import Method

if TYPE_CHECKING:
    from reweigh.bench.lab.results import Figure, Results

#: The package whose files are the recipes. It stands on this room, so it is known here by its name alone.
_PACKAGE = "reweigh.bench.recipes"
#: Recipes behind a command of their own: their question is about the user's data and not a preset's.
_SELF_REPORTING = {"compare": "reweigh.bench.compare.recipe", "own": "reweigh.bench.own.recipe"}

#: Factors that multiply the loss, one per step, where a run is a scale control.
Scale = np.ndarray[Any, Any] | None
#: One training of a group: settings, method, seed and scale, as `train` takes them.
Trainee = tuple[Any, Method, int, Scale]


#: Of a field of settings that recipes got after runs had been stored: its default is not part of a run's identity.
LATER: Mapping[str, bool] = {"later": True}


def plain(settings: Any) -> dict[str, Any]:
    """Settings as the plain values that identify a run."""
    values = dataclasses.asdict(settings)
    for field in dataclasses.fields(settings):
        if field.metadata.get("later") and values[field.name] == field.default:
            del values[field.name]
    return values


class Trainable(Protocol):
    """What executors call."""

    #: A frozen, keyword-only dataclass. It has a field `lr`, which tuning varies. Required.
    Settings: Callable[..., Any]
    #: Whether `train` may be called by several processes at once that train together (`torchrun`). Optional.
    DISTRIBUTED: bool = False

    def train(self, settings: Any, method: Method, seed: int, writer: Writer, scale: Scale, /) -> Iterator[Record]:
        """One training, as a generator of records: plain dicts of numbers, strings and lists of them. Required.

        Parameters
        ----------
        settings
            A value of `Settings`.
        method
            The parsed method; `method.build(context)` binds it to data.
        seed
            Everything random follows from it.
        writer
            Stores arrays and checkpoints of the run, and returns the last checkpoint.
        scale
            If not None, the loss of step `i` is multiplied by `scale[i]`.

        Yields
        ------
        Record
            Has the table's `metric` and `select`, `epoch`, and `progress` between 0 and 1.
        """
        ...

    def group(self, settings: Any, method: Method, /) -> str | None:
        """What trainings must share to run as one program; None to run alone. Optional: all run alone."""
        del settings, method
        return None

    def train_group(self, members: Sequence[Trainee], /) -> Iterator[list[Record]]:
        """Many trainings with the same `group` at once: yields one record per member. Required with `group`.

        A record may hold `arrays`, a dict of larger results by name, which are stored next to the records.
        """
        raise NotImplementedError(f"`group` put {len(members)} trainings together, and there is no `train_group`")


class Recipe(Trainable, Protocol):
    """What a file of the folder of recipes provides. Its docstring begins with the question it asks."""

    #: Settings by preset: `smoke` takes seconds, `cpu` at most hours on two cores, `paper` is the paper's. Required.
    PRESETS: Mapping[str, Any]

    def table(self, preset: str, /) -> Table:
        """Rows, columns, metric and selection rule of a preset, with the paper's figures. Required."""
        ...

    def figures(self, results: Results, /) -> Sequence[Figure]:
        """Figures and tables of the recipe's own, which the report appends. Optional: none."""
        del results
        return ()

    def answer(self, results: Results, /) -> Sequence[str]:
        """The headline of the report and the sentences below it. Optional: the verdict on the primary row."""
        del results
        return ()


class SelfReporting(Trainable, Protocol):
    """A recipe behind a command of its own, which stores its question and answers it itself: `reweigh compare`."""

    def results_at(self, root: Path, /) -> Results:
        """The results of the question that the folder `root` stores."""
        ...


#: What a file must have, and what it may have besides.
REQUIRED = ("Settings", "PRESETS", "table", "train")
OPTIONAL = ("group", "train_group", "figures", "answer", "DISTRIBUTED")


def names() -> list[str]:
    """The recipes there are."""
    return registry.listing(_folder())


def summaries() -> dict[str, str]:
    """The question of every recipe: the first line of its docstring. No recipe is imported."""
    return {name: registry.summary(_folder() / f"{name}.py") for name in names()}


def load(name: str) -> Recipe:
    """A recipe by name, or an error that suggests a near one."""
    check(name)
    module = importlib.import_module(f"{_PACKAGE}.{name}")
    for required in REQUIRED:
        if not hasattr(module, required):
            raise TypeError(f"recipe {name!r} has no `{required}`; docs/adding.md shows what a recipe has.")
    return complete(module)


def trainable(name: str) -> Trainable:
    """Whatever runs of this name are trained by: a recipe, or what stands behind a command of its own."""
    return self_reporting(name) or load(name)


def self_reporting(name: str) -> SelfReporting | None:
    """What stands behind a command of its own; None for the name of a recipe."""
    if name not in _SELF_REPORTING:
        return None
    recipe: Any = complete(importlib.import_module(_SELF_REPORTING[name]))
    return recipe


def self_reporting_at(root: Path) -> dict[str, SelfReporting]:
    """What stands behind commands of their own that have runs in a folder."""
    known = {name: self_reporting(name) for name in _SELF_REPORTING if (root / name).is_dir()}
    return {name: own for name, own in known.items() if own is not None}


def complete(source: ModuleType | SimpleNamespace) -> Recipe:
    """A recipe with every hook in place: its own, or the default."""
    kind: Any = _Complete  # what the contract requires comes from the module, which a type checker cannot see
    return kind(source)


def check(name: str) -> None:
    """Refuse what `reweigh run` cannot run, with an error that suggests a near name."""
    known = names()
    if name not in known:
        hint = f"It is a command of its own: `reweigh {name}`." if name in _SELF_REPORTING else None
        raise UserError(f"there is no recipe named {name!r}. {hint or registry.near(name, known)}")


class _Complete(Recipe):
    """The names that a module has, over the defaults of the contract."""

    def __init__(self, source: ModuleType | SimpleNamespace) -> None:
        vars(self).update({name: value for name, value in vars(source).items() if name in _KNOWN})


_KNOWN = {*REQUIRED, *OPTIONAL, "results_at"}


def _folder() -> Path:
    spec = find_spec(_PACKAGE)
    assert spec is not None
    assert spec.submodule_search_locations
    return Path(spec.submodule_search_locations[0])
