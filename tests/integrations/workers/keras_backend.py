"""Checks of the Keras adapter on one backend, chosen by KERAS_BACKEND; run in a process of its own.

    KERAS_BACKEND=jax python tests/integrations/workers/keras_backend.py

The references are NumPy: the formulas written out, the library's own weights, and training with hand-made
`sample_weight` under the plain loss.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

# bf16 matrix products kill the process on machines that advertise AMX but cannot execute it.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

import keras
import numpy as np

import reweigh
from reweigh.integrations.keras import ClassLoss, Reweighted, WeightMetric, loss, watch, weights_of
from reweigh.objectives.absgd import ABSGD
from reweigh.objectives.cvar import CVaR
from reweigh.objectives.redescending import Redescending
from reweigh.objectives.term import TERM

BACKEND = keras.backend.backend()
RNG = np.random.default_rng(0)
X = RNG.normal(size=(40, 5)).astype(np.float32)
Y = (X[:, :3] + 0.8 * RNG.normal(size=(40, 3))).argmax(1)
CROSS_ENTROPY = keras.losses.SparseCategoricalCrossentropy


def tensor(values: Any) -> Any:
    return keras.ops.convert_to_tensor(np.asarray(values, np.float32))


def numbers(values: Any) -> np.ndarray[Any, Any]:
    return keras.ops.convert_to_numpy(values)


def network(loss: Any, **options: Any) -> keras.Model:
    """Three layers' worth of nothing: the same start each time."""
    keras.utils.set_random_seed(7)
    model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(8, activation="tanh"), keras.layers.Dense(3)])
    model.compile(optimizer=keras.optimizers.SGD(0.3), loss=loss, **options)
    return model


