import contextlib
import csv
import gzip
import io
import json
import math
import os
import re
import subprocess
import sys
import time
import zipfile
from collections import Counter
from datetime import date, datetime
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reweigh.bench import catalogue
from reweigh.bench.catalogue.card import Package
from reweigh.bench.catalogue.tables import NamedTable, adult, bank, covtype, hypothyroid, keel
from reweigh.bench.errors import UserError
from reweigh.bench.files import sha256_of
from reweigh.bench.tables import (
    LEAST_ROWS,
    TableEncoder,
    TableError,
    append,
    describe,
    duplicates_across,
    read,
    split,
    values,
)
from reweigh.bench.tables.columns import TextColumn


@pytest.fixture(autouse=True)
def places(tmp_path, monkeypatch):
    """A cache of the test's own and no data root, so that nothing on this machine shows through."""
    monkeypatch.setenv("REWEIGH_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("REWEIGH_DATA", raising=False)


def rng(seed=0):
    return np.random.default_rng(seed)


def put(folder, name, content):
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def refusal(function, *arguments, **options):
    """The message of a TableError: sentences, and on one line."""
    with pytest.raises(TableError) as caught:
        function(*arguments, **options)
    text = str(caught.value)
    assert "\n" not in text
    assert text.endswith((".", "?"))
    return text


def people(rows=60, seed=0):
    """A table with one column of every kind, whose target depends on it."""
    r = rng(seed)
    age = r.integers(18, 90, rows).astype(float)
    age[::7] = np.nan
    job = r.choice(["clerk", "nurse", "smith", "pilot"], rows, p=[0.5, 0.3, 0.15, 0.05])
    words = ["quick", "brown", "fox", "jumps", "over", "lazy", "dog", "Über", "naïve", "42"]
    return pl.DataFrame(
        {
            "id": np.arange(rows) + 1000,
            "age": pl.Series(age).fill_nan(None),
            "job": pl.Series(job).set(pl.Series(np.arange(rows) % 11 == 0), None),
            "member": np.arange(rows) % 3 == 0,
            "since": [date(2015 + i % 9, 1 + i % 12, 1 + i % 28) for i in range(rows)],
            "review": [" ".join(r.choice(words, 6)) + f" {i}" for i in range(rows)],
            "same": ["x"] * rows,
            "y": np.where(r.random(rows) < 0.3, "yes", "no"),
        }
    )


# --- reading ---

GOLDEN = [("ann", 39, 1.5, True), ("bob", None, 2.0, False), (None, 7, None, True)]


@pytest.mark.parametrize("separator", [",", ";", "\t"])
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "latin-1"])
def test_text_in_every_dress(tmp_path, separator, packed, encoding):
    lines = ["name|n|x|b", "ann|39|1.5|true", "bob|?|2.0|false", "|7|NA|true", "zoë|1|0|false"]
    content = "\n".join(lines).replace("|", separator).encode(encoding)
    path = put(tmp_path, "t.csv.gz" if packed else "t.csv", gzip.compress(content, mtime=0) if packed else content)
    frame = read(path, least=1)
    assert frame.columns == ["name", "n", "x", "b"]
    assert frame.rows() == [*GOLDEN, ("zoë", 1, 0.0, False)]


@pytest.mark.parametrize("marker", ["", "NA", "N/A", "?", "null", "nan", "None", "NaN", " ? "])
def test_missing_markers(tmp_path, marker):
    frame = read(put(tmp_path, "t.csv", f"a,b\n1,x\n{marker},{marker}\n"), least=1)
    assert frame.rows() == [(1, "x"), (None, None)]


def test_tab_files_by_name_and_windows_characters(tmp_path):
    frame = read(put(tmp_path, "t.tsv", "a,b\tc\n1,2\t€5\n".encode("cp1252")), least=1)
    assert frame.rows() == [("1,2", "€5")]
    assert frame.columns == ["a,b", "c"]


@pytest.mark.parametrize("ending", ["\n", "\r\n", "\r"])
def test_line_endings_blank_lines_and_spaces(tmp_path, ending):
    lines = ["", "a, b", " 1, x ", "", " 2.5,y", "", ""]
    frame = read(put(tmp_path, "t.csv", ending.join(lines)), least=1)
    assert frame.columns == ["a", "b"]
    assert frame.rows() == [(1.0, "x"), (2.5, "y")]


def test_decimal_commas_only_where_the_separator_is_another(tmp_path):
    assert read(put(tmp_path, "a.csv", "x;y\n1,5;a\n-2;b\n"), least=1)["x"].to_list() == [1.5, -2.0]
    assert read(put(tmp_path, "b.csv", 'x,y\n"1,5",a\n"2,5",b\n'), least=1)["x"].to_list() == ["1,5", "2,5"]


def test_one_column_may_have_blank_cells(tmp_path):
    assert read(put(tmp_path, "t.csv", "a\n1\n\n3\n"), least=1)["a"].to_list() == [1, None, 3]


def test_quotes_that_are_no_quotes(tmp_path):
    frame = read(put(tmp_path, "t.csv", "size,b\n5'11\",x\n6'2\",y\n6'3,z\n"), least=1)
    assert frame.rows() == [("5'11\"", "x"), ("6'2\"", "y"), ("6'3", "z")]


def test_a_type_that_shows_late(tmp_path):
    content = "a,b\n" + "1,2\n" * 12_000 + "1.5,word\n"
    frame = read(put(tmp_path, "t.csv", content))
    assert frame["a"].dtype == pl.Float64
    assert frame.row(-1) == (1.5, "word")


@pytest.mark.parametrize("name", ["t.parquet", "t.feather", "t.arrow", "wrong_name.csv"])
def test_columnar_files(tmp_path, name):
    whole = pl.DataFrame(
        {
            "f": [1.5, math.nan, math.inf, None],
            "s": ["a", "?", " b ", None],
            "c": pl.Series(["u", "v", "u", None], dtype=pl.Categorical),
            "i": pl.Series([1, 2, 3, 2**63 + 5], dtype=pl.UInt64),
            "d": [date(2020, 1, 2)] * 4,
            "t": pl.Series([90, None, 0, 1], dtype=pl.Duration("ms")),
        }
    )
    if name.endswith((".feather", ".arrow")):
        whole.write_ipc(tmp_path / name)
    else:
        whole.write_parquet(tmp_path / name)
    frame = read(tmp_path / name, least=1)
    assert frame["f"].to_list() == [1.5, None, None, None]
    assert frame["s"].to_list() == ["a", None, "b", None]
    assert frame["c"].to_list() == ["u", "v", "u", None]
    assert frame["i"].to_list() == [1.0, 2.0, 3.0, float(2**63)]
    assert frame["d"].to_list() == [date(2020, 1, 2)] * 4
    assert frame["t"].to_list() == [0.09, None, 0.0, 0.001]
    assert read(tmp_path / name, skip=["f", "nowhere"], least=1).columns == ["s", "c", "i", "d", "t"]


def test_arrow_streams(tmp_path):
    pl.DataFrame({"a": [1, 2], "b": ["x", "NA"]}).write_ipc_stream(tmp_path / "t.arrow")
    assert read(tmp_path / "t.arrow", least=1).rows() == [(1, "x"), (2, None)]


def workbook():
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("xl/workbook.xml", "<workbook/>")
    return file.getvalue()


