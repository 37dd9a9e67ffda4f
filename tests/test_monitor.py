"""The monitor: statistics worked by hand, findings that fire when they should and not otherwise."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from frameworks import ALL, TORCH

import reweigh.monitor
from reweigh import KL, RGD, ChiSquare, Monitor, suggest_tau
from reweigh.monitor import _clipped
from reweigh.objectives.redescending import Redescending

BATCH = [0.2, 0.7, 1.5, 4.0]


def watched(losses, weights=None, *, tau=1.0, steps=1, **options):
    monitor = Monitor(tau=tau)
    losses = np.asarray(losses, dtype=float)
    for _ in range(steps):
        monitor.update(losses, KL(tau=tau or 1.0)(losses) if weights is None else np.asarray(weights), **options)
    return monitor


@pytest.mark.parametrize("framework", ALL, ids=str)
def test_statistics_by_hand(framework):
    monitor = Monitor(tau=1.5)
    monitor.update(framework.array([1.0, 2.0], "float32"), framework.array([1.0, 3.0], "float32"))
    monitor.update(framework.array([-1.0, 6.0], "float32"), framework.array([1.0, 3.0], "float32"))
    stats = monitor.stats()
    assert stats == {
        "units": 4.0,
        "loss": 2.0,
        "weight_mean": 2.0,
        "weight_min": 1.0,
        "weight_max": 3.0,
        "ess_share": pytest.approx(64 / (4 * 20)),  # (sum w)^2 / (n sum w^2)
        "clip_share": 0.5,
        "negative_share": 0.25,
        "nonfinite": 0.0,
    }
    assert all(type(value) is float for value in stats.values())


def test_clipping_is_inferred_without_tau():
    losses = np.array([0.1, 0.5, 2.0, 3.0, 4.0])
    monitor = Monitor()
    monitor.update(losses, KL(tau=1.0)(losses))
    assert monitor.stats()["clip_share"] == pytest.approx(3 / 5)
    monitor = Monitor()
    monitor.update(losses, KL(tau=9.0)(losses))
    assert monitor.stats()["clip_share"] == 0.0


def test_nothing_seen():
    assert str(Monitor()) == "nothing seen yet"
    assert Monitor().stats() == {}
    assert Monitor().findings() == []


@pytest.mark.parametrize(("every", "steps", "expected"), [(1, 3, 3), (4, 11, 2), (50, 20, 0)])
def test_values_are_looked_at_only_every_so_many_steps(monkeypatch, every, steps, expected):
    looks = []
    original = reweigh.monitor.to_numpy
    monkeypatch.setattr(reweigh.monitor, "to_numpy", lambda x: looks.append(x) or original(x))
    calls = []
    monitor = Monitor(every=every, on_stats=lambda step, stats: calls.append((step, stats["units"])))
    losses = TORCH.array(BATCH)
    for _ in range(steps):
        monitor.update(losses, torch.ones(4))
    assert len(looks) == 2 * expected * every  # losses and weights of each step, all at once
    assert calls == [(every * (i + 1), 4.0 * every) for i in range(expected)]
    assert monitor.stats()["units"] == 4 * steps


def test_updates_never_look_at_values():
    """Fake tensors have none: an update that synchronised would fail."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        monitor = Monitor(every=10)
        for _ in range(5):
            monitor.update(torch.empty(4, device="cuda"), torch.empty(4, device="cuda"))
    assert monitor.steps == 5


def test_no_graph_is_kept():
    monitor = Monitor()
    losses = torch.rand(4, requires_grad=True)
    monitor.update(losses * 2, losses * 3)
    assert not any(x.requires_grad for x in monitor._pending[0][:2])


def test_groups_ids_and_mask():
    monitor = Monitor(tau=1.0)
    losses, weights = np.array([[0.2, 0.7], [1.5, 99.0]]), np.array([[1.0, 2.0], [3.0, 50.0]])
    mask = np.array([[True, True], [True, False]])
    monitor.update(losses, weights, ids=[["a", "b"], ["c", "d"]], groups=[["x", "x"], ["y", "z"]], mask=mask)
    assert monitor.stats()["units"] == 3
    assert monitor.group_shares() == {"x": (pytest.approx(0.5), pytest.approx(2 / 3)), "y": (0.5, pytest.approx(1 / 3))}
    assert monitor.hardest(2) == [("c", 1.5, 3.0), ("b", 0.7, 2.0)]
    monitor.update(np.array([5.0]), np.array([2.0]), ids=np.array(["a"]), groups=np.array(["y"]))
    assert monitor.hardest(1) == [("a", 5.0, 2.0)]  # the newest loss of a unit counts
    assert monitor.group_shares()["y"] == (pytest.approx(5 / 8), 0.5)


