"""Methods against their authors' code, on the same inputs.

    python benchmarks/authors.py CLONES [--page docs/authors.md]

CLONES is a folder with a clone of each repository below, under `owner+name`; one that is missing is left out and named.
Their code is read and never kept: functions are taken out of the files by name, and what asks for a GPU or an older
version of PyTorch is replaced as it is read. Prints the largest relative difference of each comparison, and ends with 1
if one is above 1e-6.
"""

from __future__ import annotations

import argparse
import ast
import copy
import math
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import scipy.optimize
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import reweigh
from reweigh import Context, method
from reweigh.torch import Reweighted
from reweigh.torch.losses import CrossEntropy
from reweigh.torch.steps import Closure, TrainingRows

LARGEST = 1e-6
COUNTS = (1000, 120, 40, 7, 3)
#: A comparison: the method, what of it, and the pairs of ours and theirs.
Compared = tuple[str, str, list[tuple[Any, Any]]]
#: What does not run on a processor, or no longer in PyTorch.
OLD = {
    "torch.cuda.FloatTensor": "torch.FloatTensor",
    "dtype=torch.uint8": "dtype=torch.bool",
    ".cuda()": "",
    "reduce = False": "reduction='none'",
    "ConfigParser.get_instance()": "CONFIG",
}
COMPARISONS: list[tuple[str, str, Callable[[Any], Iterator[Compared]]]] = []
HEAD = """# Checked against the authors' code

Values, gradients and parameters after some steps, on the same inputs, by `benchmarks/authors.py` with clones of these
repositories; differences are relative to the largest entry, if that is above one. Where a method departs from its
authors on purpose, its card says how. Methods whose authors' code cannot be taken out of its script (`jtt`, `crt`,
`weight_decay`, `scdro`, `dfr`), or is for TensorFlow (`prior`, `sce`), are compared in the tests with the same
computation written out.

| method | repository | commit | compared | difference |
|---|---|---|---|---|
"""


def against(repository: str, path: str) -> Callable[..., Any]:
    """Register a comparison with the functions of a file."""

    def register(compare: Callable[[Any], Iterator[Compared]]) -> Callable[[Any], Iterator[Compared]]:
        COMPARISONS.append((repository, path, compare))
        return compare

    return register


def functions_of(clone: Path, path: str) -> Any:
    """All functions and classes of a file, without what the file does when it is run."""
    source = (clone / path).read_text()
    for old, new in OLD.items():
        source = source.replace(old, new)
    kept = [node for node in ast.parse(source).body if isinstance(node, (ast.FunctionDef, ast.ClassDef, ast.Assign))]
    space: dict[str, Any] = {"torch": torch, "np": np, "nn": nn, "F": F, "math": math, "Any": Any, "Optional": Any}
    space |= {"sopt": scipy.optimize, "optim": torch.optim, "Module": nn.Module, "Linear": nn.Linear}
    space |= {"clip_grad_norm_": nn.utils.clip_grad_norm_, "CONFIG": {"train_loss": {"args": {"lambda": 3.0}}}}
    for node in kept:
        try:
            exec("from __future__ import annotations\n" + ast.unparse(node), space)
        except Exception:  # of another package: nothing here uses it
            continue
    return SimpleNamespace(**{name: value for name, value in space.items() if not name.startswith("__")})


def batch(classes: int = 5, rows: int = 24) -> tuple[Tensor, Tensor]:
    """Logits and labels."""
    draw = torch.Generator().manual_seed(0)
    return 2.0 * torch.randn(rows, classes, generator=draw), torch.randint(classes, (rows,), generator=draw)


def both(
    text: str, by_us: Callable[[Tensor], Tensor], by_them: Callable[[Tensor], Tensor], at: Tensor, when: str = ""
) -> Compared:
    """A value and its gradient."""
    points = [at.clone().requires_grad_() for _ in range(2)]
    values = [function(point) for function, point in zip((by_us, by_them), points, strict=True)]
    gradients = [torch.autograd.grad(value, point)[0] for value, point in zip(values, points, strict=True)]
    return text, f"value and gradient{when}", [(values[0], values[1]), (gradients[0], gradients[1])]


