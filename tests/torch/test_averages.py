"""Averages against closed forms, hand-worked validation curves and brute-force means."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from reweigh.torch.averages import EMA, SWAD


class Scalar(nn.Module):
    """One weight, one floating-point buffer that follows it, one integer buffer."""

    def __init__(self, value=0.0, dtype=torch.float32):
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([value], dtype=dtype))
        self.register_buffer("statistic", torch.tensor([value], dtype=dtype))
        self.register_buffer("count", torch.tensor(0))

    def put(self, value):
        with torch.no_grad():
            self.weight.fill_(value)
            self.statistic.fill_(10 * value)
            self.count += 1


def weight(average):
    return average.average()["weight"].item()


@given(
    values=st.lists(st.floats(-10, 10), min_size=1, max_size=12),
    decay=st.sampled_from([0.0, 0.5, 0.9]),
    start=st.floats(-5, 5),
)
def test_ema_closed_form(values, decay, start):
    model = Scalar(start, torch.float64)
    average = EMA(decay=decay).start(model)
    for value in values:
        model.put(value)
        average.update(model)
    n = len(values)
    # decay^n of the start plus a geometric series of the rest
    expected = decay**n * start + sum((1 - decay) * decay ** (n - 1 - i) * v for i, v in enumerate(values))
    assert weight(average) == pytest.approx(expected, abs=1e-9)


def test_ema_warmup_by_hand():
    model = Scalar(0.0, torch.float64)
    average = EMA(decay=0.15, warmup=True).start(model)
    model.put(1.0)
    average.update(model)  # factor min(0.15, 1/10)
    assert weight(average) == pytest.approx(0.9)
    average.update(model)  # factor min(0.15, 2/11): 0.15
    assert weight(average) == pytest.approx(0.15 * 0.9 + 0.85)


@pytest.mark.parametrize(("buffers", "expected"), [("averaged", 5.0), ("copied", 10.0)])
def test_ema_buffers(buffers, expected):
    model = Scalar(0.0)
    average = EMA(decay=0.5, buffers=buffers).start(model)
    model.put(1.0)
    average.update(model)
    state = average.average()
    assert state["weight"].item() == 0.5
    assert state["statistic"].item() == expected
    assert state["count"].item() == 1
    assert state["count"].dtype == torch.int64


def test_ema_in_bfloat16_does_not_stand_still():
    model = Scalar(1.0, torch.bfloat16)
    average = EMA(decay=0.999).start(model)
    model.put(2.0)
    for _ in range(1000):
        average.update(model)
    assert average.average()["weight"].dtype == torch.bfloat16
    assert weight(average) == pytest.approx(2 - 0.999**1000, rel=1e-2)


def test_ema_state_dict_round_trip():
    model = Scalar(0.0)
    first = EMA(decay=0.9, warmup=True).start(model)
    for value in (1.0, 2.0, 3.0):
        model.put(value)
        first.update(model)
    second = EMA(decay=0.9, warmup=True).start(Scalar(7.0))
    second.load_state_dict(first.state_dict())
    model.put(5.0)
    first.update(model)
    second.update(model)
    for name, value in first.average().items():
        assert torch.equal(value, second.average()[name])


def test_swapped_gives_back_the_very_weights():
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    average = EMA(decay=0.5).start(model)
    model(torch.randn(8, 3, generator=torch.Generator().manual_seed(0)))
    with torch.no_grad():
        model[0].weight.mul_(3.0)
    average.update(model)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(RuntimeError, match="on purpose"), average.swapped(model) as inside:  # noqa: PT012
        for name, value in average.average().items():
            assert torch.equal(inside.state_dict()[name], value)
        assert not torch.equal(inside[0].weight, before["0.weight"])
        raise RuntimeError("on purpose")
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name])
    model.load_state_dict(average.average())


def test_average_is_a_copy():
    average = EMA(decay=0.5).start(Scalar(1.0))
    average.average()["weight"].fill_(9.0)
    assert weight(average) == 1.0


def test_another_model_is_refused():
    average = EMA().start(Scalar())
    with pytest.raises(ValueError, match="Start a new average"):
        average.update(nn.Linear(1, 1))


# --- SWAD ---


def run(config, losses, frequency=2):
    """Step k has weight k^2; the live average and the weights of each step, counted from 1."""
    model = Scalar(0.0, torch.float64)
    swad = config.start(model)
    weights = {}
    step = 0
    for loss in losses:
        for _ in range(frequency):
            step += 1
            model.put(step**2)
            weights[step] = float(step**2)
            swad.update(model)
        assert swad.due or swad.ended
        swad.observe(loss)
        assert not swad.due
    return swad, weights


def mean(weights, first, last):
    return sum(weights[k] for k in range(first, last + 1)) / (last - first + 1)


# Segments of two steps. Of three successive losses the first is the smallest for the first time at segment 4
# (1.0, 1.1, 1.2): start there, threshold 1.3 * 1.1 = 1.43.
DOWN = [5.0, 3.0, 2.0, 1.0, 1.1, 1.2]


def test_swad_start_and_end_by_hand():
    # segment 7 (1.4) is inside, segment 8 (1.5) above, 9 (1.43 - 0.01) inside, 10 to 12 above: with tolerance 3
    # the first three in a row above the threshold are 10, 11, 12, so segment 9 is the last.
    curve = [*DOWN, 1.4, 1.5, 1.42, 2.0, 2.0, 2.0, 0.1, 0.1]
    swad, weights = run(SWAD(n_converge=3, n_tolerance=3, ratio=0.3, checkpoint_freq=2), curve)
    assert swad.ended
    assert swad.threshold == pytest.approx(1.43)
    assert (swad.start_step, swad.end_step) == (7, 18)
    assert weight(swad) == pytest.approx(mean(weights, 7, 18))
    assert swad.average()["statistic"].item() == pytest.approx(10 * mean(weights, 7, 18))


def test_swad_defaults_by_hand():
    # tolerance 6: segments 8 to 13 are above
    curve = [*DOWN, 1.3, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0, 1.0]
    swad, weights = run(SWAD(checkpoint_freq=2), curve)
    assert swad.ended
    assert (swad.start_step, swad.end_step) == (7, 14)
    assert weight(swad) == pytest.approx(mean(weights, 7, 14))


def test_swad_valley_open_at_the_end():
    # training stops: the last segment at or below the threshold is 8
    swad, weights = run(SWAD(checkpoint_freq=2), [*DOWN, 2.0, 1.2, 2.0])
    assert not swad.ended
    assert (swad.start_step, swad.end_step) == (7, 16)
    assert weight(swad) == pytest.approx(mean(weights, 7, 16))


def test_swad_just_started_mixes_in_nothing_older():
    swad, weights = run(SWAD(checkpoint_freq=2), DOWN)
    assert swad.started
    assert (swad.start_step, swad.end_step) == (7, 12)
    assert weight(swad) == pytest.approx(mean(weights, 7, 12))


def test_swad_counts_every_step_of_the_valley_once_and_none_before_it():
    """The authors' code would mix in segments 4 and 5, which lie below the threshold of 1.365, and count 6 twice."""
    curve = [3.0, 2.5, 1.2, 1.15, 1.1, 1.0, 1.05, 1.1, 1.1, 1.2, 1.1, 1.1, 1.1, *[5.0] * 6]
    swad, weights = run(SWAD(checkpoint_freq=2), curve)
    assert swad.threshold == pytest.approx(1.365)
    assert (swad.start_step, swad.end_step) == (11, 26)
    assert weight(swad) == pytest.approx(mean(weights, 11, 26))


