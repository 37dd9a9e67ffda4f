"""Training alone and in groups: the same numbers, and the same numbers after an interruption."""

import dataclasses

import numpy as np
import pytest
import torch
from torch import nn

from reweigh.bench.draws.seeds import Seeds
from reweigh.bench.lab.runs import Run, Spec
from reweigh.bench.train.driver import fit
from reweigh.bench.train.programs.supervised import Supervised
from reweigh.bench.train.schedule import OptimizerPlan
from reweigh.bench.train.stacked import Member, fit_many, group_key
from reweigh.bench.train.task import Task
from reweigh.method import method


def make_task(seed: int, dtype=torch.float32) -> Task:
    draw = np.random.default_rng(seed)
    x = torch.from_numpy(draw.standard_normal((120, 6))).to(dtype)
    y = (x[:, 0] + 0.5 * x[:, 1] > 0.4).long() + (x[:, 2] > 1.2).long()
    noisy = torch.from_numpy(draw.random(60) < 0.2)
    return Task(
        x_train=x[:60], y_train=y[:60], x_val=x[60:90], y_val=y[60:90], x_test=x[90:], y_test=y[90:],
        classes=("a", "b", "c"), noisy=noisy, meta=(x[60:75], y[60:75]),
    )  # fmt: skip


def build(dtype=torch.float32) -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)).to(dtype)


def run_alone(tmp_path, text, training, seed, *, scale=None, dtype=torch.float32, records=None):
    settings = {**dataclasses.asdict(training), "scaled": scale is not None}
    spec = Spec(recipe="r", column="c", label="l", settings=settings, method=text, seed=seed)
    run = Run(spec, tmp_path)
    seeds = Seeds(seed)
    with run.open() as writer:
        with seeds.ambient("init"):
            model = build(dtype)
        found = []
        for record in fit(
            Supervised(make_task(seed, dtype), model, method(text), training, seeds), writer, scale=scale
        ):
            found.append(record)
            writer.record(record)
            if records is not None and len(found) == records:
                return run, found
        writer.finish({})
    return run, found


TRAININGS = [
    OptimizerPlan(
        optimizer="sgd", lr=0.1, batch_size=16, epochs=3, schedule="cosine", nesterov=True, weight_decay=1e-3
    ),
    OptimizerPlan(optimizer="sgd", lr=0.1, momentum=0.0, batch_size=16, epochs=2),
    OptimizerPlan(optimizer="adam", lr=0.01, batch_size=25, epochs=3, weight_decay=1e-2),
    OptimizerPlan(optimizer="adamw", lr=0.01, batch_size=16, epochs=3, schedule="steps", weight_decay=0.1, warmup=0.2),
]


@pytest.mark.parametrize("training", TRAININGS, ids=lambda t: f"{t.optimizer}-{t.schedule}-{t.momentum}")
@pytest.mark.parametrize(
    "texts",
    [
        ("mean", "mean"),
        ("rgd:tau=1", "rgd:tau=3"),
        ("rgd:normalize=mean", "rgd:tau=9,normalize=mean"),
        ("term:t=0.5", "term:t=-1"),
        ("absgd:lam=3", "absgd:lam=7"),
        ("rgd_auto", "rgd_auto"),
        ("class_balanced+rgd", "class_balanced+rgd:tau=3"),
    ],
    ids=lambda t: t[0],
)
def test_a_group_trains_like_its_members_alone(tmp_path, texts, training):
    trainings = [training, dataclasses.replace(training, lr=training.lr / 2)]
    # Class counts are part of a class-balanced loss, so its members share their data draw.
    seeds = (3, 3) if "class_balanced" in texts[0] else (3, 4)
    alone = [
        run_alone(tmp_path, text, own, seed, dtype=torch.float64)
        for text, own, seed in zip(texts, trainings, seeds, strict=True)
    ]
    members = [
        Member(task=make_task(seed, torch.float64), method=method(text), training=own, seeds=Seeds(seed))
        for text, own, seed in zip(texts, trainings, seeds, strict=True)
    ]
    together = list(fit_many(members, lambda: build(torch.float64), compiled=False))
    for k, (run, records) in enumerate(alone):
        for ours, theirs in zip(together, records, strict=True):
            assert ours[k].get("class_names") == theirs.pop("class_names", None)
            for name, value in theirs.items():
                assert ours[k][name] == pytest.approx(value, rel=1e-8, abs=1e-8, nan_ok=True), name
        arrays = together[-1][k]["arrays"]
        np.testing.assert_allclose(arrays["mean_weight"], run.array("mean_weight"), rtol=1e-6)
        np.testing.assert_allclose(arrays["loss_trajectory"], run.array("loss_trajectory"), rtol=2e-3)


