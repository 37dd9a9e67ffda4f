"""Tables of this experiment by name: read from official files of the right layout, images as permuted columns."""

from __future__ import annotations

import gzip
import hashlib
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from reweigh.bench import catalogue, limits
from reweigh.bench.catalogue import permuted
from reweigh.bench.catalogue.tables import criteo, mnist_permuted
from reweigh.bench.draws.seeds import Seeds
from reweigh.bench.recipes import _rows

ABUNDANCE = (
    "sampleID\tA\tB\tC\ndisease\tobesity\tleaness\tobesity\nbmi\t33\t22\t31\n"
    "k__Bacteria|s__one\t0.5\t0\t1.25\nk__Bacteria|s__two\t0\t2\t3\n"
)


@pytest.fixture(autouse=True)
def nothing_around(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("REWEIGH_DATA", raising=False)
    monkeypatch.setenv("REWEIGH_CACHE", str(tmp_path / "cache"))


def archive(root: Path, member: str, text: str) -> None:
    (root / "obesity").mkdir()
    with zipfile.ZipFile(root / "obesity" / "abundance.zip", "w") as file:
        file.writestr(member, text)


def test_obesity(tmp_path: Path) -> None:
    archive(tmp_path, "abundance_Obesity.txt", ABUNDANCE)
    table = catalogue.load("obesity", root=tmp_path)
    assert table.frame.rows() == [(0.5, 0.0, "obese"), (0.0, 2.0, "lean"), (1.25, 3.0, "obese")]
    assert (table.target, table.test_rows, table.stand_in_for) == ("class", None, None)
    present = {row.name: row.present for row in catalogue.describe(root=tmp_path)}
    assert present["obesity"] == str(tmp_path / "obesity")
    assert present["criteo"] is None


def test_another_archive_is_refused(tmp_path: Path) -> None:
    archive(tmp_path, "abundance_Obesity.txt", "a\t1\n")
    with pytest.raises(ValueError, match="should have lines of species"):
        catalogue.load("obesity", root=tmp_path)


def test_an_archive_that_grows_without_end_is_not_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "most_unpacked", lambda packed: 50)
    archive(tmp_path, "abundance_Obesity.txt", ABUNDANCE)
    with pytest.raises(ValueError, match="unpacks to more than"):
        catalogue.load("obesity", root=tmp_path)


@pytest.mark.parametrize("name", ["obesity", "criteo"])
def test_tables_of_no_registry_say_where_to_put_them(name: str) -> None:
    with pytest.raises(FileNotFoundError, match=rf"no registry has it\. Put .* into DATA_ROOT/{name}/"):
        catalogue.load(name, download=True)


def test_criteo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    line = "\t".join(["1", *map(str, range(12)), "", *["a1b2"] * 25, ""])
    (tmp_path / "criteo").mkdir()
    content = "\n".join([line, "0" + line[1:], line]) + "\n"
    (tmp_path / "criteo" / "train.txt.gz").write_bytes(gzip.compress(content.encode()))
    table = catalogue.load("criteo", root=tmp_path)
    assert table.frame.shape == (3, 40)
    assert table.frame["click"].to_list() == [1, 0, 1]
    assert table.frame["I12"].to_list() == [11] * 3
    assert table.frame["I13"].null_count() == table.frame["C26"].null_count() == 3
    monkeypatch.setattr(criteo, "LINES", 2)
    assert catalogue.load("criteo", root=tmp_path).frame.height == 2


# --- images ---


@pytest.mark.parametrize(
    ("columns", "digest"), [(196, "8c03a1260cde30cf"), (784, "1461adb23958eaf4"), (3072, "69fcb6f7558c0b14")]
)
def test_the_permutation_is_one_and_stays(columns: int, digest: str) -> None:
    order = permuted.permutation(columns)
    assert sorted(order.tolist()) == list(range(columns))
    assert hashlib.sha256(order.astype("<i8").tobytes()).hexdigest()[:16] == digest


