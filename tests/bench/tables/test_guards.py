"""Warnings about tables whose scores would deceive, and files that are tables in other formats."""

import json

import numpy as np
import polars as pl
import pytest

from reweigh.bench.tables import TableError, describe, leaks, read

RNG = np.random.default_rng(0)
N = 200
LABELS = RNG.choice(["no", "yes"], N, p=[0.8, 0.2])


def warned(**columns):
    frame = pl.DataFrame({**columns, "noise": RNG.normal(size=N), "y": LABELS})
    return leaks(frame, describe(frame, target="y", task="binary"))


def test_columns_that_give_the_target_away_are_named_with_the_fix():
    copied = warned(paid=np.where(LABELS == "yes", "late", "in time"))
    assert len(copied) == 1
    assert "Check 'paid': alone it predicts 'y' and is right in 100 % of rows" in copied[0]
    assert "`--drop paid`" in copied[0]
    (number,) = warned(days=np.where(LABELS == "yes", 30.0, 0.0) + RNG.normal(size=N))
    assert "'days'" in number


def test_honest_columns_are_not_suspected():
    assert not warned(age=RNG.normal(size=N) + 2.0 * (LABELS == "yes"))
    assert not warned(city=RNG.choice(["Rom", "Bonn"], N))
    # Naming the frequent class is right in 80 % of rows, and a word of its own for each row says nothing.
    assert not warned(code=RNG.permutation([f"{i // 1}" for i in range(N)]))


def test_an_amount_in_other_words_is_a_leak():
    amount = RNG.lognormal(size=N)
    frame = pl.DataFrame({"with_tax": amount * 1.19, "noise": RNG.normal(size=N), "y": amount})
    (warning,) = leaks(frame, describe(frame, target="y"))
    assert "'with_tax'" in warning


@pytest.fixture
def folder(tmp_path):
    rows = [{"x": i % 7, "y": ("None", "mild", "NA")[i % 3], "z": "NA" if i % 5 == 0 else "a"} for i in range(60)]
    pl.DataFrame(rows).write_csv(tmp_path / "t.csv")
    pl.DataFrame(rows).write_parquet(tmp_path / "t.parquet")
    (tmp_path / "t.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "t.json").write_text(json.dumps(rows))
    (tmp_path / "indented.json").write_text(json.dumps(rows, indent=1))
    return tmp_path


@pytest.mark.parametrize("name", ["t.csv", "t.parquet", "t.jsonl", "t.json", "indented.json"])
def test_words_of_the_target_are_classes_and_elsewhere_missing(folder, name):
    frame = read(folder / name, target="y")
    schema = describe(frame, target="y")
    assert schema.classes == ("NA", "None", "mild")
    assert schema.unlabelled == 0
    assert frame["z"].null_count() == 12
    assert any("20 rows have the target 'None', which is kept as a class" in note for note in schema.notes)
    assert frame["x"].sum() == sum(i % 7 for i in range(60))


def test_an_amount_without_a_value_is_missing(tmp_path):
    cells = ["NA" if i % 6 == 0 else str(i * 1.5) for i in range(60)]
    pl.DataFrame({"x": np.arange(60) % 7, "y": cells}).write_csv(tmp_path / "t.csv")
    schema = describe(read(tmp_path / "t.csv", target="y"), target="y")
    assert (schema.task, schema.unlabelled) == ("regression", 10)


def test_classes_that_differ_in_case_only_are_named():
    frame = pl.DataFrame({"x": np.arange(60) % 7, "y": ["Yes", "yes", "no"] * 20})
    notes = describe(frame, target="y").notes
    assert any("'Yes', 'yes' are 2 classes that differ in upper and lower case only" in note for note in notes)


def test_json_that_is_no_table_is_one_sentence(tmp_path):
    (tmp_path / "t.json").write_text('{"x": 1, "y": ')
    with pytest.raises(TableError, match="cannot be read as JSON"):
        read(tmp_path / "t.json")
