"""Files that something else has changed: never trusted, never a wrong number, and always named."""

from __future__ import annotations

import concurrent.futures
import hashlib
import io
import json
import re
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import tiny_training as tiny
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from rich.console import Console

from reweigh.bench import catalogue, report
from reweigh.bench.catalogue import archive as _archive
from reweigh.bench.lab import plan, questions
from reweigh.bench.lab import recipe as recipes
from reweigh.bench.lab.display import RunDisplay
from reweigh.bench.lab.executors.local import execute, work
from reweigh.bench.lab.plan import Question
from reweigh.bench.lab.results import collect
from reweigh.bench.lab.runs import Run
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
    with pytest.raises(ValueError, match=f"run {specs[1].id} cannot be trusted: its records.jsonl is not what it was"):
        plan.choose(asked, specs, tmp_path)


def recipe_of_tiny() -> recipes.Recipe:
    table = Table(
        title="t", question="q", columns=(Column(name="c", settings={}),), methods=("mean", "rgd"),
        metric="test/accuracy", metric_name="accuracy", select="val/accuracy", trials=1, controls=False,
    )  # fmt: skip
    return recipes.complete(SimpleNamespace(Settings=tiny.Settings, train=tiny.train, table=lambda preset: table))


@pytest.fixture(scope="module")
def finished_runs(tmp_path_factory):
    """Plain training and rgd on three seeds."""
    root = tmp_path_factory.mktemp("finished")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recipes, "load", lambda name: recipe_of_tiny())
        runs = [tiny.run(root, text, seed) for text in ("mean", "rgd") for seed in range(3)]
        for run in runs:
            assert work([run.spec.as_dict()], str(root)) == []
        question = Question(recipe="tiny", table=recipe_of_tiny().table("cpu"), settings={})
        questions.store(root, question, [run.spec for run in runs])
    return root


def edited(old: bytes, new: bytes) -> Callable[[bytes], bytes]:
    def edit(content: bytes) -> bytes:
        assert old in content
        return content.replace(old, new)

    return edit


def _done_with(content: bytes, **changes: object) -> bytes:
    """As a version that wrote no hash of `done` itself would have written it."""
    done = json.loads(content) | changes
    del done["sha256 of this"]
    return json.dumps(done).encode()


