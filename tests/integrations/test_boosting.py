"""Boosters with re-weighting: the built-in objective where the weight is one, the derivative of Phi everywhere else."""

from __future__ import annotations

import json
import pickle
import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("sklearn")
pytest.importorskip("xgboost")
pytest.importorskip("lightgbm")
pytest.importorskip("catboost")

import catboost as cb
import lightgbm as lgb
import xgboost as xgb
from sklearn.base import clone
from sklearn.metrics import log_loss
from sklearn.model_selection import GridSearchCV

import reweigh
from reweigh.integrations import boosting

EXAMPLE = Path(__file__).parents[2] / "examples" / "boosting_table.py"
TASKS = ("binary", "multiclass", "regression")
LIBRARIES = ("XGB", "LGBM", "CatBoost")
OPTIONS: dict[str, dict[str, Any]] = {
    "XGB": {"n_estimators": 15, "max_depth": 3, "n_jobs": 1},
    "LGBM": {"n_estimators": 15, "num_leaves": 8, "n_jobs": 1, "verbose": -1},
    "CatBoost": {"iterations": 8, "depth": 3, "learning_rate": 0.1, "thread_count": 1, "verbose": False}
    | {"allow_writing_files": False},
}
HOSTS = {"XGB": xgb, "LGBM": lgb, "CatBoost": cb}

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*numba.*:UserWarning",  # CatBoost would like to compile every custom objective
    "ignore:.*eval_set.*deprecated.*",
    "ignore:The argument 'eval_set' is deprecated",
)


def data(task: str, n: int = 400, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 4))
    z = 2 * X[:, 0] + X[:, 1] - 1
    if task == "binary":
        return X, (z + rng.logistic(size=n) > 0).astype(int)
    if task == "multiclass":
        return X, np.digitize(z + rng.normal(size=n), [-2.0, 0.5])
    return X, 30 + 10 * z + 5 * rng.normal(size=n)


def kind(task: str) -> str:
    return "Regressor" if task == "regression" else "Classifier"


def builtin(library: str, task: str) -> Any:
    return getattr(HOSTS[library], f"{library}{kind(task)}")(**OPTIONS[library])


def ours(library: str, task: str, **options: Any) -> Any:
    return getattr(boosting, f"RGD{library}{kind(task)}")(**OPTIONS[library], **options)


def output(model: Any, X: np.ndarray) -> np.ndarray:
    return (
        model.predict_proba(X) if hasattr(model, "classes_") and hasattr(model, "predict_proba") else model.predict(X)
    )


# --- derivatives ---


def losses_by_definition(task: str, margins: np.ndarray, y: np.ndarray, variance: float) -> np.ndarray:
    if task == "binary":
        return np.logaddexp(0, margins) - y * margins
    if task == "multiclass":
        return np.log(np.exp(margins).sum(axis=1)) - margins[np.arange(len(y)), y.astype(int)]
    return (margins - y) ** 2 / variance


