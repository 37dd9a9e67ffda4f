"""What other libraries have for the same work, with the same arguments as ours; those that are installed."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

import reweigh
from reweigh.torch.losses import Focal

Loss = Callable[[Tensor], Tensor]


class Work(NamedTuple):
    """The same work of theirs and ours: an objective by its text, or a loss of ours."""

    name: str
    theirs: Loss
    ours: str | Loss
    at: Tensor


def losses_of(size: int) -> Tensor:
    """Losses as of a model half-way through training: most small, some large."""
    return torch.empty(size).exponential_(1.0, generator=torch.Generator().manual_seed(0))


def absgd(size: int) -> Iterator[Work]:
    """ABSGD by its authors."""
    theirs = importlib.import_module("absgd.losses").ABLoss(5.0, criterion=lambda losses, _: losses, abgamma=0.9)
    theirs.updateLambda()
    yield Work("absgd", lambda v: theirs(v, None), "absgd:lam=5,rate=0.9", losses_of(size))


def dro(size: int) -> Iterator[Work]:
    """The `dro` package: CVaR and the chi-square ball."""
    # The package imports torchvision for models that are not timed here; this file of it does not.
    path = importlib.metadata.distribution("dro").locate_file("dro/neural_model/fdro_utils.py")
    spec = importlib.util.spec_from_file_location("fdro_utils", str(path))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for text, geometry, radius in _BALLS:
        theirs = module.RobustLoss(size=radius, reg=0.0, geometry=geometry)
        yield Work(f"dro, {text}", theirs._compute_robust_loss, text, losses_of(size))


def fast_dro(size: int) -> Iterator[Work]:
    """The authors' code of Levy et al., NeurIPS 2020: a checkout of it on the path."""
    # It imports its data sets and their tools beside the losses; these are not needed, and need torchvision.
    for name, parts in {"datasets": ("CustomDistributionSampler",), "utils": _PROJECTIONS}.items():
        beside = types.ModuleType(name)
        for part in parts:
            setattr(beside, part, None)
        sys.modules.setdefault(name, beside)
    module = importlib.import_module("robust_losses")
    for text, geometry, radius in _BALLS:
        yield Work(f"fast-dro, {text}", module.RobustLoss(radius, 0.0, geometry), text, losses_of(size))


def libauc(size: int) -> Iterator[Work]:
    """LibAUC's focal loss."""
    theirs = importlib.import_module("libauc.losses").FocalLoss(alpha=0.25, gamma=2)
    if size > 4096:
        return  # it makes a matrix of size x size
    logits = torch.randn(size, 1, generator=torch.Generator().manual_seed(0))
    target = (torch.arange(size) % 4 == 0).float()[:, None]
    # The values differ: of that matrix it takes the mean, and its alpha weighs the negative answers.
    ours = Focal(form="sigmoid", alpha=0.25)
    yield Work("libauc, focal", lambda v: theirs(v, target), lambda v: ours(v, target).mean(), logits)


_BALLS = (
    ("cvar:alpha=0.1", "cvar", 0.1),
    ("chi2_dro:rho=0.1", "chi-square", 0.1),
    ("chi2_dro:rho=1", "chi-square", 1.0),
)
_PROJECTIONS = ("project_to_cs_ball", "project_to_cvar_ball")
PEERS: dict[str, Callable[[int], Iterator[Work]]] = {
    "absgd": absgd,
    "dro": dro,
    "fast-dro": fast_dro,
    "libauc": libauc,
}


def version(name: str) -> str:
    """The version of a peer; a checkout has none."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "checkout"


def objective_of(text: str) -> Any:
    """Our objective of a text."""
    return reweigh.method(text).objective
