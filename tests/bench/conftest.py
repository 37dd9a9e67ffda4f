"""What all tests of the bench share."""

import os
from collections.abc import Iterator

import pytest

from reweigh.bench.train import driver


@pytest.fixture(autouse=True, scope="session")
def without_waiting_for_the_disk() -> Iterator[None]:
    """Made-up runs are thousands of small files, and no test here pulls the plug: what a kill leaves behind does not
    depend on it, and the processes that tests start and kill do wait."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda file: None)
        yield


@pytest.fixture(autouse=True, scope="session")
def checkpoints_after_every_epoch() -> Iterator[None]:
    """However short an epoch is: trainings of milliseconds can be interrupted and resumed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(driver, "SECONDS_APART", 0.0)
        yield
