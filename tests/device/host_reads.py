"""What a step reads on the host: every value or tensor that leaves the device while a step is taken."""

from __future__ import annotations

import math
import traceback
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

#: Operations whose result has a shape that depends on values, for which a processor waits too.
_SHAPED_BY_VALUES = ("aten.nonzero", "aten.masked_select", "aten._unique2", "aten.bincount", "aten.repeat_interleave.T")


class HostReads:
    """Reads while steps were taken, by operation and place; how many steps there were."""

    def __init__(self) -> None:
        self.places: Counter[str] = Counter()
        self.steps = 0

    def watch_steps(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Watch every step of both drivers from now on."""
        from reweigh.bench.train import driver, stacked
        from reweigh.bench.train.programs import episodes

        take = driver.Driver.take

        def watched_take(driver: Any) -> None:
            self.steps += 1
            with _Watch(self.places):
                take(driver)

        monkeypatch.setattr(driver.Driver, "take", watched_take)
        for kind in (stacked.StackedSupervised, episodes.StackedMetaLearning):
            monkeypatch.setattr(kind, "take_epoch", self._watched_epoch(kind.take_epoch))

    def _watched_epoch(self, take_epoch: Any) -> Any:
        def watched(driver: Any, epoch: int) -> Iterator[Any]:
            steps = take_epoch(driver, epoch)
            while True:
                with _Watch(self.places):
                    step = next(steps, None)
                if step is None:
                    return
                self.steps += 1
                yield step

        return watched


class _Watch(TorchDispatchMode):
    def __init__(self, places: Counter[str]) -> None:
        super().__init__()
        self.places = places

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
        returned = operation(*args, **(kwargs or {}))
        if any(x.device.type == "second" for x in given) and _reads(str(operation), given, returned):
            ours = [frame for frame in traceback.extract_stack() if "/reweigh/" in frame.filename]
            place = f"{ours[-1].filename.rpartition('/reweigh/')[2]}:{ours[-1].lineno}" if ours else "elsewhere"
            self.places[f"{operation} at {place}"] += 1
        return returned


def _reads(operation: str, given: list[Tensor], returned: Any) -> bool:
    if operation in ("aten._local_scalar_dense.default", "aten.equal.default", "aten.is_nonzero.default"):
        return True
    if operation.startswith(_SHAPED_BY_VALUES):
        return True
    if operation.startswith("aten.index.") and any(x.dtype == torch.bool for x in given[1:]):
        return True
    return any(isinstance(x, Tensor) and x.device.type == "cpu" for x in tree_leaves(returned))


def assert_alike(computed: Any, expected: Any, place: str = "", *, rtol: float = 1e-3, atol: float = 1e-4) -> None:
    """Records are the same, numbers up to the rounding of other kernels."""
    if isinstance(expected, dict):
        assert computed.keys() == expected.keys(), place
        for name in expected:
            assert_alike(computed[name], expected[name], f"{place} {name}", rtol=rtol, atol=atol)
    elif isinstance(expected, (list, tuple)):
        assert len(computed) == len(expected), place
        for i, (one, other) in enumerate(zip(computed, expected, strict=True)):
            assert_alike(one, other, f"{place}[{i}]", rtol=rtol, atol=atol)
    elif isinstance(expected, float) and not math.isnan(expected):
        assert computed == pytest.approx(expected, rel=rtol, abs=atol), place
    elif isinstance(expected, float):
        assert math.isnan(computed), place
    else:
        assert computed == expected, place
