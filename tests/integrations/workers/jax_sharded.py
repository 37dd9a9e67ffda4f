"""Four devices give what one gives; run with XLA_FLAGS=--xla_force_host_platform_device_count=4."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import reweigh
from reweigh.integrations.jax import init, value_and_grad
from reweigh.objectives import (
    KLDRO,
    Chi2DRO,
    CVaR,
    GroupDRO,
    RGDAuto,
    SelfPaced,
    SuperLoss,
    TERMEma,
    TERMHierarchical,
)
from reweigh.objectives.term import TERM

RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(16, 4)).astype(np.float32), RNG.normal(size=16).astype(np.float32)
MASK = ~np.isin(np.arange(16), (3, 4, 5))  # of four shards the first has three real rows and the second two
GROUPS = np.arange(16) % 3
AXIS = "batch"

# RGD is separable; the others normalise over the batch, which here means the whole of it.
OBJECTIVES = (reweigh.RGD(tau=1.0), reweigh.RGD(tau=1.0, normalize="mean"), TERM(t=1.0), TERMEma(t=0.5))
POOLED = (
    *(KLDRO(rho=0.2), CVaR(alpha=0.3), Chi2DRO(rho=0.4), Chi2DRO(reg=0.8), SelfPaced(every=1), RGDAuto()),
    *(SuperLoss(), GroupDRO(n_groups=3, eta=0.3), TERMHierarchical(n_groups=3)),
)


def squares(w, x, y):
    return (x @ w - y) ** 2


def train(objective, place, wrap=None):
    """Three steps of descent on batches that `place` has put somewhere, each inside what `wrap` makes of it."""
    evaluate = value_and_grad(squares, objective)

    def step(w, state, x, y, mask, groups):
        (loss, info), gradient = evaluate(state, w, x, y, mask=mask, groups=groups)
        return loss, info.state, gradient

    step = jax.jit(step if wrap is None else wrap(evaluate))
    w, state, batch = jnp.zeros(4), init(objective), [place(part) for part in (X, Y, MASK, GROUPS)]
    losses = []
    for _ in range(3):
        loss, state, gradient = step(w, state, *batch)
        w = w - 0.1 * gradient
        losses.append(float(loss))
    return np.asarray(w), jax.tree.map(np.asarray, state), losses


def in_shard_map(mesh, check_vma):
    """The recipe of the documentation."""
    whole, split = PartitionSpec(), PartitionSpec(AXIS)

    def wrap(evaluate):
        def step(w, state, x, y, mask, groups):
            count = jax.lax.psum(mask.sum(), AXIS)
            (loss, info), gradient = evaluate(state, w, x, y, mask=mask, groups=groups, count=count)
            if not check_vma:  # otherwise the gradient of what every device shares is summed already
                gradient = jax.lax.psum(gradient, AXIS)
            return jax.lax.psum(loss, AXIS), info.state, gradient

        specs = (whole, whole, split, split, split, split)
        return jax.shard_map(step, mesh=mesh, in_specs=specs, out_specs=whole, check_vma=check_vma)

    return wrap


def close(one, other):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-5, atol=1e-6), one, other)


def refused(objective, mesh):
    try:
        train(objective, jnp.asarray, in_shard_map(mesh, True))
    except ValueError as error:
        return "Name the axis that holds the batch, sync='batch', or pass sync=False" in str(error)
    return False


if __name__ == "__main__":
    devices = jax.devices()
    assert len(devices) == 4, devices
    mesh = Mesh(np.array(devices), (AXIS,))
    sharding = NamedSharding(mesh, PartitionSpec(AXIS))
    assert len({shard.device for shard in jax.device_put(X, sharding).addressable_shards}) == 4
    for objective in OBJECTIVES:
        close(train(objective, jnp.asarray), train(objective, lambda array: jax.device_put(array, sharding)))
        print("jit", objective)
    for objective in (*OBJECTIVES, *POOLED):
        alone = train(objective, jnp.asarray)
        named = objective if objective.separable else dataclasses.replace(objective, sync=AXIS)
        for check_vma in (True, False):
            close(alone, train(named, jnp.asarray, in_shard_map(mesh, check_vma)))
            print("shard_map", check_vma, named)
        if not objective.separable:
            assert refused(objective, mesh), objective
            local = dataclasses.replace(objective, sync=False)
            assert np.isfinite(train(local, jnp.asarray, in_shard_map(mesh, False))[0]).all()
