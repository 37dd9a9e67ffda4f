"""A file, a folder or a name becomes a problem, or is refused with what is wrong."""

import polars as pl
import pytest
from people_table import people

from reweigh.bench.compare.problem import DataQuestion, hash_of
from reweigh.bench.compare.reading import load
from reweigh.bench.compare.splits import parts_of
from reweigh.bench.errors import UserError
from reweigh.bench.tables import TableError


def test_rows_of_a_test_file_that_cannot_be_tested_on_are_told(table, tmp_path):
    test = tmp_path / "test.csv"
    labels = ["medium"] * 3 + ["HIGH"] + [None] * 2 + ["high"] * 10 + ["low"] * 24
    people(40).with_columns(income=pl.Series(labels)).write_csv(test)
    problem = load(DataQuestion(source=table, target="income", drop=("salary",), test=str(test)))
    assert problem.notes[:2] == (
        "4 of 40 rows of test.csv are dropped: their 'income' is not a class of the training file ('HIGH', 'medium').",
        "2 of 40 rows of test.csv have no 'income' and are dropped.",
    )
    assert len(parts_of(problem, 0).test) == 34
    assert problem.rows == sum(problem.class_counts) == 234
    trained = people()["income"].value_counts(name="count").rows()
    assert dict(zip(problem.classes, problem.class_counts, strict=True)) == {
        name: count + {"high": 10, "low": 24}[name] for name, count in trained
    }


@pytest.mark.parametrize(("target", "cells"), [("income", "medium"), ("salary", "a lot")])
def test_a_test_file_without_a_usable_row_is_refused(table, tmp_path, target, cells):
    test = tmp_path / "test.csv"
    people(40).with_columns(pl.lit(cells).alias(target)).write_csv(test)
    with pytest.raises(
        TableError, match=rf"no row of the test file test.csv has a usable target '{target}': '{cells}'"
    ):
        load(DataQuestion(source=table, target=target, test=str(test)))


FOR_TABLES = {
    "target": "y", "task": "binary", "categorical": ("x",), "drop": ("x",), "group": "g", "time": "t", "test": "t.csv"
}  # fmt: skip


@pytest.mark.parametrize("name", FOR_TABLES)
@pytest.mark.parametrize("source", ["photos", "digits"])
def test_options_that_mean_nothing_are_refused(photos, source, name):
    where = str(photos) if source == "photos" else source
    with pytest.raises(TableError, match=rf"^`--{name}` means nothing for .*Leave it out\."):
        load(DataQuestion(source=where, **{name: FOR_TABLES[name]}))


def test_every_option_that_means_nothing_is_named(photos, table):
    with pytest.raises(TableError, match=r"^`--target`, `--group` mean nothing for the folder of images photos"):
        load(DataQuestion(source=str(photos), target="y", group="g", image_size=8))
    with pytest.raises(TableError, match=r"^`--target`, `--image-size` mean .*digits.*`reweigh compare FILE --target"):
        load(DataQuestion(target="y", image_size=64))
    with pytest.raises(TableError, match=r"^`--image-size` means nothing for a table"):
        load(DataQuestion(source=table, target="income", image_size=64))


def test_a_part_for_validation_is_tested_on_where_there_is_no_other(photos):
    for part in ("train", "val"):
        for name in ("cat", "dog"):
            (photos / part / name).mkdir(parents=True)
    for name in ("cat", "dog"):
        for i, file in enumerate(sorted((photos / name).glob("*.png"))):
            file.rename(photos / ("val" if i < 3 else "train") / name / file.name)
        (photos / name).rmdir()
    problem = load(DataQuestion(source=str(photos), image_size=8))
    assert {problem.images.files[i].split("/")[0] for i in parts_of(problem, 5).test} == {"val"}
    assert any("trains on images of train/ and tests on those of val/" in note for note in problem.notes)
    alone = load(DataQuestion(source=str(photos / "train"), image_size=8))
    assert alone.test_rows is None


def test_the_parts_of_a_folder_of_texts_are_told_as_texts(tmp_path):
    for part, count in (("train", 12), ("test", 4)):
        for name in ("good", "bad"):
            (tmp_path / "letters" / part / name).mkdir(parents=True)
            for i in range(count):
                (tmp_path / "letters" / part / name / f"{i}.txt").write_text(f"{name} letter {i} of {part}")
    problem = load(DataQuestion(source=str(tmp_path / "letters")))
    assert "Every split trains on texts of train/ and tests on those of test/." in problem.notes
    assert len(problem.test_rows) == 8


def test_single_images_that_cannot_be_read_are_skipped_and_counted(photos):
    whole = load(DataQuestion(source=str(photos), image_size=8)).rows
    for name in ("torn.png", "worse.png"):
        (photos / "cat" / name).write_bytes(b"\x89PNG")
    problem = load(DataQuestion(source=str(photos), image_size=8, sha256="changed"))
    assert problem.rows == whole
    (note,) = [note for note in problem.notes if "skipped" in note]
    assert note.startswith("2 images are skipped, the first because")
    assert "cat/torn.png" in note
    assert str(photos) not in note, "pages show notes to readers whom folders do not concern"
    for name in ("cat", "dog"):
        for file in (photos / name).glob("*.png"):
            file.write_bytes(b"")
    with pytest.raises(UserError, match="images cannot be used, the first because"):
        load(DataQuestion(source=str(photos), image_size=8, sha256="changed again"))


def test_a_class_with_too_few_images_is_named(photos):
    for file in sorted((photos / "dog").glob("*.png"))[2:]:
        file.unlink()
    with pytest.raises(TableError, match=r"'dog' has 2 images"):
        load(DataQuestion(source=str(photos)))


def test_a_missing_target_lists_the_columns(table):
    with pytest.raises(TableError, match=r"--target.*'age'"):
        load(DataQuestion(source=table))


def test_the_hash_follows_the_content(table, tmp_path):
    before = hash_of(table)
    people(201).write_csv(table)
    assert hash_of(table) != before
    assert hash_of("adult") == ""
    (tmp_path / "folder" / "a").mkdir(parents=True)
    (tmp_path / "folder" / "a" / "1.png").write_bytes(b"x")
    assert hash_of(str(tmp_path / "folder"))
