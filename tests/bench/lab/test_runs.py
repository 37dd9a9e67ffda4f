"""Run directories: identity, resuming, locking, and nothing half-written that is trusted later."""

import concurrent.futures
import io
import json
import multiprocessing

import numpy as np
import pytest
from children import answers
from rich.console import Console

from reweigh.bench.lab import runs
from reweigh.bench.lab.display import RunDisplay
from reweigh.bench.lab.executors import local as executors
from reweigh.bench.lab.executors.local import Failure
from reweigh.bench.lab.runs import Run, RunTakenError, Spec, load_runs


def spec(**changes):
    values = {"recipe": "r", "column": "c", "label": "rgd", "settings": {"lr": 0.1}, "method": "rgd", "seed": 0}
    return Spec(**(values | changes))


def test_identity_is_the_content():
    assert spec().id == spec(settings={"lr": 0.1}).id
    others = [
        spec(seed=1),
        spec(method="term"),
        spec(settings={"lr": 0.2}),
        spec(stage="tune"),
        spec(scale_from="abc"),
    ]
    assert len({s.id for s in [spec(), *others]}) == len(others) + 1
    assert Spec.from_dict(json.loads(spec().text())) == spec()


def test_records_come_back_as_they_were(tmp_path):
    run = Run(spec(), tmp_path)
    with run.open() as writer:
        assert writer.resume() is None
        writer.record({"epoch": 1, "value": np.float32(0.5), "list": np.arange(3)})
        writer.array("mean_weight", np.arange(4.0))
        assert not run.done
        writer.finish({"seconds": 1.0})
    assert run.done
    assert run.records() == [{"epoch": 1, "value": 0.5, "list": [0, 1, 2]}]
    assert run.array("mean_weight").tolist() == [0, 1, 2, 3]
    assert run.summary()["records"] == 1
    assert [r.spec for r in load_runs(tmp_path)] == [run.spec]


def test_a_torn_last_line_is_dropped_and_a_broken_middle_is_not_trusted(tmp_path):
    run = Run(spec(), tmp_path)
    with run.open() as writer:
        writer.resume()
        writer.record({"epoch": 1})
    lines = run.directory / "records.jsonl"
    with lines.open("a") as file:
        file.write('{"epoch": 2, "val')
    assert run.records() == [{"epoch": 1}]
    lines.write_text('{"epoch": 1}\nnot json\n{"epoch": 3}\n')
    with pytest.raises(ValueError, match="line 2"):
        run.records()


def test_a_checkpoint_takes_the_records_back_to_where_it_was(tmp_path):
    import torch

    run = Run(spec(), tmp_path)
    with run.open() as writer:
        writer.resume()
        writer.record({"epoch": 1})
        writer.checkpoint({"weights": torch.arange(3)})
        writer.record({"epoch": 2})
    with run.open() as writer:
        state = writer.resume()
        assert state["weights"].tolist() == [0, 1, 2]
        assert run.records() == [{"epoch": 1}]


@pytest.mark.parametrize("damage", ["truncated checkpoint", "lost records"])
def test_a_checkpoint_that_cannot_be_trusted_means_starting_again(tmp_path, damage):
    run = Run(spec(), tmp_path)
    with run.open() as writer:
        writer.resume()
        writer.record({"epoch": 1})
        writer.checkpoint({"epoch": 1})
    if damage == "truncated checkpoint":
        path = run.directory / "checkpoint.pt"
        path.write_bytes(path.read_bytes()[:40])
    else:
        (run.directory / "records.jsonl").write_text("")
    with run.open() as writer:
        assert writer.resume() is None
        assert run.records() == []


def test_a_full_disk_leaves_whole_lines_only(tmp_path, monkeypatch):
    run = Run(spec(), tmp_path)
    with run.open() as writer:
        writer.resume()
        writer.record({"epoch": 1})

        def full(descriptor):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(runs.os, "fsync", full)
        with pytest.raises(OSError, match="No space"):
            writer.record({"epoch": 2})
        monkeypatch.undo()
        writer.record({"epoch": 3})
    assert run.records() == [{"epoch": 1}, {"epoch": 3}]


def test_an_interrupted_write_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "file"
    runs.write_atomically(path, "old")

    def fail(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(runs.os, "fsync", fail)
    with pytest.raises(OSError, match="No space"):
        runs.write_atomically(path, "new")
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def _try_to_take(root, answer):
    try:
        with Run(spec(), root).open():
            answer.put("taken")
    except RunTakenError:
        answer.put("refused")


@pytest.mark.processes
def test_two_processes_never_take_the_same_run(tmp_path):
    context = multiprocessing.get_context("spawn")
    answer = context.Queue()
    with Run(spec(), tmp_path).open():
        assert answers([context.Process(target=_try_to_take, args=(tmp_path, answer))], answer) == ["refused"]
    assert answers([context.Process(target=_try_to_take, args=(tmp_path, answer))], answer) == ["taken"]


def test_a_directory_that_is_not_its_spec_is_left_out(tmp_path):
    run = Run(spec(), tmp_path)
    with run.open() as writer:
        writer.finish({})
    run.directory.rename(run.directory.with_name("somethingelse"))
    assert load_runs(tmp_path) == []


def test_progress_counts_a_run_once(tmp_path, monkeypatch):
    """A group that was interrupted is done again as a whole; the runs of it that are over are not to do."""
    group, alone = [spec(seed=seed) for seed in range(4)], [spec(seed=4)]
    for done in group[:3]:
        with Run(done, tmp_path).open() as writer:
            writer.finish({})
    monkeypatch.setattr(executors, "grouped", lambda specs, jobs: [group, alone])
    out = io.StringIO()
    display = RunDisplay(Console(file=out, width=200), "m")
    executors.execute([*group, *alone], tmp_path, workers=Instantly(), display=display, title="comparison")
    assert out.getvalue() == "comparison: 2 runs, 3 already done\n"


class Instantly:
    """A crew that has done every group when it is asked."""

    jobs = 1

    def submit(self, group, root):
        answer = concurrent.futures.Future()
        answer.set_result([])
        return answer


def test_failures_are_told_as_they_are():
    out = io.StringIO()
    display = RunDisplay(Console(file=out, width=200), "m")
    display.failed(Failure(spec=spec(column="a[b]"), reason="Traceback\nKeyError: '[red]'"))
    assert out.getvalue() == "failed a[b] · rgd · seed 0: KeyError: '[red]'\n"
