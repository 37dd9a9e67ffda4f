"""What the second device is worth as a witness: it refuses mixtures, and reads of it are seen."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from host_reads import _Watch

from reweigh.bench.draws.seeds import Seeds
from reweigh.bench.train import device as devices
from reweigh.torch.devices import count, resolve


def test_mixtures_are_refused():
    here, there = torch.ones(3), torch.ones(3, device="second")
    for mixture in (
        lambda: here + there,
        lambda: there[torch.tensor([0, 1])],
        lambda: there.index_select(0, torch.tensor([0])),
        lambda: torch.cat([here, there]),
        lambda: there @ here,
        lambda: there + torch.ones(3, device="second:1"),
    ):
        with pytest.raises(RuntimeError, match=r"same device|two devices"):
            mixture()


@pytest.mark.parametrize(
    "read",
    [
        lambda x: x.sum().item(),
        lambda x: float(x[0]),
        lambda x: bool((x > 0).all()),
        lambda x: x.cpu(),
        lambda x: x.tolist(),
        lambda x: x[x > 0],
        lambda x: x.nonzero(),
        lambda x: torch.zeros(3).copy_(x),
    ],
)
def test_reads_are_seen(read):
    places: Counter[str] = Counter()
    x = torch.ones(3, device="second")
    with _Watch(places):
        read(x)
    assert places


def test_reads_in_backward_passes_are_seen():
    class Reading(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, gradient):
            assert float(gradient.sum()) == 3.0
            return gradient * 2

    places: Counter[str] = Counter()
    x = torch.ones(3, device="second", requires_grad=True)
    with _Watch(places):
        Reading.apply(x).sum().backward()
    assert places


def test_names():
    assert resolve("auto") == torch.device("second")
    assert resolve("second:1") == torch.device("second", 1)
    assert count() == 2
    with pytest.raises(ValueError, match=r"'second:2' is not there: this machine has 2 x second"):
        resolve("second:2")
    with pytest.raises(ValueError, match=r"'cuda' is not there: this machine has 2 x second"):
        resolve("cuda")


def test_processes_take_turns():
    places = []
    for number in range(3):
        devices.use_one_of("second", count(), number)
        places.append(str(devices.current()))
    assert places == ["second:0", "second:1", "second:0"]
    devices.use_one_of("second:1", count(), 0)
    assert str(devices.current()) == "second:1"


def test_data_that_do_not_fit_are_streamed(monkeypatch):
    data = torch.arange(60.0).view(20, 3)
    there = torch.device("second")
    resident = devices.DeviceRows(data, there)
    monkeypatch.setattr(devices, "free_memory", lambda device: 2 * data.nbytes)  # data may take 0.4 of it
    streamed = devices.DeviceRows(data, there)
    assert resident.resident
    assert not streamed.resident
    rows = torch.tensor([7, 0, 7])
    for kept in (resident, streamed):
        assert kept[rows].device.type == "second"
        torch.testing.assert_close(kept[rows].cpu(), data[rows])
        torch.testing.assert_close(kept[rows.to("second")].cpu(), data[rows])
        parts = list(kept.split(8))
        assert {part.device.type for part in parts} == {"second"}
        torch.testing.assert_close(torch.cat(parts).cpu(), data)


def test_initial_parameters_and_order_are_those_of_the_processor():
    def drawn() -> tuple[torch.Tensor, torch.Tensor]:
        with Seeds(3).ambient("init"):
            layer = torch.nn.Linear(4, 2).to(devices.current())
        return layer.weight.detach().cpu(), torch.randperm(10, generator=Seeds(3).torch("order"))

    expected = drawn()
    devices.use("second")
    for one, other in zip(drawn(), expected, strict=True):
        assert torch.equal(one, other)


def test_a_precision_that_a_device_does_not_have(monkeypatch):
    for precision in ("float32", "bfloat16", "float16"):
        devices.check_precision(torch.device("second"), precision)
    monkeypatch.setattr(torch.second, "get_amp_supported_dtype", lambda: [torch.bfloat16])
    with pytest.raises(ValueError, match=r"device 'second' does not compute in float16\. Use float32"):
        devices.check_precision(torch.device("second"), "float16")
