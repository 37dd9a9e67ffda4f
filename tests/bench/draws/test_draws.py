"""What is drawn before anything is trained: long tails, wrong labels, splits."""

import hashlib
import json
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reweigh.bench import draws


def rng(seed=0):
    return np.random.default_rng(seed)


# --- long tails ---


def test_cifar10_long_tail_counts():
    y = np.repeat(np.arange(10), 5000)
    totals = {imbalance: len(draws.longtail_indices(y, imbalance, rng())) for imbalance in (200, 100, 50, 20, 10, 1)}
    assert totals == {200: 11203, 100: 12406, 50: 13996, 20: 17023, 10: 20431, 1: 50000}
    kept = draws.longtail_indices(y, 100, rng())
    assert np.bincount(y[kept]).tolist() == [5000, 2997, 1796, 1077, 645, 387, 232, 139, 83, 50]
    meta = draws.longtail_counts(10, 100, 4990)
    assert (meta[0], meta[-1]) == (4990, 49)


def test_cifar100_long_tail_counts():
    y = np.repeat(np.arange(100), 500)
    totals = [len(draws.longtail_indices(y, imbalance, rng())) for imbalance in (200, 100, 50, 20, 10, 1)]
    assert totals == [9502, 10847, 12608, 15907, 19573, 50000]


def test_long_tails_are_random_nested_and_repeatable():
    y = rng(5).permutation(np.repeat(np.arange(4), 60))
    one, again, other = (draws.longtail_indices(y, 10, rng(seed)) for seed in (1, 1, 2))
    assert np.array_equal(one, again)
    assert not np.array_equal(one, other)
    assert np.array_equal(one, np.unique(one))
    wider = draws.longtail_indices(y, 3, rng(1))
    assert set(one) < set(wider)
    # Every example of the last class is kept as often as any other.
    last = np.flatnonzero(y == 3)
    hits = np.zeros(len(y))
    for seed in range(400):
        hits[draws.longtail_indices(y, 10, rng(seed))] += 1
    assert np.abs(hits[last] / 400 - 0.1).max() < 0.06


def test_whole_numbers_are_not_lost_to_rounding():
    # 1000^(-1/3) is a hair off 0.1 in floating point; the counts on paper are exact.
    assert draws.longtail_counts(4, 1000, 5000) == [5000, 500, 50, 5]
    assert draws.longtail_counts(7, 64, 6400) == [6400, 3200, 1600, 800, 400, 200, 100]
    assert draws.longtail_counts(3, 200, 80) == [80, 5, 1]  # 80/200 is less than one example


def test_long_tail_errors():
    y = np.repeat(np.arange(3), 20)
    with pytest.raises(ValueError, match="perhaps you mean 100"):
        draws.longtail_indices(y, 0.01, rng())
    with pytest.raises(ValueError, match="class 0 should keep 30 examples but has 20"):
        draws.longtail_indices(y, 10, rng(), n_max=30)
    with pytest.raises(ValueError, match=r"class sizes \[20, 0, 20\]"):
        draws.longtail_indices(y[y != 1], 10, rng())


def test_unequal_classes_start_from_the_smallest():
    y = np.repeat([0, 1, 2], [50, 30, 40])
    kept = draws.longtail_indices(y, 9, rng())
    assert np.bincount(y[kept]).tolist() == [30, 10, 3]


# --- label noise ---


@pytest.mark.parametrize(("kind", "share"), [("uniform", 0.36), ("flip", 0.4), ("flip2", 0.4)])
def test_noise_changes_the_share_it_should(kind, share):
    y = np.repeat(np.arange(10), 4000)
    noisy = draws.noisy_labels(y, kind, 0.4, 10, rng())
    assert np.array_equal(noisy.changed, noisy.labels != y)
    # Four standard errors of a share of 40 000.
    assert abs(noisy.changed.mean() - share) < 4 * np.sqrt(share * (1 - share) / len(y))
    assert np.allclose(noisy.transition.sum(axis=1), 1)
    confusion = np.zeros((10, 10))
    np.add.at(confusion, (y, noisy.labels), 1 / 4000)
    assert np.abs(confusion - noisy.transition).max() < 5 * np.sqrt(0.25 / 4000)
    assert (confusion[noisy.transition == 0] == 0).all()


