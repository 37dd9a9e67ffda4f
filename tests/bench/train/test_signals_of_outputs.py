"""Signals in the bench: what an objective asks for beside the losses is computed from the outputs."""

import numpy as np
import pytest
import torch
from torch import nn

from reweigh.bench.draws.seeds import Seeds
from reweigh.bench.train.driver import Driver
from reweigh.bench.train.programs.supervised import Supervised
from reweigh.bench.train.schedule import OptimizerPlan
from reweigh.bench.train.stacked import group_key
from reweigh.bench.train.task import Task
from reweigh.method import method

TRAINING = OptimizerPlan(optimizer="sgd", lr=0.1, momentum=0.0, batch_size=50, epochs=1)


def program(text):
    draw = np.random.default_rng(0)
    x = torch.from_numpy(draw.standard_normal((50, 4))).float()
    y = torch.from_numpy(draw.integers(3, size=50))
    task = Task(x_train=x, y_train=y, x_val=x, y_val=y, x_test=x, y_test=y, classes=("a", "b", "c"))
    torch.manual_seed(0)
    return Supervised(task, nn.Linear(4, 3), method(text), TRAINING, Seeds(0))


def test_entropy_is_that_of_the_outputs():
    own = program("entropy")
    model, x, y = nn.Linear(4, 3), own.task.x_train, own.task.y_train
    model.load_state_dict(own.module.state_dict())
    driver = Driver(own)
    driver.run_epoch()
    output = model(x)
    weights = torch.distributions.Categorical(logits=output).entropy().detach() / np.log(3)
    loss = (weights * nn.functional.cross_entropy(output, y, reduction="none")).mean()
    (gradient,) = torch.autograd.grad(loss, [model.weight])
    torch.testing.assert_close(own.module.weight, model.weight - 0.1 * gradient, atol=1e-6, rtol=1e-5)


def test_a_reference_is_not_made_up():
    with pytest.raises(ValueError, match=r"needs `signal`, got None.*under a reference model"):
        Driver(program("rho")).run_epoch()


def test_signals_need_a_loop_of_their_own():
    assert group_key(method("entropy"), TRAINING) is None
