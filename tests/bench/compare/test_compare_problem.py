"""From what a person names to parts that can be trained on."""

import numpy as np
import polars as pl
import pytest
import torch

from reweigh.bench.compare import recipe
from reweigh.bench.compare.problem import DataQuestion, deal, hash_of, load, parts_of, with_test_rows
from reweigh.bench.errors import UserError
from reweigh.bench.tables import TableError
from reweigh.method import method


def people(n=200):
    draw = np.random.default_rng(0)
    age = draw.integers(18, 80, n)
    return pl.DataFrame(
        {
            "age": age,
            "city": draw.choice(["Rom", "Bonn", "Oslo"], n),
            "income": np.where(age + draw.normal(0, 10, n) > 50, "high", "low"),
            "salary": age * 1000.0 + draw.normal(0, 100, n),
        }
    )


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "people.csv"
    people().write_csv(path)
    return str(path)


def test_a_table_is_dealt_out_and_scored(table):
    problem = load(DataQuestion(source=table, target="income", drop=("salary",), group="city"))
    assert problem.kind == "binary"
    assert problem.classes == ("high", "low")
    assert problem.groups == ("Bonn", "Oslo", "Rom")
    task, encoder = deal(problem, parts_of(problem, 0))
    assert "age" in encoder.features
    assert len(task.x_train) + len(task.x_val) + len(task.x_test) == 200
    # Perfect outputs get perfect scores, for every group.
    perfect = 10.0 * np.eye(2)[task.y_test.numpy()]

    found = task.score("test", torch.from_numpy(perfect))
    assert found["accuracy"] == found["worst_group"] == found["auroc"] == 1.0
    assert len(found["group_score"]) == 3


def test_regression_is_scored_in_the_targets_own_unit(table):
    problem = load(DataQuestion(source=table, target="salary", drop=("income",)))
    assert problem.regression
    task, encoder = deal(problem, parts_of(problem, 1))
    assert task.class_counts == ()
    assert abs(float(task.y_train.mean())) < 1e-5
    off = task.score("val", task.y_val + 1.0)  # one standard deviation off everywhere
    assert off["rmse"] == pytest.approx(encoder.target.deviation, rel=1e-4)


def test_other_seeds_deal_other_parts_and_the_same_seed_the_same(table):
    problem = load(DataQuestion(source=table, target="income", drop=("salary",)))
    first, again, other = (parts_of(problem, seed).train for seed in (0, 0, 1))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


def test_a_test_file_is_the_test_part(table, tmp_path):
    test = tmp_path / "test.csv"
    people(40).write_csv(test)
    problem = load(DataQuestion(source=table, target="income", drop=("salary",), test=str(test)))
    for seed in (0, 1):
        parts = parts_of(problem, seed)
        assert len(deal(problem, parts)[0].x_test) == 40
        assert len(with_test_rows(problem, parts, hold_out=True).train) == len(parts.train)
        assert not set(with_test_rows(problem, parts, hold_out=False).train) & set(parts.test), "given test rows"


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


def test_the_embedded_digits_have_a_long_tail_and_a_balanced_test_set():
    problem = load(DataQuestion())
    task, _ = deal(problem, parts_of(problem, 0))
    counts = task.class_counts
    assert counts[0] > 10 * counts[-1]
    assert np.ptp(np.bincount(task.y_test.numpy())) <= 5


def test_a_model_to_keep_trains_on_all_rows_but_those_a_correction_is_fitted_to(table):
    problem = load(DataQuestion(source=table, target="income", drop=("salary",)))
    parts = parts_of(problem, 0)
    kept = with_test_rows(problem, parts, hold_out=True)
    assert set(kept.train) == set(parts.train) | set(parts.test)
    assert np.array_equal(kept.val, parts.val)
    assert with_test_rows(problem, parts, hold_out=False).train.tolist() == list(range(200))