def test_swad_without_a_valley_is_the_last_segment():
    swad, weights = run(SWAD(checkpoint_freq=2), [5.0, 4.0, 3.0, 2.0])
    assert not swad.started
    assert weight(swad) == pytest.approx(mean(weights, 7, 8))


@given(
    losses=st.lists(st.floats(0.1, 3.0), min_size=1, max_size=25),
    n_converge=st.integers(1, 4),
    n_tolerance=st.integers(1, 7),
    ratio=st.sampled_from([0.0, 0.3]),
)
def test_swad_against_the_whole_curve(losses, n_converge, n_tolerance, ratio):
    """The live form, which forgets as it goes, against the definition on the whole curve."""
    config = SWAD(n_converge=n_converge, n_tolerance=n_tolerance, ratio=ratio, checkpoint_freq=2)
    swad, weights = run(config, losses)
    starts = [s for s in range(len(losses) - n_converge + 1) if losses[s] == min(losses[s : s + n_converge])]
    if not starts:
        first, last = len(losses) - 1, len(losses) - 1
    else:
        first = starts[0]
        threshold = (1 + ratio) * sum(losses[first : first + n_converge]) / n_converge
        assert swad.threshold == pytest.approx(threshold)
        threshold = swad.threshold
        dead = [e for e in range(first, len(losses) - n_tolerance + 1) if min(losses[e : e + n_tolerance]) > threshold]
        end = dead[0] if dead else len(losses)
        last = max(i for i in range(first, end) if losses[i] <= threshold)
        assert swad.ended == bool(dead)
    assert (swad.start_step, swad.end_step) == (2 * first + 1, 2 * last + 2)
    assert weight(swad) == pytest.approx(mean(weights, 2 * first + 1, 2 * last + 2))


