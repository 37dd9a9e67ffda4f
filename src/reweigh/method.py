"""Methods by name: `"focal+rgd:tau=3+sam"` and the value it stands for.

A method fills up to six slots: which examples are drawn (sampler), how wrong each is (loss), the number to descend
(objective), how parameters move (step), what is kept of them (average) and what is done to the outputs of the trained
model (post). The folders are the registry: a file in the folder of a slot is a method of its name, and is imported when
it is first asked for.
"""

from __future__ import annotations

import ast
import dataclasses
import difflib
import functools
import importlib
import inspect
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from reweigh._cards import packages, read_card
from reweigh.objectives import Objective
from reweigh.objectives.rgd import RGD
from reweigh.weights import KL, ChiSquare, ReverseKL, WeightFunction

__all__ = [
    "Built",
    "Card",
    "Context",
    "Method",
    "ObjectiveLike",
    "Parameter",
    "as_method",
    "cards",
    "hyper_parameters",
    "method",
    "parameters",
]

#: The slots in the order in which data meets them, and the package that holds each one's files.
SLOTS: Mapping[str, str] = {
    "sampler": "reweigh.torch.samplers",
    "loss": "reweigh.torch.losses",
    "objective": "reweigh.objectives",
    "step": "reweigh.torch.steps",
    "average": "reweigh.torch.averages",
    "post": "reweigh.post",
}
#: What a slot holds when a method does not name it. No average, and no correction after
#: training, is the absence of one.
DEFAULTS: Mapping[str, str] = {
    "sampler": "uniform",
    "loss": "cross_entropy",
    "objective": "mean",
    "step": "plain",
}
ALIASES: Mapping[str, str] = {"erm": "mean"}
#: Words for true and false that a text does not take.
_OTHER_BOOLEANS = ("yes", "no", "on", "off", "y", "n", "t", "f", "0", "1", "none", "")


@dataclass(frozen=True, kw_only=True)
class Context:
    """What a method may need to know about the data before training starts.

    Parameters
    ----------
    n
        Number of training examples.
    class_counts
        Training examples of each class.
    n_groups
        Number of groups, for objectives over groups.
    targets
        The label of each training example, for samplers that draw by class.
    groups
        The group of each training example, for samplers that draw by group.
    meta_loader
        An iterable of clean, balanced batches, for bilevel steps.
    steps
        Optimiser steps of the whole training.
    loss
        The loss of methods that name none: `"mse"` for a regression.
    classifier
        The trained model's last layer, `(weight, bias)`, for corrections after training.
    """

    n: int | None = None
    class_counts: Sequence[int] | None = None
    n_groups: int | None = None
    targets: Any = None
    groups: Any = None
    meta_loader: Any = None
    steps: int | None = None
    loss: str = DEFAULTS["loss"]
    classifier: tuple[Any, Any] | None = None


@dataclass(frozen=True, kw_only=True)
class Built:
    """A method that has met its data: every slot filled, nothing missing."""

    sampler: Any
    loss: Any
    objective: Objective
    step: Any
    average: Any
    post: Any