def test_classes_as_tensors():
    monitor = Monitor()
    monitor.update(TORCH.array(BATCH), torch.ones(4), ids=torch.arange(4), groups=torch.tensor([0, 1, 1, 1]))
    assert monitor.group_shares() == {0: (0.25, 0.25), 1: (0.75, 0.75)}
    assert [name for name, _, _ in monitor.hardest(2)] == [3, 2]


def test_losses_that_are_no_numbers_are_counted_and_left_out():
    monitor = Monitor()
    monitor.update(
        np.array([1.0, np.nan, np.inf]), np.array([1.0, np.nan, 2.0]), ids=["a", "b", "c"], groups=["g", "g", "h"]
    )
    stats = monitor.stats()
    assert (stats["units"], stats["loss"], stats["nonfinite"]) == (1.0, 1.0, 2.0)
    assert any("2 losses or weights are NaN or infinite" in finding for finding in monitor.findings())
    assert monitor.group_shares() == {"g": (1.0, 1.0)}
    assert monitor.hardest() == [("a", 1.0, 1.0)]


def test_nothing_but_nan():
    monitor = Monitor()
    monitor.update(np.array([np.nan]), np.array([np.nan]))
    assert np.isnan(monitor.stats()["loss"])
    assert "NaN or infinite" in str(monitor)


# --- findings ---


def test_a_healthy_run_has_no_findings():
    assert watched([0.1, 0.5, 0.9, 2.0]).findings() == []
    assert watched([0.1, 0.5, 0.9, 2.0], tau=None).findings() == []


@pytest.mark.parametrize("tau", [1.0, None])
def test_saturated(tau):
    (finding,) = watched(np.linspace(2.0, 7.0, 50), tau=tau).findings()
    assert finding.startswith("saturated: (nearly) every loss is above")
    assert "learning rate times 1.65, which Adam-type optimisers ignore" in finding
    assert "suggest tau = 6.5" in finding
    assert watched([2.0, 3.0, 0.9]).findings() == []


def test_a_clip_above_an_offset():
    """Losses with a floor of two: none of them is clipped, and none is below zero's place."""
    objective = RGD(tau=1.0, offset=2.0)
    losses = np.linspace(2.0, 2.9, 10)
    monitor = Monitor.of(objective)
    monitor.update(losses, objective.weight(losses))
    assert monitor.stats()["clip_share"] == 0.0
    assert monitor.stats()["negative_share"] == 0.0
    assert monitor.findings() == []
    high = Monitor.of(objective)
    high.update(losses + 3.0, objective.weight(losses + 3.0))
    (finding,) = high.findings()
    assert "above tau = 1 and the offset of 2" in finding
    assert "suggest tau = 3.8" in finding
    low = Monitor(tau=1.0, offset=5.0)
    low.update(losses, np.ones(10))
    assert "100% of the losses are below the offset of 5" in low.findings()[0]


def test_weights_that_fall_again_are_not_clipped():
    objective = Redescending(tau=1.0)
    losses = np.linspace(1.1, 20.0, 10)
    monitor = Monitor.of(objective)
    monitor.update(losses, objective.weigh(losses, ()).weights)
    assert monitor.stats()["clip_share"] == 0.0
    assert monitor.findings() == []


def test_never_active():
    losses = np.linspace(0.0, 0.03, 50)
    (finding,) = watched(losses).findings()
    assert finding.startswith("never active: the weights differ by 1.5% at most")
    assert "rgd_auto" in finding
    (finding,) = watched(np.linspace(0.0, 1.0, 50), KL(tau=99.0)(np.linspace(0.0, 1.0, 50)), tau=99.0).findings()
    assert "suggest tau = 0.9" in finding
    assert watched(np.linspace(0.0, 0.3, 50)).findings() == []


def test_negative():
    (finding,) = watched([-1.0, -2.0, -3.0, 0.5]).findings()
    assert "75% of the losses are negative" in finding
    assert "`offset`" in finding
    assert watched([-1.0, -2.0, 0.3, 0.5]).findings() == []


def test_one_unit_per_batch():
    monitor = Monitor(tau=1.0)
    for loss in (0.3, 0.5):
        monitor.update(np.array([loss]), KL(tau=1.0)(np.array([loss])))
    (finding,) = monitor.findings()
    assert "every step held one unit" in finding
    monitor.update(np.array([0.1, 0.9]), np.array([1.1, 1.5]))
    assert monitor.findings() == []


def test_findings_are_printed():
    text = str(watched(np.linspace(2.0, 7.0, 50), steps=2))
    assert text.splitlines()[0] == "100 units in 2 steps"
    assert "clipped               100.0 % of units" in text
    assert "  ! saturated" in text


