"""Many models at once: the batched program itself, beside the comparison with training alone in test_training."""

import dataclasses
from collections import OrderedDict

import numpy as np
import pytest
import torch
from torch import nn

from reweigh.bench.draws.seeds import Seeds
from reweigh.bench.lab import recipe as recipes
from reweigh.bench.train import stacked as sweep
from reweigh.bench.train.schedule import OptimizerPlan
from reweigh.bench.train.stacked import Member, fit_many, worth_compiling
from reweigh.bench.train.task import Task
from reweigh.method import method

CPU = torch.device("cpu")


def make_task(seed: int, dtype=torch.float32) -> Task:
    draw = np.random.default_rng(seed)
    x = torch.from_numpy(draw.standard_normal((110, 6))).to(dtype)
    y = (x[:, 0] > 0).long() + (x[:, 1] > 0.8).long()
    return Task(
        x_train=x[:50], y_train=y[:50], x_val=x[50:80], y_val=y[50:80], x_test=x[80:], y_test=y[80:],
        classes=("a", "b", "c"),
    )  # fmt: skip


def build() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))


TRAINING = OptimizerPlan(optimizer="adam", lr=0.01, batch_size=16, epochs=3, weight_decay=1e-3)


def members(texts=("rgd:tau=1", "rgd:tau=3", "rgd:tau=9"), training=TRAINING, tasks=None) -> list[Member]:
    tasks = tasks or [make_task(0)] * len(texts)
    return [
        Member(
            task=task, method=method(text), training=dataclasses.replace(training, lr=training.lr * (k + 1)),
            seeds=Seeds(k),
        )
        for k, (text, task) in enumerate(zip(texts, tasks, strict=True))
    ]  # fmt: skip


def losses_of(epochs) -> np.ndarray:
    return np.array([[[r["train/loss"], r["test/loss"]] for r in records] for records in epochs])


GROUPS = [
    (("rgd:tau=1", "rgd:tau=3", "rgd:tau=9"), TRAINING),
    (("absgd:lam=2", "absgd:lam=5"), TRAINING),
    (("class_balanced+rgd", "class_balanced+rgd:tau=3"), dataclasses.replace(TRAINING, optimizer="adamw")),
    (("mean", "mean"), dataclasses.replace(TRAINING, optimizer="sgd", nesterov=True, schedule="cosine")),
]


