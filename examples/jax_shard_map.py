"""JAX on several devices with `shard_map`: the gradient is that of one device, for both settings of `check_vma`.

XLA_FLAGS=--xla_force_host_platform_device_count=4 python examples/jax_shard_map.py
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, PartitionSpec

import reweigh
from reweigh.integrations.jax import init, value_and_grad
from reweigh.objectives.term_ema import TERMEma

ROWS, FEATURES, CLASSES = 64, 20, 5


def losses_of(params, x, y):
    return optax.softmax_cross_entropy_with_integer_labels(x @ params["w"] + params["b"], y)


def sharded(objective, mesh, check_vma):
    """One evaluation on all devices of the mesh: loss, gradients and the objective's next state."""
    evaluate = value_and_grad(losses_of, objective)

    def step(params, state, x, y):
        count = jax.lax.psum(len(y), "batch")  # of all devices, so that sums over them are means
        (loss, info), gradients = evaluate(state, params, x, y, count=count)
        if not check_vma:  # by default JAX sums the gradients of what all devices share
            gradients = jax.lax.psum(gradients, "batch")
        return jax.lax.psum(loss, "batch"), gradients, info.state

    everywhere, split = PartitionSpec(), PartitionSpec("batch")
    specs = (everywhere, everywhere, split, split)
    return jax.jit(jax.shard_map(step, mesh=mesh, in_specs=specs, out_specs=everywhere, check_vma=check_vma))


def main() -> None:
    rng = np.random.default_rng(0)
    x, y = jnp.asarray(rng.normal(size=(ROWS, FEATURES))), jnp.asarray(rng.integers(CLASSES, size=ROWS))
    params = {"w": jnp.asarray(rng.normal(size=(FEATURES, CLASSES))) / 4, "b": jnp.zeros(CLASSES)}
    mesh = Mesh(np.array(jax.devices()), ("batch",))
    # RGD looks at each row alone; the other takes its normaliser over the axis that it is given.
    for objective in (reweigh.RGD(tau=1.0), TERMEma(t=0.5, sync="batch")):
        alone = TERMEma(t=0.5) if isinstance(objective, TERMEma) else objective
        (loss, _), expected = value_and_grad(losses_of, alone)(init(alone), params, x, y)
        for check_vma in (True, False):
            shared, gradients, _ = sharded(objective, mesh, check_vma)(params, init(objective), x, y)
            pairs = zip(jax.tree.leaves(gradients), jax.tree.leaves(expected), strict=True)
            difference = max(float(jnp.abs(a - b).max()) for a, b in pairs)
            assert abs(float(shared - loss)) < 1e-5
            print(
                f"{type(objective).__name__}, {mesh.size} devices, check_vma={check_vma}: "
                f"largest gradient difference to one device {difference:.1e}"
            )


if __name__ == "__main__":
    main()
