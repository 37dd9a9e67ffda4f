"""Corrections after training in the bench: fitted to validation outputs, scored on the test rows."""

import dataclasses

import numpy as np
import pytest
import torch
from torch import nn

from reweigh.bench.draws.seeds import Seeds
from reweigh.bench.train.correction import corrected
from reweigh.bench.train.driver import Driver
from reweigh.bench.train.programs.boosting import Boosting, takes
from reweigh.bench.train.programs.supervised import Supervised
from reweigh.bench.train.schedule import OptimizerPlan
from reweigh.bench.train.stacked import Member, fit_many, group_key
from reweigh.bench.train.task import Task, predict
from reweigh.method import method
from reweigh.post import Prior
from reweigh.torch.losses import CosineLinear

TRAINING = OptimizerPlan(optimizer="adam", lr=0.01, batch_size=16, epochs=2)


def make_task() -> Task:
    draw = np.random.default_rng(0)
    y = torch.from_numpy(draw.choice(3, size=300, p=[0.8, 0.15, 0.05]))
    x = torch.from_numpy(draw.standard_normal((300, 5))).float()
    x[torch.arange(300), y] += 1.5
    return Task(
        x_train=x[:150], y_train=y[:150], x_val=x[150:220], y_val=y[150:220], x_test=x[220:], y_test=y[220:],
        classes=("a", "b", "c"),
    )  # fmt: skip


def model(head: str = "linear") -> nn.Module:
    torch.manual_seed(0)
    last = nn.Linear(8, 3) if head == "linear" else CosineLinear(8, 3)
    return nn.Sequential(nn.Linear(5, 8), nn.ReLU(), last)


def trained(text: str, head: str = "linear"):
    program = Supervised(make_task(), model(head), method(text), TRAINING, Seeds(0))
    driver, record = Driver(program), {}
    while not driver.over:
        record = driver.run_epoch()
    return program, record


@pytest.mark.parametrize(("text", "head", "scale"), [("mean+prior", "linear", 1.0), ("ldam+prior", "cosine", 30.0)])
def test_scores_are_those_of_corrected_logits(text, head, scale):
    program, record = trained(text, head)
    _, plain = trained(text.partition("+")[0], head)
    task = program.task
    logits = scale * predict(program.module, task.x_test).double()
    counts = torch.bincount(task.y_train, minlength=3)
    # The margin loss ends with weights by the inverse effective number; they are not corrected for again.
    weights = (1 - 0.9999 ** counts.double()).reciprocal() if head == "cosine" else torch.ones(3)
    expected = (logits - weights.log() - (counts / counts.sum()).log()).argmax(1)
    assert record["test/accuracy"] == pytest.approx((expected == task.y_test).double().mean().item())
    assert record["train/loss"] == plain["train/loss"]  # training is what it was
    assert record["test/loss"] != plain["test/loss"]


def test_test_rows_are_not_looked_at():
    task = make_task()
    outputs = {"val": torch.randn(70, 3), "test": torch.randn(80, 3)}
    for name in ("threshold", "temperature", "isotonic", "prior:t=none"):
        post = method(name).post
        one = corrected(task, post, outputs)
        other = corrected(dataclasses.replace(task, y_test=task.y_test.flip(0)), post, outputs)
        assert torch.equal(one["test"], other["test"])


def test_the_last_layer_is_found():
    program, record = trained("mean+tau_norm:tau=1")
    layer = program.module[-1]
    features = program.module[:-1](program.task.x_test)
    expected = (features @ nn.functional.normalize(layer.weight, dim=1).T).argmax(1)
    assert record["test/accuracy"] == pytest.approx((expected == program.task.y_test).double().mean().item())
    with pytest.raises(ValueError, match=r"needs a model whose last layer is an nn\.Linear, got CosineLinear"):
        trained("ldam+tau_norm:tau=1", "cosine")


def test_a_training_that_broke_down_is_recorded():
    outputs = {"val": torch.full((70, 3), torch.nan), "test": torch.zeros(80, 3)}
    assert corrected(make_task(), Prior(), outputs)["val"].isnan().all()


def test_many_at_once_are_corrected_each_by_its_own():
    texts = ("mean+prior:t=0.5", "mean+prior:t=2", "mean")
    task = make_task()
    assert len({group_key(method(text), TRAINING) for text in texts}) == 1
    assert group_key(method("mean+tau_norm"), TRAINING) is None
    members = [Member(task=task, method=method(t), training=TRAINING, seeds=Seeds(0)) for t in texts]
    *_, together = fit_many(members, model, compiled=False)
    for text, record in zip(texts, together, strict=True):
        _, alone = trained(text)
        assert record["test/loss"] == pytest.approx(alone["test/loss"], rel=1e-4)


def test_boosters_are_corrected():
    pytest.importorskip("lightgbm")
    assert takes(method("rgd+prior"), "multiclass")
    assert not takes(method("rgd+tau_norm"), "multiclass")
    task = make_task()
    records = []
    for text in ("mean", "mean+prior"):
        program = Boosting("lightgbm", task, method(text), dataclasses.replace(TRAINING, epochs=5), 0)
        driver = Driver(program)
        while not driver.over:
            record = driver.run_epoch()
        records.append((program, record))
    program, record = records[1]
    counts = torch.bincount(task.y_train, minlength=3)
    expected = (program.booster.margins("test") - (counts / counts.sum()).log()).argmax(1)
    assert record["test/accuracy"] == pytest.approx((expected == task.y_test).double().mean().item())
    assert record["train/loss"] == records[0][1]["train/loss"]