def test_the_matrices_are_what_their_names_say():
    y = np.arange(5)
    uniform = draws.noisy_labels(y, "uniform", 0.5, 5, rng()).transition
    assert np.allclose(np.diag(uniform), 0.6)
    assert np.allclose(uniform[~np.eye(5, dtype=bool)], 0.1)
    for kind, number, mass in (("flip", 1, 0.5), ("flip2", 2, 0.25)):
        matrix = draws.noisy_labels(y, kind, 0.5, 5, rng()).transition
        off = matrix[~np.eye(5, dtype=bool)].reshape(5, 4)
        assert np.allclose(np.diag(matrix), 0.5)
        assert ((off > 0).sum(axis=1) == number).all()
        assert np.allclose(off[off > 0], mass)


def test_flip_targets_are_spread_over_all_other_classes():
    targets = {
        int(np.argmax(draws.noisy_labels(np.zeros(1, np.int64), "flip", 1.0, 4, rng(seed)).transition[2]))
        for seed in range(60)
    }
    assert targets == {0, 1, 3}


@given(
    st.sampled_from(["uniform", "flip", "flip2"]),
    st.integers(3, 12),
    st.integers(0, 2**32 - 1),
    st.sampled_from([np.int64, np.int32, np.uint8]),
)
def test_noise_at_its_ends(kind, classes, seed, dtype):
    y = rng(seed).integers(0, classes, 50).astype(dtype)
    clean = draws.noisy_labels(y, kind, 0.0, classes, rng(seed))
    assert np.array_equal(clean.labels, y)
    assert not clean.changed.any()
    full = draws.noisy_labels(y, kind, 1.0, classes, rng(seed))
    assert full.labels.dtype == dtype
    assert full.labels.max() < classes
    assert (full.transition[y, full.labels] > 0).all()
    assert kind == "uniform" or full.changed.all()
    again = draws.noisy_labels(y, kind, 1.0, classes, rng(seed))
    assert np.array_equal(full.labels, again.labels)


def test_a_draw_beyond_a_rounded_row_stays_inside_it():
    class Highest:
        """Uniform draws as large as they get; the matrix from a real generator."""

        choice = staticmethod(rng().choice)

        @staticmethod
        def random(n):
            return np.full(n, np.nextafter(1.0, 0.0))

    noisy = draws.noisy_labels(np.arange(10), "flip2", 0.001, 10, Highest())
    short = noisy.transition.cumsum(axis=1)[:, -1] < 1
    assert (short & (noisy.transition[:, -1] == 0)).any()  # such rows exist at this rate
    assert (noisy.transition[np.arange(10), noisy.labels] > 0).all()


def test_noise_errors():
    y = np.arange(4)
    with pytest.raises(ValueError, match=r"`kind` must be one of .*Did you mean 'uniform'"):
        draws.noisy_labels(y, "uniforme", 0.1, 4, rng())
    with pytest.raises(ValueError, match="`rate` must be"):
        draws.noisy_labels(y, "flip", 1.2, 4, rng())
    with pytest.raises(ValueError, match="at least 3"):
        draws.noisy_labels(y % 2, "flip2", 0.1, 2, rng())
    with pytest.raises(ValueError, match="labels from 0 to 3"):
        draws.noisy_labels(y, "flip", 0.1, 3, rng())


# --- splits and saved indices ---


@given(st.lists(st.integers(0, 4), min_size=1, max_size=80), st.floats(0.01, 0.99), st.integers(0, 1000))
def test_a_split_has_everything_once_and_keeps_the_shares(labels, fraction, seed):
    y = np.array(labels)
    for stay, held in (draws.split(y, fraction, rng(seed)), draws.fixed_split(y, fraction)):
        assert np.array_equal(np.sort(np.concatenate([stay, held])), np.arange(len(y)))
        for label in np.unique(y):
            size, number = (y == label).sum(), (y[held] == label).sum()
            assert abs(number - fraction * size) <= 0.5 + 1e-9 or number in (1, size - 1) or size == 1
            assert size == 1 or 0 < number < size


def test_the_fixed_split_is_fixed_and_the_random_one_is_not():
    y = np.repeat(np.arange(3), 20)
    # The four of 0..19 whose decimal numbers have the smallest sha256, found with `sha256sum | sort`.
    assert draws.fixed_split(y, 0.2)[1][:4].tolist() == [8, 9, 13, 17]
    assert not np.array_equal(draws.split(y, 0.2, rng(0))[1], draws.split(y, 0.2, rng(1))[1])
    with pytest.raises(ValueError, match="`fraction` must be"):
        draws.split(y, 0.0, rng())


