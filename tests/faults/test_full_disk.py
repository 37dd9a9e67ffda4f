"""A disk that is full in the middle of a write: what was there stays whole, and the run goes on when there is room.

The system itself refuses: a process may be forbidden to make a file longer than so many bytes, and then a write is
cut short and fails exactly as on a full disk, with another number of the error.
"""

from __future__ import annotations

import contextlib
import resource
from collections.abc import Iterator

import numpy as np
import pytest
import tiny_training as tiny

from reweigh.bench.lab.executors.local import work


@contextlib.contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("room", [0, 1, 100, 5000])
def test_half_a_record_is_taken_back(tmp_path, room):
    run = tiny.run(tmp_path)
    with run.open() as writer:
        writer.resume()
        writer.record({"epoch": 1})
        before = (run.directory / "records.jsonl").stat().st_size
        with files_of_at_most(before + room), pytest.raises(OSError, match="File too large"):
            writer.record({"epoch": 2, "long": "x" * 10_000})
        assert (run.directory / "records.jsonl").stat().st_size == before
        writer.record({"epoch": 3})
        writer.finish({})
    assert run.records() == [{"epoch": 1}, {"epoch": 3}]
    assert run.summary()["records"] == 2


def test_checkpoints_and_arrays_stay_as_they_were(tmp_path):
    run = tiny.run(tmp_path)
    with run.open() as writer:
        writer.resume()
        writer.checkpoint({"epoch": 1})
        writer.array("mean_weight", np.arange(3.0))
        files = sorted(path for path in run.directory.rglob("*") if path.is_file())
        with files_of_at_most(500):
            with pytest.raises(OSError, match="File too large"):
                writer.checkpoint({"epoch": 2, "much": list(range(1000))})
            with pytest.raises(OSError, match="File too large"):
                writer.array("mean_weight", np.zeros(1000))
        # Nothing half-written takes up the room that is missing.
        assert sorted(path for path in run.directory.rglob("*") if path.is_file()) == files
        assert writer.resume() == {"epoch": 1}
    assert run.array("mean_weight").tolist() == [0, 1, 2]


@pytest.mark.parametrize("size", [0, 300, 1500, 4000, 8000])
def test_a_run_says_why_it_failed_and_goes_on_when_there_is_room(tmp_path, tiny_recipe, size):
    whole, broken = tiny.run(tmp_path / "whole"), tiny.run(tmp_path / "broken")
    assert work([whole.spec.as_dict()], str(whole.root)) == []
    with files_of_at_most(size):
        ((_, reason),) = work([broken.spec.as_dict()], str(broken.root)) or [({}, "")]
    assert "File too large" in reason
    assert not broken.done
    assert work([broken.spec.as_dict()], str(broken.root)) == []
    assert broken.records() == whole.records()
    np.testing.assert_array_equal(broken.array("loss_trajectory"), whole.array("loss_trajectory"))
    assert not (broken.directory / "error.txt").exists()
