"""Every objective, loss, step, average and sampler trains on a second device as on the processor."""

from __future__ import annotations

import pytest
import torch
from host_reads import assert_alike
from torch import nn

from reweigh.bench.draws.seeds import Seeds
from reweigh.method import SLOTS, Context, method, names

#: What has a parameter that no context fills in.
_OPTIONS = {
    "recover": "recover:lam=1.0",
    "projected": "projected:radius=5.0",
    "swad": "swad:n_converge=1,n_tolerance=1",
}
#: Losses whose targets are not classes.
_OTHER_TARGETS = ("mse", "bce")
#: Objectives that need the losses of a reference model, which `_train` does not have.
_WITH_REFERENCE = ("rho",)
#: Samplers that draw by the losses of the last step: the processor has to wait for those, once per step.
_WAITING = ("importance", "hardness", "primal_dual")
#: Steps that look at all training rows between two stages, and wait for what comes out.
_TURNING = ("jtt", "afr", "dfr")


def _train(text: str, *, precision: str = "float32", epochs: int = 2):
    from reweigh.bench.train.driver import Driver
    from reweigh.bench.train.programs.supervised import Supervised
    from reweigh.bench.train.schedule import OptimizerPlan
    from reweigh.bench.train.task import Task

    draw = torch.Generator().manual_seed(0)
    x, y = torch.randn(60, 6, generator=draw), torch.randint(3, (60,), generator=draw)
    x = x + y[:, None]
    task = Task(
        x_train=x[:40], y_train=y[:40], x_val=x[40:50], y_val=y[40:50], x_test=x[50:], y_test=y[50:],
        classes=("a", "b", "c"), meta=(x[:12], y[:12]), groups=y[:40], n_groups=3, noisy=y[:40] == 1,
    )  # fmt: skip
    parsed = method(text)
    with Seeds(0).ambient("init"):
        model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.1), nn.Linear(8, 3))
    training = OptimizerPlan(optimizer="adamw", lr=0.01, batch_size=10, epochs=epochs, precision=precision)
    program = Supervised(task, model, parsed, training, Seeds(0))
    driver, records = Driver(program), []
    with Seeds(0).ambient("dropout"):
        while not driver.over:
            records.append(driver.run_epoch())
    return records


def _all_parts() -> list[str]:
    parts = [name for slot in SLOTS if slot != "post" for name in names(slot)]
    return [_OPTIONS.get(name, name) for name in parts if name not in _OTHER_TARGETS + _WITH_REFERENCE]


@pytest.mark.parametrize("text", _all_parts())
def test_every_part_of_a_method(on_both, text):
    expected, computed, reads = on_both(lambda: _train(text))
    assert_alike(computed, expected)
    if text.partition(":")[0] in _WAITING:
        assert sum(reads.places.values()) == reads.steps
    elif text in _TURNING:
        assert sum(reads.places.values()) < reads.steps
    else:
        assert not reads.places


@pytest.mark.parametrize("loss", _OTHER_TARGETS)
def test_losses_of_other_targets(loss):
    built = method(loss).build(Context(n=4)).loss
    outputs, targets = torch.randn(4, 2, generator=torch.Generator().manual_seed(0)), torch.tensor([[0.0, 1.0]] * 4)
    here = built(outputs, targets)
    there = built(outputs.to("second"), targets.to("second"))
    assert there.device.type == "second"
    torch.testing.assert_close(there.cpu(), here)


@pytest.mark.parametrize("text", _WITH_REFERENCE)
def test_objectives_with_a_reference_model(text):
    objective = method(text).objective
    losses, reference = torch.rand(2, 12, generator=torch.Generator().manual_seed(0))
    here, _ = objective.apply(losses, objective.init(), signal=reference)
    there, _ = objective.apply(losses.to("second"), objective.init(), signal=reference.to("second"))
    assert there.device.type == "second"
    torch.testing.assert_close(there.cpu(), here)


@pytest.mark.parametrize("text", ["rgd", "rgd+sam", "focal+term:t=0.5+ema:decay=0.9"])
@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_mixed_precision_learns_and_reads_nothing(on_both, text, precision):
    plain, mixed, reads = on_both(lambda: _train(text, precision=precision, epochs=8))
    assert not reads.places
    for records in (plain, mixed):
        assert records[-1]["train/loss"] < 0.75 * records[0]["train/loss"]


def test_without_double_precision(on_both):
    """Device number 1 has no float64, as Apple's have none."""
    with pytest.raises(TypeError, match="no float64"):
        torch.ones(2, dtype=torch.float64, device="second:1")
    expected, computed, reads = on_both(lambda: _train("focal+rgd+sam+ema:decay=0.9"), "second:1")
    assert_alike(computed, expected)
    assert not reads.places