@pytest.mark.parametrize(
    ("name", "content", "said", "fix"),
    [
        ("t.csv", b"", "is empty (0 bytes)", "Save or download it again"),
        ("t.csv.gz", gzip.compress(b"", mtime=0), "is empty once unpacked", "Save or download it again"),
        ("t.csv", b" \n\n ", "nothing but white space", "Save or download it again"),
        ("t.csv", bytes(range(256)) * 9, "is a binary file, not a table", "Give CSV, TSV, Parquet or Arrow"),
        ("t.csv", b"\x01\x02\x03abc" * 99, "is a binary file, not a table", "Give CSV"),
        ("t.xlsx", workbook(), "a zip archive or an Excel workbook", "Save the sheet as CSV"),
        ("t.csv", b"%PDF-1.7 ...", "PDF", "Export the table as CSV"),
        ("t.parquet", b"a,b\n1,2\n", "is not a Parquet file", "name it .csv"),
        ("t.parquet", b"PAR1" + b"x" * 60 + b"PAR1", "is damaged", "again"),
        ("t.arrow", b"ARROW1\0\0" + b"x" * 60, "is damaged", "again"),
        ("t.csv.gz", gzip.compress(b"a,b\n1,2\n", mtime=0)[:-9], "gzip-compressed and damaged", "again"),
        ("t.csv", b"a,b\n", "has a header and no rows", "at least 20 rows"),
        ("t.csv", b"a,b\n1,2\n3,4\n5,6\n", "has 3 rows, and at least 20 are needed", "Give a file with more"),
        ("t.csv", b"a,b\n1,2\n", "has 1 row, and at least 20 are needed", "Give a file with more"),
        ("t.csv", b"a,b,a,b,c\n1,2,3,4,5\n", "more than one column named 'a', 'b'", "Rename them"),
        ("t.csv", b"a,b\n1,2\n3,4,5\n", "line 3 of", "Fix that line; a cell that holds ',' must be in quotes"),
        ("t.csv", b"a,b,c\n1,2,3\n\n3,4\n", "line 4 of", "the header has 3"),
        ("t.csv", b'a,b\n1,2\n3,"x\n4,5\n', "cannot be read from line 3 on (a quote is opened", "Put cells"),
        ("t.csv", "a,b\n1,2\n".encode("utf-16")[:-1], "is a binary file, not a table", "Give CSV"),
    ],
)
def test_what_is_no_table_is_refused(tmp_path, name, content, said, fix):
    path = put(tmp_path, name, content)
    text = refusal(read, path)
    assert said in text
    assert fix in text
    assert str(path) in text


def test_missing_files_folders_and_permissions(tmp_path):
    assert "there is no file" in refusal(read, tmp_path / "nowhere.csv")
    assert "is a folder" in refusal(read, tmp_path)
    assert "has no columns left" in refusal(read, put(tmp_path, "t.csv", "a,b\n1,2\n"), skip=["a", "b"])


def test_a_damaged_parquet_with_a_good_end(tmp_path):
    path = tmp_path / "t.parquet"
    pl.DataFrame({"a": list(range(5000)), "b": [str(i) for i in range(5000)]}).write_parquet(path)
    content = bytearray(path.read_bytes())
    content[4:4000] = bytes(3996)
    path.write_bytes(content)
    assert "is damaged" in refusal(read, path)


def test_least_is_what_the_message_and_the_constant_say(tmp_path):
    path = put(tmp_path, "t.csv", "a,b\n" + "1,2\n" * LEAST_ROWS)
    assert read(path).height == LEAST_ROWS
    assert f"at least {LEAST_ROWS + 1} are needed" in refusal(read, path, least=LEAST_ROWS + 1)


cells = st.text(st.characters(exclude_categories=["Cs", "Cc"], include_characters="\n\t\"',;="), max_size=12)


@given(st.lists(st.tuples(cells, cells, cells), min_size=1, max_size=12), st.sampled_from(",;\t"))
def test_any_text_comes_back(tmp_path_factory, rows, separator):
    """What Python's writer quotes comes back cell by cell, but for white space around it and markers of nothing."""
    file = io.StringIO(newline="")
    writer = csv.writer(file, delimiter=separator, quoting=csv.QUOTE_ALL)
    header = ["<script>alert(1)</script>", "a,b;c\td", '=cmd|"x"!A1']
    # A first row of words keeps every column a column of words, and any text a text.
    all_rows = [("w", "ä", "z"), *rows]
    writer.writerows([header, *all_rows])
    content = file.getvalue().encode()
    path = put(tmp_path_factory.mktemp("t"), "t.tsv" if separator == "\t" else "t.csv", content)
    frame = read(path, least=1)
    assert frame.columns == header

    def expected(cell):
        stripped = cell.strip()
        return None if stripped in values.MISSING else stripped

    told = [tuple(None if cell is None else cell.strip() for cell in row) for row in frame.rows()]
    assert told == [tuple(map(expected, row)) for row in all_rows]


def test_damage_is_refused_or_harmless(tmp_path):
    """Bytes changed at random: a sentence, or a table that can be described and encoded."""
    frame = people(40).with_columns(pl.Series("when", range(40)).cast(pl.Datetime("us")))
    frame.write_parquet(tmp_path / "s.parquet")
    frame.write_ipc_stream(tmp_path / "s.arrow")
    frame.write_csv(tmp_path / "s.csv")
    r, outcomes = rng(), Counter()
    for trial in range(90):
        source = tmp_path / ("s.parquet", "s.arrow", "s.csv")[trial % 3]
        content = bytearray(source.read_bytes())
        for position in r.integers(0, len(content), 3):
            content[position] = r.integers(0, 256)
        path = put(tmp_path, f"t{source.suffix}", bytes(content))
        outcome = "refused"
        with contextlib.suppress(TableError):
            table = read(path)
            schema = describe(table, target=table.columns[1])
            table = schema.labelled(table)
            assert np.isfinite(TableEncoder.fit(table, schema, words=8).transform(table)).all()
            outcome = "read"
        outcomes[outcome] += 1
    assert min(outcomes["read"], outcomes["refused"]) > 5


def test_moments_that_no_calendar_has_are_missing(tmp_path):
    days = pl.Series([0, 2**31 - 1, -(2**31), 376_199, 376_200, -354_285, -354_286], dtype=pl.Int32).cast(pl.Date)
    ticks = pl.Series([0, 2**63 - 1, -(2**62), 1, 2, 3, 4]).cast(pl.Datetime("ms"))
    pl.DataFrame({"d": days, "t": ticks}).write_parquet(tmp_path / "t.parquet")
    frame = read(tmp_path / "t.parquet", least=1)
    here = [date(1970, 1, 1), None, None, date(2999, 12, 31), None, date(1000, 1, 1), None]
    assert frame["d"].to_list() == here
    assert frame["t"].null_count() == 2


# --- describing ---


def kinds(schema):
    return {column.name: column.kind for column in schema.columns}


