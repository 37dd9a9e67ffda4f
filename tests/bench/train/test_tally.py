"""What is recorded of losses and weights."""

from __future__ import annotations

import pytest
import torch

from reweigh.bench.train.tally import EpochTally, clip_levels
from reweigh.method import method

LOSSES = torch.tensor([0.1, 0.6, 1.2, 3.0])


def records(*texts: str) -> list[dict]:
    objectives = [method(text).objective for text in texts]
    tally = EpochTally(len(texts), len(LOSSES))
    losses = LOSSES.repeat(len(texts), 1)
    tally.update(torch.arange(len(LOSSES)).repeat(len(texts), 1), losses, torch.ones_like(losses))
    return tally.close(clip_levels(objectives))[0]


@pytest.mark.parametrize(
    ("text", "share"), [("rgd", 0.5), ("rgd:offset=-0.5", 0.75), ("rgd:offset=0.5", 0.25), ("rgd:tau=3", 0.25)]
)
def test_the_clip_share_counts_losses_from_the_clip_level_on_offset_included(text, share):
    assert records(text)[0]["weights/clip_share"] == share


@pytest.mark.parametrize("text", ["mean", "redescending", "rgd:tau=none,gamma=1"])
def test_an_objective_without_a_clip_level_has_no_clip_share(text):
    assert "weights/clip_share" not in records(text)[0]


def test_members_without_a_clip_level_have_no_share_beside_those_with_one():
    clipped, free = records("rgd", "redescending")
    assert clipped["weights/clip_share"] == 0.5
    assert "weights/clip_share" not in free


def test_a_training_that_broke_down_has_an_empty_histogram_beside_one_that_did_not():
    tally = EpochTally(2, 3)
    losses = torch.tensor([[0.1, 0.2, 0.3], [0.1, 0.2, 0.3]])
    weights = torch.tensor([[1.0, float("nan"), 1.0], [1.0, 2.0, 2.0]])
    tally.update(torch.arange(3).repeat(2, 1), losses, weights)
    broken, sound = tally.close(None)[0]
    assert broken["weights/histogram"] == [0] * 24
    assert sound["weights/histogram"] == [1, *[0] * 22, 2]


def test_weights_of_corrupted_and_of_clean_labels_by_hand():
    noisy = torch.tensor([[True, False, False, True], [False, False, True, False]])
    tally = EpochTally(2, 4, noisy)
    weights = torch.tensor([[1.0, 2.0, 6.0], [1.0, 2.0, 6.0]])
    # Units 3, 1 and 0 of the first training, and 2, 0 and 1 of the second.
    tally.update(torch.tensor([[3, 1, 0], [2, 0, 1]]), torch.ones(2, 3), weights)
    first, second = tally.close(None)[0]
    assert (first["weights/noisy"], first["weights/clean"]) == (3.5, 2.0)
    assert (second["weights/noisy"], second["weights/clean"]) == (1.0, 4.0)


def test_units_without_numbers_have_no_weights_of_corrupted_labels():
    tally = EpochTally(1, 0, torch.zeros(1, 0, dtype=torch.bool))
    tally.update(None, torch.ones(1, 3), torch.ones(1, 3))
    (record,) = tally.close(None)[0]
    assert "weights/noisy" not in record
    assert record["weights/mean"] == 1.0
