from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats as scipy_stats
from sklearn.metrics import balanced_accuracy_score, roc_auc_score

from reweigh.bench.lab.intervals import LOOKS, across_rows, alpha_of_look, half_widths, pseudo_scores


def hits(rounds: int, rows: int, share: float, seed: int) -> np.ndarray:
    return (np.random.default_rng(seed).random((rounds, rows)) < share).astype(float)


def test_hand_worked_numbers():
    # Two equal rounds of four rows, one of which gains: sum 1, squares 1, and the two added rows make the squares 2.
    # Squared error (2 - 1/6) / (5 * 4) = 11/120, rounds add nothing, three degrees of freedom: t = 3.182446.
    ours, baseline = np.array([[1.0, 1, 0, 1]] * 2), np.array([[0.0, 1, 0, 1]] * 2)
    found = across_rows(ours, baseline, test_over_train=0.0)
    assert (found.n, found.mean) == (4, 0.25)
    assert found.high - found.mean == pytest.approx(3.182446 * math.sqrt(11 / 120), abs=1e-5)
    wider = across_rows(ours, baseline, test_over_train=0.25)
    assert wider.high - wider.mean == pytest.approx(3.182446 * math.sqrt(1.25 * 11 / 120), abs=1e-5)


def test_rounds_add_what_their_means_vary_by():
    # Rows gain alike within a round, 0.1 and 0.3: rows have no variance of their own but for the added ones, largest
    # difference 0.2: squares 8 * 0.04 + 0.04 - (1.6)^2 / 10 = 0.104, over 9 * 8; rounds (0.2^2 / 2) / 2 = 0.01.
    ours = np.repeat([[0.1], [0.3]], 8, axis=1)
    found = across_rows(ours, np.zeros((2, 8)), test_over_train=0.0)
    rows, rounds = 0.104 / 72, 0.01
    freedom = (rows + rounds) ** 2 / (rows**2 / 7 + rounds**2 / 1)
    half = scipy_stats.t.ppf(0.975, freedom) * math.sqrt(rows + rounds)
    assert found.mean == pytest.approx(0.2)
    assert found.high - found.mean == pytest.approx(half)


def test_folds_are_trainings_of_their_own():
    # Two rounds of two folds; in the first round fold 0 gains 0.2 and fold 1 loses 0.2, in the second the reverse.
    # Rounds as a whole never differ; each fold moves the mean of its round by 0.1 either way: 4 * 0.1^2 / (2 * 1).
    folds = np.array([[0] * 4 + [1] * 4] * 2)
    ours = np.array([[0.2] * 4 + [-0.2] * 4, [-0.2] * 4 + [0.2] * 4]) + 0.1
    whole = across_rows(ours, np.zeros((2, 8)), test_over_train=0.0)
    by_fold = across_rows(ours, np.zeros((2, 8)), test_over_train=0.0, folds=folds)
    # Rows: every one gains 0.1, squares 8 * 0.01 + 0.01 - 0.8^2 / 10 = 0.026, over 9 * 8.
    rows, trainings = 0.026 / 72, 4 * 0.1**2 / 2
    assert whole.high - whole.mean == pytest.approx(scipy_stats.t.ppf(0.975, 7) * math.sqrt(rows))
    freedom = (rows + trainings) ** 2 / (rows**2 / 7 + trainings**2 / 2)
    assert by_fold.mean == whole.mean == pytest.approx(0.1)
    assert by_fold.high - by_fold.mean == pytest.approx(scipy_stats.t.ppf(0.975, freedom) * math.sqrt(rows + trainings))


def test_half_widths_of_more_rounds_shrink_what_trainings_add():
    rng = np.random.default_rng(3)
    folds = np.stack([rng.permutation(np.repeat(np.arange(5), 40)) for _ in range(4)])
    ours = rng.normal(size=200) * 0.2 + rng.normal(size=(4, 5))[np.arange(4)[:, None], folds]
    arguments = {"test_over_train": 0.25, "folds": folds}
    now = across_rows(ours, np.zeros_like(ours), **arguments)
    same, more, most = half_widths(ours, np.zeros_like(ours), rounds=(4, 8, 10**6), **arguments)
    assert same == pytest.approx((now.high - now.low) / 2)
    assert same > more > most
    limit = across_rows(np.repeat(ours.mean(0)[None], 2, 0), np.zeros((2, 200)), test_over_train=0.25)
    assert most == pytest.approx((limit.high - limit.low) / 2, rel=0.01)


def test_many_rows_are_the_t_test_over_rows():
    rng = np.random.default_rng(0)
    ours, baseline = rng.normal(0.1, 1.0, (1, 4000)), rng.normal(0.0, 1.0, (1, 4000))
    found = across_rows(np.repeat(ours, 3, 0), np.repeat(baseline, 3, 0), test_over_train=0.0)
    reference = scipy_stats.ttest_rel(ours[0], baseline[0]).confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx(tuple(reference), abs=3e-4)


