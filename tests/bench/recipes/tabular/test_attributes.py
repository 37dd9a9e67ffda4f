"""One column per attribute: numbers worked out by hand, and CovType with twelve columns."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from reweigh.bench import tables
from reweigh.bench.catalogue.tables import covtype
from reweigh.bench.draws.seeds import Seeds
from reweigh.bench.recipes import _rows, tabular
from reweigh.bench.recipes._attributes import Attributes, joined
from reweigh.bench.tables import TableError


def test_levels_are_numbered_in_the_order_of_their_names_and_all_is_standardised() -> None:
    frame = pl.DataFrame(
        {
            "age": [10.0, 20.0, None, 30.0] * 10,
            "city": ["Rom", "Bonn", "Rom", None] * 10,
            "y": ["a", "b"] * 20,
        }
    )
    schema = tables.describe(frame, target="y")
    fitted = Attributes.fit(frame, schema, np.arange(40))
    later = pl.DataFrame({"age": [20.0, 40.0, None], "city": ["Bonn", "Paris", "Rom"], "y": ["a", "a", "a"]})
    # Ages 10, 20 and 30 have mean 20 and variance 200/3; missing is the median, 20. Of the cities, Bonn is 0, Rom 1,
    # and missing or unknown -1: codes 1, 0, 1, -1 have mean 1/4 and variance 11/16.
    ages = (np.array([20.0, 40.0, 20.0]) - 20) / (200 / 3) ** 0.5
    cities = (np.array([0.0, -1.0, 1.0]) - 0.25) / (11 / 16) ** 0.5
    np.testing.assert_allclose(fitted.transform(later, np.arange(3)), np.stack([ages, cities], 1), rtol=1e-6)


def test_training_rows_decide_and_no_others() -> None:
    frame = pl.DataFrame(
        {"x": [1.0, 3.0] * 10 + [1000.0] * 20, "c": ["p", "q"] * 10 + ["r"] * 20, "y": ["a", "b"] * 20}
    )
    fitted = Attributes.fit(frame, tables.describe(frame, target="y"), np.arange(20))
    np.testing.assert_allclose(fitted.transform(frame, np.arange(2)), [[-1, -1], [1, 1]])
    assert fitted.transform(frame, np.array([30]))[0, 1] == -3  # a level that training rows do not have


def test_indicators_must_be_indicators() -> None:
    frame = pl.DataFrame({"s1": [1, 0], "s2": [1, 1]})
    with pytest.raises(TableError, match="must hold one 1 in every row"):
        joined(frame, {"s": ("s1", "s2")})


@pytest.fixture
def forest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A small CovType in the official layout."""
    rng = np.random.default_rng(0)
    rows = 60
    numbers = rng.integers(0, 3000, size=(rows, 10))
    areas = np.eye(4, dtype=int)[rng.integers(4, size=rows)]
    soils = np.eye(40, dtype=int)[rng.integers(40, size=rows)]
    kinds = np.arange(rows)[:, None] % 7 + 1
    (tmp_path / "covtype").mkdir()
    lines = "\n".join(",".join(map(str, row)) for row in np.concatenate([numbers, areas, soils, kinds], 1))
    (tmp_path / "covtype" / "covtype.data").write_text(lines + "\n")
    monkeypatch.setattr(covtype, "_TRAIN", 35)
    monkeypatch.setattr(covtype, "_VAL", 7)
    monkeypatch.setenv("REWEIGH_DATA", str(tmp_path))
    _rows._read.cache_clear()
    _rows._dealt.cache_clear()


@pytest.mark.usefixtures("forest")
def test_covtype_has_twelve_columns_for_met_and_one_per_level_for_the_others() -> None:
    base = _rows.RowSelection(data="covtype", rows=0, test_rows=0, validation=0.2, side=0, levels=32, attributes=True)
    attributes, levels = (_rows.deal(dataclasses.replace(base, attributes=a), Seeds(0)) for a in (True, False))
    assert attributes.x_train.shape[1] == 12
    assert levels.x_train.shape[1] > 40
    for part in ("train", "val", "test"):
        assert getattr(attributes, f"y_{part}").equal(getattr(levels, f"y_{part}"))
    x = attributes.x_train.numpy()
    np.testing.assert_allclose(x.mean(0), 0, atol=1e-5)
    np.testing.assert_allclose(x.std(0), 1, rtol=1e-5)
    # A row's loss starts near one: what is told is near zero, and columns have mean zero and variance one.
    assert float(np.square(x).mean()) == pytest.approx(1.0, rel=1e-4)
    _rows._read.cache_clear()
    _rows._dealt.cache_clear()


def test_met_reads_attributes_and_the_others_levels_unless_told() -> None:
    paper = tabular.PRESETS["paper"]
    own = {a: dataclasses.replace(paper, algorithm=a).attributes for a in tabular.ALGORITHMS}
    assert {algorithm for algorithm, attributes in own.items() if attributes} == {"met_s", "met", "met_r"}
    assert dataclasses.replace(paper, algorithm="mlp", columns="attributes").attributes
    assert not dataclasses.replace(paper, columns="levels").attributes


def test_the_paper_preset_has_criteo_itself() -> None:
    columns = {column.name: column for column in tabular.table("paper").columns}
    assert len(columns) == 8
    assert columns["Criteo"].settings["data"] == "criteo"
    assert (columns["Criteo"].paper["rgd"], columns["Criteo"].paper["TabNet"]) == (86.98, 80.91)
    assert "Bank Marketing" not in columns
    assert columns["MNIST"].stand_in is None  # all pixels and rows, so nothing stands in
    small = {column.name: column for column in tabular.table("cpu").columns}
    assert small["Bank Marketing"].stand_in == "Criteo"
    assert small["Bank Marketing"].paper == columns["Criteo"].paper
