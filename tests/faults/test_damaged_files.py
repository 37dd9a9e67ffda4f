"""Files that something else has changed: never trusted, never a wrong number, and always named."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import numpy as np
import pytest
import tiny_training as tiny
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from reweigh.bench import catalogue
from reweigh.bench.catalogue import archive as _archive
from reweigh.bench.lab import plan
from reweigh.bench.lab.executors.local import work
from reweigh.bench.lab.plan import Question
from reweigh.bench.lab.runs import Run, load_runs
from reweigh.bench.lab.table import Column, Table


def interrupted(root: Path) -> Run:
    """A run that was stopped after its second epoch."""
    run = tiny.run(root)
    from reweigh.method import method

    with run.open() as writer:
        for record in tiny.train(tiny.Settings(), method(run.spec.method), 0, writer, None):
            writer.record(record)
            if record["epoch"] == 3:  # the checkpoint after the second epoch has been written
                break
    assert (run.directory / "checkpoint.pt").exists()
    return run


def damage(path: Path, what: str) -> None:
    content = path.read_bytes()
    if what == "one changed byte":
        middle = len(content) // 2
        content = content[:middle] + bytes([content[middle] ^ 0x10]) + content[middle + 1 :]
    elif what == "half of it":
        content = content[: len(content) // 2]
    elif what == "zeros":  # what some file systems leave after a power cut
        content = bytes(len(content))
    elif what == "nothing":
        content = b""
    path.write_bytes(content)


@pytest.mark.parametrize("what", ["one changed byte", "half of it", "zeros", "nothing"])
def test_after_a_damaged_checkpoint_the_run_ends_with_the_same_bits(tmp_path, tiny_recipe, what):
    whole = tiny.run(tmp_path / "whole")
    assert work([whole.spec.as_dict()], str(whole.root)) == []
    run = interrupted(tmp_path / "broken")
    damage(run.directory / "checkpoint.pt", what)
    assert work([run.spec.as_dict()], str(run.root)) == []
    assert run.records() == whole.records()
    np.testing.assert_array_equal(run.array("mean_weight"), whole.array("mean_weight"))


@pytest.fixture(scope="module")
def checkpointed(tmp_path_factory):
    run = interrupted(tmp_path_factory.mktemp("checkpointed"))
    # As files: Hypothesis prints its arguments, and a checkpoint is long.
    for name in ("checkpoint.pt", "records.jsonl"):
        (run.directory / f"whole-{name}").write_bytes((run.directory / name).read_bytes())
    return run


@given(place=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7), cut=st.booleans())
def test_no_change_of_a_checkpoint_goes_unnoticed(checkpointed, place, bit, cut):
    run = checkpointed
    checkpoint, records = (
        (run.directory / f"whole-{name}").read_bytes() for name in ("checkpoint.pt", "records.jsonl")
    )
    at = int(place * len(checkpoint))
    changed = checkpoint[:at] + (b"" if cut else bytes([checkpoint[at] ^ 1 << bit]) + checkpoint[at + 1 :])
    (run.directory / "checkpoint.pt").write_bytes(changed)
    (run.directory / "records.jsonl").write_bytes(records)
    with run.open() as writer:
        assert writer.resume() is None
    (run.directory / "checkpoint.pt").write_bytes(checkpoint)
    (run.directory / "records.jsonl").write_bytes(records)
    with run.open() as writer:
        assert writer.resume()["step"] == 8  # two epochs of four steps


BAD_LINES = [b"not json\n", b"\x00" * 40 + b"\n", b'{"epoch": \xff}\n', b'{"epoch": 1, "val/lo\n']


@pytest.mark.parametrize("bad", BAD_LINES)
def test_an_unfinished_run_with_a_damaged_record_starts_again(tmp_path, tiny_recipe, bad):
    whole = tiny.run(tmp_path / "whole")
    assert work([whole.spec.as_dict()], str(whole.root)) == []
    run = interrupted(tmp_path / "broken")
    path = run.directory / "records.jsonl"
    first, *rest = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(first + bad + b"".join(rest[1:]))
    assert work([run.spec.as_dict()], str(run.root)) == []
    assert run.records() == whole.records()


@pytest.mark.parametrize("bad", BAD_LINES)
def test_a_finished_run_with_a_damaged_record_chooses_nothing_and_is_named(tmp_path, tiny_recipe, bad):
    table = Table(
        title="t", question="q", columns=(Column(name="c", settings={}),), methods=("mean",), metric="test/accuracy",
        metric_name="accuracy", select="val/accuracy", trials=2,
    )  # fmt: skip
    asked = Question(recipe="tiny", table=table, settings={"epochs": 2, "lr": 0.01})
    specs = plan.tuning(asked)
    for spec in specs:
        assert work([spec.as_dict()], str(tmp_path)) == []
    path = Run(specs[1], tmp_path).directory / "records.jsonl"
    path.write_bytes(bad + path.read_bytes())
    with pytest.raises(ValueError, match=f"line 1 of {path} is not JSON"):
        plan.choose(asked, specs, tmp_path)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff\xfe", b'{"recipe": "tiny"}'])
def test_a_spec_that_cannot_be_read_is_named(tmp_path, content):
    run = tiny.run(tmp_path)
    with run.open():
        pass
    (run.directory / "spec.json").write_bytes(content)
    with pytest.raises(ValueError, match=rf"{run.directory / 'spec.json'} does not say what the run is"):
        load_runs(tmp_path)


@pytest.mark.parametrize(("suffix", "keep"), [(".png", 0.5), (".jpg", 0.5), (".jpg", 0.0), (".png", 0.05)])
def test_an_unreadable_image_is_named(tmp_path, suffix, keep):
    pixels = np.random.default_rng(0).integers(0, 256, (40, 40, 3), dtype=np.uint8)
    for name in ("cat", "dog"):
        folder = tmp_path / "pets" / name
        folder.mkdir(parents=True)
        for number in range(3):
            Image.fromarray(pixels).save(folder / f"{number}{suffix}")
    torn = tmp_path / "pets" / "dog" / f"1{suffix}"
    torn.write_bytes(torn.read_bytes()[: int(keep * torn.stat().st_size)])
    with pytest.raises(ValueError, match=f"{torn} is not an image"):
        catalogue.load("image_folder:folder=pets", root=tmp_path)


@pytest.mark.parametrize("name", ["part.tar.gz", "part.tar.xz", "part.tar", "part.zip"])
def test_a_torn_archive_is_named(tmp_path, name):
    path = tmp_path / name
    noise = np.random.default_rng(0).bytes(20_000)
    if name.endswith(".zip"):
        import zipfile

        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("a", noise)
    else:
        with tarfile.open(path, f"w:{name.removeprefix('part.tar').removeprefix('.')}") as archive:
            entry = tarfile.TarInfo("a")
            entry.size = len(noise)
            archive.addfile(entry, io.BytesIO(noise))
    path.write_bytes(path.read_bytes()[:12_000])
    with pytest.raises(ValueError, match=f"{path} is damaged"):
        list(_archive.members(path, lambda name: True))