@dataclass(frozen=True, kw_only=True)
class Method:
    """One value per slot; `None` stands for the slot's default.

    `str(method)` is the text that `reweigh.method` reads back to an equal value, where every hyper-parameter is a
    number, a word, `None` or a tuple of them. A part inside a part, such as `ClassBalanced(base=Focal(gamma=1.0))`,
    shows as its `repr` and has no text to read back: keep the value itself.

    Examples
    --------
    >>> import numpy as np, reweigh
    >>> m = reweigh.method("rgd:tau=3")
    >>> m.objective.tau
    3.0
    >>> str(m)
    'rgd:tau=3'
    """

    sampler: Any = None
    loss: Any = None
    objective: Objective = dataclasses.field(default_factory=lambda: _find("mean")[1]())
    step: Any = None
    average: Any = None
    post: Any = None

    def __str__(self) -> str:
        parts = [_text(value) for _, value in self.parts()]
        return "+".join(parts) if parts else DEFAULTS["objective"]

    def parts(self) -> Iterator[tuple[str, Any]]:
        """The slots this method fills itself, in their order."""
        for slot in SLOTS:
            value = getattr(self, slot)
            if value is not None and not (slot == "objective" and value == _find("mean")[1]()):
                yield slot, value

    def build(self, context: Context) -> Built:
        """The method with its defaults filled in and bound to the data.

        Raises a `ValueError` that names what is missing when a part needs something the context does not give.
        """
        filled = {slot: getattr(self, slot) for slot in SLOTS}
        for slot, name in {**DEFAULTS, "loss": context.loss}.items():
            if filled[slot] is None:
                filled[slot] = _find(name)[1]()
        for slot, value in filled.items():
            if value is not None:
                filled[slot] = _bind(value, context)
        if self.post is not None:
            if isinstance(filled["loss"], _find("mse")[1]):
                raise ValueError(
                    f"{_text(self.post)!r} corrects the outputs of a classifier, and the target is a number. Leave it "
                    "out."
                )
            parts = (filled["sampler"], filled["loss"], filled["step"])
            filled["post"] = filled["post"].after(parts, context.class_counts)
        for slot, outcome in (("step", "be ignored"), ("sampler", "count them a second time")):
            if getattr(filled[slot], "own_objective", False) and self.objective != _find("mean")[1]():
                raise ValueError(
                    f"{_text(filled[slot])!r} makes its own weights of the losses, so {_text(self.objective)!r} would "
                    f"{outcome}. Keep one of the two."
                )
        for slot, claim, reason in (
            ("sampler", "draws", "decides which rows are drawn"),
            ("average", "replaces", "replaces the last layer after the last step"),
        ):
            if getattr(filled["step"], claim, False) and getattr(self, slot) is not None:
                raise ValueError(
                    f"{_text(filled['step'])!r} {reason}, so {_text(getattr(self, slot))!r} would be ignored. Keep one "
                    "of the two."
                )
        return Built(**filled)


@dataclass(frozen=True, kw_only=True)
class Card:
    """A method in a listing: where it belongs, what it does, what can be set."""

    slot: str
    name: str
    summary: str
    defaults: Mapping[str, Any]
    search: Mapping[str, tuple[Any, ...]]
    separable: bool | None
    cost: str
    missing: str | None = None


def method(text: str) -> Method:
    """The method that `text` names: `name:key=value,key=value`, joined by `+`, one name per slot.

    Parameters
    ----------
    text
        For example `"rgd"`, `"term:t=0.5"`, `"class_balanced+rgd:tau=3,normalize=mean"`, `"focal+rgd+sam:rho=0.1"`.

    Returns
    -------
    Method
        A frozen value; `method(str(m)) == m` for every `m` that came from a text.

    Examples
    --------
    >>> import numpy as np
    >>> print(round(float(method("cvar:alpha=0.5").objective(np.array([1.0, 2.0, 3.0, 4.0]))), 6))
    3.5
    """
    if "(" in text:
        raise ValueError(
            f"a part inside a part cannot be written in a method's text, got {text!r}. Build the value instead, for "
            "example Method(loss=ClassBalanced(base=Focal(gamma=1.0)))."
        )
    filled: dict[str, Any] = {}
    for part in _split(text):
        name, _, options = part.partition(":")
        slot, kind = _find(name.strip())
        if slot in filled:
            raise ValueError(
                f"{text!r} names two values for the {slot} slot: {_text(filled[slot])!r} and {part!r}. Keep one."
            )
        filled[slot] = kind(**_options(name.strip(), kind, options))
    return Method(**filled)


#: What may stand for an objective: a method or its text, an objective, or a bare weight function.
ObjectiveLike = str | Method | Objective | WeightFunction


def as_method(given: Any, *, tau: float | None = None) -> Method:
    """The method that `given` stands for, with `tau` in place of its own if that is given.

    An objective without a tau leaves it unused, so that a grid over tau and objectives has no holes.

    >>> as_method("rgd:divergence=revkl", tau=3.0).objective.weight
    ReverseKL(tau=3.0, offset=0.0)
    """
    if isinstance(given, str):
        chosen = method(given)
    elif isinstance(given, Method):
        chosen = given
    elif isinstance(given, (KL, ReverseKL, ChiSquare)):
        chosen = Method(objective=RGD(weight=given))
    elif isinstance(given, Objective):
        chosen = Method(objective=given)
    elif isinstance(given, type):
        raise TypeError(f"`objective` must be a value, got the class {given.__name__}. Call it: {given.__name__}().")
    else:
        raise TypeError(
            f"`objective` must be a method's text, a method, an objective or a weight function, got "
            f'{type(given).__name__}. For example "rgd:tau=3", reweigh.RGD(tau=3.0) or reweigh.KL(tau=3.0).'
        )
    own: Any = chosen.objective
    if tau is None or "tau" not in parameters(own):
        return chosen
    return dataclasses.replace(chosen, objective=dataclasses.replace(own, tau=tau))


