"""Two devices give what one gives; run with XLA_FLAGS=--xla_force_host_platform_device_count=2."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import reweigh
from reweigh.integrations.jax import init, value_and_grad
from reweigh.objectives.term import TERM
from reweigh.objectives.term_ema import TERMEma

RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(16, 4)).astype(np.float32), RNG.normal(size=16).astype(np.float32)
MASK = np.arange(16) != 3


def squares(w, x, y):
    return (x @ w - y) ** 2


def train(objective, place):
    """Three steps of descent on batches that `place` has put somewhere."""
    evaluate = value_and_grad(squares, objective)

    @jax.jit
    def step(w, state, x, y, mask):
        (loss, info), gradient = evaluate(state, w, x, y, mask=mask)
        return w - 0.1 * gradient, info.state, loss, info.plain

    w, state, x, y, mask = jnp.zeros(4), init(objective), place(X), place(Y), place(MASK)
    out = []
    for _ in range(3):
        w, state, loss, plain = step(w, state, x, y, mask)
        out.append((float(loss), float(plain)))
    return np.asarray(w), jax.tree.map(np.asarray, state), out


if __name__ == "__main__":
    devices = jax.devices()
    assert len(devices) == 2, devices
    mesh = Mesh(np.array(devices), ("batch",))
    split = NamedSharding(mesh, PartitionSpec("batch"))
    assert len({shard.device for shard in jax.device_put(X, split).addressable_shards}) == 2
    # RGD is separable; the others normalise over the batch, which here means the whole of it.
    for objective in (reweigh.RGD(tau=1.0), reweigh.RGD(tau=1.0, normalize="mean"), TERM(t=1.0), TERMEma(t=0.5)):
        one, two = train(objective, jnp.asarray), train(objective, lambda array: jax.device_put(array, split))
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-5, atol=1e-6), one, two)
        print(objective)
