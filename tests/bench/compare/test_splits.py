"""Which rows a seed trains on, chooses on and tests on."""

import numpy as np
import pytest
from people_table import people

from reweigh.bench.compare.dealing import deal
from reweigh.bench.compare.problem import DataQuestion
from reweigh.bench.compare.reading import load
from reweigh.bench.compare.splits import parts_of, with_test_rows


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
