"""A loss that is NaN at some step: each policy does what it says, whatever the method's step is."""

from __future__ import annotations

import dataclasses
import math
from types import SimpleNamespace

import pytest
import tiny_training as tiny
import torch

from reweigh.bench.draws.seeds import Seeds
from reweigh.bench.lab import recipe as recipes
from reweigh.bench.lab.executors.local import work
from reweigh.bench.train.driver import Driver, fit
from reweigh.bench.train.programs.supervised import Supervised
from reweigh.bench.train.schedule import OptimizerPlan
from reweigh.bench.train.stacked import group_key
from reweigh.method import method

#: A training row that is NaN.
BROKEN = 17
STEPS = ("rgd", "rgd+sam", "l2rw", "rgd+ema")


def fitting(policy: str, text: str = "rgd", broken: tuple[int, ...] = (BROKEN,)) -> Driver:
    training = dataclasses.replace(tiny.TRAINING, nonfinite=policy)
    return Driver(Supervised(tiny.task(0, broken), tiny.network(0), method(text), training, Seeds(0)))


def take(driver: Driver, batch: torch.Tensor) -> None:
    """One step on these examples in the place of the sampler's next."""
    driver.program._batches = iter([batch.tolist()])
    driver.take()


def finite(model: torch.nn.Module) -> bool:
    return all(bool(torch.isfinite(value).all()) for value in model.state_dict().values())


@pytest.mark.parametrize("text", STEPS)
def test_a_skipped_step_leaves_no_trace(text):
    """Steps on good batches with a broken one in between end where the good batches alone do."""
    batches = torch.randperm(60, generator=torch.Generator().manual_seed(0))
    good = batches[batches != BROKEN].split(16)[:3]
    bad = torch.tensor([3, BROKEN, 40, 41])
    ours, reference = fitting("skip", text), fitting("skip", text)
    for batch in (good[0], bad, good[1], bad, good[2]):
        if batch is bad and "l2rw" in text:  # takes no other draw of its meta set for a step that is not taken
            kept = ours.program.meta_order.get_state()
            take(ours, batch)
            ours.program.meta_order.set_state(kept)
        else:
            take(ours, batch)
    for batch in good:
        take(reference, batch)
    assert ours.program.nonfinite.skipped == 2
    assert ours.step == 5
    assert finite(ours.program.module)
    for name, value in reference.program.module.state_dict().items():
        assert torch.equal(ours.program.module.state_dict()[name], value), name


@pytest.mark.parametrize("text", STEPS)
def test_raising_names_the_step(text):
    ours = fitting("raise", text)
    take(ours, torch.arange(16))
    with pytest.raises(FloatingPointError, match=r"4 of 4 losses are NaN or infinite at step 1 \(epoch 0\)"):
        take(ours, torch.tensor([1, BROKEN, 40, 41]))


def test_a_model_that_is_broken_is_not_skipped_for_ever():
    ours = fitting("skip")
    bad = torch.tensor([1, BROKEN])
    for _ in range(3):  # of the four steps of an epoch
        take(ours, bad)
    with pytest.raises(FloatingPointError, match=r"at step 3 .* after 3 skipped steps"):
        take(ours, bad)
    take(ours, torch.tensor([1, 2]))
    take(ours, bad)
    assert ours.program.nonfinite.skipped == 4


def test_propagating_is_recorded_as_breakdown(tmp_path):
    run = tiny.run(tmp_path)
    with run.open() as writer:
        records = list(
            fit(Supervised(tiny.task(0, (BROKEN,)), tiny.network(0), method("rgd"), tiny.TRAINING, Seeds(0)), writer)
        )
        for record in records:
            writer.record(record)
    assert math.isnan(records[-1]["test/loss"])
    assert math.isnan(run.records()[-1]["test/loss"])  # and the record can be read back
    assert "train/skipped" not in records[-1]


def test_skipping_counts_and_keeps_a_mean_weight_for_every_step(tmp_path):
    training = dataclasses.replace(tiny.TRAINING, nonfinite="skip")
    run = tiny.run(tmp_path)
    with run.open() as writer:
        records = list(
            fit(Supervised(tiny.task(0, (BROKEN,)), tiny.network(0), method("rgd"), training, Seeds(0)), writer)
        )
    assert [record["train/skipped"] for record in records] == [1, 2, 3, 4]  # every epoch meets the row once
    assert all(math.isfinite(record["test/loss"]) and math.isfinite(record["train/loss"]) for record in records)
    assert len(run.array("mean_weight")) == records[-1]["step"] == 16


@pytest.mark.parametrize("policy", ["skip", "propagate"])
def test_a_sampler_that_draws_by_losses_lives_through_it(tmp_path, policy):
    training = dataclasses.replace(tiny.TRAINING, nonfinite=policy)
    with tiny.run(tmp_path).open() as writer:
        task = tiny.task(0, (BROKEN,))
        records = list(fit(Supervised(task, tiny.network(0), method("importance"), training, Seeds(0)), writer))
    assert len(records) == 4
    assert math.isfinite(records[-1]["test/loss"]) == (policy == "skip")


def test_a_run_that_raises_keeps_its_records_and_its_reason(tmp_path, monkeypatch):
    calm, broken = tiny.task(0), tiny.task(0, (BROKEN,))

    def train(settings, chosen, seed, writer, scale):
        training = dataclasses.replace(tiny.TRAINING, nonfinite="raise")
        task = calm
        for record in fit(Supervised(task, tiny.network(seed), chosen, training, Seeds(seed)), writer):
            yield record
            if record["epoch"] == 2:
                task.x_train[BROKEN] = broken.x_train[BROKEN]

    known = recipes.complete(SimpleNamespace(Settings=tiny.Settings, train=train))
    monkeypatch.setattr(recipes, "load", lambda name: known)
    run = tiny.run(tmp_path)
    ((_, reason),) = work([run.spec.as_dict()], str(tmp_path)) or [({}, "")]
    assert "FloatingPointError: " in reason
    assert "FloatingPointError" in (run.directory / "error.txt").read_text()
    assert [record["epoch"] for record in run.records()] == [1, 2]
    assert not run.done


def test_policies_are_checked_and_keep_a_training_out_of_groups():
    with pytest.raises(ValueError, match="nonfinite"):
        OptimizerPlan(nonfinite="ignore")  # pyright: ignore[reportArgumentType]
    assert group_key(method("rgd"), OptimizerPlan()) is not None
    assert group_key(method("rgd"), OptimizerPlan(nonfinite="skip")) is None