def test_the_mean_is_the_difference_of_balanced_accuracies():
    y = np.arange(60) % 7 == 0
    ours, baseline = hits(5, 60, 0.8, 1), hits(5, 60, 0.7, 2)
    expected = np.mean(
        [
            balanced_accuracy_score(y, np.where(a == 1, y, ~y)) - balanced_accuracy_score(y, np.where(b == 1, y, ~y))
            for a, b in zip(ours, baseline, strict=True)
        ]
    )
    assert across_rows(ours, baseline, y, test_over_train=0.25).mean == pytest.approx(expected)


def test_the_interval_covers_rows_and_rounds_that_are_drawn_anew():
    rng, covered = np.random.default_rng(3), []
    for _ in range(400):
        rows, rounds = rng.normal(0, 1, (1, 50)), rng.normal(0, 0.3, (6, 1))
        ours = 0.2 + rows + rounds + rng.normal(0, 1, (6, 50))
        found = across_rows(ours, np.zeros((6, 50)), test_over_train=0.0)
        covered.append(found.low <= 0.2 <= found.high)
    assert 0.925 <= np.mean(covered) <= 0.98


def test_rows_that_were_not_tested_are_left_out():
    ours, baseline, y = hits(4, 40, 0.8, 4), hits(4, 40, 0.6, 5), np.arange(40) % 2
    ours[:, 30:] = np.nan
    found, expected = (
        across_rows(a, b, c, test_over_train=0.25)
        for a, b, c in ((ours, baseline, y), (ours[:, :30], baseline[:, :30], y[:30]))
    )
    assert found == expected


def test_an_incomplete_round_counts_pair_by_pair():
    ours, baseline = hits(4, 40, 0.8, 4), hits(4, 40, 0.6, 5)
    ours[3, 20:] = np.nan  # the last round has tested half the rows
    found = across_rows(ours, baseline, test_over_train=0.25)
    differences = ours - baseline
    assert found.mean == pytest.approx(np.mean([np.nanmean(differences[:, i]) for i in range(40)]))
    assert math.isfinite(found.low)


def test_one_round_decides_nothing():
    found = across_rows(np.ones(50), np.zeros(50), test_over_train=0.25)
    assert (found.mean, found.low, found.high, found.p) == (1.0, -math.inf, math.inf, 1.0)


def test_methods_that_never_differ():
    found = across_rows(np.ones((3, 9)), np.ones((3, 9)), test_over_train=0.25)
    assert (found.mean, found.low, found.high, found.conclusion()) == (0.0, 0.0, 0.0, "no evidence")


def test_a_class_that_always_gains_is_no_certainty():
    found = across_rows(np.ones((2, 3)), np.zeros((2, 3)), test_over_train=0.25)
    assert found.low < 0 < found.mean


@pytest.mark.parametrize(
    ("ours", "baseline", "classes", "message"),
    [
        (np.ones((2, 3)), np.ones((2, 4)), None, "same rounds and rows"),
        (np.ones((2, 3)), np.full((2, 3), np.inf), None, "finite"),
        (np.ones((2, 3)), np.array([[1.0, 1.0, 1.0], [1.0, 1.0, np.inf]]), None, "finite"),
        (np.array([[1.0, 1.0, 1.0], [1.0, -np.inf, 1.0]]), np.ones((2, 3)), None, "finite"),
        (np.ones((2, 3)), np.ones((2, 3)), np.zeros(2), "one entry per row"),
        (np.full((2, 3), np.nan), np.ones((2, 3)), None, "no row has been tested"),
    ],
)
def test_what_cannot_be_compared_is_refused(ours, baseline, classes, message):
    with pytest.raises(ValueError, match=message):
        across_rows(ours, baseline, classes, test_over_train=0.25)


@pytest.mark.parametrize("ratio", [-0.1, math.inf, math.nan])
def test_the_ratio_is_a_number(ratio: float):
    with pytest.raises(ValueError, match="test_over_train"):
        across_rows(np.ones((2, 3)), np.zeros((2, 3)), test_over_train=ratio)


def test_pseudo_scores_of_the_auroc_have_the_variance_of_delong():
    rng = np.random.default_rng(6)
    y = np.repeat([0, 1], [60, 40])
    score = rng.normal(0.8 * y, 1.0)
    scores = pseudo_scores(lambda index: float(roc_auc_score(y[index], score[index])), len(y))
    wins = (score[y == 1][:, None] > score[y == 0]).astype(float)  # no ties
    delong = wins.mean(1).var(ddof=1) / 40 + wins.mean(0).var(ddof=1) / 60
    assert scores.mean() == pytest.approx(wins.mean(), abs=2e-3)
    assert scores.var(ddof=1) / 100 == pytest.approx(delong, rel=0.05)


@pytest.mark.parametrize("looks", [1, 2, len(LOOKS), 9])
def test_all_looks_together_spend_alpha(looks: int):
    parts = [alpha_of_look(i, looks) for i in range(looks)]
    assert sum(parts) == pytest.approx(0.05)
    assert parts == sorted(parts)
    with pytest.raises(ValueError, match="`look` must be one of"):
        alpha_of_look(looks, looks)
