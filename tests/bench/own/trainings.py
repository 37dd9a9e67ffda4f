"""Trainings of a user's own, right and wrong ones, for the tests of this folder."""

import time

import torch
from torch import nn


def problem(seed):
    """A small classification with a rare class: rows, labels, and the order of everything from the seed."""
    generator = torch.Generator().manual_seed(seed)
    y = (torch.rand(240, generator=generator) < 0.2).long()
    x = torch.randn(240, 3, generator=generator) + 1.2 * y[:, None]
    return x, y, generator


def train(run, epochs=2):
    x, y, generator = problem(run.seed)
    torch.manual_seed(run.seed)
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3 * run.lr_factor)
    criterion = run.criterion(nn.CrossEntropyLoss(), class_counts=torch.bincount(y[:120], minlength=2).tolist())
    for _ in range(epochs):
        for batch in torch.randperm(120, generator=generator).split(20):
            optimizer.zero_grad()
            criterion(model(x[batch]), y[batch]).backward()
            optimizer.step()
        with torch.no_grad():
            losses = nn.functional.cross_entropy(model(x), y, reduction="none")
        yield {"val/loss": losses[120:180].mean(), "test/loss": losses[180:].mean().item()}


def returns_once(run):
    *_, last = train(run)
    return last


def ignores_seed(run):
    run.method, run.lr_factor  # noqa: B018  # it looks, and that is all
    return {"val/loss": 1.0, "test/loss": 1.0}


def never_looks(run):
    return {"val/loss": 1.0 + run.seed, "test/loss": 1.0 + run.seed}


def looks_only(run):
    run.method, run.lr_factor  # noqa: B018
    return {"val/loss": 1.0 + run.seed, "test/loss": 1.0 + run.seed}


def without_metric(run):
    run.criterion(nn.CrossEntropyLoss())
    return {"val/loss": 1.0 + run.seed, "accuracy": 0.5}


def with_words(run):
    run.criterion(nn.CrossEntropyLoss())
    return {"val/loss": 1.0 + run.seed, "test/loss": "low"}


def raises_sometimes(run):
    if run.seed == 1 and str(run.method) == "term":
        raise ZeroDivisionError("the user's own bug")
    yield from train(run)


def prints_much(run):
    for _ in range(40):
        print("x" * 50_000)
    yield from train(run)


def leaks(run, kept=[]):  # noqa: B006  # on purpose: the memory stays with the process
    kept.append(torch.ones(200 << 18))  # 200 MiB
    yield from train(run)


def slow_with_checkpoints(run):
    """Fast at its first epochs, and then long enough to be killed; what it does is in its folder."""
    state = run.resume() or {"epoch": 0, "sum": 0.0}
    run.criterion(nn.CrossEntropyLoss())
    with (run.directory / "starts.txt").open("a") as starts:
        starts.write(f"{state['epoch']}\n")
    for epoch in range(state["epoch"], 4):
        total = state["sum"] + (epoch + 1) * (run.seed + 1)
        if epoch == 2 and not (run.directory.parent.parent / "go").exists():
            (run.directory / "waiting").touch()
            time.sleep(600)
        yield {"val/loss": total, "test/loss": total + (0.5 if str(run.method) == "mean" else 0.25)}
        state = {"epoch": epoch + 1, "sum": total}
        run.checkpoint(state)


def nondeterministic(run):
    """Like a training on a device that does not repeat its sums: equal seeds do not give equal scores."""
    for scores in train(run):
        noise = 1e-3 * torch.rand((), generator=torch.Generator().manual_seed(time.time_ns() % 2**31)).item()
        yield {name: float(value) + noise for name, value in scores.items()}
