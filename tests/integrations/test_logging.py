"""Writers for the monitor: files that survive crashes, curves for TensorBoard, a line of blocks."""

from __future__ import annotations

import csv
import io
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import reweigh
from reweigh.integrations.logging import CSVWriter, Sparkline, TensorBoardWriter, fan_out, sparkline


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_a_monitors_rows(tmp_path: Path) -> None:
    path = tmp_path / "new" / "weights.csv"
    monitor = reweigh.Monitor(tau=1.0, every=2, on_stats=CSVWriter(path))
    for scale in (0.5, 1.0, 2.0, 4.0):
        losses = scale * np.array([0.1, 0.5, 1.0])
        monitor.update(losses, reweigh.KL(tau=1.0)(losses))
    first, second = rows_of(path)
    assert (first["step"], second["step"]) == ("2", "4")
    assert float(first["clip_share"]) == pytest.approx(1 / 6)
    assert float(second["loss"]) == pytest.approx(6 * 1.6 / 6)
    assert float(second["clip_share"]) == pytest.approx(4 / 6)
    assert path.read_text(encoding="utf-8").count("step") == 1


def test_numbers_are_written_in_full(tmp_path: Path) -> None:
    path = tmp_path / "w.csv"
    CSVWriter(path)(1, {"a": 1 / 3, "b": math.nan})
    (row,) = rows_of(path)
    assert float(row["a"]) == 1 / 3
    assert math.isnan(float(row["b"]))


def test_an_earlier_run_is_not_overwritten_by_accident(tmp_path: Path) -> None:
    path = tmp_path / "w.csv"
    CSVWriter(path)(1, {"a": 1.0})
    with pytest.raises(FileExistsError, match="resumed_at"):
        CSVWriter(path)
    CSVWriter(path, resumed_at=0)(1, {"a": 2.0})  # said in words, it starts again
    assert [row["a"] for row in rows_of(path)] == ["2.0"]


def test_a_resumed_run_continues_where_its_checkpoint_was(tmp_path: Path) -> None:
    path = tmp_path / "w.csv"
    write = CSVWriter(path)
    for step in (10, 20, 30, 40):
        write(step, {"a": float(step)})
    # Killed while writing; its last checkpoint was at step 25.
    with path.open("a", encoding="utf-8") as file:
        file.write("50,5")
    write = CSVWriter(path, resumed_at=25)
    write(10, {"a": -1.0})
    assert [(row["step"], row["a"]) for row in rows_of(path)] == [("10", "10.0"), ("20", "20.0"), ("35", "-1.0")]
    assert [entry.name for entry in tmp_path.iterdir()] == ["w.csv"]  # no draft is left


@pytest.mark.parametrize("torn", ["", "ste", "step,a\n", "step,a\n1"])
def test_a_file_torn_at_the_start(tmp_path: Path, torn: str) -> None:
    path = tmp_path / "w.csv"
    path.write_text(torn, encoding="utf-8")
    CSVWriter(path, resumed_at=5)(1, {"a": 2.0})
    assert path.read_text(encoding="utf-8") == "step,a\n6,2.0\n"


def test_two_writers_do_not_tear_each_others_rows(tmp_path: Path) -> None:
    path = tmp_path / "w.csv"
    one = CSVWriter(path)
    one(1, {"a": 1.0})
    other = CSVWriter(path, resumed_at=1)
    one(2, {"a": 2.0})
    other(2, {"a": 3.0})
    assert [row["step"] for row in rows_of(path)] == ["1", "2", "3"]


def test_a_row_is_one_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[bytes] = []
    import os

    write = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: written.append(data) or write(descriptor, data))
    to_csv = CSVWriter(tmp_path / "w.csv")
    to_csv(1, {"a": 1.0})
    to_csv(2, {"a": 2.0})
    assert written == [b"step,a\n1,1.0\n", b"2,2.0\n"]