def test_indices_carry_their_hash(tmp_path):
    path = tmp_path / "deep" / "train.npy"
    indices = np.array([3, 1, 4], np.int32)
    digest = draws.save_indices(path, indices)
    assert digest == hashlib.sha256(struct.pack("<3q", 3, 1, 4)).hexdigest()
    assert json.loads(path.with_suffix(".json").read_text()) == {"count": 3, "sha256": digest}
    assert draws.load_indices(path).tolist() == [3, 1, 4]
    assert sorted(p.name for p in path.parent.iterdir()) == ["train.json", "train.npy"]
    np.save(path, np.array([3, 1, 5]))
    with pytest.raises(ValueError, match=r"One of the two was changed"):
        draws.load_indices(path)


def test_a_crash_while_saving_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "train.npy"
    draws.save_indices(path, np.arange(3))

    def torn(file, values, **kwargs):
        file.write(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "save", torn)
    with pytest.raises(OSError, match="No space"):
        draws.save_indices(path, np.arange(5))
    assert draws.load_indices(path).tolist() == [0, 1, 2]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["train.json", "train.npy"]


@given(
    st.lists(st.integers(0, 6), min_size=2, max_size=60).filter(lambda groups: len(set(groups)) > 1),
    st.floats(0.05, 0.95),
    st.integers(0, 1000),
)
def test_a_grouped_split_keeps_groups_whole_and_comes_near_the_share(labels, fraction, seed):
    groups = np.array(labels)
    stay, held = draws.grouped_split(groups, fraction, rng(seed))
    assert sorted([*stay, *held]) == list(range(len(groups)))
    assert not set(groups[stay]) & set(groups[held])
    assert len(stay)
    assert len(held)
    # By hand: the groups in the order drawn, held out as long as more than half of the next one fits below the share.
    order = rng(seed).permutation(sorted(set(labels)))
    expected, size = [], 0
    for group in order:
        if size + labels.count(group) / 2 >= fraction * len(labels):
            break
        expected.append(group)
        size += labels.count(group)
    expected = expected[: len(order) - 1] or [order[0]]
    assert set(groups[held]) == set(expected)


@given(
    st.lists(st.integers(0, 9), min_size=2, max_size=60).filter(lambda moments: len(set(moments)) > 1),
    st.floats(0.05, 0.95),
)
def test_a_timed_split_holds_out_the_latest_at_the_best_cut(values, fraction):
    moments = np.array(values, float)
    stay, held = draws.timed_split(moments, fraction)
    assert sorted([*stay, *held]) == list(range(len(values)))
    assert moments[stay].max() < moments[held].min()
    shares = [sum(value >= cut for value in values) / len(values) for cut in sorted(set(values))[1:]]
    assert abs(len(held) / len(values) - fraction) == pytest.approx(min(abs(share - fraction) for share in shares))


def test_a_sampled_split_draws_first_and_keeps_to_its_pool():
    y = np.repeat([0, 1], 50)
    stay, held = draws.sampled_split(y, 0.25, rng(), rows=40, pool=np.arange(20, 80))
    assert len(stay) + len(held) == len({*stay, *held}) == 40
    assert {*stay, *held} <= set(range(20, 80))
    chosen = rng().permutation(np.arange(20, 80))[:40]
    assert [i for i in chosen if i in set(held)] == [i for i in chosen if i not in set(stay)]
    whole = draws.sampled_split(y, 0.25, rng(3))
    assert np.bincount(y[whole[1]]).tolist() == [13, 13]
    assert len(whole[0]) == 74


def test_a_subset_is_sorted_and_no_larger_than_the_rows():
    rows = np.array([9, 3, 5, 7])
    assert draws.subset(rows, 0, rng()) is rows
    assert draws.subset(rows, 4, rng()) is rows
    some = draws.subset(rows, 2, rng())
    assert len(set(some)) == 2
    assert set(some) <= set(rows)
    assert some[0] < some[1]


def test_one_group_or_one_moment_cannot_be_split():
    with pytest.raises(ValueError, match="two different groups, got 1"):
        draws.grouped_split(np.zeros(4, int), 0.5, rng())
    with pytest.raises(ValueError, match="two different moments, got 1"):
        draws.timed_split(np.zeros(4), 0.5)
