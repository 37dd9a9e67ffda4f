"""Data with several domains. `read` gives the names of the classes and the domains.

A file's `read(sources, **options)` takes the data set that it is made from, the official files, or the paths of its
packages.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from reweigh.bench.catalogue.cache import package_path
from reweigh.bench.catalogue.card import Array, Loaded
from reweigh.bench.catalogue.places import Origin
from reweigh.bench.errors import UserError

__all__ = ["Domain", "Domains", "build"]


@dataclass(frozen=True, kw_only=True, eq=False)
class Domain:
    """The examples of one domain.

    Parameters
    ----------
    name
        Of the domain.
    x, y
        Images as uint8 in NHWC order, or rows of float32; labels from 0.
    identity
        What each example shows, where other domains show the same things; None where no two examples belong together.
    """

    name: str
    x: Array = field(repr=False)
    y: Array = field(repr=False)
    identity: Array | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        sizes = {len(self.x), len(self.y), *([] if self.identity is None else [len(self.identity)])}
        if len(sizes) > 1:
            raise UserError(f"{self.name}: there must be one label per example, got {sorted(sizes)}.")


@dataclass(frozen=True, kw_only=True, eq=False)
class Domains(Loaded):
    """Several domains with the same classes.

    Parameters
    ----------
    domains
        In the order in which tables show them.
    classes
        The name of each class.
    """

    domains: Sequence[Domain]
    classes: tuple[str, ...]

    def __post_init__(self) -> None:
        if len(self.domains) < 2:
            raise UserError(f"{self.name}: leaving one domain out takes at least two, got {len(self.domains)}.")
        shapes = {domain.x.shape[1:] for domain in self.domains}
        if len(shapes) > 1:
            raise UserError(f"{self.name}: all domains must have inputs of one shape, got {sorted(map(str, shapes))}.")
        for domain in self.domains:
            if len(domain.y) == 0 or domain.y.min() < 0 or domain.y.max() >= len(self.classes):
                raise UserError(f"{self.name}: {domain.name} has no labels or labels out of range. The files differ.")

    @property
    def summary(self) -> str:
        """Examples and domains."""
        return f"{sum(len(domain.y) for domain in self.domains)} examples of {len(self.domains)} domains"


VALUE = Domains


def build(name: str, module: ModuleType, origin: Origin, options: Mapping[str, Any]) -> Domains:
    """Domains from another data set, official files or packages."""
    sources = origin.base or origin.files or [package_path(package) for package in origin.packages]
    classes, domains = module.read(sources, **options)
    return Domains(
        **origin.about(name),
        domains=domains,
        classes=classes,
    )
