"""JAX with Optax: handwritten digits in the pure form, a whole epoch in one `lax.scan`; the new lines are marked.

python examples/jax_optax.py
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import optax
from sklearn.datasets import load_digits

import reweigh
from reweigh.integrations.jax import init, value_and_grad
from reweigh.objectives.term_ema import TERMEma


def forward(params, x):
    return jax.nn.relu(x @ params["w1"] + params["b1"]) @ params["w2"] + params["b2"]


def losses_of(params, x, y):
    """One loss per example: what Optax's losses return anyway, before the mean."""
    return optax.softmax_cross_entropy_with_integer_labels(forward(params, x), y)


def start(key):
    first, second = jax.random.split(key)
    return {
        "w1": jax.random.normal(first, (64, 64)) / 8,
        "b1": jnp.zeros(64),
        "w2": jax.random.normal(second, (64, 10)) / 8,
        "b2": jnp.zeros(10),
    }


@functools.partial(jax.jit, static_argnames="objective")
def epoch(params, moments, state, batches, objective):
    evaluate = value_and_grad(losses_of, objective)  # <- was jax.value_and_grad of the mean

    def step(carry, batch):
        params, moments, state = carry
        (_, info), gradients = evaluate(state, params, *batch)
        updates, moments = OPTIMIZER.update(gradients, moments, params)
        return (optax.apply_updates(params, updates), moments, info.state), info.plain

    return jax.lax.scan(step, (params, moments, state), batches)


OPTIMIZER = optax.adam(3e-3)


def main() -> None:
    data = load_digits()
    x, y = jnp.asarray(data.data, jnp.float32) / 16, jnp.asarray(data.target)
    # The second objective remembers something between steps; its state rides along in the scan.
    for objective in (reweigh.RGD(tau=1.0), TERMEma(t=0.5)):
        params = start(jax.random.key(0))
        moments, state = OPTIMIZER.init(params), init(objective)
        for key in jax.random.split(jax.random.key(1), 8):
            order = jax.random.permutation(key, 1400)[:1344].reshape(21, 64)
            (params, moments, state), plain = epoch(params, moments, state, (x[order], y[order]), objective)
        accuracy = jnp.mean(forward(params, x[1400:]).argmax(1) == y[1400:])
        print(f"{type(objective).__name__}: plain loss {plain.mean():.3f}, accuracy {accuracy:.3f}")


if __name__ == "__main__":
    main()
