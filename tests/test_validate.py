"""What is demanded of hyper-parameters: numbers of NumPy are known, and checked like Python's own."""

from __future__ import annotations

import fractions
import io

import numpy as np
import pytest
import torch

import reweigh
from reweigh import _validate as validate
from reweigh.method import Method, method
from reweigh.objectives.cvar import CVaR
from reweigh.objectives.group_dro import GroupDRO
from reweigh.torch.samplers import Importance

LOSSES = np.array([0.5, 2.0])


@pytest.mark.parametrize("bad", [-1, 0, np.nan, np.inf])
@pytest.mark.parametrize("kind", [float, np.float64, np.float32, np.float16, np.asarray], ids=lambda k: k.__name__)
def test_a_numpy_number_is_checked_like_any_other(kind, bad):
    with pytest.raises(ValueError, match=r"`tau` must be a positive number, got .*tau is the loss from which on"):
        reweigh.rgd(LOSSES, tau=kind(bad))


@pytest.mark.parametrize("kind", [np.int64, np.int8, np.asarray], ids=lambda k: k.__name__)
def test_a_numpy_integer_is_checked_like_any_other(kind):
    with pytest.raises(ValueError, match="positive"):
        reweigh.rgd(LOSSES, tau=kind(-3))
    with pytest.raises(ValueError, match=r"`alpha` must be a number in \(0, 1\]"):
        CVaR(alpha=kind(2))


def test_what_is_no_number_is_refused_from_numpy_too():
    for value in (np.bool_(True), np.asarray(True), np.complex64(1), np.str_("1")):
        with pytest.raises(TypeError, match="`tau` must be a positive number"):
            reweigh.RGD(tau=value)
    with pytest.raises(ValueError, match=r"got an array of shape \(1,\)"):
        reweigh.RGD(tau=np.ones(1))


def test_good_numpy_numbers_pass_and_mean_the_same():
    for tau in (np.float32(2.0), np.int64(2), np.asarray(2.0)):
        assert float(reweigh.rgd(LOSSES, tau=tau)) == pytest.approx(float(reweigh.rgd(LOSSES, tau=2.0)))


@pytest.mark.parametrize("three", [3, np.int64(3), np.uint8(3), np.asarray(3)], ids=repr)
def test_whole_numbers_of_numpy_are_whole_numbers(three):
    validate.whole("n", three, 3)
    with pytest.raises(ValueError, match="`n` must be a whole number of at least 4, got"):
        validate.whole("n", three, 4)


@pytest.mark.parametrize(
    "value", [True, np.bool_(True), 3.0, np.float64(3.0), np.float32(3.0), np.ones(1, int), "3", fractions.Fraction(3)]
)
def test_what_is_no_whole_number_is_refused(value):
    with pytest.raises(ValueError, match="`n` must be a whole number"):
        validate.whole("n", value, 0)


def test_group_counts_may_come_from_bincount():
    groups = np.array([0, 0, 1, 2, 2, 2])
    counted = GroupDRO(n_groups=np.int64(3), adjustment=1.0, group_counts=np.bincount(groups))
    plain = GroupDRO(n_groups=3, adjustment=1.0, group_counts=(2, 1, 3))
    assert counted == plain
    losses = torch.arange(6.0)
    ours, theirs = (o.apply(losses, o.init(), groups=torch.tensor(groups))[0] for o in (counted, plain))
    assert ours == theirs


def test_the_text_of_a_method_with_numpy_numbers_is_that_of_plain_ones():
    value = Method(objective=reweigh.RGD(tau=np.float32(3), gamma=np.float32(0.1), warmup=np.int64(5)))
    assert str(value) == "rgd:tau=3,gamma=0.1,warmup=5"
    assert method(str(value)) == value


def test_a_sampler_of_numpy_sizes_saves_what_loads_safely():
    sampler = Importance().start(np.int64(9), batch_size=np.int32(3), seed=np.int64(1))
    sampler.set_epoch(np.int64(2))
    next(iter(sampler))
    file = io.BytesIO()
    torch.save(sampler.state_dict(), file)
    file.seek(0)
    Importance().start(9, batch_size=3, seed=1).load_state_dict(torch.load(file, weights_only=True))