@pytest.mark.parametrize(("texts", "training"), GROUPS, ids=lambda v: v[0] if isinstance(v, tuple) else v.optimizer)
def test_what_is_compiled_is_the_eager_step(texts, training, monkeypatch):
    # The trace that goes to the compiler, run as it is: the compiler itself takes half a minute.
    traces = []
    monkeypatch.setattr(torch, "compile", lambda program, **_: traces.append(program) or program)
    traced = losses_of(fit_many(members(texts, training), build, compiled=True))
    assert len(traces) == 1  # the last batch of an epoch is smaller, and has no program of its own
    eager = losses_of(fit_many(members(texts, training), build, compiled=False))
    np.testing.assert_allclose(traced, eager, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(("texts", "training"), GROUPS[:2], ids=["rgd", "absgd"])
def test_compiled_steps_are_eager_steps(texts, training):
    compiled = losses_of(fit_many(members(texts, training), build, compiled=True))
    eager = losses_of(fit_many(members(texts, training), build, compiled=False))
    np.testing.assert_allclose(compiled, eager, rtol=1e-5, atol=1e-6)


def test_one_step_without_momentum_is_the_gradient_of_each_member_alone():
    # One batch of everything, rate one: what moved is the gradient, here against autograd on one model at a time.
    training = OptimizerPlan(optimizer="sgd", lr=1.0, momentum=0.0, batch_size=50, epochs=1)
    task = make_task(3, torch.float64)
    taus = (0.5, 2.0)
    group = sweep.StackedSupervised(
        [Member(task=task, method=method(f"rgd:tau={t}"), training=training, seeds=Seeds(1)) for t in taus],
        lambda: build().double(),
        compiled=False,
    )
    before = [p.clone() for p in group.model.parameters]
    group.run_epoch(0)
    for k, tau in enumerate(taus):
        model = build().double()
        with torch.no_grad():
            for own, stacked in zip(model.parameters(), before, strict=True):
                own.copy_(stacked[k])
        losses = nn.functional.cross_entropy(model(task.x_train), task.y_train, reduction="none")
        weights = [np.exp(min(max(v, 0.0), tau) / (tau + 1)) for v in losses.tolist()]
        (torch.tensor(weights, dtype=torch.float64) @ losses / 50).backward()
        for own, start, end in zip(model.parameters(), before, group.model.parameters, strict=True):
            torch.testing.assert_close(start[k] - end[k], own.grad, rtol=0, atol=1e-12)


class Other(nn.Module):
    """Not a chain of known layers."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.norm, self.head = nn.Linear(6, 8), nn.LayerNorm(8), nn.Linear(8, 3, bias=False)

    def forward(self, x):
        return self.head(torch.tanh(self.norm(self.inner(x))))


CHAINS = {
    "linear": lambda: nn.Linear(6, 3),
    "flattened": lambda: nn.Sequential(nn.Flatten(), nn.Linear(6, 4, bias=False), nn.Tanh(), nn.Linear(4, 3)),
    "named": lambda: nn.Sequential(OrderedDict(a=nn.Linear(6, 4), b=nn.GELU(), c=nn.Linear(4, 3))),
    "other": Other,
}


@pytest.mark.parametrize("kind", CHAINS)
def test_stacked_models_answer_as_each_alone(kind):
    models = [CHAINS[kind]().double() for _ in range(3)]
    stacked = sweep._StackedModel(models, 2, CPU)
    x = torch.randn(3, 5, 6, dtype=torch.float64)
    expected = torch.stack([model(own) for model, own in zip(models, x, strict=True)])
    torch.testing.assert_close(stacked(stacked.parameters, x), expected)
    torch.testing.assert_close(stacked.predict([2, 0], x[0], CPU), torch.stack([models[2](x[0]), models[0](x[0])]))
    assert (stacked.layers is None) == (kind in ("linear", "other"))


def test_dropout_is_for_training_only():
    stacked = sweep._StackedModel([nn.Sequential(nn.Linear(4, 64), nn.Dropout(0.5)) for _ in range(2)], 2, CPU)
    x = torch.ones(2, 3, 4)
    assert (stacked(stacked.parameters, x) == 0).any()
    assert not (stacked.predict([0, 1], x[0], CPU) == 0).any()


def test_members_share_the_memory_of_their_data():
    one, other = make_task(0), make_task(1)
    assert sweep._MemberRows([one.x_train] * 100, CPU).data.data is one.x_train
    rows = sweep._MemberRows([one.y_train, other.y_train, one.y_train, other.y_train], CPU)
    assert len(rows.data) == 100  # two data sets of fifty, not four
    indices = torch.tensor([[0, 3], [0, 3], [49, 1], [49, 1]])
    expected = [(one, (0, 3)), (other, (0, 3)), (one, (49, 1)), (other, (49, 1))]
    assert rows[indices].tolist() == [[task.y_train[i].item() for i in own] for task, own in expected]


@pytest.mark.parametrize(
    "text",
    [
        "class_balanced:beta=0.9+rgd",
        "class_weights:power=0.5",
        "logit_adjusted+rgd",
        "vs",
        "ldam",
        "deferred:start=0.3",
    ],
)
def test_members_keep_the_class_counts_of_their_own_data(text):
    tasks = [make_task(0), make_task(4)]
    assert tasks[0].class_counts != tasks[1].class_counts
    together = members((text, text), tasks=tasks)
    found = losses_of(fit_many(together, build, compiled=False))
    for k, member in enumerate(together):
        alone = losses_of(fit_many([member], build, compiled=False))
        np.testing.assert_allclose(found[:, [k]], alone, rtol=1e-5)
    swapped = losses_of(fit_many(members((text, text), tasks=tasks[:1] * 2), build, compiled=False))
    assert np.abs(found[-1, 1] - swapped[-1, 1]).max() > 1e-3


def test_a_member_that_breaks_down_stays_alone():
    good, bad = make_task(0), make_task(1)
    bad = dataclasses.replace(bad, x_train=bad.x_train.clone())
    bad.x_train[7] = float("nan")
    bad.x_train[8] = float("inf")
    texts = ("rgd:tau=1", "rgd:tau=3", "rgd:tau=9")
    beside = losses_of(fit_many(members(texts, tasks=[good, bad, good]), build, compiled=False))
    healthy = losses_of(fit_many(members(texts, tasks=[good, good, good]), build, compiled=False))
    assert np.isnan(beside[-1, 1]).all()
    np.testing.assert_array_equal(beside[:, [0, 2]], healthy[:, [0, 2]])


def test_long_trainings_of_many_are_compiled():
    assert not worth_compiling(640, 25 * 6922)
    assert worth_compiling(100_000, 25 * 6922)
    assert worth_compiling(20_000, 100 * 6922)
    assert not worth_compiling(20_000, 5 * 6922)


def test_without_a_compiler_the_eager_step_does(monkeypatch):
    def fails(*_):
        raise RuntimeError("no compiler")

    monkeypatch.setattr(sweep, "_compile", fails)
    monkeypatch.setattr(sweep, "worth_compiling", lambda *_: True)
    eager = losses_of(fit_many(members(), build, compiled=False))
    np.testing.assert_array_equal(losses_of(fit_many(members(), build)), eager)
    with pytest.raises(RuntimeError, match="no compiler"):
        list(fit_many(members(), build, compiled=True))


@pytest.mark.parametrize("name", ["longtail", "noise"])
def test_convolutions_run_alone(name):
    recipe = recipes.load(name)
    assert recipe.group(recipe.Settings(model="mlp"), method("rgd")) is not None
    for model in ("cnn", "resnet32", "wrn"):
        assert recipe.group(recipe.Settings(model=model), method("rgd")) is None
