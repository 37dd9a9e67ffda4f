"""Flax NNX: handwritten digits; one line differs from plain training.

python examples/flax_nnx.py
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from sklearn.datasets import load_digits

import reweigh


class Net(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.first = nnx.Linear(64, 64, rngs=rngs)
        self.second = nnx.Linear(64, 10, rngs=rngs)

    def __call__(self, x):
        return self.second(nnx.relu(self.first(x)))


def loss_of(model, x, y):
    losses = optax.softmax_cross_entropy_with_integer_labels(model(x), y)
    return reweigh.rgd(losses, tau=1.0), losses.mean()  # <- was losses.mean(), which is still what to log


@nnx.jit
def train_step(model, optimizer, x, y):
    (_, plain), gradients = nnx.value_and_grad(loss_of, has_aux=True)(model, x, y)
    optimizer.update(model, gradients)
    return plain


def main() -> None:
    data = load_digits()
    x, y = jnp.asarray(data.data, jnp.float32) / 16, jnp.asarray(data.target)
    model = Net(nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.adam(3e-3), wrt=nnx.Param)
    for key in jax.random.split(jax.random.key(1), 8):
        for rows in jax.random.permutation(key, 1400)[:1344].reshape(21, 64):
            plain = train_step(model, optimizer, x[rows], y[rows])
    accuracy = jnp.mean(model(x[1400:]).argmax(1) == y[1400:])
    print(f"plain loss {plain:.3f}, accuracy {accuracy:.3f}")


if __name__ == "__main__":
    main()
