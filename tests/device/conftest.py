"""The second device for every test of this folder. They run in processes of their own, since torch has it for good."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import second_device
from host_reads import HostReads

_SWITCH = "REWEIGH_SECOND_DEVICE"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.device)


@pytest.fixture(scope="session")
def library(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The compiled device."""
    if _SWITCH not in os.environ:
        pytest.skip("a process that has a second device keeps it: run these tests by `make test-device`")
    if reason := second_device.missing():
        pytest.skip(reason)
    cache = getattr(request.config, "cache", None)
    return second_device.build(tmp_path_factory.mktemp("device") if cache is None else cache.mkdir("device"))


@pytest.fixture(scope="session")
def loaded(library: Path) -> None:
    """The device, in this process."""
    second_device.load(library)


@pytest.fixture(autouse=True)
def back_to_the_processor(loaded: None) -> Iterator[None]:
    import torch

    from reweigh.bench.train import device as devices

    yield
    devices.use("cpu")
    torch.accelerator.set_device_index(0)


@pytest.fixture
def on_both(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], Any]], tuple[Any, Any, HostReads]]:
    """What a function returns on the processor and on the second device, and what steps read on the host there."""
    from reweigh.bench.train import device as devices

    def run(function: Callable[[], Any], device: str = "second") -> tuple[Any, Any, HostReads]:
        devices.use("cpu")
        expected = function()
        devices.use(device)
        reads = HostReads()
        with monkeypatch.context() as patched:
            reads.watch_steps(patched)
            computed = function()
        devices.use("cpu")
        return expected, computed, reads

    return run