def test_a_hundred_steps_stay_together(tmp_path):
    training = OptimizerPlan(optimizer="adam", lr=0.02, batch_size=12, epochs=20)
    _, alone = run_alone(tmp_path, "rgd:tau=3", training, 5, dtype=torch.float64)
    members = [
        Member(task=make_task(s, torch.float64), method=method(t), training=training, seeds=Seeds(s))
        for s, t in ((5, "rgd:tau=3"), (6, "rgd:tau=1"), (5, "rgd:tau=9"))
    ]
    last = list(fit_many(members, lambda: build(torch.float64), compiled=False))[-1][0]
    assert last["step"] == 100
    assert last["train/loss"] == pytest.approx(alone[-1]["train/loss"], abs=1e-8)
    assert last["test/loss"] == pytest.approx(alone[-1]["test/loss"], abs=1e-8)


def test_members_do_not_touch_one_another():
    training = TRAININGS[0]
    one = Member(task=make_task(1), method=method("rgd:tau=1"), training=training, seeds=Seeds(1))
    other = Member(
        task=make_task(2), method=method("rgd:tau=5"), training=dataclasses.replace(training, lr=50.0), seeds=Seeds(2)
    )
    alone = list(fit_many([one, one], build, compiled=False))[-1][0]
    beside = list(fit_many([one, other], build, compiled=False))[-1][0]  # the other one diverges
    assert beside["test/loss"] == alone["test/loss"]


def test_what_may_run_together():
    key = group_key(method("rgd:tau=1"), TRAININGS[0])
    assert key == group_key(method("rgd:tau=7.5"), dataclasses.replace(TRAININGS[0], lr=0.7))
    assert key != group_key(method("rgd:divergence=revkl"), TRAININGS[0])
    assert key != group_key(method("rgd:gamma=0.5"), TRAININGS[0])
    assert key != group_key(method("rgd"), TRAININGS[2])
    assert key != group_key(method("focal+rgd"), TRAININGS[0])
    assert group_key(method("rgd+sam"), TRAININGS[0]) is None
    assert group_key(method("importance"), TRAININGS[0]) is None
    with pytest.raises(ValueError, match="numbers only"):
        list(
            fit_many(
                [
                    Member(task=make_task(0), method=method(t), training=TRAININGS[0], seeds=Seeds(0))
                    for t in ("rgd", "term")
                ],
                build,
            )
        )


@pytest.mark.parametrize(
    "text",
    ["rgd", "absgd", "rgd+sam", "importance", "hardness", "l2rw", "meta_weight_net", "fine_tune", "rgd+ema", "recover"],
)
def test_an_interrupted_training_ends_with_the_same_bits(tmp_path, text):
    training = OptimizerPlan(optimizer="adam", lr=0.01, batch_size=16, epochs=4)
    whole, records = run_alone(tmp_path / "whole", text, training, 7)
    run_alone(tmp_path / "broken", text, training, 7, records=2)  # killed after the second record
    resumed, rest = run_alone(tmp_path / "broken", text, training, 7)
    assert len(rest) < len(records)
    assert resumed.records() == whole.records()
    for name in ("mean_weight", "loss_trajectory"):
        np.testing.assert_array_equal(resumed.array(name), whole.array(name))


def test_the_scale_control_multiplies_the_loss(tmp_path):
    training = OptimizerPlan(optimizer="sgd", lr=0.05, momentum=0.0, batch_size=20, epochs=2)
    steps = 6
    _, doubled = run_alone(tmp_path, "mean", training, 2, scale=np.full(steps, 2.0), dtype=torch.float64)
    # Without momentum a doubled loss is a doubled rate.
    _, faster = run_alone(tmp_path, "mean", dataclasses.replace(training, lr=0.1), 2, dtype=torch.float64)
    assert doubled[-1]["test/loss"] == pytest.approx(faster[-1]["test/loss"], abs=1e-12)
    member = Member(
        task=make_task(2, torch.float64), method=method("mean"), training=training, seeds=Seeds(2),
        scale=np.full(steps, 2.0, np.float32),
    )  # fmt: skip
    grouped = list(fit_many([member, member], lambda: build(torch.float64), compiled=False))[-1][0]
    assert grouped["test/loss"] == pytest.approx(doubled[-1]["test/loss"], abs=1e-8)


def test_paired_seeds_share_data_order_and_start(tmp_path):
    training = OptimizerPlan(lr=1e-12, batch_size=16, epochs=1)  # nothing moves: only order and start are left
    _, plain = run_alone(tmp_path, "mean", training, 9)
    _, ours = run_alone(tmp_path, "rgd", training, 9)
    assert plain[0]["train/loss"] == pytest.approx(ours[0]["train/loss"], rel=1e-6)
