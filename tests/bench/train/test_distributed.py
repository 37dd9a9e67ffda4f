"""One training on several processes: the numbers of one process, resumable on another number, alive after a kill."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import children
import numpy as np
import pytest
from small_training import METHODS, StoppedError, mean_weights, starts, stop_at, train

from reweigh.bench.lab.executors import torchrun as launch
from reweigh.bench.lab.runs import load_runs

HERE = Path(__file__).parent
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore", "COLUMNS": "200"}
RESUMED = "rgd+ema:decay=0.9"


def assert_same(ours, theirs, tolerance=1e-4):
    assert len(ours) == len(theirs) == 2
    for mine, other in zip(ours, theirs, strict=True):
        assert mine.keys() == other.keys()
        for name, value in mine.items():
            # One image of 101 may fall on the other side by rounding; losses may not.
            allowed = 0.011 if name.endswith("accuracy") else tolerance
            assert value == pytest.approx(other[name], abs=allowed), name


@pytest.fixture(scope="module")
def spread(tmp_path_factory):
    """What two processes left behind, given the first part of some runs by one process."""
    root = tmp_path_factory.mktemp("spread")
    undo = stop_at(7)
    try:
        for parallel in ("ddp", "fsdp"):
            with contextlib.suppress(StoppedError):
                train(root / f"one-then-two-{parallel}", RESUMED)
    finally:
        undo()
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    finished = children.run([*command, HERE / "workers" / "spread.py", root], env=ENVIRONMENT)
    assert finished.returncode == 0, finished.stderr[-3000:]
    return root


@pytest.mark.processes
@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
@pytest.mark.parametrize("text", METHODS)
def test_two_processes_train_like_one(spread, tmp_path, text, parallel):
    two = spread / f"whole-{parallel}-{METHODS.index(text)}"
    alone = train(tmp_path, text)
    (run,) = load_runs(two)
    assert_same(run.records(), alone)
    np.testing.assert_allclose(mean_weights(two), mean_weights(tmp_path), atol=1e-4)


@pytest.mark.processes
@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_a_training_goes_on_with_more_processes(spread, tmp_path, parallel):
    folder = spread / f"one-then-two-{parallel}"
    assert starts(folder) == [(0, 1), (6, 2)]
    (run,) = load_runs(folder)
    assert_same(run.records(), train(tmp_path, RESUMED))
    np.testing.assert_allclose(mean_weights(folder), mean_weights(tmp_path), atol=1e-4)


@pytest.mark.processes
@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_a_training_goes_on_with_fewer_processes(spread, tmp_path, parallel):
    folder = spread / f"two-then-one-{parallel}"
    resumed = train(folder, RESUMED)
    assert starts(folder) == [(0, 2), (6, 1)]
    assert_same(resumed, train(tmp_path, RESUMED))


@pytest.mark.parametrize("text", METHODS)
def test_stopped_and_resumed_alone_it_ends_with_the_same_bits(tmp_path, text):
    whole = train(tmp_path / "whole", text)
    undo = stop_at(7)
    try:
        with pytest.raises(StoppedError):
            train(tmp_path / "broken", text)
    finally:
        undo()
    assert train(tmp_path / "broken", text) == whole
    assert starts(tmp_path / "broken") == [(0, 1), (6, 1)]  # the last checkpoint before step 7
    np.testing.assert_array_equal(mean_weights(tmp_path / "broken"), mean_weights(tmp_path / "whole"))


def test_stochastic_depth_draws_the_same_after_a_stop(tmp_path):
    settings = {"model": "deit:patch=2,depth=2,width=16,heads=2,drop=0.5", "cutmix": 1.0}
    whole = train(tmp_path / "whole", "rgd", **settings)
    undo = stop_at(7)
    try:
        with pytest.raises(StoppedError):
            train(tmp_path / "broken", "rgd", **settings)
    finally:
        undo()
    assert train(tmp_path / "broken", "rgd", **settings) == whole
    calm = train(tmp_path / "calm", "rgd", **{**settings, "model": settings["model"].replace("0.5", "0.0")})
    assert calm != whole


@pytest.mark.parametrize("damage", ["newest", "both", "records"])
def test_a_damaged_checkpoint_is_passed_over(tmp_path, damage):
    whole = train(tmp_path / "whole", "rgd")
    undo = stop_at(7)
    try:
        with pytest.raises(StoppedError):
            train(tmp_path / "broken", "rgd")
    finally:
        undo()
    (run,) = load_runs(tmp_path / "broken")
    kept = sorted((run.directory / "sharded").iterdir())
    assert [path.name for path in kept] == ["step-00000005", "step-00000006"]
    if damage == "records":
        (run.directory / "records.jsonl").write_text("")
    for path in kept[1:] if damage == "newest" else kept if damage == "both" else []:
        share = path / "__0_0.distcp"
        content = bytearray(share.read_bytes())
        content[len(content) // 2] ^= 1
        share.write_bytes(content)
    assert train(tmp_path / "broken", "rgd") == whole
    assert starts(tmp_path / "broken")[1] == ({"newest": 5, "both": 0, "records": 0}[damage], 1)


def test_the_scale_control_multiplies_the_loss(tmp_path):
    plain = train(tmp_path / "sgd", "mean", optimizer="sgd", clip=0.0, lr=0.01)
    twice = train(tmp_path / "scaled", "mean", np.full(10, 2.0), optimizer="sgd", clip=0.0, lr=0.005)
    assert plain[-1]["test/loss"] == pytest.approx(twice[-1]["test/loss"], abs=1e-3)
    once = train(tmp_path / "slow", "mean", optimizer="sgd", clip=0.0, lr=0.005)
    assert abs(once[-1]["test/loss"] - plain[-1]["test/loss"]) > 1e-3


def test_the_floor_of_soft_targets_can_be_removed(tmp_path):
    """Smoothing 0.1 of ten classes has an entropy of 0.5: plain training does not see it, weights and their clip do."""
    soft = {"mixup": 0.0, "smoothing": 0.1, "lr": 0.02, "epochs": 2}
    kept, removed = (train(tmp_path / f"mean {floor}", "mean", floor=floor, **soft) for floor in ("kept", "removed"))
    for ours, theirs in zip(removed, kept, strict=True):
        assert ours["test/loss"] == pytest.approx(theirs["test/loss"], abs=1e-4)
        assert theirs["train/loss"] - ours["train/loss"] == pytest.approx(0.5003, abs=1e-3)
    # At a tau of 2.2, between a loss at the start (2.3) and what is above the floor of it (1.8).
    kept, removed = (
        train(tmp_path / f"rgd {floor}", "rgd:tau=2.2", floor=floor, **soft) for floor in ("kept", "removed")
    )
    assert kept[0]["weights/clip_share"] > 0.5
    assert removed[0]["weights/clip_share"] < 0.5 * kept[0]["weights/clip_share"]
    assert removed[0]["weights/mean"] < kept[0]["weights/mean"]


def test_half_precision_stays_near(tmp_path):
    whole, half = (train(tmp_path / kind, "rgd", precision=kind) for kind in ("float32", "bfloat16"))
    assert half != whole
    for ours, theirs in zip(half, whole, strict=True):
        assert ours["test/loss"] == pytest.approx(theirs["test/loss"], abs=0.05)
        assert ours["train/loss"] == pytest.approx(theirs["train/loss"], abs=0.05)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # what the compiler imports
def test_compiled_it_ends_alike_and_resumes(tmp_path):
    eager = train(tmp_path / "eager", RESUMED)
    undo = stop_at(7)
    try:
        with pytest.raises(StoppedError):
            train(tmp_path / "compiled", RESUMED, compiled=True)
    finally:
        undo()
    assert_same(train(tmp_path / "compiled", RESUMED, compiled=True), eager)


def test_what_cannot_be_spread_is_refused(tmp_path):
    with pytest.raises(ValueError, match="leave the sampler out"):
        train(tmp_path, "importance")
    with pytest.raises(ValueError, match="soft targets"):
        train(tmp_path, "focal+rgd")
    with pytest.raises(ValueError, match="multiple of 4"):
        train(tmp_path, "rgd", batch_size=63)


def test_the_launcher_hands_the_command_on():
    arguments = ["run", "imagenet", "--launcher", "torchrun", "--preset", "smoke", "--nproc=2", "--set", "lr=1"]
    assert launch.without_launcher(arguments) == ["run", "imagenet", "--preset", "smoke", "--set", "lr=1"]


COMMAND = ("imagenet", "--preset", "smoke", "--method", "rgd", "--seeds", "1", "--set", "rows=400", "--set", "epochs=6",
           "--set", "save_every=2")  # fmt: skip


def start(folder: Path, *more: str) -> contextlib.AbstractContextManager[subprocess.Popen[str]]:
    return children.started(
        [sys.executable, "-m", "reweigh", "run", *COMMAND, "--runs-dir", folder, *more], env=ENVIRONMENT
    )


def descendants(pid: int) -> list[int]:
    found, waiting = [], [pid]
    while waiting:
        for task in Path(f"/proc/{waiting.pop()}/task").glob("*/children"):
            with contextlib.suppress(OSError):
                below = [int(child) for child in task.read_text().split()]
                found += below
                waiting += below
    return found


def at_work(pid: int) -> list[int]:
    """The processes that torchrun started, process 0 first."""
    ranks: dict[int, int] = {}
    for child in descendants(pid):
        with contextlib.suppress(OSError):
            environment = Path(f"/proc/{child}/environ").read_bytes().split(b"\0")
            for entry in environment:
                if entry.startswith(b"RANK="):
                    ranks[child] = int(entry[5:])
    return sorted(ranks, key=lambda child: ranks[child])


@pytest.mark.processes
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="looks for processes in /proc")
def test_a_killed_process_costs_the_steps_since_the_last_checkpoint(tmp_path):
    """Of two processes first one and then the other is killed; torchrun starts both anew, and the runs go on."""
    killed: list[tuple[Path, int]] = []
    known: set[int] = set()  # the processes of which one has been killed: the other is about to end
    with (
        start(tmp_path / "unbroken", "--jobs", "1") as unbroken,
        start(tmp_path / "broken", "--launcher", "torchrun", "--nproc", "2") as process,
    ):
        for _ in children.moments(400, every=0.01):
            if process.poll() is not None or len(killed) == 2:
                break
            # A run in the middle: it has a checkpoint beyond the last one we know of.
            found = sorted((tmp_path / "broken").glob("imagenet/*/sharded/step-*"))
            fresh = [path for path in found if all(path.parents[1] != run for run, _ in killed)]
            workers = at_work(process.pid)
            if fresh and len(workers) == 2 and not known & set(workers):
                run, step = fresh[-1].parents[1], int(fresh[-1].name[5:])
                os.kill(workers[1 - len(killed)], signal.SIGKILL)
                killed.append((run, step))
                known.update(workers)
        output = children.output_of(process)
        assert len(killed) == 2, output
        children.output_of(unbroken)
    ours, theirs = ({run.spec.id: run for run in load_runs(tmp_path / name)} for name in ("broken", "unbroken"))
    assert all(run.done for run in ours.values())
    for run, step in killed:
        lines = [json.loads(line) for line in (run / "starts.jsonl").read_text().splitlines()]
        assert [line["processes"] for line in lines] == [2, 2], lines
        assert lines[1]["step"] >= step, "more than the steps since the last checkpoint were lost"
    # The scale control is named by the run it copies, and that is the same run: all names agree.
    assert ours.keys() == theirs.keys()
    for name, run in ours.items():
        for mine, other in zip(run.records(), theirs[name].records(), strict=True):
            assert mine["train/loss"] == pytest.approx(other["train/loss"], abs=1e-4)
            assert mine["test/loss"] == pytest.approx(other["test/loss"], abs=1e-4)
