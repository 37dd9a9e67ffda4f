"""Suspected label errors: what is high and stays high, against its own class."""

import csv
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score, precision_recall_curve

from reweigh.bench.lab.suspects import Suspect, precision_recall, suspects, write_csv

EPOCHS, N = 20, 200


def learnt(level=1.0, *, n=N, epochs=EPOCHS, seed=0):
    """Losses of examples that are all learnt, some sooner than others."""
    draw = np.random.default_rng(seed)
    pace = draw.uniform(2.0, 4.0, n)
    return level * (2 * np.exp(-np.arange(epochs)[:, None] / pace) + draw.uniform(0, 0.02, (epochs, n)))


def row_of(ranking, index):
    return next(row for row in ranking if row.index == index)


def test_high_and_stable_is_suspected_with_its_reason():
    losses = learnt()
    losses[:, 17] = 3.1
    first, *others = suspects(losses.astype(np.float16), np.zeros(N, int), k=5)
    assert (first.index, first.kind, first.label, first.hardest_share) == (17, "suspected label error", 0, 1.0)
    median = np.mean(np.sort(losses.astype(np.float16), 1)[-5:, (N - 1) // 2])
    assert first.reason.startswith(f"loss 3.1 in the last 5 epochs, class median {median:.2g}; among the hardest 5 %")
    assert first.reason.endswith("of its class in 100 % of epochs")
    assert 0.5 <= first.score <= 1
    assert all(other.score < first.score and other.kind == "ordinary" for other in others)
    assert len(others) == 4


def test_what_falls_or_varies_is_hard_and_ranks_lower():
    losses = learnt()
    losses[:, 3] = 4.0
    losses[:, 4] = np.where(np.arange(EPOCHS) < 12, 4.0, 0.05)  # learnt late
    losses[:, 5] = np.where(np.arange(EPOCHS) // 5 % 2 == 0, 4.0, 0.05)  # high, low, high, low
    ranking = suspects(losses, np.zeros(N, int))
    assert [row.index for row in ranking[:3]] == [3, 4, 5]
    assert [row.kind for row in ranking[:3]] == ["suspected label error", "hard", "hard"]
    late = row_of(ranking, 4)
    assert late.fall == pytest.approx(1.0, abs=0.02)
    assert "at its worst" in late.reason
    assert ranking.of_kind("hard").tolist() == [4, 5]


def test_every_class_is_compared_with_itself():
    """A class whose losses are high throughout is difficult, not mislabelled; one outlier in the easy class is."""
    labels = np.repeat([0, 1], N // 2)
    losses = learnt()
    losses[:, labels == 1] += 2.0
    losses[:, 0] = 1.9  # below every example of the difficult class
    ranking = suspects(losses, labels)
    assert ranking[0].index == 0
    assert set(ranking.kind[labels == 1]) == {"ordinary"}
    assert suspects(losses)[0].index != 0


def test_names_as_labels_and_regression_without_any():
    losses = learnt()
    losses[:, 8] = 5.0
    named = suspects(losses, np.array(["cat", "dog"])[np.arange(N) % 2])
    assert (named[0].index, named[0].label) == (8, "cat")
    plain = suspects(losses)
    assert (plain[0].index, plain[0].label) == (8, None)
    assert "median of all" in plain[0].reason


def test_small_classes_are_compared_with_all():
    losses = learnt()
    labels = np.zeros(N, int)
    labels[9] = 1  # a class of one: its own median, so it could never be above it
    losses[:, 9] = 3.0
    first = suspects(losses, labels)[0]
    assert (first.index, first.kind) == (9, "suspected label error")
    assert "median of all" in first.reason


def test_unseen_examples_rank_last_and_late_visits_count_from_the_first():
    losses = learnt()
    losses[:, 2] = np.nan
    losses[:, 6] = 3.0
    losses[:10, 6] = np.nan
    ranking = suspects(losses.astype(np.float16), np.zeros(N, int))
    assert ranking[0].index == 6
    unseen = row_of(ranking, 2)
    assert (unseen.kind, unseen.score, unseen.reason) == ("never seen", 0.0, "never drawn in training")


def test_losses_beyond_half_precision_are_large_and_nothing_else():
    losses = learnt().astype(np.float16)
    losses[:, 1] = np.inf
    ranking = suspects(losses, np.zeros(N, int))
    assert ranking[0].index == 1
    assert np.isfinite(ranking.score).all()
    assert np.isfinite(ranking[0].loss)


def test_equal_losses_have_no_suspects():
    ranking = suspects(np.full((5, 30), 0.7), np.zeros(30, int))
    assert set(ranking.kind) == {"ordinary"}
    assert not ranking.score.any()
    assert not ranking.hardest_share.any()


@given(st.integers(1, 9), st.integers(1, 40), st.integers(1, 4), st.integers(0, 10_000))
def test_any_trajectory_is_ranked_whole(epochs, n, classes, seed):
    draw = np.random.default_rng(seed)
    losses = draw.exponential(size=(epochs, n))
    first = draw.integers(0, epochs + 1, n)
    losses[np.arange(epochs)[:, None] < first] = np.nan
    ranking = suspects(losses, draw.integers(0, classes, n))
    assert sorted(ranking.order.tolist()) == list(range(n))
    scores = ranking.score[ranking.order]
    assert ((scores >= 0) & (scores <= 1)).all()
    assert (np.diff(scores) <= 0).all()
    assert (ranking.kind == "never seen").tolist() == (first == epochs).tolist()
    assert all(isinstance(row, Suspect) and row.reason for row in ranking)


@given(st.integers(0, 1000), st.floats(0.01, 100))
def test_the_unit_of_the_loss_does_not_matter(seed, unit):
    draw = np.random.default_rng(seed)
    losses, labels = draw.exponential(size=(6, 50)), draw.integers(0, 2, 50)
    ours, scaled = suspects(losses, labels), suspects(losses * unit, labels)
    np.testing.assert_allclose(ours.score, scaled.score, rtol=1e-3, atol=1e-4)


def test_the_definition_by_hand():
    """Five epochs of eleven examples of one class, worked out in plain Python."""
    draw = np.random.default_rng(3)
    losses = draw.exponential(size=(5, 11))
    medians = [sorted(row)[5] for row in losses.tolist()]
    excess = [np.mean([max(losses[t, i] - medians[t], 0) for t in range(5)]) for i in range(11)]
    centred = [np.mean([losses[t, i] - medians[t] for t in range(5)]) for i in range(11)]
    limit = 5 * 1.4826 * sorted(abs(c) for c in centred)[5]
    ranking = suspects(losses, np.zeros(11, int))
    np.testing.assert_allclose(ranking.score, [e / (e + limit) for e in excess], rtol=1e-5)
    hardest = [np.mean([losses[t, i] == max(losses[t]) for t in range(5)]) for i in range(11)]
    np.testing.assert_allclose(ranking.hardest_share, hardest, rtol=1e-6)


@given(st.integers(0, 1000))
def test_precision_and_recall_are_those_of_scikit_learn(seed):
    draw = np.random.default_rng(seed)
    truth = draw.random(40) < 0.3
    truth[0] = True
    score = draw.permutation(40) / 40
    found = precision_recall(np.argsort(-score), truth)
    assert found.average_precision == pytest.approx(average_precision_score(truth, score))
    precision, recall, _ = precision_recall_curve(truth, score)
    assert set(np.round(found.precision, 9)) <= set(np.round(precision, 9))
    assert set(np.round(found.recall, 9)) <= set(np.round(recall, 9))
    best = set(np.argsort(-score)[: truth.sum()].tolist())
    assert found.at_planted == pytest.approx(len(best & set(np.flatnonzero(truth).tolist())) / truth.sum())


def test_a_short_ranking_cannot_have_found_what_it_does_not_list():
    truth = [True, True, False, False]
    found = precision_recall([0, 2], truth)
    assert found.recall.tolist() == [0.5, 0.5]
    assert found.average_precision == 0.5


def test_csv_holds_the_rows_and_leaves_nothing_else(tmp_path):
    losses = learnt()
    losses[:, 17] = 3.1
    labels = np.array(["a, b", 'c"d'])[np.arange(N) % 2]
    ranking = suspects(losses, labels, k=3)
    path = write_csv(tmp_path / "suspects.csv", ranking)
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(int(r["index"]), r["label"], r["kind"], r["reason"]) for r in rows] == [
        (r.index, r.label, r.kind, r.reason) for r in ranking
    ]
    assert [p.name for p in tmp_path.iterdir()] == ["suspects.csv"]


def test_labels_that_a_spreadsheet_would_run_are_text(tmp_path):
    ranking = suspects(learnt(), np.array(["=1+1", "cat"])[np.arange(N) % 2], k=4)
    with write_csv(tmp_path / "suspects.csv", ranking).open(newline="") as file:
        written = {row["label"] for row in csv.DictReader(file)}
    assert written <= {"'=1+1", "cat"}
    assert "'=1+1" in written


def test_wrong_input_is_named():
    with pytest.raises(ValueError, match=r"shape \(epochs, n\), got shape \(3,\)"):
        suspects(np.zeros(3))
    with pytest.raises(ValueError, match=r"each of the 4 examples, got shape \(3,\)"):
        suspects(np.zeros((2, 4)), [0, 1, 2])
    with pytest.raises(ValueError, match="`k`"):
        suspects(np.zeros((2, 4)), k=0)
    with pytest.raises(ValueError, match="at least one wrong label"):
        precision_recall([0], [False])
    with pytest.raises(ValueError, match="indices from 0 to 1"):
        precision_recall([5], [True, False])


def test_a_million_examples_take_a_few_sorts():
    draw = np.random.default_rng(0)
    losses = draw.random((4, 1_000_000), np.float32).astype(np.float16)
    labels = draw.integers(0, 100, 1_000_000)
    began = time.process_time()
    np.argsort(losses[0].astype(np.float32), kind="stable")
    sorted_at = time.process_time()
    suspects(losses, labels, k=10)
    assert time.process_time() - sorted_at < 50 * (sorted_at - began)