@pytest.mark.parametrize("group", ["", "city", "person"])
def test_the_folds_of_a_round_test_every_row_once(tmp_path, group):
    frame = people().with_columns(person=np.arange(200) // 4)
    frame.write_csv(tmp_path / "people.csv")
    given = {"source": str(tmp_path / "people.csv"), "target": "income", "drop": ("salary",)}
    problem = load(DataQuestion(**given, group=group))
    for first in (0, 5):
        tested = [parts_of(problem, seed).test for seed in range(first, first + 5)]
        assert sorted(np.concatenate(tested).tolist()) == list(range(200))
        assert all(abs(len(part) - 40) <= 4 for part in tested)
    assert not np.array_equal(parts_of(problem, 0).test, parts_of(problem, 5).test)
    if group == "person":
        for seed in range(5):
            parts = parts_of(problem, seed)
            assert not set(parts.test // 4) & set(parts.train // 4), "a person is on one side"


@pytest.mark.parametrize("target", ["income", "salary"])
def test_time_cuts_at_the_same_rows_and_each_split_leaves_out_another_tenth(tmp_path, target):
    path = tmp_path / "people.csv"
    people(200).with_columns(day=np.arange(200)).write_csv(path)
    other = {"income": "salary", "salary": "income"}[target]
    problem = load(DataQuestion(source=str(path), target=target, drop=(other,), time="day"))
    first, second = parts_of(problem, 0), parts_of(problem, 1)
    for parts in (first, second):
        assert parts.test.tolist() == list(range(160, 200))
        assert parts.val.tolist() == list(range(120, 160))
        assert len(parts.train) == pytest.approx(108, abs=1)
        assert max(parts.train) < 120
        kept = with_test_rows(problem, parts, hold_out=True)
        assert kept.train.tolist() == [*range(120), *range(160, 200)]
    assert not np.array_equal(first.train, second.train)


@pytest.fixture
def photos(tmp_path):
    from PIL import Image

    draw = np.random.default_rng(0)
    for name, count in (("cat", 12), ("dog", 8)):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for i in range(count):
            pixels = draw.integers(0, 255, (9, 7, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / "photos" / name / f"{i}.png")
    return tmp_path / "photos"


def test_a_folder_of_images_is_split_anew_by_every_seed(photos):
    problem = load(DataQuestion(source=str(photos), image_size=8))
    assert (problem.kind, problem.classes, problem.class_counts) == ("binary", ("cat", "dog"), (12, 8))
    tested = [set(parts_of(problem, seed).test.tolist()) for seed in range(4)]
    assert len({frozenset(rows) for rows in tested}) > 1
    parts = parts_of(problem, 0)
    assert sorted([*parts.train, *parts.val, *parts.test]) == list(range(20))
    task, pixels = deal(problem, parts)
    assert task.x_train.shape[1:] == (3, 8, 8)
    assert abs(float(task.x_train.mean())) < 1e-5
    assert pixels.transform(problem.images.x[parts.val]).equal(task.x_val)


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


def test_a_folder_with_given_parts_keeps_them(photos):
    for part in ("train", "test"):
        (photos / part).mkdir()
    for name in ("cat", "dog"):
        (photos / "train" / name).mkdir()
        (photos / "test" / name).mkdir()
        for i, file in enumerate(sorted((photos / name).glob("*.png"))):
            file.rename(photos / ("test" if i < 3 else "train") / name / file.name)
        (photos / name).rmdir()
    problem = load(DataQuestion(source=str(photos), image_size=8))
    assert [problem.images.files[i].split("/")[0] for i in parts_of(problem, 5).test] == ["test"] * 6


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


def test_single_images_that_cannot_be_read_are_skipped_and_counted(photos):
    whole = load(DataQuestion(source=str(photos), image_size=8)).rows
    for name in ("torn.png", "worse.png"):
        (photos / "cat" / name).write_bytes(b"\x89PNG")
    problem = load(DataQuestion(source=str(photos), image_size=8, sha256="changed"))
    assert problem.rows == whole
    (note,) = [note for note in problem.notes if "skipped" in note]
    assert note.startswith("2 images are skipped, the first because")
    assert "torn.png" in note
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


def test_groups_are_handed_to_the_objective(table):
    problem = load(DataQuestion(source=table, target="income", drop=("salary",), group="city"))
    parts = parts_of(problem, 0)
    task, _ = deal(problem, parts)
    assert task.n_groups == 3
    names = [problem.groups[i] for i in task.groups]
    assert names == people()["city"][parts.train.tolist()].to_list()


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


def test_classes_with_too_few_rows_to_test_on_are_named_and_not_judged(tmp_path):
    path = tmp_path / "rare.csv"
    labels = ["a"] * 60 + ["b"] * 40 + ["c"] * 8
    pl.DataFrame({"x": np.arange(108) % 17, "z": np.arange(108) % 5, "y": labels}).write_csv(path)
    problem = load(DataQuestion(source=str(path), target="y"))
    assert problem.judging.counted == (True, True, False)
    assert any("'c' has fewer than 10 rows to test on and cannot be judged" in note for note in problem.notes)


@pytest.mark.parametrize(
    ("labels", "given", "positive", "why"),
    [
        (["a"] * 30 + ["b"] * 70, "", "a", "the rarer class"),
        (["a"] * 70 + ["b"] * 30, "", "b", "the rarer class"),
        (["a"] * 50 + ["b"] * 50, "", "b", "the second of two as frequent"),
        (["a"] * 30 + ["b"] * 70, "b", "b", "as given"),
    ],
)
def test_the_positive_class_is_named_and_thresholds_are_chosen_for_it(labels, given, positive, why, tmp_path):
    draw = np.random.default_rng(0)
    pl.DataFrame({"x": draw.normal(size=100), "y": labels}).write_csv(tmp_path / "two.csv")
    problem = load(DataQuestion(source=str(tmp_path / "two.csv"), target="y", positive=given, cost="fp=1,fn=20"))
    index = problem.classes.index(positive)
    assert problem.judging.positive == index
    assert f"about '{positive}', {why} (`--positive`)" in " ".join(problem.notes)
    for name, text in (
        ("f1", f"threshold:metric=f1,positive={index}" if index == 0 else "threshold:metric=f1"),
        ("matthews", "threshold:metric=matthews"),
        ("auroc", "threshold"),
    ):
        rows = recipe.corrections(("mean", "mean+threshold"), recipe.metric_named(name, problem), problem.judging)
        assert method(rows["mean+threshold"].method) == method(text)
    rows = recipe.corrections(("mean", "mean+threshold"), recipe.metric_named("", problem), problem.judging)
    cut = method(rows["mean+threshold"].method).post
    assert (cut.metric, cut.positive, cut.false_positive, cut.false_negative) == ("cost", index, 1.0, 20.0)


def test_a_positive_class_must_be_one_of_two(table):
    with pytest.raises(UserError, match="must be one of the two classes"):
        load(DataQuestion(source=table, target="income", drop=("salary",), positive="maybe"))


def test_costs_are_about_the_rarer_of_two_classes(table):
    frame = pl.read_csv(table).with_columns(income=pl.when(pl.col("age") > 75).then(pl.lit("a")).otherwise(pl.lit("b")))
    frame.write_csv(table)
    problem = load(DataQuestion(source=table, target="income", drop=("salary",), cost="fp=2,fn=30"))
    assert problem.judging.positive == problem.classes.index("a")
    assert problem.judging.costs == (2.0, 30.0)
    assert any("A false 'a' costs 2, a missed one 30" in note for note in problem.notes)
