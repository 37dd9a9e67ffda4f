"""cleanlab's format, out and in, with hand-worked tables."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import reweigh
from reweigh.integrations.cleanlab import from_cleanlab, to_cleanlab

PROBABILITIES = np.array([[0.7, 0.2, 0.1], [0.05, 0.05, 0.9], [0.3, 0.6, 0.1], [0.2, 0.2, 0.6]])
LABELS = np.array([0, 1, 1, 0])
LOSSES = -np.log([0.7, 0.05, 0.6, 0.2])


def test_the_quality_of_a_cross_entropy_is_self_confidence() -> None:
    table = to_cleanlab(LOSSES, LABELS, share=0.5, predictions=PROBABILITIES)
    assert list(table) == ["is_label_issue", "label_quality", "given_label", "predicted_label"]
    np.testing.assert_allclose(table["label_quality"], [0.7, 0.05, 0.6, 0.2])
    assert table["is_label_issue"].tolist() == [False, True, False, True]
    assert table["predicted_label"].tolist() == [0, 2, 1, 2]
    assert table["given_label"].tolist() == [0, 1, 1, 0]


@pytest.mark.parametrize("framework", ["torch", "jax.numpy"])
def test_arrays_of_any_framework(framework: str) -> None:
    xp = pytest.importorskip(framework)
    table = to_cleanlab(xp.asarray(LOSSES), xp.asarray(LABELS), issues=xp.asarray(LOSSES) > 1.0, score="label_score")
    assert list(table) == ["is_label_issue", "label_score", "given_label"]
    assert table["is_label_issue"].tolist() == [False, True, False, True]
    assert all(isinstance(column, np.ndarray) for column in table.values())


def test_there_and_back() -> None:
    trust = from_cleanlab(to_cleanlab(LOSSES, LABELS, share=0.25))
    assert trust.mask.tolist() == [True, False, True, True]
    np.testing.assert_allclose(trust.sample_weight, [0.7, 0.05, 0.6, 0.2])
    # Ready for the objectives: two of the weights by hand.
    loss = reweigh.rgd(LOSSES, tau=1.0, mask=trust.mask)
    kept = LOSSES[[0, 2, 3]]
    assert float(loss) == pytest.approx((np.exp(np.clip(kept, 0, 1) / 2) * kept).mean())


def test_cleanlabs_own_tables() -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(
        {
            "is_label_issue": [False, True, False],
            "label_quality": [0.9, 0.1, 0.5],
            "given_label": [0, 1, 2],
            "predicted_label": [0, 0, 2],
        }
    )
    assert from_cleanlab(frame).mask.tolist() == [True, False, True]
    assert from_cleanlab(frame).sample_weight.tolist() == [0.9, 0.1, 0.5]
    # CleanLearning adds its own weights when it has fitted.
    assert from_cleanlab(frame.assign(sample_weight=[1.5, 0.0, 1.2])).sample_weight.tolist() == [1.5, 0.0, 1.2]
    datalab = frame.rename(columns={"label_quality": "label_score"})
    assert from_cleanlab(datalab).sample_weight.tolist() == [0.9, 0.1, 0.5]
    bare = from_cleanlab(frame[["is_label_issue"]])
    assert bare.sample_weight.tolist() == [1.0, 0.0, 1.0]
    assert list(pandas.DataFrame(to_cleanlab(LOSSES, LABELS, share=0.5)).columns)[:2] == [
        "is_label_issue",
        "label_quality",
    ]


def test_the_mask_alone() -> None:
    trust = from_cleanlab(np.array([False, True]))
    assert trust.mask.tolist() == [True, False]
    assert trust.sample_weight.tolist() == [1.0, 0.0]


@given(st.lists(st.floats(0, 50), min_size=1, max_size=30), st.floats(0, 1))
def test_exactly_the_share_and_the_worst(losses: list[float], share: float) -> None:
    table = to_cleanlab(np.array(losses), np.zeros(len(losses), int), share=share)
    flags = table["is_label_issue"]
    assert flags.sum() == round(share * len(losses))
    if 0 < flags.sum() < len(losses):
        assert np.array(losses)[flags].min() >= np.array(losses)[~flags].max()


def test_errors() -> None:
    with pytest.raises(TypeError, match="either `share` or `issues`"):
        to_cleanlab(LOSSES, LABELS)
    with pytest.raises(TypeError, match="either `share` or `issues`"):
        to_cleanlab(LOSSES, LABELS, share=0.1, issues=LOSSES > 1)
    with pytest.raises(ValueError, match="`labels` must have one entry for each of the 4 examples"):
        to_cleanlab(LOSSES, LABELS[:3], share=0.1)
    with pytest.raises(ValueError, match="`share` must be a number in"):
        to_cleanlab(LOSSES, LABELS, share=1.5)
    with pytest.raises(ValueError, match="not negative"):
        to_cleanlab(-LOSSES, LABELS, share=0.5)
    with pytest.raises(ValueError, match="Did you mean 'label_score'"):
        to_cleanlab(LOSSES, LABELS, share=0.5, score="label_scores")
    with pytest.raises(TypeError, match="boolean mask"):
        from_cleanlab(np.array([3, 1]))
    with pytest.raises(ValueError, match="'is_label_issue'"):
        from_cleanlab({"label_quality": [0.5]})