@pytest.mark.shows("XGBoost, LightGBM, CatBoost", "objective")
@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize(
    "weight",
    [
        reweigh.KL(tau=1.0),
        reweigh.KL(tau=None, gamma=-0.5),
        reweigh.ReverseKL(tau=0.7),
        reweigh.ChiSquare(tau=0.5, scaled=True),
    ],
    ids=repr,
)
@pytest.mark.parametrize("name", ["xgboost", "lightgbm", "catboost"])
def test_gradients_against_differences_of_phi(name: str, weight: Any, task: str) -> None:
    rng = np.random.default_rng(1)
    y = {"binary": rng.integers(0, 2, 30), "multiclass": rng.integers(0, 3, 30), "regression": rng.normal(size=30)}[
        task
    ]
    margins = 2 * rng.normal(size=(30, 3) if task == "multiclass" else 30)
    own = rng.uniform(0.5, 2.0, 30)
    variance = 1.7
    extra = {"variance": variance} if task == "regression" else {}
    objective = getattr(boosting, name)(task, objective=weight, **extra)
    if name == "catboost" and task == "multiclass":
        rows = [objective.calc_ders_multi(m, t, w) for m, t, w in zip(margins, y, own, strict=True)]
        gradient, hessian = -np.array([r[0] for r in rows]), -np.array([np.diag(r[1]) for r in rows])
    elif name == "catboost":
        gradient, hessian = -objective.calc_ders_range(margins, y, own).T
    else:
        gradient, hessian = objective.of(y.astype(float), margins, own)

    def phi(at: np.ndarray) -> np.ndarray:
        return own * weight.phi(losses_by_definition(task, at, y, variance))

    unit = variance / 2 if task == "regression" else 1.0  # libraries halve the squared error
    steps = [np.full(30, 1e-6)] if margins.ndim == 1 else list(1e-6 * np.eye(3))
    for k, step in enumerate(steps):
        numerical = unit * (phi(margins + step) - phi(margins - step)) / 2e-6
        np.testing.assert_allclose(gradient if margins.ndim == 1 else gradient[:, k], numerical, atol=1e-6, rtol=1e-5)

    # The hessian is the loss's own, not Phi's, times the same factor as the gradient.
    def loss(at: np.ndarray) -> np.ndarray:
        return losses_by_definition(task, at, y, variance)

    factor = {"xgboost": 2.0, "lightgbm": 1.5, "catboost": 1.0}[name] if task == "multiclass" else 1.0
    w = own * weight(loss(margins))
    for k, step in enumerate(steps):
        step = 100 * step
        curvature = unit * (loss(margins + step) - 2 * loss(margins) + loss(margins - step)) / 1e-8
        found = hessian if margins.ndim == 1 else hessian[:, k]
        np.testing.assert_allclose(found, factor * w * curvature, rtol=1e-3, atol=1e-5)


@given(st.floats(-1e4, 1e4), st.integers(0, 1), st.sampled_from([np.float32, np.float64]))
def test_binary_is_finite_and_right_at_any_margin(margin: float, label: int, dtype: Any) -> None:
    from reweigh.integrations.boosting._rows import binary

    rows = binary(np.array([margin], dtype), np.array([label], np.float32))
    value = np.longdouble(dtype(margin))
    probability = 1 / (1 + np.exp(-value))
    assert rows.gradient.dtype == dtype
    assert rows.gradient[0] == pytest.approx(float(probability - label), abs=2e-7)
    assert 0 <= rows.hessian[0] <= 0.2500001
    largest = 79.0 if dtype == np.float32 else 637.0  # where exp would overflow before long
    exact = float(np.logaddexp(0, -value if label else value))
    assert rows.losses[0] == pytest.approx(min(exact, largest), rel=2e-2, abs=1e-5)


# --- the built-in objective, where the weight is one ---


def splits(library: str, model: Any) -> list[Any]:
    """Features and thresholds of every tree, in order."""
    if library == "XGB":
        frame = model.get_booster().trees_to_dataframe()
        return list(zip(frame["Feature"], frame["Split"].fillna(0).round(5), strict=True))
    if library == "LGBM":
        frame = model.booster_.trees_to_dataframe()
        return list(zip(frame["split_feature"].fillna("-"), frame["threshold"].fillna(0).round(5), strict=True))
    path = Path(model._path)
    model.save_model(str(path), format="json")
    trees = json.loads(path.read_text())["oblivious_trees"]
    return [(s["float_feature_index"], round(s["border"], 5)) for tree in trees for s in tree["splits"]]


