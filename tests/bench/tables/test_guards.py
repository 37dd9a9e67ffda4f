"""Warnings about tables whose scores would deceive, and files that are tables in other formats."""

import json

import numpy as np
import polars as pl
import pytest

from reweigh.bench.tables import Profile, TableError, describe, leaks, read

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
    (spaced,) = warned(**{"is paid": np.where(LABELS == "yes", "late", "in time")})
    assert "`--drop 'is paid'`" in spaced
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


def test_guessed_separators_and_encodings_and_infinite_cells_are_reported(tmp_path):
    rows = "\n".join(f"{i},5;Köln;{'inf' if i in (2, 9) else i}" for i in range(25))
    (tmp_path / "a.csv").write_bytes(f"x;city;z\n{rows}\n".encode("latin-1"))
    notes = []
    frame = read(tmp_path / "a.csv", notes=notes)
    assert frame.row(0) == (0.5, "Köln", 0.0)
    assert frame["z"].null_count() == 2
    encoding, separator, infinite = notes
    assert "not UTF-8 and is read as Windows-1252" in encoding
    assert "semicolons, and a comma in a number is a decimal comma" in separator
    assert infinite == "2 cells are infinite in 'z' and count as missing; leave such cells empty."


@pytest.mark.parametrize("name", ["plain.csv", "tabs.tsv", "t.parquet"])
def test_nothing_is_reported_where_nothing_was_guessed(tmp_path, name):
    frame = pl.DataFrame({"x": [1.5] * 25, "city": ["Köln"] * 25})
    if name.endswith("parquet"):
        frame.write_parquet(tmp_path / name)
    else:
        frame.write_csv(tmp_path / name, separator="\t" if name.endswith("tsv") else ",")
    notes = []
    read(tmp_path / name, notes=notes)
    assert not notes


def test_whole_numbers_of_which_none_occurs_twice_may_be_ids():
    def notes(numbers):
        frame = pl.DataFrame({"customer": numbers, "noise": RNG.normal(size=N), "y": LABELS})
        return [note for note in describe(frame, target="y").notes if "customer" in note]

    (warning,) = notes(RNG.permutation(10**6)[:N])
    assert "If it is an id, leave it out: `--drop 'customer'`" in warning
    assert not notes(RNG.integers(0, 50, N))


def test_a_class_of_one_row_is_named_with_the_fix():
    labels = np.array([*LABELS[:-1], "perhaps"])
    frame = pl.DataFrame({"noise": RNG.normal(size=N), "y": labels})
    (warning,) = [note for note in describe(frame, target="y").notes if "one row" in note]
    assert "'perhaps'" in warning
    assert "drop the row" in warning


@pytest.fixture
def profile():
    frame = pl.DataFrame(
        {
            "age": [20.0, 30.0, 79.0] * 20,
            "city": ["Rom", "Bonn", None] * 20,
            "day": ["2024-01-31", "2024-02-28", "2024-03-31"] * 20,
            "member": ["yes", "no", "no"] * 20,
            "y": [0, 1, 1] * 20,
        }
    )
    schema = describe(frame, target="y")
    return Profile.from_dict(json.loads(json.dumps(Profile.of(frame, schema).to_dict())))


def test_new_rows_are_compared_with_training_rows(profile):
    new = pl.DataFrame(
        {
            "age": [19.0, 90.0, 50.0, 30.0],
            "city": ["Oslo", "Rom", "Oslo", "Paris"],
            "day": ["2024-02-01", "2025-01-01", "2024-03-30", None],
            "member": ["yes", "no", "no", "yes"],
            "surplus": [1, 2, 3, 4],
        }
    )
    assert profile.compare(new, "y") == (
        "Compared with the 60 training rows: 'age' is outside 20 to 79 in 2 of 4 rows (19 to 90); "
        "'city' has names that training rows did not have in 3 of 4 rows ('Oslo', 'Paris'); "
        "'day' is outside 2024-01-31 to 2024-03-31 in 1 of 4 rows (2025-01-01) and is missing in 25% of rows, 0% in "
        "training; the model does not use 'surplus'."
    )


def test_rows_like_those_of_training_need_no_word(profile):
    alike = pl.DataFrame({"age": [25.0], "city": ["Bonn"], "day": ["2024-02-02"], "member": ["no"], "y": [1]})
    assert not profile.compare(alike, "y")
