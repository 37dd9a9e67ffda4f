"""Group DRO, by hand."""

from __future__ import annotations

import numpy as np
import pytest

from reweigh.objectives.group_dro import GroupDRO
from reweigh.objectives.term_hierarchical import TERMHierarchical


def test_two_steps_by_hand():
    """eta = log 2: q goes (1/3, 1/3, 1/3) -> (2, 4, 1)/7 -> (2·2, 4·1, 1·8)/16; a missing group counts as loss 0."""
    objective = GroupDRO(n_groups=3, eta=float(np.log(2)))
    groups = np.array([0, 0, 1])
    weighed = objective.weigh(np.array([0.0, 2.0, 2.0]), objective.init(), groups=groups)
    np.testing.assert_allclose(np.exp(weighed.state["log_q"]), np.array([2, 4, 1]) / 7, rtol=1e-6)
    # Three units, two of them in group 0: q_0 · 3/2, q_1 · 3.
    np.testing.assert_allclose(weighed.weights, [3 / 7, 3 / 7, 12 / 7], rtol=1e-6)
    loss, state = objective.apply(np.array([1.0, 3.0]), weighed.state, groups=np.array([0, 2]))
    np.testing.assert_allclose(np.exp(state["log_q"]), np.array([4, 4, 8]) / 16, rtol=1e-6)
    assert loss == pytest.approx(0.25 * 1 + 0.5 * 3)


def test_adjustment_lifts_small_groups():
    """Equal losses; C/sqrt(n) is 1 and 1/2, eta = 2 log 3: q is 9 to 3."""
    objective = GroupDRO(n_groups=2, eta=float(2 * np.log(3)), adjustment=2.0, group_counts=(4, 16))
    _, state = objective.apply(np.array([1.0, 1.0]), objective.init(), groups=np.array([0, 1]))
    np.testing.assert_allclose(np.exp(state["log_q"]), [0.75, 0.25], rtol=1e-6)


def test_a_group_comes_back_from_almost_nothing():
    """In logarithms, a probability of e^-200 is not lost to underflow."""
    objective = GroupDRO(n_groups=2, eta=1.0)
    state, groups = objective.init(), np.array([0, 1])
    _, state = objective.apply(np.array([200.0, 0.0], np.float32), state, groups=groups)
    _, state = objective.apply(np.array([0.0, 200.0], np.float32), state, groups=groups)
    np.testing.assert_allclose(np.exp(state["log_q"]), 0.5, rtol=1e-3)


@pytest.mark.parametrize("kind", [GroupDRO, TERMHierarchical])
def test_groups_are_checked(kind):
    objective, losses = kind(n_groups=2), np.ones(3)
    with pytest.raises(ValueError, match="`groups` is required"):
        objective.apply(losses, objective.init())
    with pytest.raises(ValueError, match="between 0 and 1, got 0 to 2"):
        objective.apply(losses, objective.init(), groups=np.array([0, 1, 2]))
    with pytest.raises(TypeError, match="whole numbers"):
        objective.apply(losses, objective.init(), groups=np.array([0.0, 1.0, 1.0]))
    with pytest.raises(ValueError, match="`n_groups`"):
        kind().weigh(losses, kind(n_groups=2).init(), groups=np.array([0, 1, 1]))


@pytest.mark.parametrize("kind", [GroupDRO, TERMHierarchical])
def test_padding_may_carry_any_group(kind):
    objective, mask = kind(n_groups=2), np.array([True, True, False])
    given = objective.apply(np.ones(3), objective.init(), groups=np.array([0, 1, -100]), mask=mask)[0]
    assert given == pytest.approx(objective.apply(np.ones(2), objective.init(), groups=np.array([0, 1]))[0])


def test_adjustment_and_counts_belong_together():
    with pytest.raises(ValueError, match="`adjustment` needs `group_counts`"):
        GroupDRO(n_groups=2, adjustment=1.0)
    with pytest.raises(ValueError, match="`group_counts` belongs to `adjustment`"):
        GroupDRO(n_groups=2, group_counts=(1, 2))
    with pytest.raises(ValueError, match="one number for each of the 2 groups, got 3"):
        GroupDRO(n_groups=2, adjustment=1.0, group_counts=(1, 2, 3))


def test_it_starts_with_the_uniform_distribution():
    np.testing.assert_allclose(np.exp(GroupDRO(n_groups=4).init()["log_q"]), 0.25, rtol=1e-6)


def test_a_group_may_have_a_single_example():
    """C/sqrt(n) is 2 and 1, eta = log 3: q is 9 to 3."""
    objective = GroupDRO(n_groups=2, eta=float(np.log(3)), adjustment=2.0, group_counts=(1, 4))
    _, state = objective.apply(np.array([1.0, 1.0]), objective.init(), groups=np.array([0, 1]))
    np.testing.assert_allclose(np.exp(state["log_q"]), [0.75, 0.25], rtol=1e-6)
