from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats as scipy_stats

from reweigh.bench.lab.stats import Difference, at_level, corrected, mean_and_sd, paired, resampled, unpaired

#: Differences 1, 2, 3: mean 2, sd 1, standard error 1/sqrt(3), t quantile with 2 degrees 4.302653.
HAND = ([11.0, 12.0, 13.0], [10.0, 10.0, 10.0])


def difference(p: float, *, primary: bool = False, mean: float = 1.0) -> Difference:
    return Difference(n=10, mean=mean, sd=1.0, low=mean - 0.5, high=mean + 0.5, effect=mean, p=p, primary=primary)


def test_paired_matches_hand_worked_numbers():
    found = paired(*HAND)
    assert (found.n, found.mean, found.sd, found.effect) == (3, 2.0, 1.0, 2.0)
    assert found.low == pytest.approx(2 - 4.302653 / math.sqrt(3), abs=1e-5)
    assert found.high == pytest.approx(2 + 4.302653 / math.sqrt(3), abs=1e-5)
    # With two degrees of freedom the t distribution has a closed form: p = 1 - t / sqrt(t^2 + 2).
    t = 2 * math.sqrt(3)
    assert found.p == pytest.approx(1 - t / math.sqrt(t**2 + 2), abs=1e-12)
    assert found.p_permutation is None


@given(st.integers(2, 12), st.integers(0, 10_000))
def test_paired_matches_scipy_on_the_two_samples(n: int, seed: int):
    draw = np.random.default_rng(seed)
    ours, theirs = draw.normal(1, 2, n), draw.normal(0, 1, n)
    found, reference = paired(ours.tolist(), theirs.tolist()), scipy_stats.ttest_rel(ours, theirs)
    assert found.p == pytest.approx(reference.pvalue)
    assert (found.low, found.high) == pytest.approx(tuple(reference.confidence_interval(0.95)))


@pytest.mark.parametrize(("n", "seed"), [(9, 0), (9, 1), (10, 2), (12, 3)])
def test_sign_flips_match_a_brute_force_enumeration(n: int, seed: int):
    ours = np.random.default_rng(seed).normal(0.5, 1, n)
    signs = np.array(list(itertools.product((1, -1), repeat=n)))
    share = np.mean(np.abs(signs @ ours) >= abs(ours.sum()) - 1e-9)
    assert paired(ours.tolist(), [0.0] * n).p_permutation == pytest.approx(share, abs=1e-12)


def test_sign_flips_of_many_pairs_are_sampled_and_repeatable():
    ours = np.random.default_rng(4).normal(0.4, 1, 24).tolist()
    first, second = paired(ours, [0.0] * 24), paired(ours, [0.0] * 24)
    assert first.p_permutation == second.p_permutation
    assert first.p_permutation == pytest.approx(first.p, abs=0.02)  # for normal data the two tests nearly agree


def test_identical_differences_are_no_certainty():
    two, six = paired([1.1, 1.2], [1.0, 1.1]), paired([1.1] * 6, [1.0] * 6)
    assert two.p == 0.5  # both signs equal: one of two
    assert six.p == 2 / 64
    assert two.conclusion() == "no evidence"
    assert six.conclusion() == "better"
    assert paired([1.0, 2.0], [1.0, 2.0]).p == 1.0
    assert two.constant
    assert six.constant
    assert not paired(*HAND).constant
    assert not paired([2.0], [1.0]).constant, "one pair has no deviation"


def test_identical_differences_are_told_without_an_interval():
    six, split = paired([1.1] * 6, [1.0] * 6), resampled([1.1] * 4, [1.0] * 4, test_over_train=0.25)
    assert six.verdict("rgd", "mean", "accuracy") == "rgd improves on mean in accuracy: +0.10 in every pair, n = 6."
    assert split.verdict("rgd", "mean", "accuracy") == (
        "No evidence of a difference in accuracy between rgd and mean: +0.10 in every pair, n = 4."
    )


def test_rounding_is_no_difference():
    found = paired([0.8 + 1e-16] * 8, [0.8 - 1e-16] * 8)
    assert (found.mean, found.p, found.conclusion()) == (0.0, 1.0, "no evidence")


def test_one_pair_says_nothing():
    found = paired([2.0], [1.0])
    assert found.conclusion() == "too few pairs"
    assert "run more seeds" in found.verdict("rgd", "mean", "accuracy")


@pytest.mark.parametrize("bad", [([1.0], [1.0, 2.0]), ([], []), ([math.nan, 1.0], [1.0, 1.0]), ([math.inf], [1.0])])
def test_unpaired_or_diverged_numbers_are_refused(bad: tuple[list[float], list[float]]):
    with pytest.raises(ValueError, match="paired statistics need"):
        paired(*bad)