def cards() -> list[Card]:
    """Every method of every slot, for listings and documentation."""
    return [_card(slot, name) for slot in SLOTS for name in names(slot)]


def names(slot: str) -> list[str]:
    """The names of a slot: the files of its folder, less those that start with an underscore."""
    return sorted(path.stem for path in _folder(slot).glob("*.py") if not path.stem.startswith("_"))


def _folder(slot: str) -> Path:
    return Path(__file__).parent.joinpath(*SLOTS[slot].split(".")[1:])


@functools.cache
def _find(name: str) -> tuple[str, type[Any]]:
    """The slot and class of a name, or an error that suggests a near one."""
    name = ALIASES.get(name, name)
    for slot, package in SLOTS.items():
        if name in names(slot):
            module = _import(f"{package}.{name}")
            return slot, getattr(module, module.__all__[0])
    known = [n for slot in SLOTS for n in names(slot)] + list(ALIASES)
    near = difflib.get_close_matches(name, known, n=3)
    hint = f"Did you mean {' or '.join(repr(n) for n in near)}?" if near else f"Known: {', '.join(sorted(known))}."
    raise ValueError(f"there is no method named {name!r}. {hint}")


def _import(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name and error.name.split(".")[0] == "reweigh":
            raise
        extra = "torch" if module.startswith("reweigh.torch") else (error.name or "").split(".")[0]
        raise ImportError(_not_installed(module.rsplit(".", 1)[-1], error.name, extra)) from error


def _not_installed(name: str, package: str | None, extra: str | None) -> str:
    return f'{name!r} needs {package}, which is not installed. Install it with: pip install "reweigh[{extra}]"'


def _split(text: str) -> list[str]:
    """The parts between plus signs; a plus inside or before a number (`1e+3`, `tau=+3`) belongs to the number."""
    parts = [part.strip() for part in re.split(r"(?<!\d[eE])(?<!=)\+|(?<=[eE=])\+(?![\d.])", text)]
    if not all(parts):
        raise ValueError(f"a method is written name:key=value joined by '+', got {text!r}.")
    return parts


class Parameter(NamedTuple):
    """A hyper-parameter of a part: its declared type and its default."""

    annotation: str
    default: Any


def parameters(part: Any) -> dict[str, Parameter]:
    """The hyper-parameters of a part, or of its class, as a text names them.

    Those of a value inside it that has a short form, such as the weight function of `RGD`, count as its own.
    """
    known: dict[str, Parameter] = {}
    for field in dataclasses.fields(part):
        if "short_form" in field.metadata:
            known |= {name: Parameter(*given) for name, given in field.metadata["short_form"].items()}
        elif field.init:
            default = field.default_factory() if callable(field.default_factory) else field.default
            known[field.name] = Parameter(str(field.type), default)
    return known


def hyper_parameters(part: Any) -> dict[str, Any]:
    """The value of each hyper-parameter of a part.

    >>> hyper_parameters(method("redescending:power=2").objective)
    {'tau': 1.0, 'power': 2.0, 'surrogate': False}
    """
    return {name: getattr(part, name) for name in parameters(part)}


def _options(name: str, kind: type[Any], text: str) -> dict[str, Any]:
    """The hyper-parameters written after a name, as the types that the class declares."""
    known = parameters(kind)
    options: dict[str, Any] = {}
    for item in filter(None, (piece.strip() for piece in text.split(","))):
        key, equals, raw = (s.strip() for s in item.partition("="))
        if not equals:
            raise ValueError(f"hyper-parameters are written key=value, got {item!r} in {name!r}.")
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1)
            hint = f"Did you mean {near[0]!r}?" if near else f"It has: {', '.join(known) or 'none'}."
            raise ValueError(f"{name!r} has no hyper-parameter {key!r}. {hint}")
        if key in options:
            raise ValueError(f"{name!r} is given {key!r} twice, in {text!r}. Keep one.")
        options[key] = _value(raw, known[key].annotation, key)
    return options


