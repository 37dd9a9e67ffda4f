"""The power fails between any two writes: `done` never outlives what it vouches for, and nothing completed is lost."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from power_loss import Disk

from reweigh.bench.files import replacing, write_atomically
from reweigh.bench.lab import recipe as recipes
from reweigh.bench.lab.executors import local
from reweigh.bench.lab.executors.local import work
from reweigh.bench.lab.results import of_runs
from reweigh.bench.lab.runs import Run, RunWriter, Spec, load_runs
from reweigh.bench.lab.table import Column, Table
from reweigh.bench.train import sharded

#: Disorderly outcomes of every moment, beside the four extreme ones.
DRAWN = 6
TABLE = Table(
    title="t", question="q", columns=(Column(name="c", settings={}),), methods=("mean",), metric="test/loss",
    metric_name="loss", select="val/loss", smallest=True,
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Settings:
    epochs: int = 3


def records(seed: int, first: int, epochs: int):
    for epoch in range(first, epochs + 1):
        yield {"epoch": epoch, "val/loss": 1 / (epoch + seed), "test/loss": 2 / (epoch + seed), "long": "x" * 50}


def train(settings, method, seed, writer, scale):
    """A training that is nothing but its writes."""
    done = (writer.resume() or {"epoch": 0})["epoch"]
    for record in records(seed, done + 1, settings.epochs):
        yield record
        writer.checkpoint({"epoch": record["epoch"]})
    writer.array("mean_weight", np.arange(100.0) + seed)


def train_group(members):
    several = [records(seed, 1, settings.epochs) for settings, _, seed, _ in members]
    for step, together in enumerate(zip(*several, strict=True), 1):
        last = step == members[0][0].epochs
        yield [
            {**record, **({"arrays": {"mean_weight": np.arange(100.0) + member[2]}} if last else {})}
            for member, record in zip(members, together, strict=True)
        ]


@pytest.fixture(autouse=True)
def recipe(monkeypatch):
    known = recipes.complete(SimpleNamespace(Settings=Settings, train=train, train_group=train_group))
    monkeypatch.setattr(recipes, "load", lambda name: known)
    # Hundreds of runs are done again where nobody watches: those need not wait for the real disk.
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


def specs(count: int) -> list[Spec]:
    return [
        Spec(recipe="r", column="c", label="mean", settings={"epochs": 3}, method="mean", seed=seed)
        for seed in range(count)
    ]


def kept(root: Path, asked: Sequence[Spec]) -> dict[str, bytes]:
    names = ("spec.json", "records.jsonl", "arrays/mean_weight.npy")
    runs = [Run(spec, root) for spec in asked]
    return {f"{run.spec.id}/{name}": (run.directory / name).read_bytes() for run in runs for name in names}


def do(asked: Sequence[Spec], root: Path) -> None:
    assert work([spec.as_dict() for spec in asked], str(root)) == []


@pytest.mark.parametrize("count", [1, 3], ids=["single", "batched"])
def test_done_never_outlives_its_data_and_a_finished_run_is_never_lost(tmp_path, monkeypatch, count):
    asked = specs(count)
    do(asked, tmp_path / "undisturbed")
    expected = kept(tmp_path / "undisturbed", asked)

    disk = Disk(tmp_path / "runs")
    finish, checkpoint = RunWriter.finish, RunWriter.checkpoint
    finished: list[str] = []

    def finishing(writer, summary):
        finish(writer, summary)
        finished.append(writer.run.spec.id)
        disk.completed = (tuple(finished), 0)

    def saving(writer, state):
        checkpoint(writer, state)
        disk.completed = (tuple(finished), state["epoch"])

    monkeypatch.setattr(RunWriter, "finish", finishing)
    monkeypatch.setattr(RunWriter, "checkpoint", saving)
    (tmp_path / "runs").mkdir()
    with disk.watching():
        do(asked, tmp_path / "runs")
    monkeypatch.setattr(RunWriter, "finish", finish)
    monkeypatch.setattr(RunWriter, "checkpoint", checkpoint)

    tried = 0
    for number, moment in enumerate(disk.moments):
        for outcome in moment.outcomes(number, DRAWN):
            root = tmp_path / "after"
            shutil.rmtree(root, ignore_errors=True)
            outcome(root)
            completed, epoch = moment.completed or ((), 0)
            for run in (Run(spec, root) for spec in asked):
                assert run.damage() is None, (number, run.damage())
                assert run.done or run.spec.id not in completed, number
            of_runs("r", TABLE, load_runs(root))
            if epoch and not any(Run(spec, root).done for spec in asked):
                with Run(asked[0], root).open() as writer:
                    state = writer.resume()
                assert state is not None, number
                assert state["epoch"] >= epoch, number
            do(asked, root)
            assert kept(root, asked) == expected, number
            tried += 1
    assert tried > 200


def test_a_group_that_does_not_wait_for_the_disk_would_be_noticed(tmp_path, monkeypatch):
    """The same check fails for what was done before: `done` synced, and what it vouches for not."""
    monkeypatch.setattr("reweigh.bench.lab.runs.sync", lambda path: None)
    asked = specs(2)
    disk = Disk(tmp_path / "runs")
    (tmp_path / "runs").mkdir()
    with disk.watching():
        do(asked, tmp_path / "runs")
    damaged = 0
    for number, moment in enumerate(disk.moments):
        for k, outcome in enumerate(moment.outcomes(number, DRAWN)):
            outcome(tmp_path / f"{number}-{k}")
            damaged += any(Run(spec, tmp_path / f"{number}-{k}").damage() is not None for spec in asked)
    assert damaged > 0


def test_a_checkpoint_of_many_processes_is_whole_or_the_one_before_it_is(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    disk = Disk(folder)
    with disk.watching():
        for step in range(1, 5):
            sharded.save(folder, step, {"w": torch.full((50,), float(step))}, {"step": step}, records=step)
            disk.completed = step
    tried = 0
    for number, moment in enumerate(disk.moments):
        for outcome in moment.outcomes(number, DRAWN):
            shutil.rmtree(tmp_path / "after", ignore_errors=True)
            outcome(tmp_path / "after")
            newest = sharded.newest(tmp_path / "after")
            assert (newest is not None) or not moment.completed, number
            if newest is not None:
                assert newest[1] >= (moment.completed or 0), number
                spread = {"w": torch.zeros(50)}
                assert sharded.load(newest[0], spread) == {"step": newest[1]}
                assert spread["w"].tolist() == [newest[1]] * 50
            tried += 1
    assert tried > 200


@pytest.mark.parametrize("content", ["{}", "[]", "3", '{"files": {}}', '{"records": "x", "files": {}}', "[" * 100_000])
def test_a_checkpoint_whose_progress_says_nothing_is_skipped(tmp_path, content):
    for step in (1, 2):
        sharded.save(tmp_path, step, {"w": torch.full((5,), float(step))}, {"step": step}, records=step)
    (tmp_path / "sharded" / "step-00000002" / "progress.json").write_text(content)
    path, records = sharded.newest(tmp_path)
    assert (path.name, records) == ("step-00000001", 1)


@pytest.mark.parametrize("how", ["write_atomically", "replacing"])
def test_a_file_that_is_replaced_is_the_old_or_the_new_one(tmp_path, how):
    folder = tmp_path / "folder"
    folder.mkdir()
    disk = Disk(folder)
    path = folder / "page.html"
    with disk.watching():
        for version in (1, 2, 3):
            content = f"{version}" * 100
            if how == "replacing":
                with replacing(path) as temporary:
                    temporary.write_text(content)
            else:
                write_atomically(path, content)
            disk.completed = version
    for number, moment in enumerate(disk.moments):
        for k, outcome in enumerate(moment.outcomes(number, DRAWN)):
            outcome(tmp_path / f"{number}-{k}")
            after = tmp_path / f"{number}-{k}" / "page.html"
            if moment.completed or after.exists():
                text = after.read_text()
                assert text == text[0] * 100
                assert int(text[0]) >= (moment.completed or 0)


def test_durations_do_not_depend_on_the_clock_on_the_wall(tmp_path, monkeypatch):
    """Somebody sets the clock back by a day in the middle of a run."""
    moments = iter(range(10**9, 0, -86_400))
    monkeypatch.setattr(local.time, "time", lambda: float(next(moments)))
    for asked in (specs(1), specs(3)[1:]):
        do(asked, tmp_path)
        for spec in asked:
            assert 0 <= Run(spec, tmp_path).summary()["seconds"] < 600
