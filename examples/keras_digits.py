"""Keras: handwritten digits on any backend; the lines that changed are marked.

KERAS_BACKEND=jax python examples/keras_digits.py
"""

from __future__ import annotations

import os

os.environ.setdefault("KERAS_BACKEND", "torch")  # or jax, or tensorflow
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")  # some machines advertise what they cannot execute

import keras
from sklearn.datasets import load_digits

from reweigh.integrations.keras import Reweighted


def main() -> None:
    keras.utils.set_random_seed(0)
    data = load_digits()
    x, y = data.data.astype("float32") / 16, data.target
    model = keras.Sequential(
        [keras.Input((64,)), keras.layers.Dense(64, activation="relu"), keras.layers.Dense(10)],
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    loss = Reweighted(loss, tau=1.0)  # <- new
    model.compile(
        optimizer=keras.optimizers.Adam(3e-3),
        loss=loss,
        metrics=["accuracy", *loss.metrics()],  # <- what the weights do, and a plain loss to select by
    )
    stop = keras.callbacks.EarlyStopping("val_plain_loss", patience=3)  # <- was "val_loss"
    history = model.fit(
        x[:1400], y[:1400], epochs=8, batch_size=64, validation_data=(x[1400:], y[1400:]), callbacks=[stop], verbose=0
    ).history
    print(f"plain validation loss {history['val_plain_loss'][-1]:.3f}, re-weighted {history['val_loss'][-1]:.3f}")
    print(f"accuracy {history['val_accuracy'][-1]:.3f}")
    print(f"clipped {history['clip_share'][0]:.1%} of units in the first epoch, {history['clip_share'][-1]:.1%} now")


if __name__ == "__main__":
    main()