def test_reset_forgets():
    monitor = watched(BATCH, ids=list("abcd"), groups=list("xxyy"))
    assert monitor.stats()
    monitor.reset()
    assert (monitor.stats(), monitor.steps, monitor.hardest(), monitor.group_shares()) == ({}, 0, [], {})


@pytest.mark.parametrize(
    ("options", "message"),
    [({"tau": 0.0}, "`tau` must be a positive number"), ({"every": 0}, "`every` must be a whole number of at least 1")],
)
def test_errors_at_construction(options, message):
    with pytest.raises(ValueError, match=message):
        Monitor(**options)


def test_shapes_must_agree():
    with pytest.raises(ValueError, match=r"same shape, got \(2,\) and \(3,\)"):
        Monitor().update(np.zeros(2), np.zeros(3))
    with pytest.raises(ValueError, match=r"`ids` must have one entry per unit, 2, got 3"):
        Monitor().update(np.zeros(2), np.zeros(2), ids=["a", "b", "c"])
    with pytest.raises(ValueError, match=r"`groups` must have one entry per unit, 2, got 1"):
        Monitor().update(np.zeros(2), np.zeros(2), groups=np.array([1]))
    with pytest.raises(ValueError, match=r"`mask` must have one entry per unit, 2, got 3"):
        Monitor().update(np.zeros(2), np.zeros(2), mask=np.ones(3))


def test_losses_without_weights_are_refused():
    class Criterion:
        losses = np.zeros(2)

    for lonely in (np.zeros(2), Criterion()):
        with pytest.raises(TypeError, match=f"got {type(lonely).__name__} alone"):
            Monitor().update(lonely)


# --- suggest_tau ---


@pytest.mark.parametrize("framework", ALL, ids=str)
def test_suggestion_is_a_quantile(framework):
    suggestion = suggest_tau(framework.array(np.arange(101.0), "float64"))
    assert float(suggestion) == pytest.approx(90.0)
    assert float(suggest_tau(framework.array(np.arange(101.0), "float64"), quantile=0.5)) == pytest.approx(50.0)
    assert "10 % of the losses are above it" in suggestion.reason
    assert "2.69 times the easiest" in suggestion.reason  # e^(90/91)


def test_suggestion_makes_the_weight_at_that_loss_largest():
    losses = np.random.default_rng(0).exponential(size=1000)
    level = float(suggest_tau(losses))
    at = np.array([level])
    assert all(KL(tau=level)(at) >= KL(tau=level * factor)(at) for factor in (0.5, 0.9, 1.1, 2.0))
    clipped = (losses >= RGD(tau=level).tau).mean()
    assert clipped == pytest.approx(0.1, abs=0.01)


def test_suggestion_says_when_it_will_do_little():
    assert "close to plain training" in suggest_tau(np.linspace(0.01, 0.05, 20)).reason
    assert "close to plain training" not in suggest_tau(np.linspace(0.01, 5.0, 20)).reason


def test_suggestion_ignores_what_is_no_number():
    assert float(suggest_tau([np.nan, 1.0, 1.0, np.inf])) == 1.0


def test_suggestion_errors():
    with pytest.raises(ValueError, match="at least one finite number"):
        suggest_tau([np.nan])
    with pytest.raises(ValueError, match=r"0\.9 quantile of the losses is -1, and tau must be positive.*`offset`"):
        suggest_tau([-1.0, -1.0])
    with pytest.raises(ValueError, match=r"`quantile` must be a number in \(0, 1\), got 1\.0"):
        suggest_tau([1.0], quantile=1.0)


def test_monitor_knows_no_particular_weight_function():
    losses = np.array(BATCH)
    monitor = Monitor(tau=3.0)
    monitor.update(losses, ChiSquare(tau=3.0)(losses))
    assert monitor.stats()["weight_mean"] == pytest.approx((3.2 + 3.7 + 4.5 + 6.0) / 4)


def test_units_that_all_count_one_are_not_called_clipped():
    monitor = Monitor()
    monitor.update(np.array([0.1, 0.9, 3.0]), np.ones(3))
    assert monitor.stats()["clip_share"] == 0.0
    assert not any("saturated" in finding for finding in monitor.findings())


def test_weights_of_zero_are_an_effective_sample_of_nothing():
    monitor = Monitor(tau=1.0)
    monitor.update(np.array([1.0, 2.0]), np.zeros(2))
    assert monitor.stats()["ess_share"] == 0.0


@pytest.mark.parametrize(("apart", "clipped"), [(1e-6, 0), (2e-6, 2)])
def test_losses_that_differ_by_rounding_do_not_show_a_clip(apart: float, clipped: int):
    """Two units with the largest weight: up to a millionth apart they are one loss."""
    weights = np.array([2.0, 2.0, 1.0])
    assert _clipped(np.array([0.0, apart, -1.0]), weights) == clipped