def test_resampled_matches_the_formula_worked_by_hand():
    # A fifth of the rows for testing, a fifth for validation and three fifths for training: n_test / n_train = 1/3;
    # standard error 1 * sqrt(1/3 + 1/3) = sqrt(2/3).
    found, plain = resampled(*HAND, test_over_train=0.2 / 0.6), paired(*HAND)
    error = math.sqrt(2 / 3)
    assert found.low == pytest.approx(2 - 4.302653 * error, abs=1e-5)
    assert found.high == pytest.approx(2 + 4.302653 * error, abs=1e-5)
    t = 2 / error
    assert found.p == pytest.approx(1 - t / math.sqrt(t**2 + 2), abs=1e-12)
    assert found.low < plain.low
    assert found.p > plain.p


@pytest.mark.parametrize("ratio", [0.0, -0.2, math.inf, math.nan])
def test_resampled_needs_a_ratio_of_rows(ratio: float):
    with pytest.raises(ValueError, match="test_over_train"):
        resampled(*HAND, test_over_train=ratio)


def test_holm_matches_hand_worked_numbers():
    # Sorted: .01*4, .02*3, .03*2, .04*1, then made monotone: .04, .06, .06, .06.
    found = corrected({name: difference(p) for name, p in {"d": 0.04, "a": 0.01, "c": 0.03, "b": 0.02}.items()})
    assert {name: round(d.p_holm or 0, 12) for name, d in found.items()} == {"d": 0.06, "a": 0.04, "c": 0.06, "b": 0.06}
    assert list(found) == ["d", "a", "c", "b"]


def test_the_declared_comparison_is_not_corrected():
    found = corrected({"rgd": difference(0.03, primary=True), "a": difference(0.03), "b": difference(0.04)})
    assert found["rgd"].p_holm is None
    assert found["rgd"].decisive_p == 0.03
    assert found["a"].decisive_p == 0.06  # two comparisons, not three
    assert found["rgd"].conclusion() == "better"
    assert found["a"].conclusion() == "no evidence"
    assert corrected({"rgd": difference(0.5, primary=True)})["rgd"].p_holm is None


def test_power_is_that_of_the_paired_t_test_by_simulation():
    # Ten pairs of deviation 1 and a true difference of 1: draw such designs and count.
    draw = np.random.default_rng(0)
    found = [scipy_stats.ttest_1samp(row, 0.0).pvalue < 0.05 for row in draw.normal(1.0, 1.0, (4000, 10))]
    width = 2.262157 / math.sqrt(10)
    design = Difference(n=10, mean=0.0, sd=1.0, low=-width, high=width, effect=0.0, p=1.0)
    assert design.power(1.0) == pytest.approx(np.mean(found), abs=0.02)
    assert design.power(-1.0) == design.power(1.0)
    assert design.power(0.0) == pytest.approx(0.05, abs=1e-6)


@pytest.mark.parametrize("errors", [7.0, 8.0, 20.0, 38.0, 1000.0])
def test_what_is_far_beyond_the_spread_is_seen_for_certain(errors: float):
    design = paired([0.0, 1.0] * 10, [0.0] * 20)
    error = (design.high - design.low) / (2 * scipy_stats.t.ppf(0.975, 19))
    assert design.power(errors * error) == pytest.approx(1.0, abs=1e-4)
    assert design.power(-errors * error) == pytest.approx(1.0, abs=1e-4)


def test_no_evidence_needs_power_for_the_gain_that_matters():
    wide = Difference(n=10, mean=0.2, sd=1.0, low=-0.5, high=0.9, effect=0.2, p=0.5)
    assert wide.conclusion() == "no evidence"
    assert wide.conclusion(gain=2.0) == "no evidence"
    assert wide.conclusion(gain=0.3) == "undecided"
    assert wide.verdict("rgd", "mean", "accuracy", gain=0.3).startswith(
        "Undecided whether rgd and mean differ in accuracy: +0.20 [-0.50, +0.90]"
    )
    assert difference(0.001).conclusion(gain=0.001) == "better", "what was seen needs no power"
    assert paired([2.0], [1.0]).power(1.0) == 0.0


def test_verdicts_in_plain_words():
    better, worse, unclear = difference(0.001), difference(0.001, mean=-1.0), difference(0.3, mean=0.2)
    assert better.verdict("rgd", "mean", "accuracy") == (
        "rgd improves on mean in accuracy: +1.00 [+0.50, +1.50], n = 10."
    )
    assert worse.verdict("rgd", "mean", "accuracy", scale=100, unit=" points", digits=1) == (
        "rgd is worse than mean in accuracy: -100.0 points [-150.0, -50.0], n = 10."
    )
    assert unclear.verdict("rgd", "mean", "accuracy").startswith(
        "No evidence of a difference in accuracy between rgd and mean: +0.20 "
    )


