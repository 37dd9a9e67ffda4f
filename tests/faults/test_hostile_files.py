"""Files made to do harm: a payload is never run, nothing unpacks to more than memory holds, and no text is obeyed."""

from __future__ import annotations

import base64
import gzip
import hashlib
import io
import json
import pickle
import re
import struct
import tarfile
import zipfile
import zlib
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest
import tiny_training as tiny
import torch
from PIL import Image

from reweigh.bench import files, limits, report, tables
from reweigh.bench.catalogue import archive, places
from reweigh.bench.catalogue.images import _idx, image_folder, quickdraw345
from reweigh.bench.cli.console import SafeConsole
from reweigh.bench.cli.main import run_command
from reweigh.bench.compare.model import Model
from reweigh.bench.compare.problem import hash_of
from reweigh.bench.errors import UserError
from reweigh.bench.lab.executors.local import work
from reweigh.bench.lab.results import of_runs
from reweigh.bench.lab.runs import Run, Spec, load_runs
from reweigh.bench.lab.table import Column, Table
from reweigh.bench.spreadsheet import harmless
from reweigh.bench.tables import TableError, arrow_stream


class Payload:
    """Leaves a file behind when it is unpickled."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self):
        return Path.touch, (self.trace,)


@pytest.fixture
def trace(tmp_path):
    path = tmp_path / "trace"
    pickle.loads(pickle.dumps(Payload(path)))
    assert path.exists(), "the payload works where a pickle is trusted"
    path.unlink()
    return path


def test_a_checkpoint_is_not_unpickled(tmp_path, trace, tiny_recipe):
    run = tiny.run(tmp_path / "runs")
    content = io.BytesIO()
    torch.save({"records": 0, "state": Payload(trace)}, content)
    content.write(hashlib.sha256(content.getbuffer()).digest())  # somebody who knows the format
    with run.open():
        (run.directory / "checkpoint.pt").write_bytes(content.getvalue())
    assert work([run.spec.as_dict()], str(run.root)) == []
    assert run.done
    assert not trace.exists()


def test_an_array_is_not_unpickled(tmp_path, trace):
    run = tiny.run(tmp_path / "runs")
    with run.open() as writer:
        with pytest.raises(ValueError, match="pickle"):
            writer.array("mean_weight", np.array([Payload(trace)], dtype=object))
        (run.directory / "arrays").mkdir(exist_ok=True)
        np.save(run.directory / "arrays" / "mean_weight.npy", np.array([Payload(trace)], dtype=object))
    with pytest.raises(ValueError, match="pickle"):
        run.array("mean_weight")
    assert not trace.exists()


@pytest.mark.parametrize("write", ["pickle", "torch"])
def test_a_model_is_not_unpickled(tmp_path, trace, write):
    """A folder that says it is a model, with a pickle where the weights should be."""
    folder = tmp_path / "model"
    folder.mkdir()
    if write == "pickle":
        (folder / "weights.safetensors").write_bytes(pickle.dumps(Payload(trace)))
    else:
        torch.save({"weight": Payload(trace)}, folder / "weights.safetensors")
    for card in ({"format": 1}, {"format": 1, "model": "mlp", "pickle": "weights.safetensors"}):
        (folder / "model.json").write_text(json.dumps(card))
        with pytest.raises(TableError):
            Model.load(folder)
    assert not trace.exists()


@pytest.fixture
def small_limits(monkeypatch):
    """Limits a thousand times smaller, so that bombs need not be large either."""
    monkeypatch.setattr(limits, "most_unpacked", lambda packed, **options: max(50 * packed, 256 << 10))


def test_limits_grow_with_the_file_and_end_with_memory(monkeypatch):
    monkeypatch.setattr(limits, "memory", lambda: 16 << 30)
    assert limits.most_unpacked(1000) == 256 << 20
    assert limits.most_unpacked(20 << 20) == 1000 << 20
    assert limits.most_unpacked(47 << 20) < 2.5 * 2**30  # 47 MB that unpack to 8 GB
    assert limits.most_unpacked(1 << 40) == 4 << 30


def test_a_packed_table_that_grows_without_end_is_not_read_to_its_end(tmp_path, small_limits):
    path = tmp_path / "bomb.csv.gz"
    with gzip.open(path, "wb") as file:
        file.write(b"a,b\n" + b"1,2\n" * 2_000_000)
    with pytest.raises(TableError, match=r"bomb.csv.gz .* unpacks to more than .* reading stopped"):
        tables.read(path)
    with gzip.open(path, "wb") as file:  # an honest one is read
        file.write(b"a,b\n" + b"1,2\n" * 50)
    assert tables.read(path).height == 50


def test_a_parquet_file_of_one_value_a_billion_times_is_not_unpacked(tmp_path, monkeypatch):
    path = tmp_path / "bomb.parquet"
    pl.DataFrame({"a": np.zeros(3_000_000), "b": np.zeros(3_000_000)}).write_parquet(path)
    assert path.stat().st_size < 100_000
    monkeypatch.setattr(limits, "most_unpacked", lambda packed, times, least: max(times * packed, least >> 10))
    with pytest.raises(TableError, match="unpacks to more than"):
        tables.read(path)
    text = "x" * 50_000
    pl.DataFrame({"t": [text] * 1000}).write_parquet(path)
    with pytest.raises(TableError, match="unpacks to more than"):
        tables.read(path)


@pytest.mark.parametrize("packed", ["zstd", "lz4"])
@pytest.mark.parametrize("cells", [[0.0] * 400_000, ["x" * 3_000_000, "y"], ["same", None] * 300_000])
def test_an_arrow_stream_that_grows_without_end_is_not_unpacked(tmp_path, monkeypatch, cells, packed):
    path = tmp_path / "bomb.arrow"
    pl.DataFrame({"a": cells}).write_ipc_stream(path, compression=packed)
    monkeypatch.setattr(limits, "most_unpacked", lambda packed, times, least: least >> 10)
    monkeypatch.setattr(pl, "read_ipc_stream", lambda path: pytest.fail("it is unpacked"))
    with pytest.raises(TableError, match=r"unpacks to more than 1\.0 MB"):
        tables.read(path)


@pytest.mark.parametrize("packed", ["uncompressed", "zstd", "lz4"])
def test_the_size_of_an_arrow_stream_is_known_before_it_is_read(tmp_path, packed):
    """Against Arrow's own layout: eight bytes for a number, and a dictionary's words and codes."""
    path = tmp_path / "honest.arrow"
    frame = pl.DataFrame({"number": np.arange(5000.0), "word": pl.Series(["ab", "c"] * 2500, dtype=pl.Categorical)})
    pl.concat([frame, frame], rechunk=False).write_ipc_stream(path, compression=packed)
    size = arrow_stream.unpacked_size(path, cell=1)
    assert 2 * 5000 * (8 + 4) <= size <= 2 * 5000 * (8 + 4) + 1000
    assert tables.read(path).height == 10_000
    content = path.read_bytes()
    path.write_bytes(content[:8] + b"\xff" * 8 + content[16:])
    with pytest.raises(TableError, match="is damaged"):
        tables.read(path)


def test_a_packed_file_of_the_catalogue_is_not_read_without_end(tmp_path, small_limits):
    bomb = gzip.compress(bytes(4 << 20))
    with pytest.raises(UserError, match=r"x_train .* unpacks to more than"):
        _idx.decode(bomb, "x_train")
    drawings = tmp_path / "quickdraw345" / "cat.ndjson.gz"
    drawings.parent.mkdir()
    drawings.write_bytes(bomb)
    with pytest.raises(UserError, match=r"cat\.ndjson\.gz .* unpacks to more than"):
        quickdraw345.read(quickdraw345.find(tmp_path))
    for lines in (None, 3):
        module = SimpleNamespace(LINES=lines)
        origin = places.Origin(name="bomb", card=quickdraw345.CARD, files={"a": drawings})
        with pytest.raises(UserError, match=r"cat\.ndjson\.gz .* unpacks to more than"):
            places.contents(module, origin)
    drawings.write_bytes(gzip.compress(b"one\ntwo\nthree\n"))
    assert places.contents(SimpleNamespace(LINES=2), origin) == {"a": b"one\ntwo\n"}
    assert places.contents(SimpleNamespace(LINES=9), origin) == {"a": b"one\ntwo\nthree\n"}


@pytest.mark.parametrize("name", ["bomb.zip", "bomb.tar.gz"])
def test_a_member_that_grows_without_end_is_not_read(tmp_path, small_limits, name):
    path = tmp_path / name
    zeros = bytes(4 << 20)
    if name.endswith("zip"):
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as packed:
            packed.writestr("a", zeros)
    else:
        with tarfile.open(path, "w:gz") as packed:
            entry = tarfile.TarInfo("a")
            entry.size = len(zeros)
            packed.addfile(entry, io.BytesIO(zeros))
    with pytest.raises(ValueError, match="unpacks to more than"):
        list(archive.members(path, lambda name: True))


def test_an_image_far_larger_than_its_file_is_not_unpacked(tmp_path):
    """The header of a PNG may claim any size; Pillow alone stops at 179 million pixels."""
    width = height = 5_000
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks = [(b"IHDR", header), (b"IDAT", zlib.compress(bytes(1000))), (b"IEND", b"")]
    content = b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body)) for kind, body in chunks
    )
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        Image.fromarray(np.zeros((8, 8, 3), np.uint8)).save(tmp_path / folder / "good.png")
    (tmp_path / "a" / "bomb.png").write_bytes(content)
    with pytest.raises(ValueError, match=r"bomb.png has 5000 × 5000 pixels"):
        image_folder.pixels(image_folder.images_below(tmp_path), 32, grey=False)


def test_a_folder_of_images_is_known_by_what_they_show(tmp_path):
    """An image that is replaced by another of the same length is another folder."""
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "1.ppm").write_bytes(b"P6 1 1 255\n" + folder.encode() * 3)
    before = hash_of(str(tmp_path))
    assert hash_of(str(tmp_path)) == before
    (tmp_path / "a" / "1.ppm").write_bytes(b"P6 1 1 255\nzzz")
    assert hash_of(str(tmp_path)) != before


@pytest.mark.parametrize("how", ["write_atomically", "replacing"])
def test_temporary_files_cannot_be_guessed_and_follow_no_link(tmp_path, how, monkeypatch):
    precious, shared = tmp_path / "precious", tmp_path / "shared"
    precious.write_text("keep me")
    shared.mkdir()
    path = shared / "page.html"
    names = {files.temporary_name(path).name for _ in range(100)}
    assert len(names) == 100
    # Even a name that was guessed is not followed.
    monkeypatch.setattr(files, "temporary_name", lambda path: path.with_name("guessed"))
    (shared / "guessed").symlink_to(precious)

    def write() -> None:
        if how == "write_atomically":
            files.write_atomically(path, "mine")
            return
        with files.replacing(path) as temporary:
            temporary.write_text("mine")

    with pytest.raises(FileExistsError):
        write()
    assert precious.read_text() == "keep me"


EVIL = "\x1b]0;owned\x07\x1b[2J\u202ecol"


def test_names_are_shown_and_not_obeyed_by_a_terminal():
    out = io.StringIO()
    console = SafeConsole(file=out, force_terminal=True, color_system=None, width=120)
    console.print(EVIL, markup=False)
    report.terminal([], console)
    assert "\x1b" not in out.getvalue()
    assert "\\x1b]0;owned\\x07\\x1b[2J\\u202ecol" in out.getvalue()


def test_a_path_with_escapes_in_its_name_is_shown(tmp_path, capsys):
    assert run_command(["compare", str(tmp_path / f"{EVIL}.csv"), "--target", "y"]) == 2
    assert run_command(["report", str(tmp_path / EVIL)]) == 2
    shown = capsys.readouterr()
    assert "\x1b" not in shown.err + shown.out
    assert "\\x1b" in shown.err


@pytest.fixture
def page(tmp_path) -> str:
    """The page of runs whose names and settings were chosen by somebody who means harm."""
    table = Table(
        title="<script>alert(1)</script>", question="q", columns=(Column(name=EVIL, settings={}),),
        methods=("mean", "rgd"), controls=False, metric="test/accuracy", metric_name="accuracy", select="val/accuracy",
        trials=1, seeds=2,
    )  # fmt: skip
    settings = {"source": "/home/alice/secret/people.csv", "test": "C:\\Users\\alice\\test.csv", "data": "a/b"}
    for text in ("mean", "rgd"):
        for seed in range(2):
            spec = Spec(recipe="tiny", column=EVIL, label=text, settings=settings, method=text, seed=seed)
            with Run(spec, tmp_path / "alice").open() as writer:
                writer.record({"epoch": 1, "test/accuracy": 0.5 + seed / 10, "val/accuracy": 0.5})
                writer.finish({"seconds": 1.0})
    report.write([of_runs("tiny", table, load_runs(tmp_path / "alice"))], tmp_path / "page.html")
    return (tmp_path / "page.html").read_text()


def test_a_page_names_no_folder_and_no_user(page):
    assert "people.csv" in page
    assert "test.csv" in page
    assert "alice" not in page
    assert "a/b" in page


def test_a_page_may_load_nothing_and_run_nothing_but_its_own_script(page):
    (policy,) = re.findall(r'Content-Security-Policy" content="([^"]*)"', page)
    rules = dict(rule.strip().split(" ", 1) for rule in policy.replace("&#39;", "'").split(";"))
    assert rules["default-src"] == "'none'"
    (script,) = re.findall(r"<script>(.*?)</script>", page, flags=re.DOTALL)
    own = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert rules["script-src"] == f"'sha256-{own}'"
    assert not re.search(r"\son\w+=", page.replace(script, "")), "a handler that the policy would not run"
    assert not re.search(r"(src|href)=[\"']?https?:", page)


@pytest.mark.parametrize("cell", ["=1+1", "+1", "-1+cmd", "@SUM(A1)", "\t=1", "\r=1", "\uff1d1"])
def test_cells_that_a_spreadsheet_would_run_are_text(cell):
    assert harmless(cell) == f"'{cell}"
    assert harmless(f"a{cell}") == f"a{cell}"