def test_swad_counts_steps_not_segments():
    model = Scalar(0.0, torch.float64)
    swad = SWAD(n_converge=1, n_tolerance=1, checkpoint_freq=1).start(model)
    for values, loss in (([1.0], 1.0), ([2.0, 3.0, 4.0], 1.0)):
        for value in values:
            model.put(value)
            swad.update(model)
        swad.observe(loss)
    assert weight(swad) == pytest.approx(2.5)


def test_swad_takes_losses_that_are_no_numbers_as_bad():
    swad, _ = run(SWAD(checkpoint_freq=2), [float("nan")] * 3 + DOWN + [float("nan")])
    assert (swad.start_step, swad.end_step) == (13, 18)


def test_swad_state_dict_round_trip():
    curve = [*DOWN, 1.3, 2.0, 1.2, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0]
    config = SWAD(checkpoint_freq=1)
    for cut in range(1, len(curve)):
        model, resumed = Scalar(0.0, torch.float64), config.start(Scalar(0.0, torch.float64))
        swad = config.start(model)
        for step, loss in enumerate(curve):
            if step == cut:
                resumed.load_state_dict(swad.state_dict())
            model.put(step**2)
            for live in (swad, resumed) if step >= cut else (swad,):
                live.update(model)
                live.observe(loss)
        assert torch.equal(swad.average()["weight"], resumed.average()["weight"])
        assert (swad.start_step, swad.end_step, swad.ended) == (resumed.start_step, resumed.end_step, resumed.ended)


@pytest.mark.parametrize("cut", range(1, 10))
def test_swad_goes_on_where_the_model_is(cut):
    """A state saved on another device: the meta device stands for any, since it refuses to meet another."""
    config, model, curve = SWAD(n_converge=2, n_tolerance=2, checkpoint_freq=2), Scalar(), [3.0, 1.0, 1.1, 1.0, 1.1]
    swad = config.start(model)
    moved, elsewhere = None, Scalar().to("meta")
    for step in range(1, 11):
        swad.update(model)
        if moved is not None:
            moved.update(elsewhere)
        for live in (swad, moved):
            if live is not None and live.due:
                live.observe(curve[step // 2 - 1])
        if step == cut:
            moved = config.start(elsewhere)
            moved.load_state_dict(swad.state_dict())
    assert moved is not None
    assert moved.average()["weight"].is_meta
    assert (moved.start_step, moved.end_step) == (swad.start_step, swad.end_step)


def test_swad_keeps_few_copies():
    swad, _ = run(SWAD(checkpoint_freq=2), [1.0] * 40)
    assert len(swad.state_dict()["pending"]) < 6
    swad, _ = run(SWAD(checkpoint_freq=2), [1 / (k + 1) for k in range(40)])
    assert len(swad.state_dict()["pending"]) <= 3


def test_swad_order_of_calls():
    swad = SWAD().start(Scalar())
    with pytest.raises(ValueError, match="at least one `update`"):
        swad.observe(1.0)
    with pytest.raises(ValueError, match="at least one `update`"):
        swad.average()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: EMA(decay=1.0), "decay"),
        (lambda: EMA(buffers="kept"), "buffers"),
        (lambda: SWAD(n_converge=0), "n_converge"),
        (lambda: SWAD(ratio=-1), "ratio"),
        (lambda: SWAD(checkpoint_freq=0), "checkpoint_freq"),
    ],
)
def test_settings_are_checked(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_repr_evaluates_back():
    for config in (EMA(warmup=True), SWAD(ratio=0.2)):
        assert eval(repr(config)) == config