@pytest.mark.shows("XGBoost, LightGBM, CatBoost", "row weight")
@pytest.mark.parametrize("weighted", [False, True], ids=["", "weighted"])
@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("library", LIBRARIES)
def test_tau_to_zero_is_the_built_in_objective(library: str, task: str, weighted: bool, tmp_path: Path) -> None:
    X, y = data(task)
    own = np.random.default_rng(2).uniform(0.2, 3.0, len(y)) if weighted else None
    plain = builtin(library, task).fit(X, y, sample_weight=own)
    model = ours(library, task, tau=1e-9).fit(X, y, sample_weight=own)
    np.testing.assert_allclose(output(model, X), output(plain, X), rtol=1e-5, atol=1e-5)
    if library == "CatBoost":
        plain._path, model._path = str(tmp_path / "a.json"), str(tmp_path / "b.json")
    found = splits(library, model)
    assert found == splits(library, plain)
    assert len(found) > 20


def test_catboost_with_many_features_takes_as_many_newton_steps() -> None:
    X, y = data("binary")
    X = np.hstack([X, np.random.default_rng(3).normal(size=(len(X), 18))])
    model = ours("CatBoost", "binary", tau=1e-9).fit(X, y)
    # Looking back after a Newton step needs the value of the loss, for which no custom objective is asked.
    exact = builtin("CatBoost", "binary").set_params(leaf_estimation_backtracking="No").fit(X, y)
    np.testing.assert_allclose(model.predict_proba(X), exact.predict_proba(X), atol=1e-9)
    np.testing.assert_allclose(
        model.predict_proba(X), builtin("CatBoost", "binary").fit(X, y).predict_proba(X), atol=1e-4
    )
    one_step = ours("CatBoost", "binary", tau=1e-9, leaf_estimation_iterations=1).fit(X, y)
    assert np.abs(one_step.predict_proba(X) - exact.predict_proba(X)).max() > 1e-3


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("library", LIBRARIES)
def test_tau_of_one_changes_the_model_and_helps_hard_rows(library: str, task: str) -> None:
    X, y = data(task)
    plain, model = builtin(library, task).fit(X, y), ours(library, task, tau=1.0).fit(X, y)
    difference = np.abs(output(model, X) - output(plain, X)).max()
    assert difference > (0.02 if task != "regression" else 0.02 * y.std())
    if task != "regression":
        np.testing.assert_allclose(output(model, X).sum(axis=1), 1.0, rtol=1e-5)
        assert set(np.ravel(model.predict(X))) <= set(y)
        assert np.mean(np.ravel(model.predict(X)) == y) > 0.7
    else:
        assert model.score(X, y) > 0.4


@pytest.mark.parametrize("task", TASKS)
def test_xgboost_train(task: str, tmp_path: Path) -> None:
    X, y = data(task)
    params = {"max_depth": 3, "nthread": 1, **boosting.xgboost_params(y, task)}
    rows = xgb.DMatrix(X, y)
    log: dict[str, Any] = {}
    booster = xgb.train(
        params,
        rows,
        10,
        obj=boosting.xgboost(task, tau=1.0),
        evals=[(rows, "train")],
        evals_result=log,
        verbose_eval=False,
    )
    found = booster.predict(rows)
    estimator = output(ours("XGB", task, tau=1.0).set_params(n_estimators=10).fit(X, y), X)
    np.testing.assert_allclose(found, estimator[:, 1] if task == "binary" else estimator, rtol=1e-5)
    (metric,) = log["train"]
    plain = np.sqrt(np.mean((found - y) ** 2)) if task == "regression" else log_loss(y, found)
    assert log["train"][metric][-1] == pytest.approx(plain, rel=1e-4)
    booster.save_model(tmp_path / "model.ubj")
    np.testing.assert_array_equal(xgb.Booster(model_file=tmp_path / "model.ubj").predict(rows), found)