def test_less_may_be_better():
    assert difference(0.001, mean=-1.0).conclusion(smallest=True) == "better"
    assert "is worse than" in difference(0.001).verdict("rgd", "mean", "error", smallest=True)


def test_mean_and_sample_deviation():
    assert mean_and_sd([2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0]) == (5.0, pytest.approx(math.sqrt(32 / 7)))
    mean, sd = mean_and_sd([3.0])
    assert mean == 3.0
    assert math.isnan(sd)


def test_the_interval_covers_the_truth_as_often_as_it_says():
    draw = np.random.default_rng(5)
    samples = draw.normal(0.3, 1.0, (400, 8))
    covered = [d.low <= 0.3 <= d.high for d in (paired(row.tolist(), [0.0] * 8) for row in samples)]
    assert 0.92 <= np.mean(covered) <= 0.98


def test_statistics_do_not_touch_the_global_generator():
    np.random.seed(0)  # noqa: NPY002
    before = np.random.get_state()[1].tolist()  # noqa: NPY002
    paired(np.arange(20.0).tolist(), [3.0] * 20)
    assert np.random.get_state()[1].tolist() == before  # noqa: NPY002


def test_a_stricter_level_is_that_of_the_t_interval():
    ours, baseline = [0.82, 0.85, 0.88, 0.90], [0.80, 0.84, 0.85, 0.88]
    expected = scipy_stats.ttest_rel(ours, baseline)
    difference = at_level(paired(ours, baseline), 0.0125)
    interval = expected.confidence_interval(1 - 0.0125)
    assert (difference.low, difference.high) == pytest.approx((interval.low, interval.high))
    assert difference.p == pytest.approx(min(1.0, 4 * expected.pvalue))
    # It decides just when the test at that level does.
    for shift in (0.0, 0.005, 0.01, 0.015, 0.018, 0.02, 0.025):
        moved = [x + shift for x in ours]
        p = scipy_stats.ttest_rel(moved, baseline).pvalue
        decided = at_level(paired(moved, baseline), 0.0125).conclusion() == "better"
        assert decided == (p < 0.0125)


@given(st.integers(2, 12), st.integers(2, 12), st.integers(0, 10_000))
def test_unpaired_is_the_interval_of_welch(n: int, m: int, seed: int):
    draw = np.random.default_rng(seed)
    ours, theirs = draw.normal(1, 2, n), draw.normal(0, 1, m)
    difference, reference = (
        unpaired(ours.tolist(), theirs.tolist()),
        scipy_stats.ttest_ind(ours, theirs, equal_var=False),
    )
    assert difference.p == pytest.approx(reference.pvalue)
    assert (difference.low, difference.high) == pytest.approx(tuple(reference.confidence_interval(0.95)))


@pytest.mark.parametrize("n", [3, 5, 20])
@pytest.mark.parametrize("gain", [0.2, 0.7, 1.5])
def test_power_against_statsmodels(n: int, gain: float):
    power = pytest.importorskip("statsmodels.stats.power").TTestPower()
    width = scipy_stats.t.ppf(0.975, n - 1) / math.sqrt(n)
    design = Difference(n=n, mean=0.0, sd=1.0, low=-width, high=width, effect=0.0, p=1.0)
    assert design.power(gain) == pytest.approx(power.power(gain, n, 0.05), abs=1e-6)


def test_no_spread_without_pairs_is_no_certainty_either():
    """Two equal numbers against two others: one of six ways to deal out the labels, and one more with signs changed."""
    two, five = unpaired([0.1 + 0.2] * 2, [0.2] * 2), unpaired([2.0] * 5, [1.0] * 5)
    assert two.p == pytest.approx(2 / 6)
    assert two.constant
    assert two.conclusion() == "no evidence"
    test = scipy_stats.permutation_test(([2.0] * 5, [1.0] * 5), lambda a, b: np.mean(a) - np.mean(b), n_resamples=1e6)
    assert five.p == pytest.approx(test.pvalue)
    assert five.conclusion() == "better"
    assert unpaired([1.0] * 3, [1.0] * 3).p == 1.0


@pytest.mark.parametrize("sizes", [(1, 2), (3, 1), (0, 2)])
def test_a_single_number_cannot_be_compared_without_pairs(sizes: tuple[int, int]):
    ours, theirs = ([1.0] * size for size in sizes)
    with pytest.raises(ValueError, match=rf"needs two numbers of each method, got {sizes[0]} and {sizes[1]}"):
        unpaired(ours, theirs)


def test_a_look_spends_its_part_also_where_all_pairs_agree():
    six = paired([1.1] * 6, [1.0] * 6)
    assert (six.p, six.conclusion()) == (2 / 64, "better")
    early = at_level(six, 0.01)
    assert early.p == pytest.approx(5 * 2 / 64)
    assert early.conclusion() == "no evidence"
    assert (early.low, early.high) == (six.low, six.high)
