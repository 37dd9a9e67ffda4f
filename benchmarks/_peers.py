"""One other library beside ours, with the same arguments; `family.py --peers` runs this where both are installed.

Prints a JSON list: for each work and size, their time and ours in microseconds and how far the two values are apart.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
from _timing import Call, in_turns
from torch import Tensor

import reweigh
from reweigh.objectives._base import Objective, state_like
from reweigh.torch.losses import Focal

SIZES = (256, 65536)
Loss = Callable[[Tensor], Tensor]


def make(size: int) -> Tensor:
    return torch.empty(size).exponential_(1.0, generator=torch.Generator().manual_seed(0))


def threaded(objective: Objective, like: Tensor) -> Loss:
    state: Any = state_like(objective.init(), like)

    def loss(losses: Tensor) -> Tensor:
        nonlocal state
        value, state = objective.apply(losses, state)
        return value

    return loss


def absgd(size: int) -> Iterator[tuple[str, Loss, Loss, Tensor]]:
    from absgd.losses import ABLoss

    theirs = ABLoss(5.0, criterion=lambda losses, _: losses, abgamma=0.9)
    theirs.updateLambda()
    losses = make(size)
    text = "absgd:lam=5,rate=0.9"
    yield f"absgd, {text}", lambda v: theirs(v, None), threaded(reweigh.method(text).objective, losses), losses


def dro(size: int) -> Iterator[tuple[str, Loss, Loss, Tensor]]:
    # The package imports torchvision for models that are not timed here; this file of it does not.
    folder = importlib.metadata.distribution("dro").locate_file("dro/neural_model/fdro_utils.py")
    spec = importlib.util.spec_from_file_location("fdro_utils", str(folder))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    works = {
        "cvar:alpha=0.1": ("cvar", 0.1),
        "chi2_dro:rho=0.1": ("chi-square", 0.1),
        "chi2_dro:rho=1": ("chi-square", 1.0),
    }
    for text, (geometry, radius) in works.items():
        theirs = module.RobustLoss(size=radius, reg=0.0, geometry=geometry)
        yield f"dro, {text}", theirs._compute_robust_loss, reweigh.method(text).objective, make(size)


def libauc(size: int) -> Iterator[tuple[str, Loss, Loss, Tensor]]:
    from libauc.losses import FocalLoss

    if size > 4096:
        return  # it makes a matrix of size x size
    logits = torch.randn(size, 1, generator=torch.Generator().manual_seed(0))
    target = (torch.arange(size) % 4 == 0).float()[:, None]
    # The values differ: of that matrix it takes the mean, and its alpha weighs the negative answers.
    theirs, ours = FocalLoss(alpha=0.25, gamma=2), Focal(form="sigmoid", alpha=0.25)
    yield "libauc, focal:form=sigmoid,alpha=0.25", lambda v: theirs(v, target), lambda v: ours(v, target).mean(), logits


def call(loss: Loss, at: Tensor) -> Call:
    leaf = at.clone().requires_grad_()

    def run() -> Tensor:
        leaf.grad = None
        value = loss(leaf)
        value.backward()
        return value.detach()

    return run


def main() -> None:
    name, threads, seconds = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
    torch.set_num_threads(threads)
    found: list[dict[str, Any]] = []
    for size in SIZES:
        for work, theirs, ours, at in {"absgd": absgd, "dro": dro, "libauc": libauc}[name](size):
            calls = {"theirs": call(theirs, at), "ours": call(ours, at)}
            times = in_turns(calls, seconds)
            values = {side: float(run()) for side, run in calls.items()}  # after many steps: averages have settled
            difference = abs(values["theirs"] - values["ours"]) / abs(values["ours"])
            version = importlib.metadata.version(name)
            found.append({"work": work, "size": size, "version": version, **times, "difference": difference})
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