@pytest.mark.parametrize("task", TASKS)
def test_lightgbm_train(task: str, tmp_path: Path) -> None:
    X, y = data(task)
    X_valid, y_valid = data(task, n=150, seed=5)
    init = boosting.init_score(y, task)
    train = lgb.Dataset(X, y, init_score=init)
    valid = lgb.Dataset(X_valid, y_valid, init_score=boosting.init_score(y, task, rows=len(y_valid)), reference=train)
    params: dict[str, Any] = {
        "objective": boosting.lightgbm(task, tau=1.0),
        "verbose": -1,
        "num_leaves": 8,
        "num_threads": 1,
    }
    if task == "multiclass":
        params["num_class"] = 3
    log: dict[str, Any] = {}
    booster = lgb.train(
        params,
        train,
        30,
        valid_sets=[valid],
        feval=boosting.lightgbm_metric(task),
        callbacks=[lgb.record_evaluation(log), lgb.early_stopping(3, verbose=False)],
    )
    model = boosting.standalone(booster, init, task)
    found = model.predict(X_valid)
    raw = booster.predict(X_valid) + init[0]
    np.testing.assert_allclose(model.predict(X_valid, raw_score=True), raw, atol=1e-12)
    plain = np.mean((found - y_valid) ** 2) if task == "regression" else log_loss(y_valid, found)
    (values,) = log["valid_0"].values()
    assert min(values) == pytest.approx(plain, rel=1e-6)  # labels are kept in single precision
    assert model.best_iteration == booster.best_iteration == int(np.argmin(values)) + 1
    model.save_model(tmp_path / "model.txt")
    np.testing.assert_array_equal(lgb.Booster(model_file=tmp_path / "model.txt").predict(X_valid), found)


def test_catboost_own_model() -> None:
    X, y = data("binary")
    model = cb.CatBoostClassifier(
        loss_function=boosting.catboost("binary", tau=1.0), eval_metric="Logloss", **OPTIONS["CatBoost"]
    ).fit(X, y)
    np.testing.assert_allclose(model.predict_proba(X), ours("CatBoost", "binary", tau=1.0).fit(X, y).predict_proba(X))


# --- the estimators ---


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("library", LIBRARIES)
def test_saved_by_the_host_and_pickled(library: str, task: str, tmp_path: Path) -> None:
    X, y = data(task)
    model = ours(library, task, tau=1.0).fit(X, y)
    found = output(model, X)
    np.testing.assert_array_equal(output(pickle.loads(pickle.dumps(model)), X), found)
    path = str(tmp_path / "model")
    if library == "LGBM":
        model.booster_.save_model(path)
        loaded = lgb.Booster(model_file=path).predict(X)
        np.testing.assert_array_equal(loaded, found[:, 1] if task == "binary" else found)
        return
    path += ".json" if library == "XGB" else ".cbm"
    model.save_model(path)
    fresh = builtin(library, task)  # the host alone
    fresh.load_model(path)
    np.testing.assert_allclose(output(fresh, X), found, rtol=1e-6)


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("task", TASKS)
def test_early_stopping_is_by_the_plain_metric(library: str, task: str) -> None:
    X, y = data(task, n=300)
    X_valid, y_valid = data(task, n=150, seed=7)
    options: dict[str, Any] = {"XGB": {"early_stopping_rounds": 3}}.get(library, {})
    model = ours(library, task, tau=0.5, **options)
    rounds = 15 if library == "CatBoost" and task == "multiclass" else 60
    model.set_params(**{"iterations" if library == "CatBoost" else "n_estimators": rounds, "learning_rate": 0.4})
    fit: dict[str, Any] = {"eval_set": [(X_valid, y_valid)]}
    if library == "XGB":
        fit["verbose"] = False
    elif library == "LGBM":
        fit["callbacks"] = [lgb.early_stopping(3, verbose=False)]
    else:
        fit["early_stopping_rounds"] = 3
    model.fit(X, y, **fit)
    log = (
        model.evals_result_
        if library == "LGBM"
        else model.get_evals_result()
        if library == "CatBoost"
        else model.evals_result()
    )
    if library == "CatBoost":
        log = {"validation": log["validation"]}
    ((values),) = [list(metrics.values()) for metrics in log.values()]
    assert len(values) == 1  # one metric, and it is the plain one
    found = output(model, X_valid)
    squared = np.mean((np.ravel(found) - y_valid) ** 2) if task == "regression" else 0.0
    plain = log_loss(y_valid, found) if task != "regression" else squared if library == "LGBM" else np.sqrt(squared)
    assert min(values[0]) == pytest.approx(plain, rel=1e-4)
    assert rounds == 15 or len(values[0]) < rounds