def test_pixels_at_full_size_are_only_reordered() -> None:
    images = np.random.default_rng(0).integers(0, 256, (3, 4, 5, 2), np.uint8)
    found = permuted.columns(images)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, images.reshape(3, 40)[:, permuted.permutation(40)] / 255, rtol=1e-6)


@pytest.mark.parametrize(("size", "side"), [(28, 14), (32, 14), (9, 4), (5, 5)])
def test_smaller_pixels_are_means_over_their_area(size: int, side: int) -> None:
    """By brute force: every pixel cut into side x side, so that new pixels are whole blocks."""
    images = np.random.default_rng(0).integers(0, 256, (2, size, size, 3), np.uint8)
    found = permuted.columns(images, side)
    back = np.empty_like(found)
    back[:, permuted.permutation(side * side)] = found
    fine = images.mean(-1).repeat(side, 1).repeat(side, 2)
    blocks = fine.reshape(2, side, size, side, size).mean((2, 4))
    np.testing.assert_allclose(back.reshape(2, side, side) * 255, blocks, atol=1e-3)


def test_images_as_a_named_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mnist_permuted, "BASE", "digits")
    table, digits = catalogue.load("mnist_permuted"), catalogue.load("digits")
    assert table.frame.shape == (1797, 65)
    assert table.test_rows == range(1258, 1797)
    order = permuted.permutation(64)
    row = table.frame.row(1300)
    np.testing.assert_array_equal(row[:64], digits.x_test[1300 - 1258].reshape(64)[order])
    assert row[64] == digits.classes[digits.y_test[1300 - 1258]]


# --- rows of one seed ---


def draw(**changes: Any) -> _rows.RowSelection:
    values = {"data": "digits", "rows": 300, "test_rows": 100, "validation": 0.2, "side": 0, "levels": 8}
    return _rows.RowSelection(**{**values, **changes})


def test_seeds_draw_other_training_rows_and_the_same_test_rows() -> None:
    first, second = (_rows.deal(draw(), Seeds(seed)) for seed in (0, 1))
    # Another scale is another seed's too, so the test rows are compared by what a scale does not change.
    np.testing.assert_array_equal(first.y_test, second.y_test)
    np.testing.assert_array_equal(first.x_test.sort(dim=1, stable=True)[1], second.x_test.sort(dim=1, stable=True)[1])
    assert not np.array_equal(first.y_train, second.y_train)
    assert (len(first.x_train) + len(first.x_val), len(first.x_test)) == (300, 100)
    assert len(_rows.deal(draw(rows=0, test_rows=0), Seeds(0)).x_test) == 539


def test_pixels_are_standardised_by_training_rows_alone() -> None:
    task = _rows.deal(draw(), Seeds(0))
    assert abs(float(task.x_train.mean())) < 1e-5
    assert float(task.x_train.std(unbiased=False)) == pytest.approx(1.0, abs=1e-5)
    assert abs(float(task.x_val.mean())) > 1e-6


def test_a_table_is_dealt_without_looking_at_test_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(0)
    people = [("obesity" if i % 3 else "leaness", random.normal(), random.normal()) for i in range(60)]
    lines = ["\t".join(["disease", *(p[0] for p in people)])]
    lines += ["\t".join([f"k__{k}", *(str(p[k]) for p in people)]) for k in (1, 2)]
    archive(tmp_path, "abundance_Obesity.txt", "\n".join(lines) + "\n")
    monkeypatch.setenv("REWEIGH_DATA", str(tmp_path))
    _rows._read.cache_clear()
    _rows._dealt.cache_clear()
    try:
        task = _rows.deal(draw(data="obesity", rows=0, test_rows=0), Seeds(0))
        assert [len(part) for part in (task.x_train, task.x_val, task.x_test)] == [39, 9, 12]
        np.testing.assert_allclose(task.x_train.mean(0), 0, atol=1e-6)
        assert abs(float(task.x_test.mean())) > 1e-3
        assert task.classes == ("lean", "obese")
        scores = task.score("test", -task.x_test)
        assert scores["accuracy_or_auroc"] == scores["auroc"] != scores["accuracy"]
    finally:
        _rows._read.cache_clear()
        _rows._dealt.cache_clear()
