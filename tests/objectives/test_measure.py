"""What the objectives share: quantiles, shares and moments under a measure."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reweigh.objectives._measure import measured_quantile, tilt, top_share

seeds = st.integers(0, 10_000)
sizes = st.integers(1, 20)


@given(seed=seeds, size=sizes, q=st.sampled_from([0.1, 0.25, 0.5, 0.7, 0.9, 1.0]))
def test_quantile_is_numpys_averaged_inverse(seed, size, q):
    losses = np.random.default_rng(seed).normal(size=size)
    expected = np.quantile(losses, q, method="averaged_inverted_cdf")
    assert measured_quantile(losses, np.ones(size), q) == pytest.approx(expected)


@given(seed=seeds, size=sizes, q=st.sampled_from([0.1, 0.5, 0.9]))
def test_quantile_under_a_measure_is_that_of_copies(seed, size, q):
    rng = np.random.default_rng(seed)
    losses, copies = rng.normal(size=size), rng.integers(0, 4, size)
    if copies.sum():
        expected = np.quantile(np.repeat(losses, copies), q, method="averaged_inverted_cdf")
        assert measured_quantile(losses, 0.3 * copies, q) == pytest.approx(expected)


@given(seed=seeds, size=sizes, share=st.floats(0.0, 1.0))
def test_top_share_is_a_linear_programme_solved_greedily(seed, size, share):
    """Fill the mass from the hardest unit down; compare what is collected, which ties cannot change."""
    rng = np.random.default_rng(seed)
    losses, amounts = rng.integers(0, 5, size).astype(float), rng.random(size)
    mass = share * amounts.sum()
    left, collected = mass, 0.0
    for i in np.argsort(-losses):
        taken = min(left, amounts[i])
        left, collected = left - taken, collected + taken * losses[i]
    parts = top_share(losses, amounts, mass)
    assert ((parts >= 0) & (parts <= 1)).all()
    assert (parts * amounts).sum() == pytest.approx(mass, abs=1e-12)
    assert (parts * amounts * losses).sum() == pytest.approx(collected, abs=1e-12)


@pytest.mark.parametrize("t", [-3.0, -1e-6, 1e-6, 0.4, 30.0])
def test_tilt_is_the_plain_formula_in_long_double(t):
    rng = np.random.default_rng(0)
    losses, measure = rng.exponential(size=12), rng.random(12)
    wide = losses.astype(np.longdouble)
    expected = np.log((measure * np.exp(t * wide)).sum() / measure.sum()) / t
    tilted = tilt(losses, t, measure, sync=False)
    assert float(tilted.centre + tilted.log_mean / t) == pytest.approx(float(expected), rel=1e-9)