def cross_entropies(logits: np.ndarray[Any, Any], y: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    logits = logits.astype(np.float64)
    return np.log(np.exp(logits).sum(1)) - logits[np.arange(len(y)), y]


def kl(losses: np.ndarray[Any, Any], tau: float = 1.0) -> np.ndarray[Any, Any]:
    return np.exp(np.clip(losses, 0, tau) / (tau + 1))


@contextmanager
def raises(kind: type[Exception], words: str) -> Iterator[None]:
    try:
        yield
    except kind as error:
        message = str(error)
    else:
        message = "nothing was raised"
    assert words in message, f"{words!r} is not in {message!r}"


def check_the_weights_are_the_librarys_own() -> None:
    losses = np.array([-1.0, 0.0, 0.3, 1.0, 2.5, 40.0], np.float32)
    for weight in (
        reweigh.KL(tau=1.0),
        reweigh.KL(tau=3.0, gamma=-0.5, offset=0.2),
        reweigh.KL(tau=None, gamma=4.0),
        reweigh.ReverseKL(tau=2.0),
        reweigh.ReverseKL(tau=2.0, offset=-0.5),
        reweigh.ChiSquare(tau=3.0),
        reweigh.ChiSquare(tau=3.0, scaled=True, offset=0.1),
    ):
        np.testing.assert_allclose(numbers(weights_of(weight, tensor(losses))), weight(losses), rtol=3e-6)
    half = keras.ops.cast(tensor(losses), "bfloat16")
    assert keras.backend.standardize_dtype(weights_of(reweigh.KL(tau=1.0), half).dtype) == "float32"


def check_the_value() -> None:
    logits = RNG.normal(size=(40, 3)).astype(np.float32)
    losses = cross_entropies(logits, Y)
    loss = Reweighted(CROSS_ENTROPY(from_logits=True), tau=1.0)
    own = RNG.uniform(0.5, 2.0, 40).astype(np.float32)
    np.testing.assert_allclose(float(loss(Y, logits)), (kl(losses) * losses).mean(), rtol=1e-5)
    expected = (own * kl(losses) * losses).mean()  # Keras divides by the number of samples, whatever they weigh
    np.testing.assert_allclose(float(loss(Y, logits, sample_weight=own)), expected, rtol=1e-5)
    total = Reweighted(CROSS_ENTROPY(from_logits=True, reduction="sum"), divergence="chi2", tau=2.0)
    np.testing.assert_allclose(float(total(Y, logits)), ((np.clip(losses, 0, 2) + 2) * losses).sum(), rtol=1e-5)
    every = Reweighted(CROSS_ENTROPY(from_logits=True), reduction="none", tau=1.0)
    np.testing.assert_allclose(numbers(every(Y, logits)), kl(losses) * losses, rtol=2e-5, atol=1e-7)


def check_training_is_plain_training_with_hand_made_weights() -> None:
    own, by_class = np.linspace(0.5, 2.0, 40).astype(np.float32), {0: 1.0, 1: 2.0, 2: 0.5}
    of_class = np.array([by_class[y] for y in Y])
    for options, factor in (({}, 1.0), ({"sample_weight": own}, own), ({"class_weight": by_class}, of_class)):
        ours = network(Reweighted(CROSS_ENTROPY(from_logits=True), tau=1.0))
        plain = network(CROSS_ENTROPY(from_logits=True))
        for _ in range(3):
            weights = kl(cross_entropies(numbers(plain(X)), Y)) * factor
            plain.train_on_batch(X, Y, sample_weight=weights)
            ours.train_on_batch(X, Y, **options)
        for a, b in zip(ours.get_weights(), plain.get_weights(), strict=True):
            np.testing.assert_allclose(a, b, atol=2e-6)


def check_validation_has_a_plain_metric() -> None:
    loss = Reweighted(CROSS_ENTROPY(from_logits=True), tau=1.0)
    kerass_own = keras.metrics.SparseCategoricalCrossentropy(from_logits=True, name="ce")
    model = network(loss, metrics=[kerass_own, *loss.metrics()])
    history = model.fit(X, Y, epochs=2, batch_size=16, validation_data=(X[:30], Y[:30]), verbose=0).history
    losses = cross_entropies(numbers(model(X[:30])), Y[:30])
    weights = kl(losses)
    np.testing.assert_allclose(history["val_plain_loss"][-1], losses.mean(), rtol=1e-5)
    np.testing.assert_allclose(history["val_ce"][-1], losses.mean(), rtol=1e-5)
    # Keras averages its loss over batches of 30 and fewer; here there is one.
    np.testing.assert_allclose(history["val_loss"][-1], (weights * losses).mean(), rtol=1e-5)
    np.testing.assert_allclose(history["val_weight_mean"][-1], weights.mean(), rtol=1e-5)
    np.testing.assert_allclose(history["val_clip_share"][-1], np.mean(losses >= 1), rtol=1e-6)
    np.testing.assert_allclose(history["val_ess_share"][-1], weights.mean() ** 2 / (weights**2).mean(), rtol=1e-5)


def check_metrics_add_up_over_batches() -> None:
    loss = Reweighted(keras.losses.MeanSquaredError(), tau=1.0)
    squares, own = np.array([0.1, 0.4, 1.0, 4.0]), np.array([1.0, 3.0, 0.0, 2.0])
    metric = WeightMetric(loss, "ess_share")
    for rows in (slice(0, 3), slice(3, 4)):
        metric.update_state(np.zeros((len(squares[rows]), 1)), np.sqrt(squares[rows])[:, None], own[rows])
    w = kl(squares)
    expected = (own * w).sum() ** 2 / own.sum() / (own * w * w).sum()
    np.testing.assert_allclose(float(metric.result()), expected, rtol=1e-5)
    metric.reset_state()
    assert float(metric.result()) == 0.0
    no_clip = WeightMetric(Reweighted(keras.losses.MeanSquaredError(), tau=None, gamma=0.1), "clip_share")
    no_clip.update_state(np.zeros((2, 1)), np.ones((2, 1)))
    assert float(no_clip.result()) == 0.0
    with raises(ValueError, "Did you mean 'clip_share'?"):
        WeightMetric(loss, "clipshare")


def check_save_and_load() -> None:
    loss = Reweighted(CROSS_ENTROPY(from_logits=True), tau=2.5, divergence="revkl", level="token", floor=False)
    again = Reweighted.from_config(loss.get_config())
    assert (again.objective, again.level, again.floor) == (loss.objective, "token", False)
    assert (again.name, again.reduction) == (loss.name, loss.reduction)
    model = network(loss, metrics=loss.metrics())
    model.train_on_batch(X, Y)
    with tempfile.TemporaryDirectory() as folder:
        model.save(Path(folder) / "model.keras")
        loaded = keras.models.load_model(Path(folder) / "model.keras")
    assert loaded.loss.objective == reweigh.RGD(tau=2.5, divergence="revkl")
    for _ in range(2):
        np.testing.assert_allclose(loaded.train_on_batch(X, Y), model.train_on_batch(X, Y), rtol=1e-6)
    assert Reweighted("MeanSquaredError", tau=2.0).objective.tau == 2.0


def check_levels() -> None:
    errors = np.abs(RNG.normal(size=(4, 6))).astype(np.float32) * 1.5
    squares, zeros = errors[..., None] ** 2, np.zeros((4, 6, 1), np.float32)
    flat = squares[..., 0].astype(np.float64)
    inner = keras.losses.MeanSquaredError()
    sample, token = Reweighted(inner, tau=1.0), Reweighted(inner, level="token", tau=1.0)
    np.testing.assert_allclose(
        float(sample(zeros, errors[..., None])), (kl(flat.mean(1))[:, None] * flat).mean(), rtol=1e-5
    )
    np.testing.assert_allclose(float(token(zeros, errors[..., None])), (kl(flat) * flat).mean(), rtol=1e-5)


def check_padded_steps_do_not_count() -> None:
    lengths = np.array([6, 2, 4])
    real = np.arange(6) < lengths[:, None]
    x = np.where(real[..., None], RNG.normal(size=(3, 6, 2)), 0.0).astype(np.float32)
    keras.utils.set_random_seed(3)
    model = keras.Sequential([keras.Input((6, 2)), keras.layers.Masking(), keras.layers.Dense(1)])
    y = RNG.normal(size=(3, 6, 1)).astype(np.float32)
    squares = ((numbers(model(x)) - y) ** 2)[..., 0].astype(np.float64)
    of_samples = kl((squares * real).sum(1) / lengths)
    for level, weights in (("sample", of_samples[:, None]), ("token", kl(squares))):
        model.compile(loss=Reweighted(keras.losses.MeanSquaredError(), level=level, tau=1.0))  # type: ignore[arg-type]
        expected = (weights * squares * real).sum() / real.sum()
        np.testing.assert_allclose(model.evaluate(x, y, verbose=0), expected, rtol=1e-5, err_msg=level)


def check_padding_takes_no_weight_and_counts_in_no_metric() -> None:
    lengths = np.array([6, 2, 4, 0])  # one sample is nothing but padding
    real = np.arange(6) < lengths[:, None]
    tokens = np.where(real, RNG.integers(1, 9, (4, 6)), 0)
    y = RNG.integers(0, 3, (4, 6))
    keras.utils.set_random_seed(3)
    layers = [keras.layers.Embedding(9, 4, mask_zero=True, embeddings_initializer="normal"), keras.layers.Dense(3)]
    model = keras.Sequential([keras.Input((6,), dtype="int32"), *layers])
    model.layers[-1].set_weights([RNG.normal(size=(4, 3)) * 20, np.array([0.0, 1.0, -1.0])])
    losses = cross_entropies(numbers(model(tokens)).reshape(-1, 3), y.reshape(-1)).reshape(4, 6)
    of_samples = np.array([row[: max(k, 1)].mean() for row, k in zip(losses, lengths, strict=True)])

    def seen_by_keras(loss: Reweighted) -> dict[str, float]:
        model.compile(loss=loss, metrics=loss.metrics())
        return model.evaluate(tokens, y, verbose=0, return_dict=True)

    inner = CROSS_ENTROPY(from_logits=True)
    for level in ("token", "sample"):
        units, count = (losses[real], lengths) if level == "token" else (of_samples[lengths > 0], lengths[lengths > 0])
        got = seen_by_keras(Reweighted(inner, level=level, tau=1.0))  # type: ignore[arg-type]
        weights = kl(units)
        per_token = weights if level == "token" else np.repeat(weights, count)
        np.testing.assert_allclose(got["loss"], (per_token * losses[real]).mean(), rtol=1e-5, err_msg=level)
        np.testing.assert_allclose(got["plain_loss"], losses[real].mean(), rtol=1e-5, err_msg=level)
        np.testing.assert_allclose(got["weight_mean"], weights.mean(), rtol=1e-5, err_msg=level)
        np.testing.assert_allclose(got["clip_share"], np.mean(units >= 1), rtol=1e-5, err_msg=level)
        np.testing.assert_allclose(got["ess_share"], weights.mean() ** 2 / (weights**2).mean(), rtol=1e-5)
        if BACKEND not in ("torch", "jax"):
            continue
        for objective in (CVaR(alpha=0.25), TERM(t=1.0)):
            share = objective.weigh(units, ()).weights
            per_token = share if level == "token" else np.repeat(share, count)
            got = seen_by_keras(Reweighted(inner, objective, level=level))  # type: ignore[arg-type]
            np.testing.assert_allclose(got["loss"], (per_token * losses[real]).mean(), rtol=1e-5, err_msg=level)
            np.testing.assert_allclose(got["weight_mean"], share.mean(), rtol=1e-5, err_msg=level)


def check_ignored_labels_are_padding() -> None:
    logits = RNG.normal(size=(4, 6, 3)).astype(np.float32)
    y = RNG.integers(-1, 3, (4, 6))
    real = y >= 0
    losses = cross_entropies(logits.reshape(-1, 3), y.reshape(-1)).reshape(4, 6)[real]
    inner = CROSS_ENTROPY(from_logits=True, ignore_class=-1)
    np.testing.assert_allclose(float(inner(y, logits)), losses.mean(), rtol=1e-5)
    loss = Reweighted(inner, level="token", tau=1.0)
    np.testing.assert_allclose(float(loss(y, logits)), (kl(losses) * losses).mean(), rtol=1e-5)
    metric = WeightMetric(loss, "plain_loss")
    metric.update_state(y, logits)
    np.testing.assert_allclose(float(metric.result()), losses.mean(), rtol=1e-5)
    own = RNG.uniform(0.5, 2.0, (4, 6)).astype(np.float32)  # one a token
    metric.reset_state()
    metric.update_state(y, logits, own)
    np.testing.assert_allclose(float(metric.result()), np.average(losses, weights=own[real]), rtol=1e-5)
    if BACKEND in ("torch", "jax"):
        share = CVaR(alpha=0.25).weigh(losses, ()).weights
        loss = Reweighted(inner, CVaR(alpha=0.25), level="token")
        np.testing.assert_allclose(float(loss(y, logits)), (share * losses).mean(), rtol=1e-5)


def check_weights_that_fall_after_tau_are_not_clipped() -> None:
    if BACKEND not in ("torch", "jax"):
        return
    errors = np.array([[0.5], [2.0], [3.0]], np.float32)
    for objective, expected in ((Redescending(tau=1.0), 0.0), (reweigh.RGD(tau=1.0, offset=3.5), 1 / 3)):
        metric = WeightMetric(Reweighted(keras.losses.MeanSquaredError(), objective), "clip_share")
        metric.update_state(np.zeros((3, 1), np.float32), errors)
        np.testing.assert_allclose(float(metric.result()), expected, rtol=1e-6)


def check_the_floor_of_smoothed_targets() -> None:
    logits = RNG.normal(size=(10, 4)).astype(np.float32) * 3
    hard = np.eye(4, dtype=np.float32)[RNG.integers(0, 4, 10)]
    smooth = hard * 0.8 + 0.05
    log_p = logits - np.log(np.exp(logits.astype(np.float64)).sum(1, keepdims=True))
    losses, entropy = -(smooth * log_p).sum(1), -(smooth * np.log(smooth)).sum(1)
    inner = keras.losses.CategoricalCrossentropy(from_logits=True, label_smoothing=0.2)
    loss = Reweighted(inner, tau=1.0)
    np.testing.assert_allclose(float(loss(hard, logits)), (kl(losses - entropy) * losses).mean(), rtol=1e-5)
    without = Reweighted(inner, floor=False, tau=1.0)
    np.testing.assert_allclose(float(without(hard, logits)), (kl(losses) * losses).mean(), rtol=1e-5)

    score, label = logits[:, 0], hard[:, 0] * 0.9 + 0.05
    p = 1 / (1 + np.exp(-score.astype(np.float64)))
    binary = -(label * np.log(p) + (1 - label) * np.log(1 - p))
    floor = -(0.95 * np.log(0.95) + 0.05 * np.log(0.05))
    loss = Reweighted(keras.losses.BinaryCrossentropy(from_logits=True, label_smoothing=0.1), tau=1.0)
    for target in (hard[:, 0], hard[:, :1]):
        value = float(loss(target, score[:, None]))
        np.testing.assert_allclose(value, (kl(binary - floor) * binary).mean(), rtol=1e-5)


def check_other_objectives() -> None:
    logits = RNG.normal(size=(40, 3)).astype(np.float32)
    losses = cross_entropies(logits, Y)
    inner = CROSS_ENTROPY(from_logits=True)
    if BACKEND not in ("torch", "jax"):
        for objective in (TERM(t=1.0), reweigh.RGD(tau=1.0, normalize="mean")):
            with raises(ValueError, "needs the PyTorch or JAX backend"):
                Reweighted(inner, objective)
        return
    tilted = np.exp(losses) / np.exp(losses).mean()
    loss = Reweighted(inner, TERM(t=1.0))
    np.testing.assert_allclose(float(loss(Y, logits)), (tilted * losses).mean(), rtol=1e-5)
    assert Reweighted.from_config(loss.get_config()).objective == TERM(t=1.0)
    network(loss).fit(X, Y, batch_size=16, verbose=0)  # under the backend's compiler as well
    normalized = Reweighted(inner, tau=1.0, normalize="mean")
    expected = (kl(losses) * losses).mean() / kl(losses).mean()
    np.testing.assert_allclose(float(normalized(Y, logits)), expected, rtol=1e-5)


def check_errors() -> None:
    inner = keras.losses.MeanSquaredError()
    with raises(ValueError, "remembers something between steps"):
        Reweighted(inner, ABSGD())
    with raises(ValueError, "Drop it"):
        Reweighted(inner, tau=1.0, surrogate=True)
    with raises(TypeError, "must be a keras.losses.Loss"):
        Reweighted("mse", tau=1.0)
    with raises(TypeError, "either an objective or hyper-parameters"):
        Reweighted(inner, reweigh.RGD(), tau=2.0)
    for part, reason in {
        "class_uniform": "with the sampler 'class_uniform': a loss sees batches that are drawn already",
        "focal": "with the loss 'focal': the loss is the Keras loss that is wrapped; `loss(...)` takes a whole",
        "sam": "with the step 'sam': a loss leaves the update to `model.fit`",
        "ema": "with the average 'ema': a loss does not see the model's weights",
    }.items():
        if BACKEND == "torch":  # they are written in PyTorch
            with raises(ValueError, reason):
                Reweighted(inner, f"rgd:tau=2+{part}")
    with raises(TypeError, "must be a method's text, a method, an objective or a weight function, got int"):
        Reweighted(inner, 3)  # pyright: ignore[reportArgumentType]
    assert Reweighted(inner, "rgd:tau=2").objective == Reweighted(inner, reweigh.KL(tau=2.0)).objective
    with raises(ValueError, "`tau` must be a positive number, got -1.0"):
        Reweighted(inner, tau=-1.0)

    class Averaged(keras.losses.Loss):
        def call(self, y_true: Any, y_pred: Any) -> Any:
            return keras.ops.mean(keras.ops.square(y_true - y_pred))

    with raises(ValueError, "averages inside"):
        Reweighted(Averaged(), tau=1.0)(np.zeros((2, 1)), np.ones((2, 1)))


def class_counts() -> Any:
    return np.bincount(Y, minlength=3)


def balanced(beta: float = 0.9) -> np.ndarray[Any, Any]:
    """Inverse effective numbers, of mean one over the training rows."""
    weights = (1 - beta) / (1 - beta ** class_counts())
    return weights / np.average(weights, weights=class_counts())


def check_losses_of_classes_by_hand() -> None:
    logits = RNG.normal(size=(40, 3)).astype(np.float32) * 2
    wide, rows = logits.astype(np.float64), np.arange(40)
    shares = class_counts() / 40
    ce = cross_entropies(logits, Y)
    p = np.exp(-ce)
    log_p = wide - np.log(np.exp(wide).sum(1, keepdims=True))
    others = np.exp(wide)
    others[rows, Y] = 0.0
    s = others / others.sum(1, keepdims=True)
    log_s = np.where(s > 0, np.log(np.where(s > 0, s, 1)), 0.0)
    adjusted = cross_entropies(logits + 1.5 * np.log(shares), Y)
    scaled = cross_entropies(logits * (class_counts() / class_counts().max()) ** 0.3 + np.log(shares), Y)
    expected = {
        "cross_entropy": ce,
        "focal:gamma=1.5": (1 - p) ** 1.5 * ce,
        "label_smoothing:eps=0.2": 0.8 * ce - 0.2 * log_p.mean(1),
        "logit_adjusted:t=1.5": adjusted,
        "vs:gamma=0.3": scaled,
        "large_margin:lam=0.4": ce + 0.2 * ((s - 0.5) * log_s).sum(1),
        "poly:e1=2.0": ce + 2 * (1 - p),
        "gce:q=0.5": (1 - p**0.5) / 0.5,
        "sce:alpha=0.5,beta=2.0": 0.5 * ce + 2 * 4 * (1 - p),
        "class_balanced:beta=0.9": balanced()[Y] * ce,
        "class_weights:base=focal": (1 / shares / 3)[Y] * (1 - p) ** 2 * ce,
    }
    probabilities = np.exp(log_p).astype(np.float32)
    for text, losses in expected.items():
        plain = ClassLoss(text, class_counts=class_counts(), reduction="none")
        np.testing.assert_allclose(numbers(plain(Y, logits)), losses, rtol=2e-4, atol=1e-6, err_msg=text)
        one_hot = np.eye(3, dtype=np.float32)[Y]
        for labels in (Y[:, None], one_hot):
            np.testing.assert_allclose(numbers(plain(labels, logits)), numbers(plain(Y, logits)), rtol=1e-5)
        if text.startswith("vs"):
            with raises(ValueError, "scales logits, which probabilities do not determine"):
                ClassLoss(text, from_logits=False)
            continue
        softmax = ClassLoss(text, class_counts=class_counts(), reduction="none", from_logits=False)
        np.testing.assert_allclose(numbers(softmax(Y, probabilities)), losses, rtol=2e-3, atol=1e-5, err_msg=text)


def check_a_method_trains_like_hand_made_weights() -> None:
    """Row weights and Keras's accumulation on top: the reference is plain training with all weights multiplied."""
    own = np.linspace(0.5, 2.0, 40).astype(np.float32)
    for options in ({}, {"gradient_accumulation_steps": 2}):
        method = watch(network(loss("class_balanced:beta=0.9+rgd:tau=1+prior", class_counts="auto")))
        plain = network(CROSS_ENTROPY(from_logits=True))
        for model in (method, plain):
            model.compile(optimizer=keras.optimizers.SGD(0.3, **options), loss=model.loss)
        halves = (slice(0, 20), slice(20, 40))
        for _ in range(2):
            start = kl(cross_entropies(numbers(plain(X)), Y))
            for rows in halves:
                logits = numbers(plain(X[rows]))  # what each update sees
                weights = start[rows] if options else kl(cross_entropies(logits, Y[rows]))
                plain.train_on_batch(X[rows], Y[rows], sample_weight=balanced()[Y[rows]] * weights * own[rows])
        method.fit(X, Y, sample_weight=own, batch_size=20, shuffle=False, epochs=2, verbose=0)
        assert method.loss.class_counts == tuple(class_counts())
        for a, b in zip(method.get_weights(), plain.get_weights(), strict=True):
            np.testing.assert_allclose(a, b, atol=3e-6)


def check_auto_counts_batches_and_one_hot_rows() -> None:
    class Batches(keras.utils.PyDataset):
        def __len__(self) -> int:
            return 2

        def __getitem__(self, index: int) -> Any:
            rows = slice(20 * index, 20 * index + 20)
            return X[rows], np.eye(3, dtype=np.float32)[Y[rows]]

    model = watch(network(loss("logit_adjusted+rgd", class_counts="auto")))
    model.fit(Batches(), epochs=1, verbose=0)
    assert model.loss.class_counts == tuple(class_counts())
    with raises(ValueError, "call watch(model) after model.compile"):
        loss("logit_adjusted", class_counts="auto")(Y, np.zeros((40, 3), np.float32))


def check_a_correction_of_predictions() -> None:
    shares = class_counts() / 40
    model = watch(network(loss("rgd+prior", class_counts="auto")))
    model.fit(X, Y, epochs=1, verbose=0)
    logits = model.predict(X, verbose=0)
    corrected = model.loss.correction(logits, Y)(logits)
    np.testing.assert_allclose(corrected, logits - np.log(shares), atol=1e-5)
    done = loss("logit_adjusted+rgd+prior", class_counts=class_counts())  # what the loss corrects, post does not
    np.testing.assert_allclose(done.correction(logits, Y)(logits), logits, atol=1e-5)
    wrapped = Reweighted(CROSS_ENTROPY(from_logits=True), "rgd:tau=2+prior", class_counts=class_counts())
    np.testing.assert_allclose(wrapped.correction(logits, Y)(logits), logits - np.log(shares), atol=1e-5)
    p = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    of_p = loss("rgd+prior", class_counts=class_counts(), from_logits=False).correction(p, Y)
    np.testing.assert_allclose(of_p(np.log(p)), np.log(p) - np.log(shares), atol=1e-5)
    with raises(ValueError, "no correction after training"):
        loss("focal").correction(logits, Y)


def check_a_method_is_saved_with_the_model() -> None:
    first = loss("class_balanced:beta=0.9+rgd:tau=2+prior", class_counts=class_counts(), level="token")
    model = network(first)
    model.train_on_batch(X, Y)
    with tempfile.TemporaryDirectory() as folder:
        model.save(Path(folder) / "model.keras")
        loaded = keras.models.load_model(Path(folder) / "model.keras")
    assert (loaded.loss.loss.value, loaded.loss.objective, loaded.loss.post) == (
        first.loss.value,  # type: ignore[attr-defined]
        first.objective,
        first.post,
    )
    np.testing.assert_allclose(loaded.train_on_batch(X, Y), model.train_on_batch(X, Y), rtol=1e-6)


def check_weights_of_tokens() -> None:
    """One weight per token, `(B, T)`, ignored labels and class weights together."""
    logits = RNG.normal(size=(4, 6, 3)).astype(np.float32)
    y = RNG.integers(0, 3, (4, 6))
    own = RNG.uniform(0.5, 2.0, (4, 6)).astype(np.float32)
    losses = cross_entropies(logits.reshape(-1, 3), y.reshape(-1)).reshape(4, 6)
    for level, weights in (("token", kl(losses)), ("sample", kl(losses.mean(1))[:, None])):
        criterion = Reweighted(CROSS_ENTROPY(from_logits=True), tau=1.0, level=level)  # type: ignore[arg-type]
        expected = (own * weights * losses).mean()
        np.testing.assert_allclose(float(criterion(y, logits, sample_weight=own)), expected, rtol=1e-5)
        named = loss("class_weights+rgd:tau=1", class_counts=[50, 30, 20], level=level)  # type: ignore[arg-type]
        of_class = (1 / np.array([0.5, 0.3, 0.2]) / 3)[y]
        expected = (own * of_class * weights * losses).mean()
        np.testing.assert_allclose(float(named(y, logits, sample_weight=own)), expected, rtol=1e-5)
    real = RNG.random((4, 6)) < 0.7
    ignoring = loss("cross_entropy:ignore_index=-100+rgd:tau=1", level="token")
    value = float(ignoring(np.where(real, y, -100), logits))
    np.testing.assert_allclose(value, (kl(losses) * losses)[real].mean(), rtol=1e-5)


def check_packed_sequences_count_token_by_token() -> None:
    """At the level of tokens a row may hold any number of sequences: packed and padded batches have the same loss."""
    lengths, rng = (2, 4, 3, 3), np.random.default_rng(8)
    sequences = [(rng.normal(size=(n, 3)).astype(np.float32), rng.integers(0, 3, n)) for n in lengths]
    packed = np.concatenate([z for z, _ in sequences])[None], np.concatenate([t for _, t in sequences])[None]
    padded = np.zeros((4, 4, 3), np.float32), np.full((4, 4), -100)
    for row, (z, t) in enumerate(sequences):
        padded[0][row, : len(t)], padded[1][row, : len(t)] = z, t
    criterion = loss("focal:ignore_index=-100+rgd:tau=1", level="token")
    np.testing.assert_allclose(
        float(criterion(packed[1], packed[0])), float(criterion(padded[1], padded[0])), rtol=1e-5
    )


def check_mixed_precision_weighs_in_single() -> None:
    keras.mixed_precision.set_dtype_policy("mixed_bfloat16")
    try:
        for criterion in (Reweighted(CROSS_ENTROPY(from_logits=True), tau=1.0), loss("cross_entropy+rgd:tau=1")):
            model = network(criterion)
            logits = numbers(keras.ops.cast(model(X), "float32"))
            losses = cross_entropies(logits, Y)
            before = numbers(criterion.weigh(Y, logits)[2])
            np.testing.assert_allclose(before, kl(losses), rtol=1e-5)
            np.testing.assert_allclose(model.train_on_batch(X, Y), (kl(losses) * losses).mean(), rtol=2e-2)
            assert all(np.isfinite(w).all() for w in model.get_weights())
    finally:
        keras.mixed_precision.set_dtype_policy("float32")


def check_a_compiled_step_is_the_same_step() -> None:
    if BACKEND != "jax":  # with PyTorch, Keras would start a compiler of C++
        return
    models = []
    for compiled in (False, True):
        model = network(loss("focal+rgd:tau=1"), jit_compile=compiled, run_eagerly=not compiled)
        for _ in range(2):
            model.train_on_batch(X, Y)
        models.append(model.get_weights())
    for a, b in zip(*models, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)


def check_two_devices_are_one() -> None:
    if BACKEND != "jax":
        return
    devices = keras.distribution.list_devices()
    assert len(devices) == 2, "start with --xla_force_host_platform_device_count=2"
    alone = network(loss("class_balanced:beta=0.9+rgd:tau=1", class_counts=class_counts()))
    alone.fit(X, Y, batch_size=20, shuffle=False, verbose=0)
    keras.distribution.set_distribution(keras.distribution.DataParallel(devices=devices))
    try:
        shared = network(loss("class_balanced:beta=0.9+rgd:tau=1", class_counts=class_counts()))
        shared.fit(X, Y, batch_size=20, shuffle=False, verbose=0)
    finally:
        keras.distribution.set_distribution(None)
    for a, b in zip(alone.get_weights(), shared.get_weights(), strict=True):
        np.testing.assert_allclose(a, b, atol=2e-6)


def check_losses_that_do_not_fit() -> None:
    for text, reason in {
        "ldam": "does not know how far training is",
        "mse+rgd": "Wrap Keras's own",
        "focal:form=sigmoid": "the focal loss of a softmax",
        "focal+sam": "with the step 'sam': a loss leaves the update to `model.fit`",
    }.items():
        with raises(ValueError, reason):
            loss(text, class_counts=[2, 3])
    with raises(ValueError, "as many classes on the last axis as there are class counts, 2"):
        loss("logit_adjusted", class_counts=[2, 3])(Y, np.zeros((40, 3), np.float32))
    with raises(ValueError, "`class_counts` must be given"):
        loss("logit_adjusted")(Y, np.zeros((40, 3), np.float32))


if __name__ == "__main__":
    assert os.environ.get("KERAS_BACKEND") == BACKEND, "choose the backend with KERAS_BACKEND"
    # Naming a loss reads its card, which needs PyTorch; on TensorFlow these checks are left to the other backends.
    named = (check_losses_of_classes_by_hand, check_a_method_trains_like_hand_made_weights)
    named += (check_auto_counts_batches_and_one_hot_rows, check_a_correction_of_predictions)
    named += (check_a_method_is_saved_with_the_model, check_weights_of_tokens, check_losses_that_do_not_fit)
    named += (check_packed_sequences_count_token_by_token, check_mixed_precision_weighs_in_single)
    for name, check in list(globals().items()):
        if name.startswith("check_"):
            if find_spec("torch") is not None or check not in named:
                check()
            print(f"{BACKEND}: {name.removeprefix('check_').replace('_', ' ')}", flush=True)