def _value(raw: str, annotation: str, key: str) -> Any:
    lowered = raw.lower()
    kinds = {kind.strip() for kind in annotation.split("|")}
    if "bool" in kinds and lowered not in ("true", "false") and ("str" not in kinds or lowered in _OTHER_BOOLEANS):
        raise ValueError(f"`{key}` must be true or false, got {raw!r}.")
    if lowered in ("none", "true", "false"):
        return {"none": None, "true": True, "false": False}[lowered]
    if "tuple" in annotation and ("/" in raw or not _takes_one(annotation)):
        return tuple(_value(piece, "", key) for piece in raw.removesuffix("/").split("/"))
    try:
        value = ast.literal_eval(raw)
    except (ValueError, SyntaxError):
        return raw
    return float(value) if type(value) is int and "float" in annotation else value


def _takes_one(annotation: str) -> bool:
    """Whether a field that takes a tuple takes a single value as well: `float | tuple[float, ...] | None` does."""
    others = re.sub(r"tuple\[.*?\]", "", annotation).split("|")
    return any(kind.strip() not in ("", "None") for kind in others)


def _text(value: Any) -> str:
    """A slot's value as its name and the hyper-parameters that differ from their defaults."""
    name = type(value).__module__.rsplit(".", 1)[-1]
    options = [
        f"{key}={_plain(getattr(value, key))}"
        for key, parameter in parameters(value).items()
        if getattr(value, key) != parameter.default
    ]
    return f"{name}:{','.join(options)}" if options else name


def _plain(value: Any) -> str:
    if isinstance(value, tuple):  # a comma would end the hyper-parameter
        entries = [_plain(entry) for entry in value]
        return "/".join(entries) + "/" * (len(entries) == 1)  # as Python's comma: a tuple of one is not a number
    return str(int(value)) if isinstance(value, (float, np.floating)) and value.is_integer() else str(value)


def _bind(value: Any, context: Context) -> Any:
    """The value with what the data decides filled in, unless the user set it."""
    base = getattr(value, "base", None)
    if dataclasses.is_dataclass(base) and not hasattr(value, "bind"):  # a step around the one that has the needs
        return dataclasses.replace(value, base=_bind(base, context))
    known = {field.name for field in dataclasses.fields(context)}
    own = {field.name for field in dataclasses.fields(value)}
    for name in known & set(getattr(value, "needs", ())):
        if getattr(value, name, None) is None and getattr(context, name) is None:
            raise ValueError(f"{_text(value)!r} needs to know {name}. Give it in Context({name}=...).")
    if hasattr(value, "bind"):  # a loss, which may need to know the classes
        return value.bind(context.class_counts)
    filled = {
        name: getattr(context, name)
        for name in ("n", "n_groups", "steps", "class_counts")
        if name in own and getattr(value, name) is None and getattr(context, name) is not None
    }
    return dataclasses.replace(value, **filled) if filled else value


def _card(slot: str, name: str) -> Card:
    if slot != "objective":  # a listing does not wait for a framework, and does without it
        path = _folder(slot) / f"{name}.py"
        needed = sorted(packages(path) | ({"torch"} if SLOTS[slot].startswith("reweigh.torch") else set()))
        absent = next((package for package in needed if find_spec(package) is None), None)
        missing = None if absent is None else _not_installed(name, absent, absent)
        return Card(slot=slot, name=name, separable=None, missing=missing, **read_card(path)._asdict())
    _, kind = _find(name)
    defaults = {key: parameter.default for key, parameter in parameters(kind).items()}
    return Card(
        slot=slot,
        name=name,
        summary=(inspect.getdoc(kind) or "").partition("\n")[0],
        defaults=defaults,
        search=getattr(kind, "search", {}),
        separable=bool(kind().separable),
        cost=getattr(kind, "cost", ""),
    )