@pytest.mark.parametrize("library", LIBRARIES)
def test_clone_and_grid_search(library: str) -> None:
    X, y = data("binary", n=200)
    model = ours(library, "binary", tau=1.0, objective=reweigh.RGD(divergence="revkl"))
    copy = clone(model)
    assert copy.get_params()["tau"] == 1.0
    assert copy.get_params()["objective"] == model.get_params()["objective"]
    grid = {"tau": [0.1, 3.0], "objective": ["rgd", "rgd:divergence=revkl", reweigh.ChiSquare(scaled=True), "dft"]}
    search = GridSearchCV(model, grid, cv=2, scoring="neg_log_loss", error_score="raise").fit(X, y)
    scores = dict(zip(map(str, search.cv_results_["params"]), search.cv_results_["mean_test_score"], strict=True))
    assert len(scores) == 8
    assert len(set(scores.values())) == 7  # DFT has no tau
    assert search.best_estimator_.get_params()["objective"] == search.best_params_["objective"]


@pytest.mark.parametrize("library", LIBRARIES)
def test_the_old_name_of_the_objective_names_the_new_one(library: str) -> None:
    with pytest.raises(TypeError, match=r"`reweigh` is called `objective`.*objective='rgd:tau=3'"):
        ours(library, "binary", reweigh="rgd:tau=3")


def test_a_model_that_xgboost_loaded_can_be_fitted_again(tmp_path: Path) -> None:
    X, y = data("binary", n=200)
    first = ours("XGB", "binary", tau=1.0).fit(X, y)
    first.save_model(tmp_path / "model.json")
    loaded = ours("XGB", "binary", tau=1.0)
    loaded.load_model(tmp_path / "model.json")
    assert loaded.objective == "binary:logistic"  # the host's word for it
    np.testing.assert_array_equal(loaded.predict_proba(X), first.predict_proba(X))
    loaded.set_params(base_score=None)  # which the host has read from the file
    np.testing.assert_allclose(loaded.fit(X, y).predict_proba(X), first.predict_proba(X), rtol=1e-6)


@pytest.mark.parametrize("library", ["LGBM", "CatBoost"])
@pytest.mark.parametrize("task", ["binary", "multiclass"])
def test_labels_of_any_kind(library: str, task: str) -> None:
    X, y = data(task)
    names = np.array(["no", "yes", "zero"])
    model = ours(library, task, tau=1.0).fit(X, names[y])
    np.testing.assert_array_equal(model.classes_, names[: y.max() + 1])
    np.testing.assert_allclose(model.predict_proba(X), ours(library, task, tau=1.0).fit(X, y).predict_proba(X))
    assert np.mean(np.ravel(model.predict(X)) == names[y]) > 0.7


def test_class_weights_of_lightgbm_and_catboost() -> None:
    X, y = data("binary")
    own = np.where(y == 1, 3.0, 1.0)
    for library, options in (("LGBM", {"class_weight": {0: 1.0, 1: 3.0}}), ("CatBoost", {"class_weights": [1.0, 3.0]})):
        by_class = ours(library, "binary", tau=1.0, **options).fit(X, y)
        by_row = ours(library, "binary", tau=1.0).fit(X, y, sample_weight=own)
        np.testing.assert_allclose(by_class.predict_proba(X), by_row.predict_proba(X), atol=1e-6)


def test_lightgbm_metrics_that_take_scores_for_probabilities_are_refused_and_ranks_are_not() -> None:
    X, y = data("binary")
    model = ours("LGBM", "binary", tau=1.0)
    with pytest.raises(ValueError, match="take them for probabilities"):
        model.fit(X, y, eval_set=[(X, y)], eval_metric="binary_error")
    model.fit(X, y, eval_set=[(X.copy(), y)], eval_metric=["auc", "binary_logloss"])
    assert set(model.evals_result_["valid_0"]) == {"auc", "binary_logloss"}
    assert model.evals_result_["valid_0"]["binary_logloss"][-1] == pytest.approx(log_loss(y, model.predict_proba(X)))