def network(seed: int = 0) -> nn.Sequential:
    """A small network of which two copies are trained."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))


def rows() -> tuple[Tensor, Tensor]:
    """Its training rows."""
    draw = torch.Generator().manual_seed(1)
    return torch.randn(60, 6, generator=draw), torch.randint(3, (60,), generator=draw)


def flat(model: nn.Module) -> Tensor:
    """All parameters."""
    return nn.utils.parameters_to_vector(model.parameters()).detach()


@against("kaidic/LDAM-DRW", "losses.py")
def ldam(code: Any) -> Iterator[Compared]:
    logits, labels = batch()
    weights = torch.tensor([(1 - 0.9999) / (1 - 0.9999**n) for n in COUNTS])
    weights = 5 * weights / weights.sum()  # their training script

    def ours(text: str, progress: float) -> Callable[[Tensor], Tensor]:
        criterion = Reweighted(text, class_counts=COUNTS)
        criterion.progress = progress
        return lambda z: criterion(z, labels)

    early, late = code.LDAMLoss(COUNTS), code.LDAMLoss(COUNTS, weight=weights)
    yield both("ldam", ours("ldam+mean", 0.79), lambda z: early(z, labels), logits, " before epoch 160 of 200")
    yield both("ldam", ours("ldam+mean", 0.8), lambda z: late(z, labels), logits, " from then on")
    weighted = nn.CrossEntropyLoss(weight=weights)
    yield both("deferred", ours("deferred+mean", 0.8), lambda z: weighted(z, labels), logits, " from then on")


@against("orparask/VS-Loss", "class_imbalance/losses.py")
def vs(code: Any) -> Iterator[Compared]:
    logits, labels = batch()
    for text, gamma, tau in (("vs:gamma=0.2,t=1.2", 0.2, 1.2), ("logit_adjusted:t=1.5", 0.0, 1.5)):
        loss, their = method(text).loss.bind(COUNTS), code.VSLoss(COUNTS, gamma=gamma, tau=tau)
        yield both(text, lambda z, loss=loss: loss(z, labels).mean(), lambda z, f=their: f(z, labels), logits)


@against("AlanChou/Truncated-Loss", "TruncatedLoss.py")
def gce(code: Any) -> Iterator[Compared]:
    logits, labels = batch()
    loss, constant = code.TruncatedLoss(q=0.7, k=0.5, trainset_size=24), (1 - 0.5**0.7) / 0.7
    yield both(
        "gce:q=0.7",
        lambda z: method("gce:q=0.7").loss(z, labels).mean(),
        lambda z: loss(z, labels, torch.arange(24)) + constant,
        logits,
        " before anything is truncated, by others than the authors",
    )


@against("facebookresearch/classifier-balancing", "tau_norm.py")
def tau_norm(code: Any) -> Iterator[Compared]:
    torch.manual_seed(0)
    weight, bias, features = torch.randn(4, 6), torch.randn(4), torch.randn(9, 6)
    outputs = F.linear(features, weight, bias).numpy()
    for tau in (0.3, 1.0, 1.9):
        post = method(f"tau_norm:tau={tau}").post
        corrected = post.fit(outputs, np.zeros(9, int), Context(classifier=(weight, bias)))(outputs)
        theirs = code.dotproduct_similarity(features, code.pnorm(weight, tau))
        yield f"tau_norm:tau={tau}", "outputs", [(corrected, theirs)]


@against("shengliu66/ELR", "ELR/model/loss.py")
def elr(code: Any) -> Iterator[Compared]:
    x, y = rows()
    ours, other = network(), network()
    step = method("elr:lam=3,beta=0.7").build(Context(n=60, steps=8)).step.start(ours)
    optimizers = [torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-3) for net in (ours, other)]
    criterion, draw = code.elr_loss(60, 3, 0.7), torch.Generator().manual_seed(0)
    for _ in range(8):
        index = torch.randperm(60, generator=draw)[:20]
        step.step(optimizers[0], Closure(model=ours, batch=(x[index], y[index]), losses=CrossEntropy(), index=index))
        optimizers[1].zero_grad()
        criterion(index, other(x[index]), y[index]).backward()
        optimizers[1].step()
    pairs = [(flat(ours), flat(other)), (step.averages, criterion.target)]
    yield "elr:lam=3,beta=0.7", "parameters and remembered predictions after 8 steps", pairs


@against("bhanML/Co-teaching", "loss.py")
def coteaching(code: Any) -> Iterator[Compared]:
    x, y = rows()
    ours = network()
    step = method("coteaching:forget=0.2,gradual=0.5").build(Context(n=60, steps=8)).step.start(ours)
    pair = copy.deepcopy(ours), copy.deepcopy(step.twin)
    optimizer, *others = (torch.optim.SGD(net.parameters(), lr=0.1) for net in (ours, *pair))
    for done in range(8):
        step.step(optimizer, Closure(model=ours, batch=(x, y), losses=CrossEntropy()))
        rate = 0.2 * min(done / 4, 1.0)
        losses = code.loss_coteaching(*(net(x) for net in pair), y, rate, np.arange(60), np.ones(60))[:2]
        for its, loss in zip(others, losses, strict=True):
            its.zero_grad()
            (int((1 - rate) * 60) * loss).backward()  # their mean is divided by this number once more
            its.step()
    pairs = [(flat(ours), flat(pair[0])), (flat(step.twin), flat(pair[1]))]
    yield "coteaching:forget=0.2", "parameters of both networks after 8 steps", pairs


@against("AndPotap/afr", "losses/__init__.py,utils/supervised_utils.py")
def afr(code: Any) -> Iterator[Compared]:
    x, y = rows()
    ours, other = network(3), network(3)
    settings = "afr:gamma=4,pull=0.01,lr=0.05,iterations=200"
    step = method(settings).build(Context(n=60, steps=1)).step.start(ours)
    training = TrainingRows(inputs=x, targets=y)
    step.step(
        torch.optim.SGD(ours.parameters(), lr=0.0),
        Closure(model=ours, batch=(x, y), losses=CrossEntropy(), training_rows=training),
    )
    features, labels, last = other[:2](x[step.held]).detach(), y[step.held], other[2]
    weights = code.get_exp_weights(last(features).detach(), labels, 4.0)
    weights = code.normalize_weights(code.rebalance_weights(weights, labels))
    start = last.weight.detach().clone(), last.bias.detach().clone()
    layer = code.get_last_layer_model(start)
    descent = torch.optim.SGD(layer.parameters(), lr=0.05)
    for _ in range(200):
        code.take_step(layer, (features, labels, weights), descent, code.afr(), None, start, 0.01, max_norm=1.0)
    yield settings, "last layer", [(flat(ours[2]), flat(layer))]


@against("daniellevy/fast-dro", "robust_losses.py")
def worst_cases(code: Any) -> Iterator[Compared]:
    losses = torch.tensor(np.random.default_rng(0).gamma(1.5, size=33))
    for text, size, reg, geometry in (
        ("cvar:alpha=0.3", 0.3, 0.0, "cvar"),
        ("cvar:alpha=0.3,reg=0.3", 0.3, 0.3, "cvar"),
        ("cvar:alpha=0.5,reg=2", 0.5, 2.0, "cvar"),
        ("chi2_dro:rho=0.5", 0.5, 0.0, "chi-square"),
        ("chi2_dro:reg=0.7", float("inf"), 0.7, "chi-square"),
        ("chi2_dro:rho=0.1,reg=0.3", 0.1, 0.3, "chi-square"),
    ):
        robust, objective = code.RobustLoss(size, reg, geometry, tol=1e-9), method(text).objective
        yield both(text, objective, robust, losses)


@against("RuntianZ/doro", "dro.py")
def doro(code: Any) -> Iterator[Compared]:
    x, y = rows()
    for divergence, train in (("cvar", code.cvar_doro), ("chi2", code.chisq_doro)):
        ours, other = network(4).double(), network(4).double()
        text = f"doro:eps=0.1,alpha=0.5,divergence={divergence}"
        objective = method(text).objective
        optimizer, its = (torch.optim.SGD(net.parameters(), lr=0.1) for net in (ours, other))
        for _ in range(5):
            train(other, [(x.double(), y)], its, nn.CrossEntropyLoss(reduction="none"), "cpu", 0.5, 0.1)
            optimizer.zero_grad()
            objective(F.cross_entropy(ours(x.double()), y, reduction="none")).backward()
            optimizer.step()
        yield text, "parameters after 5 steps", [(flat(ours), flat(other))]


@against("sowmaster/Sample-Level-Loss-Reweighting-ICLR-2025", "src/trainer.py")
def lin_upper(code: Any) -> Iterator[Compared]:
    losses = 4 * torch.rand(16, generator=torch.Generator().manual_seed(2))
    for r in (0.4, 1.0):
        scaled = code.h_func(losses, delta=1.0, l_min=losses.min().item(), l_max=losses.max().item())
        capped = code.f_func_linupper(scaled, delta=1.0)
        odds = code.g_func(capped - capped.max().item(), l=r)
        ours = method(f"lin_upper:r={r}").objective.weigh(losses, ()).weights / 16
        yield f"lin_upper:r={r}", "weights", [(ours, odds / odds.sum())]


@against("OATML/RHO-Loss", "src/curricula/utils_selection_methods.py")
def rho(code: Any) -> Iterator[Compared]:
    draw = torch.Generator().manual_seed(3)
    losses, reference = torch.rand(20, generator=draw), torch.rand(20, generator=draw)
    chosen, _ = code.top_x_indices(losses - reference, 6, largest=True)
    yield both(
        "rho:keep=0.3",
        lambda z: method("rho:keep=0.3").objective(z, signal=reference),
        lambda z: z[chosen].mean(),
        losses,
    )


@against("hiyouga/LLaMA-Factory", "src/llamafactory/train/trainer_utils.py")
def entropy(code: Any) -> Iterator[Compared]:
    logits, labels = batch(classes=200)
    objective = method("entropy").objective

    def ours(z: Tensor) -> Tensor:
        losses = F.cross_entropy(z, labels, reduction="none")
        return objective(losses, signal=reweigh.torch.entropy(z, top=20)) * (math.log(20) / 3.0)

    their, signal = code._eaft_cross_entropy, " with the signal `entropy(logits, top=20)`, times log 20 / 3"
    yield both("entropy", ours, lambda z: their(z, labels, None, 1.0), logits, signal)


def difference(ours: Any, their: Any) -> float:
    """The largest difference, relative to the largest entry of theirs if that is above one."""
    a, b = (np.asarray(torch.as_tensor(value).detach(), np.float64) for value in (ours, their))
    return float(np.abs(a - b).max() / max(1.0, np.abs(b).max()))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("clones", type=Path)
    parser.add_argument("--page", type=Path, help="write the page of the documentation")
    options = parser.parse_args()
    lines, largest = [], 0.0
    for repository, paths, compare in COMPARISONS:
        clone = options.clones / repository.replace("/", "+")
        if not clone.is_dir():
            print(f"{repository}: no clone at {clone}", file=sys.stderr)
            continue
        commit = subprocess.run(
            ["git", "-C", str(clone), "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True
        ).stdout.strip()
        code = SimpleNamespace(
            **{k: v for path in paths.split(",") for k, v in vars(functions_of(clone, path)).items()}
        )
        for text, what, pairs in compare(code):
            found = max(difference(*pair) for pair in pairs)
            largest = max(largest, found)
            lines.append(f"| `{text}` | {repository} | {commit} | {what} | {found:.0e} |")
            print(lines[-1])
    if options.page:
        options.page.write_text(HEAD + "\n".join(lines) + "\n")
    return int(largest > LARGEST)


if __name__ == "__main__":
    raise SystemExit(main())
