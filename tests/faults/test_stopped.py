"""Commands that are asked to stop, and disks that refuse to be written to: what was finished is kept and reported."""

from __future__ import annotations

import builtins
import contextlib
import dataclasses
import errno
import io
import json
import os
import pty
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import tiny_training as tiny
from children import moments, started

from reweigh.bench.cli import stops
from reweigh.bench.cli.main import run_command
from reweigh.bench.lab import questions
from reweigh.bench.lab import recipe as recipes
from reweigh.bench.lab.executors.local import work
from reweigh.bench.lab.plan import Question
from reweigh.bench.lab.runs import load_runs
from reweigh.bench.lab.table import Column, Table

HIDDEN, SHOWN = b"\x1b[?25l", b"\x1b[?25h"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_is_an_interruption_with_a_code_of_its_own(number, monkeypatch):
    monkeypatch.setattr("reweigh.bench.cli.main._run", lambda arguments: _interrupted_by(number))
    inherited = signal.signal(number, signal.SIG_DFL)  # under nohup, a hang-up is ignored
    try:
        assert run_command([]) == 128 + number
        assert signal.getsignal(number) is signal.SIG_DFL
    finally:
        signal.signal(number, inherited)


def _interrupted_by(number: int) -> int:
    try:
        signal.raise_signal(number)  # to this thread: `os.kill` may hand it to another one, and later
    except KeyboardInterrupt:
        signal.raise_signal(number)  # a second one does not disturb the tidying up
        return stops.INTERRUPTED
    raise AssertionError("the signal was not an interruption")


def test_what_was_ignored_stays_ignored():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with stops.as_interruptions() as received:
            signal.raise_signal(signal.SIGHUP)
        assert received == []
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def _output_until_the_end(process: subprocess.Popen[str], terminal: int, begun: str, number: int) -> bytes:
    """What a command writes to a terminal, and stop it once it has written `begun`."""
    written, sent = b"", False
    for _ in moments(300, every=0.0):
        with contextlib.suppress(OSError):  # Linux reports the end of a terminal's other side as an error
            if select.select([terminal], [], [], 0.2)[0]:
                written += os.read(terminal, 65536)
        if not sent and begun.encode() in written and HIDDEN in written:
            process.send_signal(number)
            sent = True
        if process.poll() is not None and not select.select([terminal], [], [], 0)[0]:
            return written
    raise AssertionError(written[-2000:])


@pytest.mark.processes
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_terminated_comparison_answers_with_what_it_has_and_resumes(tmp_path, number):
    command = [sys.executable, "-m", "reweigh", "compare", "--method", "rgd", "--model", "logistic", "--jobs", "1",
               "--budget", "10m", "--runs-dir", str(tmp_path)]  # fmt: skip
    terminal, inside = pty.openpty()
    try:
        with started(command, stdout=inside, stderr=inside, env={**os.environ, "TERM": "xterm"}) as process:
            written = _output_until_the_end(process, terminal, "so far:", number)
        assert process.returncode == 128 + number, written[-2000:]
        assert written.rfind(SHOWN) > written.rfind(HIDDEN)
    finally:
        os.close(terminal)
        os.close(inside)
    (folder,) = tmp_path.glob("digits-*")
    assert json.loads((folder / "answer.json").read_text())
    assert (folder / "report.html").exists()
    runs = load_runs(folder)
    assert any(run.done for run in runs)
    assert all(run.damage() is None for run in runs)


@contextlib.contextmanager
def read_only(folder: Path) -> Iterator[None]:
    """Everything below a folder refuses to be changed, as on a disk that was mounted so. (Modes do not stop root.)"""

    def refusing(operation, writes=lambda *rest, **options: True):
        def guarded(path, *rest, **options):
            inside = isinstance(path, (str, os.PathLike)) and Path(path).is_relative_to(folder)
            if inside and writes(*rest, **options):
                raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))
            return operation(path, *rest, **options)

        return guarded

    def opens(mode="r", *rest, **options):
        return any(letter in mode for letter in "wax+")

    def flags(flags, *rest, **options):
        return bool(flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(builtins, "open", refusing(builtins.open, opens))
        patch.setattr(io, "open", refusing(io.open, opens))
        patch.setattr(os, "open", refusing(os.open, flags))
        for name in ("replace", "rename", "unlink", "remove", "mkdir", "rmdir", "truncate"):
            patch.setattr(os, name, refusing(getattr(os, name)))
        yield


def test_a_finished_experiment_on_a_read_only_disk_is_reported(tmp_path, monkeypatch, capsys):
    table = Table(
        title="t", question="q", columns=(Column(name="c", settings={}),), methods=("mean", "rgd"), controls=False,
        metric="test/accuracy", metric_name="accuracy", select="val/accuracy", trials=1, seeds=2,
    )  # fmt: skip
    known = recipes.complete(SimpleNamespace(Settings=tiny.Settings, train=tiny.train, table=lambda preset: table))
    monkeypatch.setattr(recipes, "load", lambda name: known)
    runs, elsewhere = tmp_path / "runs", tmp_path / "elsewhere"
    elsewhere.mkdir()
    begun = [tiny.run(runs, text, seed) for text in ("mean", "rgd") for seed in range(2)]
    for run in begun:
        assert work([run.spec.as_dict()], str(runs)) == []
    settings = dataclasses.asdict(tiny.Settings())
    questions.store(runs, Question(recipe="tiny", table=table, settings=settings), [run.spec for run in begun])
    with read_only(runs):
        assert run_command(["report", str(runs)]) == 0
        text = capsys.readouterr().out
        assert "accuracy, mean ± sd over seeds" in text
        assert "cannot be written to, so there is no page" in text
        assert run_command(["report", str(runs), "-o", str(elsewhere / "page.html")]) == 0
        with pytest.raises(OSError, match="Read-only"):
            (runs / "note").write_text("")
    assert "accuracy" in (elsewhere / "page.html").read_text()