# --- errors ---


@pytest.mark.parametrize("objective", ["term:t=1.0", "cvar", "rgd:normalize=mean", "rgd:warmup=10", "superloss"])
@pytest.mark.parametrize("name", ["xgboost", "lightgbm", "catboost"])
def test_objectives_that_need_the_batch_are_refused(name: str, objective: str) -> None:
    with pytest.raises(ValueError, match="depends on the row's own loss alone"):
        getattr(boosting, name)("binary", objective=objective)


def test_wrong_labels_and_targets() -> None:
    margins = np.zeros(3)
    with pytest.raises(ValueError, match="labels must be 0 and 1"):
        boosting.xgboost("binary").of(np.array([1.0, 2.0, 3.0]), margins)
    with pytest.raises(ValueError, match="labels must be 0 and 1"):
        boosting.lightgbm("binary").of(np.array([-1.0, 1.0, 1.0]), margins)
    with pytest.raises(ValueError, match="whole numbers from 0 to 1"):
        boosting.xgboost("multiclass").of(np.array([0.0, 1.0, 2.0]), np.zeros((3, 2)))
    with pytest.raises(ValueError, match="use the task 'regression'"):
        boosting.xgboost_params([0.5, 1.5], "binary")
    with pytest.raises(ValueError, match="each of them used"):
        boosting.init_score([0, 2, 2], "multiclass")
    with pytest.raises(ValueError, match="Use 'multiclass'"):
        boosting.init_score([0, 1, 2], "binary")
    with pytest.raises(ValueError, match="`variance` is required"):
        boosting.catboost("regression")
    with pytest.raises(ValueError, match="`variance` belongs"):
        boosting.catboost("binary", variance=1.0)
    with pytest.raises(ValueError, match="Did you mean 'regression'"):
        boosting.lightgbm("regresion")  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_continuous_target_is_no_class(library: str) -> None:
    X, y = data("regression")
    with pytest.raises(ValueError, match="Unknown label type"):
        ours(library, "binary").fit(X, y)


@pytest.mark.parametrize("task", TASKS)
def test_catboost_evaluates_on_a_pool_as_on_rows(task: str) -> None:
    (X, y), (X_valid, y_valid) = data(task), data(task, n=150, seed=7)
    weight = np.linspace(0.5, 2.0, 150)
    pool, weighted = cb.Pool(X_valid, y_valid), cb.Pool(X_valid, y_valid, weight=weight)
    logs = []
    for eval_set in ((X_valid, y_valid), [(X_valid, y_valid)], pool, [pool]):
        model = ours("CatBoost", task, tau=0.5).fit(X, y, eval_set=eval_set)
        logs.append(next(iter(model.get_evals_result()["validation"].values())))
    for log in logs[1:]:
        np.testing.assert_allclose(log, logs[0])
    assert np.size(pool.get_baseline()) == 0  # the caller's own
    model = ours("CatBoost", task, tau=0.5, use_best_model=False).fit(X, y, eval_set=weighted)
    (last,) = [values[-1] for values in model.get_evals_result()["validation"].values()]
    found = output(model, X_valid)
    if task == "regression":
        plain = np.sqrt(np.average((np.ravel(found) - y_valid) ** 2, weights=weight))
    else:
        plain = log_loss(y_valid, found, sample_weight=weight)
    assert last == pytest.approx(plain, rel=1e-4)


def test_catboost_says_what_it_can_evaluate_on(tmp_path: Path) -> None:
    X, y = data("regression")
    model = ours("CatBoost", "regression")
    with pytest.raises(TypeError, match=r"`eval_set` must be \(X, y\), a catboost.Pool .* got str. Read a file with"):
        model.fit(X, y, eval_set=str(tmp_path / "valid.tsv"))
    with pytest.raises(ValueError, match="Pool without a baseline"):
        model.fit(X, y, eval_set=cb.Pool(X, y, baseline=np.ones(len(y))))


