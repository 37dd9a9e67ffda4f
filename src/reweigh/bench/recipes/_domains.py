"""Domains as networks see them: who is learnt from, who is chosen by, who is left out; and which network."""

from __future__ import annotations

import copy
import functools
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from reweigh.bench import catalogue, draws, models
from reweigh.bench.catalogue.domains import Domain, Domains
from reweigh.bench.draws.seeds import Seeds
from reweigh.bench.recipes.algorithms.domains import DomainNetwork
from reweigh.bench.train import frozen
from reweigh.bench.train.domain_pixels import augmented
from reweigh.bench.train.frozen import IMAGENET_DEVIATION, IMAGENET_MEAN
from reweigh.bench.train.pixels import as_tensor, normalize
from reweigh.bench.train.programs.domains import DomainExamples, DomainProblem, HeldOutDomain, TrainingDomain

Array = np.ndarray[Any, Any]
#: Parts of the pre-trained network that stay as they are and are computed once: stem and six of seven stages.
_FROZEN = 7


@dataclass(frozen=True, kw_only=True)
class DomainParts:
    """Rows of one domain: to learn from, to hold out, and to report on when it is the one left out."""

    train: Array
    held: Array
    report: Array


@functools.lru_cache(maxsize=3)
def load(name: str) -> Domains:
    """The domains of this name, read once per process."""
    root = os.environ.get("REWEIGH_DATA")
    return catalogue.load(name, Domains, root=Path(root) if root else None)


def parts(data: Domains, held: float, seeds: Seeds) -> list[DomainParts]:
    """A share of every domain held out, each class alike.

    Where domains show the same things, things are held out and not pictures: a thing is learnt from, chosen by or
    reported on, in all domains alike.
    """
    first = data.domains[0]
    if first.identity is None:
        result: list[DomainParts] = []
        for domain in data.domains:
            stay, out = draws.split(domain.y, held, seeds.numpy(f"held out of {domain.name}"))
            result.append(DomainParts(train=stay, held=out, report=stay))
        return result
    rng = seeds.numpy("held out things")
    others, report = draws.split(first.y, held, rng)
    stay, out = draws.split(first.y[others], held, rng)
    stay, out = others[stay], others[out]
    rows = {"train": stay, "held": out, "report": report}
    return [DomainParts(**{k: _rows(first, domain, v) for k, v in rows.items()}) for domain in data.domains]


def _rows(first: Domain, domain: Domain, chosen: Array) -> Array:
    """The rows of a domain that show the same things as these rows of the first."""
    assert first.identity is not None
    if domain.identity is None:
        raise ValueError(f"{domain.name} does not say what its examples show, but {first.name} does.")
    return np.flatnonzero(np.isin(domain.identity, first.identity[chosen]))


def problem(data: Domains, split: list[DomainParts], left_out: int, *, model: str, augment: bool) -> DomainProblem:
    """All domains but one to learn from, and that one behind its guard."""
    inputs = [activations(data, k, model) for k in range(len(data.domains))]
    plain = _tensor(data, model)
    changed = functools.partial(_augmented, plain) if augment else plain

    def pool(k: int, rows: Array, tensor: Any) -> DomainExamples:
        return DomainExamples(x=_ArrayPart(inputs[k], rows), y=data.domains[k].y[rows], tensor=tensor)

    sources = [
        TrainingDomain(name=domain.name, train=pool(k, split[k].train, changed), held=pool(k, split[k].held, plain))
        for k, domain in enumerate(data.domains)
        if k != left_out
    ]
    own = split[left_out]
    target = HeldOutDomain(
        data.domains[left_out].name, pool(left_out, own.report, plain), pool(left_out, own.held, plain)
    )
    return DomainProblem(sources=sources, target=target, classes=data.classes)


class _ArrayPart:
    """Some rows of an array, which may lie on disk, without a copy of them."""

    def __init__(self, whole: Array, rows: Array) -> None:
        self.whole, self.rows = whole, rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, chosen: Array) -> Array:
        return self.whole[self.rows[chosen]]


