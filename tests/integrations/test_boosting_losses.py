"""Losses of classes in boosters: derivatives against autograd of the networks' losses, and models against weights."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("sklearn")
pytest.importorskip("xgboost")
pytest.importorskip("lightgbm")
pytest.importorskip("catboost")

import lightgbm as lgb
import torch
import xgboost as xgb
from sklearn.metrics import balanced_accuracy_score
from sklearn.utils import compute_sample_weight

import reweigh
from reweigh.integrations import boosting

HOST = "XGBoost, LightGBM, CatBoost"
LIBRARIES = ("XGB", "LGBM", "CatBoost")
OPTIONS: dict[str, dict[str, Any]] = {
    "XGB": {"n_estimators": 20, "max_depth": 3, "n_jobs": 1},
    "LGBM": {"n_estimators": 20, "num_leaves": 8, "n_jobs": 1, "verbose": -1},
    "CatBoost": {"iterations": 20, "depth": 3, "learning_rate": 0.2, "thread_count": 1, "verbose": False}
    | {"allow_writing_files": False},
}
LOSSES = (
    "focal",
    "focal:gamma=0.5",
    "class_weights",
    "class_weights:power=0.5",
    "class_balanced:beta=0.9",
    "class_balanced:beta=0.9,base=focal",
    "logit_adjusted",
    "logit_adjusted:t=0.5",
)
OBJECTIVES = ("mean", "rgd:tau=1", "redescending", "dft")

pytestmark = pytest.mark.filterwarnings("ignore:.*numba.*:UserWarning", "ignore:.*eval_set.*deprecated.*")


def imbalanced(classes: int, n: int = 600, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 4))
    z = 1.5 * X[:, 0] + X[:, 1] + rng.logistic(size=n)
    return X, np.digitize(z, [3.0] if classes == 2 else [1.5, 4.0])


def ours(library: str, objective: Any) -> Any:
    return getattr(boosting, f"RGD{library}Classifier")(objective=objective, **OPTIONS[library])


def derivatives(name: str, text: str, task: str, margins: np.ndarray, y: np.ndarray, own: np.ndarray) -> Any:
    counts = np.bincount(y).tolist()
    objective = getattr(boosting, name)(task, objective=text, class_counts=counts)
    if name == "catboost" and task == "multiclass":
        rows = [objective.calc_ders_multi(m, t, w) for m, t, w in zip(margins, y, own, strict=True)]
        return -np.array([r[0] for r in rows]), -np.array([np.diag(r[1]) for r in rows])
    if name == "catboost":
        return -objective.calc_ders_range(margins, y, own).T
    gradient, hessian = objective.of(y.astype(float), margins, own)
    return gradient, hessian / ({"xgboost": 2.0, "lightgbm": 1.5}[name] if task == "multiclass" else 1.0)


@pytest.mark.shows(HOST, "loss")
@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("text", LOSSES)
@pytest.mark.parametrize("task", ["binary", "multiclass"])
@pytest.mark.parametrize("name", ["xgboost", "lightgbm", "catboost"])
def test_derivatives_are_those_of_the_network_by_autograd(name: str, task: str, text: str, objective: str) -> None:
    rng = np.random.default_rng(3)
    classes = 2 if task == "binary" else 3
    y = rng.choice(classes, 40, p=[0.8, 0.2] if classes == 2 else [0.6, 0.3, 0.1])
    margins = 2 * rng.normal(size=40 if classes == 2 else (40, 3))
    own = rng.uniform(0.5, 2.0, 40)
    gradient, hessian = derivatives(name, f"{text}+{objective}", task, margins, y, own)

    counts = np.bincount(y)
    built = reweigh.method(f"{text}+{objective}").build(reweigh.Context(class_counts=counts.tolist()))
    labels = torch.from_numpy(y)

    def losses(at: torch.Tensor) -> torch.Tensor:
        logits = torch.stack([torch.zeros_like(at), at], 1) if classes == 2 else at
        return built.loss(logits, labels)

    at = torch.from_numpy(margins).requires_grad_()
    values = losses(at)
    (slope,) = torch.autograd.grad(values.sum(), at, create_graph=True)
    columns = [slope] if classes == 2 else list(slope.unbind(1))
    curves = [torch.autograd.grad(c.sum(), at, retain_graph=True)[0] for c in columns]
    curvature = curves[0] if classes == 2 else torch.stack([c[:, k] for k, c in enumerate(curves)], 1)

    factor = torch.from_numpy(own) * built.objective.weigh(values.detach(), ()).weights
    of_class = built.loss.sample_weight(labels)
    if of_class is not None:  # scaled to a mean of one over the rows
        factor = factor * of_class / of_class.mean()
    factor = factor if classes == 2 else factor[:, None]
    np.testing.assert_allclose(gradient, (factor * slope).detach(), rtol=1e-6, atol=1e-9)

    exact = (factor * curvature).detach().numpy()
    if "focal" not in text:
        np.testing.assert_allclose(hessian, exact, rtol=1e-6, atol=1e-12)
        return
    # A focal loss is concave where the prediction is badly wrong, and a booster divides by curvature.
    logits = np.stack([0 * margins, margins], 1) if classes == 2 else margins
    probability = torch.from_numpy(logits).softmax(1).gather(1, labels[:, None])[:, 0].numpy()
    sure = probability > 0.2
    assert 10 < sure.sum() < 40
    np.testing.assert_allclose(hessian[sure], exact[sure], rtol=1e-6, atol=1e-12)
    assert (hessian > 0).all()
    assert (hessian >= exact - 1e-6).all()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("gamma", [0.1, 0.5, 2.0, 5.0])
def test_focal_is_finite_at_any_margin(gamma: float, dtype: Any) -> None:
    ends = np.array([-1e4, -100.0, -20.0, 0.0, 20.0, 100.0, 1e4], dtype)
    for label in (0.0, 1.0):
        y = np.full(len(ends), label)
        for gradient, hessian in (
            boosting.lightgbm("binary", objective=f"focal:gamma={gamma}").of(y, ends),
            boosting.xgboost("multiclass", objective=f"focal:gamma={gamma}").of(
                y, np.stack([0 * ends, ends, -ends], 1)
            ),
        ):
            assert np.isfinite(gradient).all()
            assert np.isfinite(hessian).all()
            assert (hessian >= 0).all()


@pytest.mark.shows(HOST, "loss")
@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("library", LIBRARIES)
def test_class_weights_are_the_rows_own_weights(library: str, classes: int) -> None:
    X, y = imbalanced(classes)
    named = ours(library, "class_weights+rgd").fit(X, y)
    by_hand = ours(library, "rgd").fit(X, y, sample_weight=compute_sample_weight("balanced", y))
    np.testing.assert_allclose(named.predict_proba(X), by_hand.predict_proba(X), atol=2e-5)
    plain = ours(library, "rgd").fit(X, y)
    assert np.abs(named.predict_proba(X) - plain.predict_proba(X)).max() > 0.05


@pytest.mark.parametrize("text", ["class_weights", "class_balanced:beta=0.99", "logit_adjusted"])
@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("library", LIBRARIES)
def test_rare_classes_are_found(library: str, classes: int, text: str) -> None:
    (X, y), (new, actual) = imbalanced(classes), imbalanced(classes, 2000, seed=1)

    def score(objective: str) -> float:
        return balanced_accuracy_score(actual, np.ravel(ours(library, objective).fit(X, y).predict(new)))

    assert score(text) > score("mean") + 0.03


@pytest.mark.parametrize("text", ["class_weights", "class_balanced", "logit_adjusted"])
@pytest.mark.parametrize("classes", [2, 3])
def test_a_booster_starts_where_no_constant_margin_has_a_smaller_loss(classes: int, text: str) -> None:
    _, y = imbalanced(classes)
    task: Any = "binary" if classes == 2 else "multiclass"
    for objective, start in (
        (lgbm := boosting.lightgbm(task, objective=text), boosting.init_score(y, task, objective=lgbm)),
        (plain := boosting.lightgbm(task, objective="focal:gamma=0"), boosting.init_score(y, task, objective=plain)),
    ):
        gradient, _ = objective.of(y, start)
        np.testing.assert_allclose(gradient.sum(axis=0), 0.0, atol=1e-9)
    own = boosting.xgboost(task, objective=text)
    base = np.asarray(boosting.xgboost_params(y, task, objective=own)["base_score"])
    margins = np.log(base / (1 - base)) if classes == 2 else base
    gradient, _ = own.of(y, np.tile(margins, (len(y), *(1,) * margins.ndim)))
    np.testing.assert_allclose(gradient.sum(axis=0), 0.0, atol=1e-6)


def test_the_training_calls_count_classes_themselves() -> None:
    X, y = imbalanced(3)
    own = boosting.xgboost("multiclass", objective="logit_adjusted+rgd")
    params = {"max_depth": 3, "nthread": 1, **boosting.xgboost_params(y, "multiclass", objective=own)}
    found = xgb.train(params, xgb.DMatrix(X, y), 20, obj=own).predict(xgb.DMatrix(X))
    np.testing.assert_allclose(found, ours("XGB", "logit_adjusted+rgd").fit(X, y).predict_proba(X), atol=1e-5)
    objective = boosting.lightgbm("multiclass", objective="logit_adjusted+rgd")
    init = boosting.init_score(y, "multiclass", objective=objective)
    options = {"objective": objective, "num_class": 3, "num_leaves": 8, "num_threads": 1, "verbose": -1}
    booster = lgb.train(options, lgb.Dataset(X, y, init_score=init), 20)
    found = boosting.standalone(booster, init, "multiclass").predict(X)
    np.testing.assert_allclose(found, ours("LGBM", "logit_adjusted+rgd").fit(X, y).predict_proba(X), atol=1e-6)


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_prior_does_not_correct_a_second_time(library: str) -> None:
    X, y = imbalanced(2)
    for text in ("class_weights", "logit_adjusted"):
        alone, both = ours(library, text).fit(X, y), ours(library, f"{text}+prior").fit(X, y)
        np.testing.assert_allclose(both.predict_proba(X), alone.predict_proba(X), atol=1e-6)
    half = ours(library, "class_weights:power=0.5").fit(X, y).predict_proba(X)
    both = ours(library, "class_weights:power=0.5+prior").fit(X, y).predict_proba(X)
    left = half / np.sqrt(np.bincount(y) / len(y))
    np.testing.assert_allclose(both, left / left.sum(axis=1, keepdims=True), atol=1e-6)


@pytest.mark.refuses(HOST, "sampler", "step", "average")
def test_what_a_booster_cannot_have_is_refused_in_a_sentence() -> None:
    X, y = imbalanced(2)
    for text, message in (
        ("mean+sam", "with the step 'sam': it grows trees"),
        ("mean+ema", "with the average 'ema': "),
        ("class_uniform", "with the sampler 'class_uniform': it grows trees on all rows"),
        ("ldam", "a booster takes the losses cross_entropy, focal, class_weights, class_balanced and logit_adjusted"),
        ("class_balanced:base=poly", "a booster takes the losses"),
        ("focal:form=sigmoid", "a booster takes the losses"),
        ("focal:ignore_index=-100", "`ignore_index` marks padding"),
    ):
        for library in LIBRARIES:
            with pytest.raises(ValueError, match=message):
                ours(library, text).fit(X, y)
    with pytest.raises(ValueError, match="with the loss 'focal': the loss of a regression is the squared error"):
        boosting.xgboost("regression", objective="focal")
    with pytest.raises(ValueError, match="with the post 'prior': corrections are for classes"):
        boosting.lightgbm("binary", objective="rgd+prior")
    with pytest.raises(ValueError, match=r"`class_counts` is required for CatBoost.*class_counts=np.bincount\(y\)"):
        boosting.catboost("binary", objective="class_weights")
    with pytest.raises(ValueError, match="`class_counts` must be 'auto' or one number per class, got 'count'"):
        boosting.xgboost("binary", objective="class_weights", class_counts="count")  # pyright: ignore[reportArgumentType]
