"""Objectives inside traced programs: jit, scan, vmap and torch.compile give what eager execution gives."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from instances import INSTANCES, N_GROUPS

from reweigh.objectives.absgd import ABSGD
from reweigh.objectives.chi2_dro import Chi2DRO
from reweigh.objectives.cvar import CVaR
from reweigh.objectives.doro import DORO
from reweigh.objectives.group_dro import GroupDRO
from reweigh.objectives.kl_dro import KLDRO
from reweigh.objectives.ohem import OHEM
from reweigh.objectives.redescending import Redescending
from reweigh.objectives.rgd_auto import RGDAuto
from reweigh.objectives.scdro import SCDRO
from reweigh.objectives.superloss import SuperLoss
from reweigh.objectives.term import TERM
from reweigh.objectives.term_hierarchical import TERMHierarchical

every = pytest.mark.parametrize("objective", INSTANCES, ids=repr)

RNG = np.random.default_rng(11)
SIZE = 9
BATCHES = [RNG.exponential(size=SIZE) for _ in range(3)]
GROUPS = RNG.integers(0, N_GROUPS, SIZE)
MASK = np.arange(SIZE) % 4 != 1


def as_numpy(state):
    return {name: np.asarray(value) for name, value in state.items()} if state else {}


@every
def test_a_scan_is_a_loop(objective):
    """The state keeps its dtypes under `scan`, which insists on it, though the losses are wider than the state."""
    batches = [*BATCHES, np.where(MASK, BATCHES[0], 600.0)]
    groups = jnp.asarray(GROUPS)

    def body(state, losses):
        loss, state = objective.apply(losses, state, groups=groups)
        return state, loss

    start = jax.tree.map(jnp.asarray, objective.init())
    final, scanned = jax.lax.scan(body, start, jnp.asarray(np.stack(batches)))
    assert jax.tree.map(lambda x: x.dtype, final) == jax.tree.map(lambda x: x.dtype, start)
    state, losses = objective.init(), []
    for batch in batches:
        loss, state = objective.apply(batch, state, groups=GROUPS)
        losses.append(loss)
    np.testing.assert_allclose(scanned, losses, rtol=2e-5)
    for name, value in as_numpy(final).items():
        np.testing.assert_allclose(value, state[name], rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize(
    "objective",
    [
        TERMHierarchical(n_groups=N_GROUPS),
        SCDRO(lam=2.0),
        KLDRO(rho=0.2),
        DORO(eps=0.15, alpha=0.5, divergence="chi2"),
        GroupDRO(n_groups=N_GROUPS),
        SuperLoss(),
        RGDAuto(normalize="mean"),
    ],
    ids=repr,
)
def test_compiled_is_eager(objective):
    torch.compiler.reset()
    groups, mask = torch.tensor(GROUPS), torch.tensor(MASK)

    def one(losses, state):
        return objective.apply(losses, state, groups=groups, mask=mask)

    compiled = torch.compile(one, fullgraph=True, backend="aot_eager")
    start = {name: torch.as_tensor(value) for name, value in as_numpy(objective.init()).items()} or ()
    here, there = start, start
    for batch in BATCHES[:2]:
        eager, fast = (torch.tensor(batch, requires_grad=True) for _ in range(2))
        loss, here = one(eager, here)
        fast_loss, there = compiled(fast, there)
        loss.backward()
        fast_loss.backward()
        torch.testing.assert_close(fast_loss, loss)
        torch.testing.assert_close(fast.grad, eager.grad)
        for name, value in as_numpy(here).items():
            np.testing.assert_allclose(there[name], value, rtol=1e-6)


@pytest.mark.parametrize(
    ("kind", "name", "values"),
    [
        (TERM, "t", [-1.0, 0.5, 2.0]),
        (KLDRO, "rho", [0.05, 0.5, 5.0]),
        (CVaR, "alpha", [0.1, 0.5, 1.0]),
        (Chi2DRO, "rho", [0.05, 0.5, 50.0]),
        (OHEM, "keep", [0.1, 0.5, 1.0]),
        (Redescending, "power", [0.0, 1.0, 2.5]),
    ],
)
def test_vmap_over_a_hyper_parameter(kind, name, values):
    expected = [float(kind(**{name: value})(BATCHES[0])) for value in values]
    losses = jnp.asarray(BATCHES[0])
    mapped = jax.vmap(lambda v: kind(**{name: v})(losses))(jnp.asarray(values))
    np.testing.assert_allclose(mapped, expected, rtol=1e-9)
    x = torch.tensor(BATCHES[0])
    mapped = torch.func.vmap(lambda v: kind(**{name: v})(x))(torch.tensor(values, dtype=torch.float64))
    np.testing.assert_allclose(mapped, expected, rtol=1e-9)


@pytest.mark.parametrize(("kind", "name", "values"), [(ABSGD, "lam", [-2.0, 3.0]), (SCDRO, "lam", [1.0, 4.0])])
def test_vmap_over_a_hyper_parameter_with_a_state(kind, name, values):
    def two_steps(value, one, other):
        objective = kind(**{name: value})
        _, state = objective.apply(one, objective.init())
        return objective.apply(other, state)[0]

    expected = [float(two_steps(value, *BATCHES[:2])) for value in values]
    one, other = map(jnp.asarray, BATCHES[:2])
    np.testing.assert_allclose(jax.vmap(lambda v: two_steps(v, one, other))(jnp.asarray(values)), expected, rtol=1e-6)