#: Every way in which files of a finished run were found changed: which file, and its content made of the old one.
DAMAGES: dict[str, tuple[str, Callable[[bytes], bytes | None]]] = {
    "records without the last line": ("records.jsonl", lambda c: b"".join(c.splitlines(keepends=True)[:-1])),
    "records without the first line": ("records.jsonl", lambda c: b"".join(c.splitlines(keepends=True)[1:])),
    "records without forty bytes": ("records.jsonl", lambda c: c[:-40]),
    "records with another digit": ("records.jsonl", lambda c: re.sub(rb'("test/accuracy": 0\.)\d', rb"\g<1>1", c)),
    "records twice": ("records.jsonl", lambda c: c + c),
    "records without the selecting key": ("records.jsonl", edited(b'"val/accuracy"', b'"val/accuraci"')),
    "records without the metric": ("records.jsonl", edited(b'"test/accuracy"', b'"test/accuraci"')),
    "records with NaN to select by": (
        "records.jsonl", lambda c: re.sub(rb'("val/accuracy": )[0-9.]+', rb"\g<1>NaN", c)
    ),
    "records of zeros": ("records.jsonl", lambda c: bytes(len(c))),
    "no content in records": ("records.jsonl", lambda c: b""),
    "no records": ("records.jsonl", lambda c: None),
    "array of zeros": ("arrays/mean_weight.npy", lambda c: bytes(len(c))),
    "array cut": ("arrays/mean_weight.npy", lambda c: c[:-4]),
    "no array": ("arrays/mean_weight.npy", lambda c: None),
    "done empty": ("done", lambda c: b""),
    "done of zeros": ("done", lambda c: bytes(len(c))),
    "done cut": ("done", lambda c: c[: len(c) // 2]),
    "done a list": ("done", lambda c: b"[]"),
    "done without a count": ("done", edited(b'"records"', b'"recorts"')),
    "done without hashes": ("done", edited(b'"sha256"', b'"sha257"')),
    "done with hashes of nothing": ("done", lambda c: _done_with(c, sha256={})),
    "done with hashes that are none": ("done", lambda c: _done_with(c, sha256=3)),
    "done without a time": ("done", lambda c: _done_with(c, seconds=None)),
    "done of an unknown machine": ("done", lambda c: _done_with(c, environment={"versions": {}})),
    "done of another machine": ("done", edited(b'"machine": "', b'"machine": "x')),
    "done nested too deep": ("done", lambda c: b"[" * 100_000),
    "spec empty": ("spec.json", lambda c: b""),
    "spec of another": ("spec.json", edited(b'"seed": 0', b'"seed": 7')),
    "spec that is no spec": ("spec.json", lambda c: b'{"recipe": "tiny"}'),
    "spec of a wrong type": ("spec.json", lambda c: b'{"recipe": 3}'),
    "spec not text": ("spec.json", lambda c: b"\xff\xfe"),
}  # fmt: skip


@pytest.mark.parametrize("what", DAMAGES)
def test_damage_to_a_finished_run_is_named_left_out_of_reports_and_redone(tmp_path, finished_runs, monkeypatch, what):
    monkeypatch.setattr(recipes, "load", lambda name: recipe_of_tiny())
    shutil.copytree(finished_runs, tmp_path, dirs_exist_ok=True)
    runs = [tiny.run(tmp_path, text, seed) for text in ("mean", "rgd") for seed in range(3)]
    (whole,) = collect(tmp_path)
    assert not whole.damaged
    assert sorted(whole.columns[0].rows["rgd"].outcomes) == [0, 1, 2]
    run = runs[3]
    kept = {name: (run.directory / name).read_bytes() for name in ("records.jsonl", "arrays/mean_weight.npy")}
    name, change = DAMAGES[what]
    content = change((run.directory / name).read_bytes())
    (run.directory / name).unlink() if content is None else (run.directory / name).write_bytes(content)

    assert not run.done
    (left,) = collect(tmp_path)
    assert sorted(left.columns[0].rows["rgd"].outcomes) == [1, 2]
    assert left.columns[0].rows["mean"].values == whole.columns[0].rows["mean"].values
    assert any(run.spec.id in line for line in left.damaged), left.damaged
    out = io.StringIO()
    report.terminal([left], Console(file=out, width=200))
    assert ("Left out, run " in out.getvalue()) == bool(left.damaged)

    out = io.StringIO()
    display = RunDisplay(Console(file=out, width=200), "test/accuracy")
    failures = execute([r.spec for r in runs], tmp_path, workers=Here(), display=display, title="comparison")
    assert failures == []
    assert f"run {run.spec.id} (c · rgd · seed 0) is done again: its " in out.getvalue()
    assert "comparison: 1 run, 5 already done" in out.getvalue()
    assert {name: (run.directory / name).read_bytes() for name in kept} == kept
    (again,) = collect(tmp_path)
    assert not again.damaged
    assert again.columns[0].rows["rgd"].values == whole.columns[0].rows["rgd"].values


class Here:
    """A crew that does every group at once, in this process."""

    jobs = 1

    def submit(self, group, root):
        answer = concurrent.futures.Future()
        answer.set_result(work([spec.as_dict() for spec in group], str(root)))
        return answer


def test_a_run_that_an_earlier_version_finished_is_trusted_if_all_its_records_are_there(tmp_path, tiny_recipe):
    run = tiny.run(tmp_path)
    assert work([run.spec.as_dict()], str(tmp_path)) == []
    done = json.loads((run.directory / "done").read_text())
    del done["sha256 of this"]
    (run.directory / "done").write_text(json.dumps(done))
    assert run.done
    del done["sha256"]
    (run.directory / "done").write_text(json.dumps(done))
    assert run.done
    records = run.directory / "records.jsonl"
    records.write_bytes(b"".join(records.read_bytes().splitlines(keepends=True)[:-1]))
    assert run.damage() == "it had 4 records, and has 3"


@pytest.mark.parametrize("what", ["a key fewer", "another width", "another optimizer", "not a dictionary", "no count"])
def test_after_a_checkpoint_of_another_version_the_run_ends_with_the_same_bits(tmp_path, tiny_recipe, what):
    """Its hash is right and it can be read: only its structure is not what this version expects."""
    whole = tiny.run(tmp_path / "whole")
    assert work([whole.spec.as_dict()], str(whole.root)) == []
    run = interrupted(tmp_path / "broken")
    path = run.directory / "checkpoint.pt"
    saved = torch.load(io.BytesIO(path.read_bytes()[:-32]), weights_only=True)
    state = saved["state"]
    if what == "a key fewer":
        del state["tally"]
    elif what == "another width":
        model = state["program"]["model"]
        state["program"]["model"] = {name: torch.zeros(3, *value.shape) for name, value in model.items()}
    elif what == "another optimizer":
        state["program"]["optimizer"] = {"state": {}, "param_groups": []}
    elif what == "not a dictionary":
        saved["state"] = [1, 2, 3]
    else:
        del saved["records"]
    content = io.BytesIO()
    torch.save(saved, content)
    content.write(hashlib.sha256(content.getbuffer()).digest())
    path.write_bytes(content.getvalue())
    assert work([run.spec.as_dict()], str(run.root)) == []
    assert run.records() == whole.records()
    assert (run.directory / "records.jsonl").read_bytes() == (whole.directory / "records.jsonl").read_bytes()
    np.testing.assert_array_equal(run.array("mean_weight"), whole.array("mean_weight"))


def test_what_a_killed_process_left_is_swept_when_the_run_is_opened(tmp_path, tiny_recipe):
    run = interrupted(tmp_path)
    left = [run.directory / ".records.jsonl.0123.tmp", run.directory / "arrays" / ".mean_weight.npy.77.tmp"]
    (run.directory / "arrays").mkdir(exist_ok=True)
    for path in left:
        path.write_bytes(b"half")
    assert work([run.spec.as_dict()], str(run.root)) == []
    assert not any(path.exists() for path in left)
    # Killed between `done` and the removal of what only an unfinished run needs.
    litter = [run.directory / "checkpoint.pt", run.directory / "error.txt", run.directory / ".done.9a.tmp"]
    for path in litter:
        path.write_bytes(b"left")
    (run.directory / "sharded" / ".step-00000004").mkdir(parents=True)
    display = RunDisplay(Console(file=io.StringIO()), "test/accuracy")
    assert execute([run.spec], tmp_path, workers=Here(), display=display, title="comparison") == []
    assert not any(path.exists() for path in (*litter, run.directory / "sharded"))
    assert run.done


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