def test_every_kind_of_column():
    frame = people().with_columns(
        pl.Series("when", [f"{1 + i % 28:02}.{1 + i % 12:02}.2020" for i in range(60)]),
        pl.Series("flag", ["Yes", "no", None] * 20),
        pl.Series("bit", [0, 1, 1] * 20),
        pl.Series("token", [f"{i:x}-{i * 7919:x}" for i in range(60)]),
        pl.Series("nothing", [None] * 60, dtype=pl.String),
        pl.Series("nested", [[1, 2]] * 60),
        pl.Series("some", ["1.5"] * 57 + ["n.d."] + ["2"] * 2),
        pl.Series("zip", [10115, 20095, 80331] * 20),
        pl.Series("down", np.arange(60)[::-1] * 3),
        pl.Series("stamp", 1_700_000_000 + np.arange(60) * 3600),
    )
    schema = describe(frame, target="y", categorical=["zip"], drop=["same"])
    assert kinds(schema) == {
        "id": "id",
        "age": "number",
        "job": "category",
        "member": "boolean",
        "since": "date",
        "review": "text",
        "same": "dropped",
        "y": "target",
        "when": "date",
        "flag": "boolean",
        "bit": "boolean",
        "token": "id",
        "nothing": "empty",
        "nested": "unusable",
        "some": "number",
        "zip": "category",
        "down": "id",
        "stamp": "number",
    }
    assert schema.column("when").pattern == "%d.%m.%Y"
    assert schema.column("age").missing == pytest.approx(9 / 60)
    assert schema.column("some").missing == pytest.approx(1 / 60)
    assert schema.column("flag").missing == pytest.approx(1 / 3)
    told = "\n".join(schema.notes)
    for said in (
        "Task: binary, because 'y' has 2 different values; `--task` overrides it.",
        "'some' is treated as a number; 1 of its cells are text (for example 'n.d.') and count as missing.",
        "`--categorical 'some'`",
        "'review' is treated as free text",
        "Dropped 'id', 'token', 'down': nearly every row has its own value",
        "Dropped 'nothing': missing in every row.",
        "Dropped 'nested': lists, records or bytes",
        "Class balance: 'no'",
    ):
        assert said in told
    assert "same" not in told  # the user knows: they said so
    assert json.loads(json.dumps(schema.as_dict()))["classes"] == ["no", "yes"]


def test_constants_are_dropped_with_a_word():
    schema = describe(people(), target="y")
    assert kinds(schema)["same"] == "constant"
    assert "Dropped 'same': the same value in every row." in schema.notes


def test_95_of_100_numbers_are_a_column_of_numbers_and_94_are_not():
    for odd, kind in ((5, "number"), (6, "category")):
        cells = [str(i % 13) for i in range(100 - odd)] + ["?!"] * odd
        schema = describe(pl.DataFrame({"x": cells, "y": [0, 1] * 50}), target="y")
        assert kinds(schema)["x"] == kind


def target_frame(target):
    return pl.DataFrame({"x": rng().normal(size=len(target)), "y": target})


@pytest.mark.parametrize(
    ("target", "task", "classes"),
    [
        ([0, 1] * 30, "binary", ("0", "1")),
        ([0.0, 1.0] * 30, "binary", ("0", "1")),
        ([True, False] * 30, "binary", ("false", "true")),
        (["b", "a"] * 30, "binary", ("a", "b")),
        ([10, 9, 2] * 20, "multiclass", ("2", "9", "10")),
        (["10", "9", "x"] * 20, "multiclass", ("10", "9", "x")),
        (list(range(20)) * 5, "multiclass", tuple(str(i) for i in range(20))),
        (list(range(21)) * 5, "regression", ()),
        (list(range(30)) * 2, "regression", ()),
        ([0.5, 1.0, 1.5] * 20, "regression", ()),
        ([0.5, 1.5] * 30, "binary", ("0.5", "1.5")),
        ([str(i / 8) for i in range(58)] + ["x", "y"], "regression", ()),
    ],
)
def test_the_task_by_the_target(target, task, classes):
    schema = describe(target_frame(target), target="y")
    assert (schema.task, schema.classes) == (task, classes)
    assert schema.notes[0].startswith(f"Task: {task}, because 'y'")
    if classes:
        counts = Counter(str(t).lower().removesuffix(".0") for t in target)
        assert schema.class_counts == tuple(counts[label] for label in classes)
    else:
        assert schema.class_counts == ()


def test_the_task_can_be_overruled():
    frame = target_frame([1, 2, 3, 4] * 15)
    assert describe(frame, target="y").task == "multiclass"
    schema = describe(frame, target="y", task="regression")
    assert (schema.task, schema.classes) == ("regression", ())
    assert describe(target_frame([0.5, 1.0, 1.5] * 20), target="y", task="multiclass").classes == ("0.5", "1", "1.5")
    assert "4 classes, so the task is not binary. Use `--task multiclass`" in refusal(
        describe, frame, target="y", task="binary"
    )
    assert "is not a number in most rows (for example 'b')" in refusal(
        describe, target_frame(["b", "c"] * 30), target="y", task="regression"
    )
    assert "one of binary, multiclass, regression, got 'ranking'" in refusal(
        describe, frame, target="y", task="ranking"
    )


@pytest.mark.parametrize(
    ("options", "said", "fix"),
    [
        ({"target": "incone"}, "there is no column 'incone' to predict", "Did you mean 'Income'?"),
        ({"target": "zzz"}, "there is no column 'zzz'", "The table has 'Income', 'x', 'z', 'empty', 'fixed'."),
        ({"target": "Income", "drop": ["Z "]}, "`--drop` names 'Z '", "Did you mean 'z'?"),
        (
            {"target": "Income", "categorical": ["q"]},
            "`--categorical` names 'q', which is not a column",
            "The table has",
        ),
        ({"target": "Income", "group": "q"}, "`--group` names 'q'", "The table has"),
        ({"target": "Income", "time": "q"}, "`--time` names 'q'", "The table has"),
        ({"target": "Income", "drop": ["Income"]}, "which is the target", "Leave it out there"),
        ({"target": "Income", "drop": ["x"], "group": "x"}, "both `--drop` and `--group`", "Leave one of them out"),
        ({"target": "Income", "time": "x", "group": "x"}, "both `--group` and `--time`", "Leave one of them out"),
        ({"target": "Income", "time": "z"}, "neither numbers nor dates", "2024-12-31"),
        ({"target": "empty"}, "is missing in every row", "Choose another column"),
        ({"target": "fixed"}, "has only one class ('1')", "Choose another column, or rows with both outcomes"),
        ({"target": "fixed", "task": "regression"}, "has only one value", "Choose another column"),
        ({"target": "z"}, "has 40 classes in 40 rows, too many to learn", "`--task regression`"),
        ({"target": "Income", "drop": ["x", "z"]}, "no column left to predict 'Income' from", "`--categorical COL`"),
    ],
)
def test_what_cannot_be_described_is_refused(options, said, fix):
    frame = pl.DataFrame(
        {
            "Income": [0, 1] * 20,
            "x": rng().normal(size=40),
            "z": [f"w{i}" for i in range(40)],
            "empty": pl.Series([None] * 40, dtype=pl.Float64),
            "fixed": [1] * 40,
        }
    )
    text = refusal(describe, frame, **options)
    assert said in text
    assert fix in text


def test_rows_without_a_target_are_counted_and_dropped():
    frame = target_frame([1.5, None, 2.5, 3.5] * 10)
    schema = describe(frame, target="y")
    assert schema.unlabelled == 10
    assert "10 of 40 rows have no usable target 'y' and are dropped." in schema.notes
    kept = schema.labelled(frame)
    assert kept.height == 30
    assert kept["x"].to_list() == [x for i, x in enumerate(frame["x"]) if i % 4 != 1]
    mixed = target_frame([str(i / 2) for i in range(58)] + ["n.d.", None])
    assert describe(mixed, target="y").unlabelled == 2


def test_many_names_are_told():
    frame = pl.DataFrame({"town": [f"t{i % 150}" for i in range(600)], "y": [0, 1] * 300})
    schema = describe(frame, target="y")
    assert kinds(schema)["town"] == "category"
    assert any(note.startswith("More than 100 different names in 'town'") for note in schema.notes)