def test_parameters_that_a_custom_objective_ignores_are_refused() -> None:
    X, y = data("binary")
    for model, message in (
        (ours("XGB", "binary", scale_pos_weight=3.0), "scale_pos_weight"),
        (ours("XGB", "binary", objective="binary:hinge"), "`objective` is what re-weights here, got 'binary:hinge'"),
        (ours("LGBM", "binary", is_unbalance=True), "class_weight='balanced'"),
        (ours("LGBM", "binary", objective="cross_entropy"), "`objective` is what re-weights here, got 'cross_entropy'"),
        (ours("CatBoost", "binary", loss_function="Focal:focal_alpha=0.5;focal_gamma=2"), "`loss_function` cannot"),
    ):
        with pytest.raises(ValueError, match=message):
            model.fit(X, y)
    with pytest.raises(ValueError, match="LabelEncoder, as for XGBClassifier"):
        ours("XGB", "binary").fit(X, y + 1)
    booster = lgb.train({"verbose": -1, "linear_tree": True}, lgb.Dataset(X, y), 2)
    with pytest.raises(ValueError, match="linear trees"):
        boosting.standalone(booster, np.zeros(len(y)), "regression")


@pytest.mark.parametrize("package", ["xgboost", "lightgbm", "catboost"])
def test_a_missing_package_names_the_extra(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(boosting, "find_spec", lambda name: None if name == package else object())
    with pytest.raises(ModuleNotFoundError, match=r'pip install "reweigh\[boosting\]"'):
        boosting.__getattr__(package)


def test_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    printed = capsys.readouterr().out
    assert printed.count("re-weighted") == 6


# --- corrections after training ---


@pytest.mark.shows("XGBoost, LightGBM, CatBoost", "post")
@pytest.mark.parametrize("task", ["binary", "multiclass"])
@pytest.mark.parametrize("library", LIBRARIES)
def test_a_correction_follows_the_formula(library: str, task: str) -> None:
    X, y = data(task)
    new, _ = data(task, seed=1)
    plain, chosen = ours(library, task, objective="rgd").fit(X, y), ours(library, task, objective="rgd+prior").fit(X, y)
    share = np.bincount(y) / len(y)
    expected = plain.predict_proba(new) / share
    np.testing.assert_allclose(
        chosen.predict_proba(new), expected / expected.sum(axis=1, keepdims=True), rtol=1e-5, atol=1e-9
    )
    assert (np.ravel(chosen.predict(new)) == chosen.predict_proba(new).argmax(axis=1)).all()
    assert np.shape(chosen.predict(new)) == np.shape(plain.predict(new))
    again = pickle.loads(pickle.dumps(chosen))
    np.testing.assert_allclose(again.predict_proba(new), chosen.predict_proba(new), rtol=1e-12)
    assert clone(chosen).get_params()["objective"] == "rgd+prior"


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_correction_learns_from_the_last_validation_set(library: str) -> None:
    X, y = data("binary")
    held_X, held_y = data("binary", seed=1)
    wrong = 1 - held_y
    model = ours(library, "binary", objective="mean+threshold")
    model.fit(X, y, eval_set=[(X, y), (held_X, wrong)])
    # With the labels of that set turned round the best cut calls everything one class.
    assert len(np.unique(model.predict(held_X))) == 1
    with pytest.raises(ValueError, match=r"learns from held-out rows.*eval_set=\[\(X, y\)\]"):
        ours(library, "binary", objective="mean+threshold").fit(X, y)
    with pytest.raises(ValueError, match="looks at the last layer of a network"):
        ours(library, "binary", objective="mean+tau_norm").fit(X, y)
    with pytest.raises(ValueError, match="with the post"):
        ours(library, "regression", objective="mean+prior").fit(X, X[:, 0])
