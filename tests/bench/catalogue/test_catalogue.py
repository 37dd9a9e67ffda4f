"""Everything that has a name, in one listing and by one command."""

import subprocess
import sys
from pathlib import Path

import pytest

from reweigh.bench import catalogue
from reweigh.bench.catalogue.images import Dataset
from reweigh.bench.catalogue.tables import NamedTable

ADULT = "39, Private, 77516, Bachelors, 13, Never-married, Sales, Wife, White, Female, 0, 0, 40, Cuba, "


def test_the_folders_are_the_kinds_and_all_stand_in_one_listing(monkeypatch, tmp_path):
    monkeypatch.setenv("REWEIGH_CACHE", str(tmp_path))
    entries = {entry.name: entry for entry in catalogue.describe(root=tmp_path)}
    assert catalogue.KINDS == ("domains", "images", "streams", "tables", "texts", "weights")
    files = Path(catalogue.__file__).parent.glob("*/[!_]*.py")
    assert list(entries) == catalogue.names()
    assert {(entry.kind, entry.name) for entry in entries.values()} == {(p.parent.name, p.stem) for p in files}
    assert {"adult", "bank", "digits", "cifar10", "food101", "sotu", "pacs", "minilm"} <= set(entries)
    assert (entries["adult"].kind, entries["cifar10"].kind) == ("tables", "images")
    assert (entries["digits"].present, entries["adult"].present) == ("installed", None)
    # What is made from other data is where those are.
    assert (entries["rotated_digits"].present, entries["mnist_permuted"].present) == ("installed", None)


def test_every_data_set_has_a_card_and_a_reader():
    for entry in catalogue.describe():
        assert isinstance(entry.card, catalogue.DataCard)
        assert entry.card.size
        assert entry.card.licence
        assert entry.card.source
        assert all(len(package.sha256) == 64 for package in entry.card.packages)


def test_no_name_means_two_things():
    assert len(set(catalogue.names())) == len(catalogue.names())
    assert [name for kind in catalogue.KINDS for name in catalogue.names(kind)] == catalogue.names()


def test_a_listing_waits_for_no_large_library():
    code = "import sys; from reweigh.bench import catalogue; catalogue.describe(); print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "numpy" in loaded
    assert not {"torch", "pandas", "polars", "statsmodels", "sklearn", "scipy", "PIL"} & set(loaded)


def test_getting_a_table_and_getting_images(tmp_path, monkeypatch):
    (tmp_path / "adult").mkdir()
    (tmp_path / "adult" / "adult.data").write_text(f"{ADULT}<=50K\n{ADULT}>50K\n")
    (tmp_path / "adult" / "adult.test").write_text(f"|1x3 Cross validator\n{ADULT}<=50K.\n")
    monkeypatch.setenv("REWEIGH_DATA", str(tmp_path))
    assert catalogue.get("adult") == "adult is ready: 3 rows with 14 columns and the target 'income'."
    assert catalogue.get("digits") == "digits is ready: 1258 training and 539 test examples."


@pytest.mark.parametrize(("wrong", "meant"), [("adlut", "'adult'"), ("cifar11", "'cifar10'")])
def test_a_misspelt_name_is_answered_with_the_near_one_of_any_kind(wrong, meant):
    with pytest.raises(ValueError, match=f"no data set named '{wrong}'.*{meant}"):
        catalogue.get(wrong)


def test_a_name_of_another_kind_is_refused_before_anything_is_read():
    assert isinstance(catalogue.load("digits", Dataset), Dataset)
    with pytest.raises(ValueError, match=r"this takes tables, not 'digits'\. Known: adult, bank"):
        catalogue.load("digits", NamedTable)
    with pytest.raises(ValueError, match=r"no data set named 'mnist_permute'\. Did you mean 'mnist_permuted'"):
        catalogue.load("mnist_permute", NamedTable)
