"""Everything that can be asked for by name, in one listing and by one command."""

import pytest

from reweigh.bench import catalogue, checkpoints, data, domains, text
from reweigh.bench.models import _weights
from reweigh.bench.tables import named

ADULT = "39, Private, 77516, Bachelors, 13, Never-married, Sales, Wife, White, Female, 0, 0, 40, Cuba, "


def test_images_and_tables_stand_in_one_listing(monkeypatch, tmp_path):
    monkeypatch.setenv("REWEIGH_CACHE", str(tmp_path))
    rows = {row.name: row for row in catalogue.describe(root=tmp_path)}
    assert (
        list(rows)
        == catalogue.names()
        == (data.names() + named.names() + text.names() + domains.names() + checkpoints.names() + _weights.names())
    )
    assert {"adult", "bank", "covtype", "hypothyroid", "digits", "cifar10"} <= set(rows)
    assert (rows["adult"].kind, rows["cifar10"].kind) == ("table", "images")
    assert (rows["digits"].present, rows["adult"].present) == ("installed", None)


def test_no_name_means_two_things():
    assert len(set(catalogue.names())) == len(catalogue.names())


def test_getting_a_table_and_getting_images(tmp_path, monkeypatch):
    (tmp_path / "adult").mkdir()
    (tmp_path / "adult" / "adult.data").write_text(f"{ADULT}<=50K\n{ADULT}>50K\n")
    (tmp_path / "adult" / "adult.test").write_text(f"|1x3 Cross validator\n{ADULT}<=50K.\n")
    monkeypatch.setenv("REWEIGH_DATA", str(tmp_path))
    assert catalogue.get("adult") == "adult: 3 rows with 14 columns and the target 'income' are ready."
    assert catalogue.get("digits") == "digits: 1258 training and 539 test examples are ready."


@pytest.mark.parametrize(("wrong", "meant"), [("adlut", "'adult'"), ("cifar11", "'cifar10'")])
def test_a_misspelt_name_is_answered_with_the_near_one_of_either_kind(wrong, meant):
    with pytest.raises(ValueError, match=f"no data named '{wrong}'.*{meant}"):
        catalogue.get(wrong)