def _tensor(data: Domains, model: str) -> Any:
    """How inputs become tensors: images to numbers about zero, everything else as it is."""
    if data.domains[0].x.dtype != np.uint8 or is_cached(model):
        return _as_it_is
    pretrained = "imagenet" in model
    mean = IMAGENET_MEAN if pretrained else (0.5,) * data.domains[0].x.shape[-1]
    deviation = IMAGENET_DEVIATION if pretrained else (0.5,) * data.domains[0].x.shape[-1]
    return functools.partial(_normalised, mean, deviation)


def _as_it_is(x: Array) -> Tensor:
    return _arranged(torch.from_numpy(np.ascontiguousarray(x)).float())


def _normalised(mean: tuple[float, ...], deviation: tuple[float, ...], x: Array) -> Tensor:
    return _arranged(normalize(as_tensor(np.ascontiguousarray(x)), mean, deviation))


def _arranged(x: Tensor) -> Tensor:
    return x.contiguous(memory_format=torch.channels_last) if x.ndim == 4 else x


def _augmented(plain: Any, x: Array) -> Tensor:
    return plain(augmented(x))


def is_cached(model: str) -> bool:
    """Whether a model's lower part is computed once and kept."""
    return model.startswith("efficientnet_lite0")


def activations(data: Domains, k: int, model: str) -> Array:
    """What a network is given of a domain: its inputs, or the output of the network's frozen part."""
    if not is_cached(model):
        return data.domains[k].x
    return _activations(model, data.name, data.source, k)


@functools.lru_cache(maxsize=16)
def _activations(model: str, name: str, source: str, k: int) -> Array:
    return frozen.kept(
        f"1 {model} {_FROZEN} {name} {source} {k}",
        lambda: frozen.activations(_pretrained(model).embed[:_FROZEN], load(name).domains[k].x),
    )


@functools.lru_cache(maxsize=2)
def _pretrained(model: str) -> Any:
    return frozen.pretrained(model)


def network(
    model: str, shape: tuple[int, ...], classes: int, channels: int, *, dropout: float, options: Mapping[str, Any]
) -> DomainNetwork:
    """A fresh network, its last layer drawn from the ambient generator, for inputs with some channels more.

    Parameters
    ----------
    model, shape, classes
        The model's name, the shape of one input, and the number of classes.
    channels
        Further channels, whose first weights are those of the channels there are, in turn.
    dropout
        Of the features.
    options
        Further options of the model.
    """
    if is_cached(model):
        embed: nn.Sequential = copy.deepcopy(_pretrained(model).embed[_FROZEN:])
    else:
        built: Any = models.build(model, shape, classes, **options)
        embed = built.embed if hasattr(built, "embed") else built[:-1]
    if channels:
        _widen(embed, channels)
    features = _features(embed, shape, channels)
    if dropout:
        embed = nn.Sequential(*embed, nn.Dropout(dropout))
    made = DomainNetwork(embed, features, classes, fixed_statistics="imagenet" in model)
    # Half the time of a step of convolutions on a CPU; a matter of memory alone.
    return made.to(memory_format=torch.channels_last) if len(shape) == 3 else made  # pyright: ignore[reportCallIssue]


@torch.no_grad()
def _features(embed: nn.Sequential, shape: tuple[int, ...], channels: int) -> int:
    was = embed.training
    made = embed.eval()(torch.zeros(2, shape[0] + channels, *shape[1:]))
    embed.train(was)
    if made.ndim != 2:
        raise ValueError(f"features must be vectors, got shape {tuple(made.shape[1:])}.")
    return made.shape[1]


@torch.no_grad()
def _widen(embed: nn.Module, channels: int) -> None:
    """More input channels for the first layer, in place."""
    for layer in embed.modules():
        if isinstance(layer, nn.Conv2d):
            layer.in_channels += channels
        elif isinstance(layer, nn.Linear):
            layer.in_features += channels
        else:
            continue
        there = layer.weight.shape[1]
        turn = torch.arange(there + channels) % there
        layer.weight = nn.Parameter(layer.weight[:, turn].clone())
        return
    raise ValueError("the network has no layer whose inputs could be widened.")