def test_rare_classes_are_told():
    schema = describe(target_frame(["a"] * 50 + ["b"] * 9), target="y")
    assert "Class 'b' with fewer than 10 rows: the results for it are little more than chance." in schema.notes
    assert schema.class_counts == (50, 9)


def test_ambiguous_and_unreadable_dates_are_told():
    frame = pl.DataFrame(
        {
            "a": ["01/02/2020", "03/04/2021"] * 20,
            "b": ["01/22/2020", "03/14/2021"] * 20,
            "c": ["22/01/2020", "14/03/2021"] * 20,
            "d": ["2020-01-02T10:00:00Z"] * 20 + ["2020-01-02T10:00:00+02:00"] * 19 + ["soon"],
            "y": [0, 1] * 20,
        }
    )
    schema = describe(frame, target="y")
    patterns = {column.name: column.pattern for column in schema.columns}
    assert patterns["a"] == patterns["b"] == "%m/%d/%Y"
    assert patterns["c"] == "%d/%m/%Y"
    told = [note for note in schema.notes if "month/day/year" in note]
    assert len(told) == 1
    assert told[0].startswith("'a' may be")
    assert any(note.startswith("'d' is treated as a date") and "1 of its cells" in note for note in schema.notes)
    hours = values.dates(frame["d"], patterns["d"]).dt.hour()
    assert (hours[0], hours[25], hours[39]) == (10, 8, None)


def test_group_and_time_are_not_seen_by_the_model():
    schema = describe(people(), target="y", group="job", time="since")
    assert kinds(schema)["job"] == "group"
    assert kinds(schema)["since"] == "time"
    assert {"job", "since"}.isdisjoint(column.name for column in schema.features)
    assert set(schema.used) == {"age", "job", "member", "since", "review", "y"}
    assert sum("does not see it" in note for note in schema.notes) == 2


NASTY = [
    "<script>alert(1)</script>",
    "a,b",
    'it\'s "quoted"',
    "^.*$",
    "*",
    "",
    "日本語 \u202e",
    "{x}",
    "__class__",
    "x\ny",
]


def test_names_are_never_more_than_names(tmp_path):
    """Markup, patterns, formulas and line breaks in the names of columns and classes come through as they are."""
    r = rng()
    frame = pl.DataFrame({name: r.normal(size=40) for name in NASTY}).with_columns(
        pl.Series("[red]y", ["=1+1", "<b>&"] * 20)
    )
    frame.write_parquet(tmp_path / "t.parquet")
    frame.write_csv(tmp_path / "t.csv")
    for path in (tmp_path / "t.parquet", tmp_path / "t.csv"):
        table = read(path)
        assert table.columns == [*NASTY, "[red]y"]
        schema = describe(table, target="[red]y", categorical=["*"], drop=["^.*$"], group="{x}")
        assert [c.name for c in schema.features] == [name for name in NASTY if name not in ("^.*$", "{x}")]
        assert schema.classes == ("<b>&", "=1+1")
        parts = split(table, schema, seed=0)
        encoder = TableEncoder.from_dict(json.loads(json.dumps(TableEncoder.fit(table, schema, parts.train).to_dict())))
        assert encoder.transform(table, parts.test).shape == (len(parts.test), encoder.width)
        assert encoder.inverse_target(encoder.transform_target(table)).tolist() == ["=1+1", "<b>&"] * 20
        assert all("\n" not in note for note in schema.notes)
    assert read(tmp_path / "t.parquet", skip=["*"]).columns == [name for name in [*NASTY, "[red]y"] if name != "*"]


def test_long_names_make_short_sentences():
    frame = pl.DataFrame({"n" * 5000: ["w"] * 30, "x": rng().normal(size=30), "y": [0, 1] * 15})
    schema = describe(frame, target="y")
    assert all(len(note) < 300 for note in schema.notes)
    assert len(refusal(describe, frame, target="m" * 5000)) < 400


# --- splitting ---


def parts_of(parts):
    return [part.tolist() for part in (parts.train, parts.val, parts.test)]


@given(st.integers(0, 10**6), st.lists(st.sampled_from("aab"), min_size=40, max_size=120))
@settings(max_examples=25)
def test_every_row_once_and_every_class_in_its_share(seed, target):
    target = [*target, *"abababababab"]
    frame = target_frame(target)
    parts = split(frame, describe(frame, target="y"), seed=seed)
    assert sorted([*parts.train, *parts.val, *parts.test]) == list(range(len(target)))
    for label in "ab":
        total = target.count(label)
        for rows in (parts.val, parts.test):
            assert abs(sum(target[i] == label for i in rows) - 0.2 * total) <= 1.0


def test_seeds_repeat_and_differ():
    frame = people(200)
    schema = describe(frame, target="y")
    assert parts_of(split(frame, schema, seed=3)) == parts_of(split(frame, schema, seed=3))
    assert parts_of(split(frame, schema, seed=3)) != parts_of(split(frame, schema, seed=4))


def test_regression_parts_cover_the_range():
    frame = target_frame(np.exp(rng(1).normal(size=300)).tolist())
    schema = describe(frame, target="y")
    parts = split(frame, schema, seed=0)
    tenths = np.quantile(frame["y"], [0.1, 0.9])
    for rows in (parts.train, parts.val, parts.test):
        y = frame["y"].to_numpy()[rows]
        assert (y < tenths[0]).mean() == pytest.approx(0.1, abs=0.01)
        assert (y > tenths[1]).mean() == pytest.approx(0.1, abs=0.01)


def test_few_large_groups_are_in_every_part_and_many_small_ones_are_kept_whole():
    r = rng()
    frame = pl.DataFrame(
        {
            "x": r.normal(size=600),
            "sex": np.where(np.arange(600) % 10 == 0, "f", "m"),
            "patient": [f"p{i // 5}" for i in range(600)],
            "y": r.integers(0, 2, 600),
        }
    )
    parts = split(frame, describe(frame, target="y", group="sex"), seed=0)
    for rows in (parts.train, parts.val, parts.test):
        assert (frame["sex"].gather(rows) == "f").mean() == pytest.approx(0.1, abs=0.01)
    assert parts.notes == ()
    schema = describe(frame, target="y", group="patient")
    for seed in range(4):
        parts = split(frame, schema, seed=seed)
        sides = [set(frame["patient"].gather(rows)) for rows in (parts.train, parts.val, parts.test)]
        assert sum(len(side) for side in sides) == len(set.union(*sides)) == 120
        assert [len(rows) for rows in (parts.train, parts.val, parts.test)] == [360, 120, 120]
    assert parts.notes == ("'patient' has 120 groups: each is kept whole, so that none is on two sides of a split.",)
    given = split(frame, schema, seed=0, test_rows=range(500, 600))
    assert given.notes[0].startswith("'patient' has 100 groups"), "those that are dealt out"
    loose = split(frame, schema, seed=0, whole_groups=False)
    assert set(frame["patient"].gather(loose.train)) & set(frame["patient"].gather(loose.test))