def test_columns_are_fixed_by_the_first_row(tmp_path: Path) -> None:
    write = CSVWriter(tmp_path / "w.csv")
    write(0, {})  # nothing to say yet
    write(1, {"a": 1.0, "b": 2.0})
    write(2, {"b": 4.0, "a": 3.0})  # in any order
    assert rows_of(tmp_path / "w.csv")[1] == {"step": "2", "a": "3.0", "b": "4.0"}
    with pytest.raises(ValueError, match="has the columns a, b, got a"):
        write(3, {"a": 1.0})
    (tmp_path / "other.csv").write_text("epoch,acc\n1,0.5\n", encoding="utf-8")
    with pytest.raises(ValueError, match="first column is 'epoch'"):
        CSVWriter(tmp_path / "other.csv", resumed_at=3)
    with pytest.raises(ValueError, match="`resumed_at` must be a whole number"):
        CSVWriter(tmp_path / "w.csv", resumed_at=-1)


class Recorded:
    def __init__(self) -> None:
        self.scalars: list[tuple[str, float, int]] = []

    def add_scalar(self, name: str, value: float, step: int) -> None:
        self.scalars.append((name, value, step))


def test_tensorboard_shares_a_writer() -> None:
    recorded = Recorded()
    with TensorBoardWriter(recorded, prefix="train/", resumed_at=100) as write:
        write(5, {"loss": 1.5})
    assert recorded.scalars == [("train/loss", 1.5, 105)]  # and is not asked to close it


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_tensorboard_reads_what_was_written(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    pytest.importorskip("torch")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    with TensorBoardWriter(tmp_path) as write:
        write(10, {"clip_share": 0.5, "loss": 2.0})
        write(20, {"clip_share": 0.25, "loss": 1.0})
    events = EventAccumulator(str(tmp_path)).Reload()
    assert [(e.step, e.value) for e in events.Scalars("reweigh/clip_share")] == [(10, 0.5), (20, 0.25)]
    assert [e.value for e in events.Scalars("reweigh/loss")] == [2.0, 1.0]


def test_several_writers(tmp_path: Path) -> None:
    recorded = Recorded()
    stream = io.StringIO()
    write = fan_out(CSVWriter(tmp_path / "w.csv"), TensorBoardWriter(recorded), Sparkline("weight_mean", stream=stream))
    monitor = reweigh.Monitor(tau=1.0, every=1, on_stats=write)
    monitor.update(np.array([0.0, 1.0]), np.array([1.0, 3.0]))
    assert rows_of(tmp_path / "w.csv")[0]["weight_mean"] == "2.0"
    assert ("reweigh/weight_mean", 2.0, 1) in recorded.scalars
    assert stream.getvalue() == "weight_mean █ 2\n"


def test_the_line_is_redrawn_on_a_terminal() -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    stream: Any = Terminal()
    draw = Sparkline("a", width=3, stream=stream)
    for step, value in enumerate([0.0, 2.0, 4.0, 4.0, 8.0, 8.0]):
        draw(step, {"a": value})
    assert stream.getvalue().count("\r") == 6
    assert "\n" not in stream.getvalue()
    assert stream.getvalue().endswith("\ra ▁▄█ 8")  # pairs: 1, 4, 8
    with pytest.raises(KeyError, match="no statistic is called 'a'"):
        draw(7, {"b": 1.0})
    draw(8, {})
    assert len(draw.history) == 6


def test_the_line_of_a_monitor(capsys: pytest.CaptureFixture[str]) -> None:
    monitor = reweigh.Monitor(tau=1.0, every=1, on_stats=Sparkline("clip_share"))
    for share in ([2.0, 2.0], [2.0, 0.5], [0.5, 0.5]):
        monitor.update(np.array(share), reweigh.KL(tau=1.0)(np.array(share)))
    assert capsys.readouterr().err.splitlines()[-1] == "clip_share █▅▁ 0"  # round(3.5) is 4


@given(st.lists(st.floats(width=32), max_size=40), st.integers(1, 12))
def test_a_sparkline_is_as_wide_as_asked_and_keeps_the_order(values: list[float], width: int) -> None:
    line = sparkline(values, width=width)
    assert len(line) == min(len(values), width)
    assert set(line) <= set(" ▁▂▃▄▅▆▇█")
    if len(values) <= width:
        known = [(v, c) for v, c in zip(values, line, strict=True) if math.isfinite(v)]
        assert [c for v, c in zip(values, line, strict=True) if not math.isfinite(v)].count(" ") == len(values) - len(
            known
        )
        assert [c for _, c in sorted(known)] == sorted(c for _, c in known)