@pytest.mark.parametrize("kind", ["number", "date", "text"])
def test_time_cuts_and_does_not_shuffle(kind):
    order = rng(5).permutation(200)
    days = [date.fromordinal(737000 + int(i) // 3) for i in order]
    times = {"number": order // 3, "date": days, "text": [d.strftime("%d.%m.%Y") for d in days]}[kind]
    frame = pl.DataFrame({"x": rng().normal(size=200), "t": times, "y": rng(1).integers(0, 2, 200)})
    schema = describe(frame, target="y", time="t")
    parts = split(frame, schema, seed=0)
    moments = order // 3
    assert moments[parts.train].max() < moments[parts.val].min()
    assert moments[parts.val].max() < moments[parts.test].min()
    assert [len(rows) for rows in (parts.train, parts.val, parts.test)] == [120, 39, 41]
    assert parts_of(parts) == parts_of(split(frame, schema, seed=1))


def test_rows_without_a_time_are_never_tested():
    times = [None if i % 5 == 0 else i for i in range(100)]
    frame = pl.DataFrame({"x": rng().normal(size=100), "t": times, "y": [0, 1] * 50})
    parts = split(frame, describe(frame, target="y", time="t"), seed=0)
    assert all(times[i] is not None for i in [*parts.val, *parts.test])
    assert parts.notes == ("20 rows have no 't' and count as the earliest.",)


def test_what_cannot_be_split_is_refused():
    frame = pl.DataFrame({"x": rng().normal(size=40), "t": [1] * 40, "y": [0, 1] * 20})
    assert "too few different moments" in refusal(split, frame, describe(frame, target="y", time="t"), seed=0)
    frame = frame.with_columns(pl.Series("t", np.arange(40)), pl.Series("y", [0] * 30 + [1] * 10))
    assert "only one class" in refusal(split, frame, describe(frame, target="y", time="t"), seed=0)
    frame = target_frame([0, 1, None, 1] * 10)
    assert "10 rows have no target 'y'" in refusal(split, frame, describe(frame, target="y"), seed=0)
    frame = frame.with_columns(pl.Series("g", ["one"] * 40), pl.Series("y", [0, 1] * 20))
    schema = describe(frame, target="y", group="g")
    assert "too few groups" in refusal(split, frame, schema, seed=0, whole_groups=True)
    with pytest.raises(ValueError, match="must leave rows for training"):
        split(frame, schema, seed=0, test=0.5, val=0.5)


def test_a_test_file_is_the_test_part():
    train, test = people(60), people(25, seed=1)
    schema = describe(train, target="y")
    lean = test.drop("same", "id").with_columns(pl.col("age").cast(pl.Int64), extra=pl.lit(1))
    frame, rows = append(train, lean, schema)
    assert rows.tolist() == list(range(60, 85))
    assert frame["age"].to_list() == train["age"].to_list() + test["age"].to_list()
    parts = split(frame, schema, seed=0, test_rows=rows)
    assert parts.test.tolist() == rows.tolist()
    assert len(parts.val) == 15
    assert sorted([*parts.train, *parts.val]) == list(range(60))
    assert "lacks the column 'age' of the training table" in refusal(append, train, lean.drop("age"), schema)
    assert "lacks columns 'id', 'same'" in refusal(append, train, lean)


def test_a_test_file_with_other_types():
    train = pl.DataFrame(
        {"a": [1, 2], "b": ["1", "x"], "c": [1.5, 2.0], "d": [date(2020, 1, 2)] * 2, "e": [None, None]}
    )
    test = pl.DataFrame({"e": ["q"], "d": [datetime(2020, 1, 3, 12)], "c": ["n.d."], "b": [7], "a": [2.5]})
    frame, _ = append(train, test)
    assert frame["a"].to_list() == [1.0, 2.0, 2.5]
    assert frame["b"].to_list() == ["1", "x", "7"]
    assert values.numbers(frame["c"]).to_list() == [1.5, 2.0, None]
    assert frame["d"].to_list() == [datetime(2020, 1, 2), datetime(2020, 1, 2), datetime(2020, 1, 3, 12)]
    assert frame["e"].to_list() == [None, None, "q"]


row = st.tuples(st.sampled_from([None, 1.0, 2.0]), st.sampled_from(["a", "b", None]))


@given(st.lists(row, max_size=8), st.lists(row, max_size=8))
def test_duplicates_by_brute_force(train, test):
    kind = {"x": pl.Float64, "y": pl.String}
    frames = [pl.DataFrame(rows, schema=kind, orient="row") for rows in (train, test)]
    assert duplicates_across(*frames) == sum(row in train for row in test)


# --- encoding ---


def golden_frame():
    return pl.DataFrame(
        {
            "n": [1.0, 2.0, None, 6.0] * 10,
            "c": ["a", "a", "b", None] * 10,
            "b": [True, False, True, True] * 10,
            "d": [date(1970, 1, 1), date(1970, 1, 2)] * 20,
            "y": [10.0, 20.0, 30.0, 40.0] * 10,
        }
    )


def test_golden_numbers():
    """Worked out by hand: mean 3, deviation sqrt(14/3), median 2; seconds 0 and 86400; Thursday and Friday."""
    frame = golden_frame()
    schema = describe(frame, target="y", task="regression")
    encoder = TableEncoder.fit(frame, schema)
    assert encoder.features == (
        *("n", "n (missing)", "c = a", "c = b", "c (other)", "c (missing)", "b"),
        *("d: year", "d: month", "d: weekday", "d: seconds"),
    )
    s = math.sqrt(14 / 3)
    expected = [
        [-2 / s, 0, 1, 0, 0, 0, 1, 0, 0, -1, -1],
        [-1 / s, 0, 1, 0, 0, 0, 0, 0, 0, 1, 1],
        [-1 / s, 1, 0, 1, 0, 0, 1, 0, 0, -1, -1],
        [3 / s, 0, 0, 0, 0, 1, 1, 0, 0, 1, 1],
    ]
    np.testing.assert_allclose(encoder.transform(frame)[:4], expected, atol=1e-6)
    y = encoder.transform_target(frame)
    np.testing.assert_allclose(y[:4], np.array([-15, -5, 5, 15]) / math.sqrt(125), rtol=1e-6)
    np.testing.assert_allclose(encoder.inverse_target(y)[:4], [10, 20, 30, 40], rtol=1e-6)
    assert encoder.transform(frame).dtype == y.dtype == np.float32
    new = pl.DataFrame({"d": [None], "b": [None], "c": ["zzz"], "n": [1e300], "other": [0]})
    np.testing.assert_allclose(
        encoder.transform(new)[0], [1e4, 0, 0, 0, 1, 0, 0.75, 0, 0, 0, 0], atol=1e-6
    )  # a missing date is the median: noon between the two


def test_words_by_hand():
    """Two words in one cell, one of them twice: amounts 1 and 1 + ln 2, times their rarity, over the length."""
    cells = pl.Series("t", ["a b b", "a", None, "--"])
    column = TextColumn.fit("t", cells, 64)  # fewer words than features: no directions to find
    out = np.zeros((4, 2), np.float32)
    column.fill(cells, out)
    one, two = 1 + math.log(5 / 3), (1 + math.log(5 / 2)) * (1 + math.log(2))  # "a" is in two cells of four, "b" in one
    length, size = math.hypot(one, two), math.sqrt(2 / 8)  # two rows of length one, two of zero, two features
    expected = [[one / length / size, two / length / size], [1 / size, 0], [0, 0], [0, 0]]
    np.testing.assert_allclose(out, expected, rtol=1e-5)
    again = np.zeros((1, 2), np.float32)
    column.fill(pl.Series("t", ["B, a; b!"]), again)
    np.testing.assert_array_equal(again[0], out[0])


def test_texts_are_reduced_to_what_another_library_finds():
    from sklearn.decomposition import TruncatedSVD
    from sklearn.feature_extraction.text import TfidfVectorizer

    draw = rng()
    vocabulary = [f"word{k}" for k in range(80)]
    texts = [" ".join(draw.choice(vocabulary[20 * (i % 3) : 20 * (i % 3) + 40], 12)) for i in range(90)]
    column = TextColumn.fit("t", pl.Series("t", texts), 5)
    out = np.zeros((90, 5), np.float32)
    column.fill(pl.Series("t", texts), out)
    weighted = TfidfVectorizer(sublinear_tf=True).fit_transform(texts)
    theirs = TruncatedSVD(5, algorithm="arpack").fit_transform(weighted)
    # The same distances between texts, whatever the signs of the directions; found by chance methods, so about.
    ours = out / np.sqrt(np.mean(np.square(out)))
    theirs = theirs / np.sqrt(np.mean(np.square(theirs)))
    np.testing.assert_allclose(np.abs(np.corrcoef(ours[:, 0], theirs[:, 0])[0, 1]), 1.0, atol=1e-3)
    apart = lambda x: np.linalg.norm(x[:, None] - x[None], axis=2)  # noqa: E731
    assert np.corrcoef(apart(ours[:, :3]).ravel(), apart(theirs[:, :3]).ravel())[0, 1] > 0.99
    assert np.mean(np.square(out)) == pytest.approx(1, rel=1e-3)


def test_rare_levels_are_pooled_and_common_ones_capped():
    levels = ["a"] * 20 + ["b"] * 30 + ["c"] * 5 + ["d"] + ["e"]
    frame = pl.DataFrame({"c": levels, "y": [i % 2 for i in range(57)]})
    schema = describe(frame, target="y")
    assert TableEncoder.fit(frame, schema).features == ("c = b", "c = a", "c = c", "c (other)")
    capped = TableEncoder.fit(frame, schema, levels=2)
    assert capped.features == ("c = b", "c = a", "c (other)")
    assert capped.transform(frame).sum(axis=0).tolist() == [30, 20, 7]
    assert capped.transform(pl.DataFrame({"c": ["new", None]})).tolist() == [[0, 0, 1], [0, 0, 1]]


def test_memory_bounds_the_width():
    frame = people(200)
    schema = describe(frame, target="y")
    wide, narrow = TableEncoder.fit(frame, schema), TableEncoder.fit(frame, schema, memory=200 * 4 * 50)
    assert wide.width > 64
    assert narrow.width <= 50
    assert {c.name for c in narrow.columns} == {c.name for c in wide.columns}
    least = TableEncoder.fit(frame, schema, memory=1)  # as little as can be, and no endless loop
    assert least.width < narrow.width


numbers = st.one_of(st.none(), st.floats(allow_nan=False, allow_infinity=False), st.sampled_from([0.0, 1.0, -5.0]))


@given(st.lists(numbers, min_size=2, max_size=30), st.lists(numbers, min_size=1, max_size=5))
def test_any_numbers_give_finite_features(train, new):
    schema_frame = pl.DataFrame({"x": [0.5, 1.5, None] * 10, "y": [0, 1, 1] * 10})
    schema = describe(schema_frame, target="y")
    frame = pl.DataFrame({"x": train, "y": [0] * len(train)}, schema={"x": pl.Float64, "y": pl.Int64})
    encoder = TableEncoder.fit(frame, schema)
    for cells in (train, [*new, 1e308, -1e308, math.inf, math.nan, None]):
        x = encoder.transform(pl.DataFrame({"x": cells}, schema={"x": pl.Float64}))
        assert np.isfinite(x).all()
    known = [cell for cell in train if cell is not None]
    x = encoder.transform(frame)[:, 0].astype(np.float64)
    here = x[[cell is not None for cell in train]]
    if known and max(known) - min(known) > 1e-6 * max(map(abs, known)):
        assert here.mean() == pytest.approx(0, abs=1e-4)
        assert here.std() == pytest.approx(1, abs=1e-4)
        # Order is kept: a standardised column is the column.
        assert (np.diff(here[np.argsort(known, kind="stable")]) >= 0).all()


@given(st.lists(st.one_of(st.none(), cells), min_size=25, max_size=40))
def test_categories_come_back(levels):
    """Each row has exactly one feature set, and a level's name can be read off the feature's."""
    frame = pl.DataFrame({"c": values.clean(pl.Series(levels, dtype=pl.String)), "x": rng().normal(size=len(levels))})
    frame = frame.with_columns(pl.Series("y", [i % 2 for i in range(len(levels))]))
    encoder = (
        TableEncoder.fit(frame, describe(frame, target="y", categorical=["c"])) if frame["c"].n_unique() > 1 else None
    )
    if encoder is None or "c" not in [column.name for column in encoder.columns]:
        return
    names = encoder.features
    matrix = encoder.transform(frame)
    position = [i for i, name in enumerate(names) if name.startswith("c")]
    assert (matrix[:, position].sum(axis=1) == 1).all()
    counts = Counter(level for level in frame["c"] if level is not None)
    for cell, told in zip(frame["c"], matrix[:, position].argmax(axis=1), strict=True):
        name = names[position[told]]
        if cell is None:
            assert name == "c (missing)"
        else:
            assert name == (f"c = {cell}" if counts[cell] >= 2 else "c (other)")


@given(st.lists(st.floats(-1e12, 1e12), min_size=5, max_size=40, unique=True))
def test_regression_targets_come_back(target):
    schema = describe(target_frame([0.5, 1.5, 2.5, 7.0] * 10), target="y")
    frame = target_frame(target)
    encoder = TableEncoder.fit(frame, schema)
    back = encoder.inverse_target(encoder.transform_target(frame))
    spread = max(target) - min(target)
    np.testing.assert_allclose(back, target, atol=1e-5 * spread + 1e-12)


@given(st.integers(0, 1000))
@settings(max_examples=20)
def test_only_training_rows_shape_the_encoder(seed):
    """Whatever stands in the other rows, the encoder and the training features stay as they are, bit by bit."""
    frame = people(80)
    schema = describe(frame, target="y")
    parts = split(frame, schema, seed=seed)
    other = people(80, seed=seed + 1)
    is_train = pl.Series(np.isin(np.arange(80), parts.train))
    changed = pl.DataFrame([a.zip_with(is_train, b) for a, b in zip(frame, other, strict=True)])
    changed = changed.with_columns(pl.Series("age", changed["age"]).zip_with(is_train, pl.Series([1e9] * 80)))
    first, second = (TableEncoder.fit(table, schema, parts.train) for table in (frame, changed))
    assert first.to_dict() == second.to_dict()
    np.testing.assert_array_equal(first.transform(frame, parts.train), second.transform(changed, parts.train))
    moved = changed.with_columns(pl.Series("age", [5.0] * 80))
    assert TableEncoder.fit(moved, schema, parts.train).to_dict() != first.to_dict()


def test_rows_and_pieces_change_nothing():
    frame = pl.concat([people(300, seed=i) for i in range(60)])  # more rows than are encoded at a time
    schema = describe(frame, target="y", drop=["id"])
    encoder = TableEncoder.fit(frame, schema, words=16)
    whole = encoder.transform(frame)
    rows = rng().permutation(frame.height)[:9000]
    np.testing.assert_array_equal(encoder.transform(frame, rows), whole[rows])
    np.testing.assert_array_equal(encoder.transform(frame[8190:8195]), whole[8190:8195])


def test_predicting_reads_cells_by_meaning(tmp_path):
    """A file to predict gives other types: integers for floats, words for numbers, text for dates."""
    frame = people(120)
    encoder = TableEncoder.fit(frame, describe(frame, target="y"))
    few = frame[[3, 4]].drop("y", "id", "same")
    few.select(reversed(few.columns)).write_csv(tmp_path / "few.csv")
    table = read(tmp_path / "few.csv", least=1)
    assert table["age"].dtype == pl.Int64 or table["age"].dtype == pl.Float64
    dates = table.with_columns(pl.col("since").str.to_date())  # training had typed dates, so text has no pattern
    np.testing.assert_array_equal(encoder.transform(dates), encoder.transform(frame, np.array([3, 4])))
    as_words = dates.with_columns(pl.col("age", "member").cast(pl.String))
    np.testing.assert_array_equal(encoder.transform(as_words), encoder.transform(dates))
    codes = pl.DataFrame({"z": [7, 8, 9] * 20, "y": [0, 1] * 30})
    encoder = TableEncoder.fit(codes, describe(codes, target="y", categorical=["z"]))
    for cells in ([7, 8], [7.0, 8.0], ["7", "8"], [" 7", "8 "]):
        np.testing.assert_array_equal(encoder.transform(pl.DataFrame({"z": cells})), encoder.transform(codes)[:2])


def test_wrong_columns_at_prediction_are_named():
    frame = people()
    encoder = TableEncoder.fit(frame, describe(frame, target="y"))
    text = refusal(encoder.transform, frame.rename({"age": "Age"}))
    assert text == "the table lacks the column 'age' that the model was trained on. Did you mean 'Age'?"
    assert "lacks the 2 columns 'age', 'job'" in refusal(encoder.transform, frame.drop("age", "job"))
    for name, odd, what in (("age", "old", "numbers"), ("member", "maybe", "truth values"), ("since", "May", "dates")):
        text = refusal(encoder.transform, frame.with_columns(pl.Series(name, [odd] * 60)))
        assert f"the column '{name}' should hold {what}" in text
        assert repr(odd) in text
    one = frame.with_columns(pl.Series("age", ["old", *["30"] * 59]))
    assert encoder.transform(one)[0, encoder.features.index("age (missing)")] == 1  # one slip is a missing cell


def test_wrong_targets_are_named():
    frame = people()
    encoder = TableEncoder.fit(frame, describe(frame, target="y"))
    assert "no column 'y' with the target" in refusal(encoder.transform_target, frame.drop("y"))
    odd = frame.with_columns(pl.Series("y", ["perhaps", *["no"] * 59]))
    assert "has the unknown class 'perhaps' in 1 of 60 rows; known are 'no', 'yes'" in refusal(
        encoder.transform_target, odd
    )
    gap = frame.with_columns(pl.Series("y", [None, *["no"] * 59]))
    assert "is missing in 1 of 60 rows" in refusal(encoder.transform_target, gap)
    amounts = target_frame([1.5, 2.5, 3.5] * 10)
    encoder = TableEncoder.fit(amounts, describe(amounts, target="y"))
    assert "is not a number in 1 of 2 rows" in refusal(encoder.transform_target, pl.DataFrame({"y": [1.0, None]}))
    assert "no training rows" in refusal(
        TableEncoder.fit, amounts, describe(amounts, target="y"), np.array([], np.int64)
    )


def test_plain_data_there_and_back():
    for task, target in (("binary", "y"), ("regression", "age")):
        frame = people(100)
        schema = describe(frame, target=target)
        frame = schema.labelled(frame)
        assert schema.task == task
        encoder = TableEncoder.fit(frame, schema)
        text = json.dumps(encoder.to_dict(), allow_nan=False)
        again = TableEncoder.from_dict(json.loads(text))
        assert again == encoder
        assert json.dumps(again.to_dict()) == text
    assert "format 99, and this version reads 2" in refusal(TableEncoder.from_dict, {**encoder.to_dict(), "format": 99})


@pytest.mark.processes
def test_equal_features_in_another_process(tmp_path):
    frame = people(100)
    encoder = TableEncoder.fit(frame, describe(frame, target="y"))
    frame.write_parquet(tmp_path / "t.parquet")
    (tmp_path / "encoder.json").write_text(json.dumps(encoder.to_dict()))
    code = (
        "import json, sys, numpy as np; from pathlib import Path; from reweigh.bench.tables import TableEncoder, read;"
        "folder = Path(sys.argv[1]);"
        "encoder = TableEncoder.from_dict(json.loads((folder / 'encoder.json').read_text()));"
        "np.save(folder / 'x.npy', encoder.transform(read(folder / 't.parquet')));"
        "print('torch' in sys.modules)"
    )
    environment = {**os.environ, "PYTHONHASHSEED": "12345"}
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True, env=environment
    )
    np.testing.assert_array_equal(np.load(tmp_path / "x.npy"), encoder.transform(frame))
    assert done.stdout.strip() == "False"  # predicting with a booster does not wait for torch


# --- tables by name ---

ADULT = (
    "39, State-gov, 77516, Bachelors, 13, Never-married, Adm-clerical, Not-in-family, White, Male, 2174, 0, 40, ?, {}\n"
)
BANK = '"age";"job";"duration";"y"\r\n56;"housemaid";261;"no"\r\n57;"services";149;"yes"\r\n'
COVTYPE = "2596,51" + ",0" * 52 + ",5\n"
HYPO = "hypothyroid,72,M" + ",f" * 11 + ",y,30,y,0.60,y,15,y,1.48,y,10,n,?\n"


def official(root):
    files = {
        "adult/adult.data": (ADULT.format("<=50K") * 2 + "\n").encode(),
        "adult/adult.test": ("|1x3 Cross validator\n" + ADULT.format(">50K.") + "\n").encode(),
        "bank/bank-additional-full.csv": BANK.encode(),
        "covtype/covtype.data.gz": gzip.compress((COVTYPE * 3).encode()),
        "hypothyroid/hypothyroid.data": (HYPO * 2).encode(),
    }
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def test_official_files(tmp_path, monkeypatch):
    official(tmp_path)
    monkeypatch.setenv("REWEIGH_DATA", str(tmp_path))
    table = catalogue.load("adult")
    assert table.frame["income"].to_list() == ["<=50K", "<=50K", ">50K"]
    assert table.frame["age"].to_list() == [39] * 3
    assert table.frame["native-country"].null_count() == 3
    assert (table.target, table.test_rows, table.stand_in_for) == ("income", range(2, 3), None)
    table = catalogue.load("bank")
    assert table.frame.rows() == [(56, "housemaid", 261, "no"), (57, "services", 149, "yes")]
    assert "duration" in table.notes[0]
    table = catalogue.load("covtype")
    assert table.frame.shape == (3, 55)
    assert table.frame.row(0)[:2] == (2596, 51)
    assert table.frame["Cover_Type"].to_list() == [5, 5, 5]
    table = catalogue.load("hypothyroid", root=tmp_path)
    assert table.frame.shape == (2, 26)
    assert table.frame["T3"].to_list() == [0.6, 0.6]
    assert table.source == f"official files in {tmp_path / 'hypothyroid'}"
    present = {row.name: row.present for row in catalogue.describe()}
    assert all(present[name] for name in ("adult", "bank", "covtype", "hypothyroid"))


@pytest.mark.parametrize(
    ("module", "contents", "shape"),
    [
        (adult, {"train": ADULT.format(">50K"), "test": ADULT.format("<=50K.")}, (2, 15)),
        (bank, {"all": BANK}, (2, 4)),
        (covtype, {"all": ",".join(covtype._NAMES) + "\n" + COVTYPE * 4}, (4, 55)),
        (hypothyroid, {"all": HYPO * 3}, (3, 26)),
    ],
    ids=lambda value: getattr(value, "__name__", "").rsplit(".", 1)[-1] or None,
)
def test_registry_packages(tmp_path, monkeypatch, module, contents, shape):
    """A package of the same layout, made here; the real ones are pinned by their hash."""
    name = module.__name__.rsplit(".", 1)[-1]
    real = module.CARD.packages[0]
    with pytest.raises(FileNotFoundError, match=r"neither under a data root \(none is set\) nor in the cache"):
        catalogue.load(name)
    cached = tmp_path / "cache" / "pip" / f"{real.name}-{real.version}.whl"
    cached.parent.mkdir(parents=True)
    with zipfile.ZipFile(cached, "w") as archive:
        for key, content in contents.items():
            archive.writestr(module.MEMBERS[key], content)
    with pytest.raises(ValueError, match=r"damaged or was changed\. Fetch it again"):  # not the pinned bytes
        catalogue.load(name)
    fake = Package(registry="pip", name=real.name, version=real.version, sha256=sha256_of(cached), size=1)
    card = type(module.CARD)(**{**module.CARD.__dict__, "packages": (fake,)})
    monkeypatch.setattr(module, "CARD", card)
    table = catalogue.load(name)
    assert table.frame.shape == shape
    assert (table.sha256, table.source) == (fake.sha256, f"pip package {real.name} {real.version}")


def test_keel_tables_name_their_columns_themselves(tmp_path: Path):
    (tmp_path / "keel").mkdir()
    head = "@relation pima\n@attribute Preg real [0, 17]\n@attribute Class{positive, negative}\n@data\n"
    (tmp_path / "keel" / "pima.dat").write_text(head + "6, positive\n1,negative\n")
    table = catalogue.load("keel:table=pima", NamedTable, root=tmp_path)
    assert (table.target, table.frame.rows()) == ("Class", [(6, "positive"), (1, "negative")])
    with pytest.raises(UserError, match=r"`table` must be one of .*pima"):
        keel.read({}, table="pimas")


def test_names_and_cards():
    images = ["cifar10_permuted", "fashion_mnist_permuted", "mnist_permuted"]
    assert catalogue.names("tables") == sorted(
        ["adult", "bank", "covtype", "criteo", "hypothyroid", "keel", "obesity", *images]
    )
    entries = [entry for entry in catalogue.describe() if entry.kind == "tables"]
    assert {entry.present for entry in entries} == {None}
    for entry in entries:
        assert entry.card.official
        assert all(re.fullmatch("[0-9a-f]{64}", package.sha256) for package in entry.card.packages)
    assert adult.CARD.packages == bank.CARD.packages  # fetched once for both
    with pytest.raises(ValueError, match=r"there is no data set named 'adlut'\. Did you mean 'adult'\?"):
        catalogue.load("adlut")
    with pytest.raises(FileNotFoundError, match="is not a folder"):
        catalogue.load("adult", root=Path("/nowhere/at/all"))


# --- size ---


@pytest.mark.slow
def test_time_is_linear_in_the_rows(tmp_path):
    r, n = rng(), 200_000
    frame = pl.DataFrame(
        {f"n{i}": r.normal(size=n) for i in range(20)}
        | {f"c{i}": pl.Series(r.integers(0, 50, n)).cast(pl.String) + "x" for i in range(8)}
        | {"when": pl.Series(r.integers(15 * 10**14, 17 * 10**14, n)).cast(pl.Datetime("us")), "y": r.integers(0, 3, n)}
    )
    seconds = []
    for rows in (n // 10, n):  # the second table is the one to be looked at
        frame[:rows].write_parquet(tmp_path / "t.parquet")
        began = time.process_time()
        table = read(tmp_path / "t.parquet")
        schema = describe(table, target="y")
        parts = split(table, schema, seed=0)
        encoder = TableEncoder.fit(table, schema, parts.train)
        matrices = [encoder.transform(table, part) for part in (parts.train, parts.val, parts.test)]
        seconds.append(time.process_time() - began)
    assert seconds[1] < 30 * seconds[0]
    assert sum(len(matrix) for matrix in matrices) == n
    assert encoder.width == 20 + 8 * 33 + 4
    assert all(np.isfinite(matrix).all() for matrix in matrices)
    assert duplicates_across(table[parts.train], table[parts.test]) == 0


@pytest.mark.parametrize("dtype", [pl.Float32, pl.Float64, pl.Int16, pl.Int64, pl.UInt8])
def test_columns_without_gaps_are_encoded_as_those_with_gaps_are(dtype):
    """Numbers that are read as they lie in memory have the features of the same numbers read cell by cell."""
    draw = np.random.default_rng(0)
    numbers = pl.Series("n", draw.integers(0, 100, 400)).cast(dtype)
    frame = pl.DataFrame({"n": numbers, "y": np.where(draw.random(400) < 0.5, "a", "b")})
    # In two chunks a column does not lie in one piece of memory, and is read cell by cell.
    pieces = pl.concat([frame[:150], frame[150:]], rechunk=False)
    assert pieces["n"].n_chunks() == 2
    rows = np.sort(draw.permutation(400)[:300])
    schema = describe(frame, target="y")
    encoders = [TableEncoder.fit(own, schema, rows) for own in (frame, pieces)]
    assert encoders[0].to_dict() == encoders[1].to_dict()
    for chosen in (None, rows, rows[::-1]):
        first, second = (e.transform(own, chosen) for e, own in zip(encoders, (frame, pieces), strict=True))
        np.testing.assert_array_equal(first, second)
    infinite = pl.DataFrame({"n": [1.0, float("inf"), 3.0, float("nan")], "y": ["a", "b", "a", "b"]})
    assert np.isfinite(encoders[0].transform(infinite)).all()


def test_ten_thousand_columns_do_not_cost_ten_seconds_a_split(monkeypatch):
    """Counted, not timed: no column of plain numbers is cast or gathered by the table library."""
    frame = pl.DataFrame(np.random.default_rng(0).normal(size=(60, 300)), schema=[f"c{i}" for i in range(300)])
    frame = frame.with_columns(y=pl.Series(["a", "b"] * 30))
    schema = describe(frame, target="y")
    calls: list[str] = []
    monkeypatch.setattr(values, "numbers", lambda series: calls.append(series.name))
    encoder = TableEncoder.fit(frame, schema, np.arange(40))
    for rows in (np.arange(40), np.arange(40, 50), np.arange(50, 60)):
        assert encoder.transform(frame, rows).shape == (len(rows), 300)
    assert calls == []


def test_a_file_of_thousands_of_columns_is_read_in_few_looks(tmp_path, monkeypatch):
    frame = pl.DataFrame(np.arange(60_000.0).reshape(20, 3000), schema=[f"c{i}" for i in range(3000)])
    frame.write_parquet(tmp_path / "wide.parquet")
    looks: list[int] = []
    collect = pl.LazyFrame.collect
    monkeypatch.setattr(pl.LazyFrame, "collect", lambda lazy, **more: looks.append(1) or collect(lazy, **more))
    assert read(tmp_path / "wide.parquet").equals(frame)
    assert len(looks) < 10
