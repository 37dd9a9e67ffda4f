"""The estimators keep scikit-learn's contract, and re-weighting them ends where the formula says it should."""

from __future__ import annotations

import inspect
import pickle
import runpy
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("sklearn")
pytest.importorskip("torch")

import sklearn
import torch
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer, load_diabetes, load_iris
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.metrics import balanced_accuracy_score
from sklearn.model_selection import GridSearchCV, KFold, ShuffleSplit
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import LinearSVC
from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor
from sklearn.utils import compute_sample_weight
from sklearn.utils.estimator_checks import parametrize_with_checks

import reweigh
from reweigh.integrations.sklearn import ReweightedClassifier, ReweightedRegressor, RGDClassifier, RGDRegressor

EXAMPLE = Path(__file__).parents[2] / "examples" / "sklearn_table.py"
FAST: dict[str, Any] = {"max_iter": 20, "random_state": 0}


@pytest.fixture(scope="module")
def iris() -> tuple[np.ndarray, np.ndarray]:
    X, y = load_iris(return_X_y=True)
    return StandardScaler().fit_transform(X), y


@pytest.fixture(scope="module")
def diabetes() -> tuple[np.ndarray, np.ndarray]:
    X, y = load_diabetes(return_X_y=True)
    return X * 20, y


#: Some of the expected failures pass by luck; before 1.8 that was always allowed, and the keyword unknown.
NOT_STRICT: dict[str, Any] = (
    {"xfail_strict": False} if "xfail_strict" in inspect.signature(parametrize_with_checks).parameters else {}
)


def not_exact(estimator: Any) -> dict[str, str]:
    if isinstance(estimator, (RGDClassifier, RGDRegressor)):
        why = "rows are summed in single precision, in batches: a weight of two is a row twice up to rounding only"
        return {"check_sample_weight_equivalence_on_dense_data": why}
    return {}


@pytest.mark.filterwarnings("ignore")
@parametrize_with_checks(
    [
        ReweightedClassifier(),
        ReweightedRegressor(),
        RGDClassifier(max_iter=15, learning_rate_init=1e-2, hidden_layer_sizes=(32,), random_state=0),
        RGDRegressor(max_iter=15, learning_rate_init=1e-2, hidden_layer_sizes=(32,), random_state=0),
    ],
    expected_failed_checks=not_exact,
    **NOT_STRICT,
)
def test_contract_of_scikit_learn(estimator: Any, check: Any) -> None:
    check(estimator)


# --- refits to a fixed point ---


def mean_phi(weight: Any, beta: np.ndarray, X: np.ndarray, y: np.ndarray, own: np.ndarray, C: float) -> float:
    """What the fixed point should make stationary: the sum of Phi(loss), and the penalty of LogisticRegression."""
    losses = np.logaddexp(0.0, -(2 * y - 1) * (X @ beta[1:] + beta[0]))
    return float(own @ weight.phi(losses) + beta[1:] @ beta[1:] / (2 * C))


@pytest.mark.parametrize(
    "weight", [reweigh.KL(tau=1.0), reweigh.ReverseKL(tau=2.0), reweigh.ChiSquare(tau=1.0, scaled=True)], ids=repr
)
@pytest.mark.parametrize("weighted", [False, True])
def test_fixed_point_is_stationary_for_mean_phi(weight: Any, weighted: bool) -> None:
    X, y = load_breast_cancer(return_X_y=True)
    X = StandardScaler().fit_transform(X)[:, :5]
    own = np.random.default_rng(0).uniform(0.2, 2.0, len(y)) if weighted else np.ones(len(y))
    inner = LogisticRegression(C=0.5, tol=1e-10, max_iter=2000)
    model = ReweightedClassifier(inner, objective=weight, tol=1e-9, max_iter=60)
    model.fit(X, y, sample_weight=own if weighted else None)
    plain = LogisticRegression(C=0.5, tol=1e-10, max_iter=2000).fit(X, y, sample_weight=own)

    def slope(fitted: Any) -> float:
        beta = np.concatenate([fitted.intercept_, fitted.coef_[0]])
        steps = 1e-5 * np.eye(len(beta))
        two_sided = [
            mean_phi(weight, beta + s, X, y, own, 0.5) - mean_phi(weight, beta - s, X, y, own, 0.5) for s in steps
        ]
        return float(np.abs(two_sided).max() / 2e-5)

    assert slope(model.estimator_) < 2e-4
    assert slope(plain) > 1.0  # so the first number says something


def test_weights_are_those_of_the_losses_and_fitted_attributes_agree(iris: Any) -> None:
    X, y = iris
    model = ReweightedClassifier(tau=0.5, tol=1e-4).fit(X, y)
    own = -np.log(model.predict_proba(X)[np.arange(len(y)), y])
    np.testing.assert_allclose(model.losses_, own, rtol=1e-10)
    np.testing.assert_allclose(model.weights_, np.exp(np.minimum(own, 0.5) / 1.5), atol=2e-4)
    assert 2 <= model.n_iter_ <= 30
    assert model.weights_.std() > 0.05


def test_regression_measures_errors_in_units_of_the_variance(diabetes: Any) -> None:
    X, y = diabetes
    model = ReweightedRegressor(Ridge(), tau=1.0, tol=1e-6).fit(X, y)
    scaled = ReweightedRegressor(Ridge(), tau=1.0, tol=1e-6).fit(X, 1000 * y + 7)
    np.testing.assert_allclose(model.losses_, (y - model.predict(X)) ** 2 / y.var())
    np.testing.assert_allclose(scaled.weights_, model.weights_, rtol=1e-6)


def test_normalised_and_non_separable_objectives_work_too(iris: Any) -> None:
    X, y = iris
    kept = ReweightedClassifier(objective="rgd:normalize=mean").fit(X, y)
    assert kept.weights_.mean() == pytest.approx(1.0, abs=1e-3)
    tilted = ReweightedClassifier(objective=reweigh.method("term:t=0.5").objective).fit(X, y)
    order = np.argsort(tilted.losses_)
    assert (np.diff(tilted.weights_[order]) > -1e-3).all()


def test_damping_finds_the_same_point(iris: Any) -> None:
    X, y = iris
    plain = ReweightedClassifier(tau=1.0, tol=1e-6).fit(X, y)
    damped = ReweightedClassifier(tau=1.0, tol=1e-6, damping=0.3, max_iter=60).fit(X, y)
    np.testing.assert_allclose(damped.weights_, plain.weights_, atol=1e-4)
    assert damped.n_iter_ != plain.n_iter_


def test_too_few_refits_are_told(iris: Any) -> None:
    with pytest.warns(ConvergenceWarning, match="after 2 refits"):
        model = ReweightedClassifier(tol=1e-8, max_iter=2).fit(*iris)
    assert model.n_iter_ == 2


def test_a_model_that_interpolates_switches_to_out_of_fold_losses(iris: Any) -> None:
    X, y = iris
    tree = DecisionTreeClassifier(random_state=0)
    with pytest.warns(UserWarning, match="out-of-fold losses of 5 folds"):
        model = ReweightedClassifier(tree, tau=1.0, max_iter=5, tol=0.9).fit(X, y)
    assert model.losses_.max() > 10  # a wrong leaf is certain of itself
    assert model.score(X, y) == 1.0
    told = ReweightedClassifier(tree, tau=1.0, cv=None).fit(X, y)
    assert told.losses_.max() == 0.0
    np.testing.assert_allclose(told.weights_, 1.0)


def test_out_of_fold_losses_come_from_models_that_have_not_seen_the_row(diabetes: Any) -> None:
    X, y = diabetes
    folds = KFold(3, shuffle=True, random_state=1)
    tree = DecisionTreeRegressor(max_depth=3, random_state=0)
    with pytest.warns(ConvergenceWarning):  # one pass only, so that weights are all one in the folds
        model = ReweightedRegressor(tree, cv=folds, max_iter=1, tol=1e-9).fit(X, y)
    for train, test in folds.split(X):
        held = clone(tree).fit(X[train], y[train])
        np.testing.assert_allclose(model.losses_[test], (y[test] - held.predict(X[test])) ** 2 / y.var())


def test_a_class_that_a_fold_missed_has_probability_zero() -> None:
    X = np.arange(12.0)[:, None]
    y = np.array(["a"] * 4 + ["b"] * 4 + ["c"] * 4)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model = ReweightedClassifier(cv=KFold(3), max_iter=1).fit(X, y)
    assert (model.losses_ > 30).all()  # unshuffled folds leave exactly the held-out class out


def test_sample_weight_reaches_the_end_of_a_pipeline(iris: Any) -> None:
    X, y = iris
    pipeline = make_pipeline(StandardScaler(), make_pipeline(StandardScaler(), LogisticRegression()))
    own = np.where(y == 2, 5.0, 1.0)
    model = ReweightedClassifier(pipeline, tau=1.0, tol=1e-6).fit(X, y, sample_weight=own)
    bare = ReweightedClassifier(LogisticRegression(), tau=1.0, tol=1e-6).fit(X, y, sample_weight=own)
    np.testing.assert_allclose(model.predict_proba(X), bare.predict_proba(X), atol=1e-3)
    with sklearn.config_context(enable_metadata_routing=True):
        scaler = StandardScaler().set_fit_request(sample_weight=False)
        routed = make_pipeline(scaler, clone(model).set_fit_request(sample_weight=True))
        routed.fit(X, y, sample_weight=own)
    np.testing.assert_allclose(routed.predict_proba(X), model.predict_proba(X), atol=1e-3)
    assert np.abs(model.predict_proba(X) - clone(model).fit(X, y).predict_proba(X)).max() > 0.02


def test_refits_share_one_seed() -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 8))
    y = (X[:, 0] + rng.normal(size=200) > 0).astype(int)
    tree = DecisionTreeClassifier(max_depth=3, max_features=1)  # draws features, and has no seed
    runs = [ReweightedClassifier(tree, random_state=3, max_iter=4, tol=0.9).fit(X, y).weights_ for _ in range(2)]
    np.testing.assert_array_equal(*runs)
    other = ReweightedClassifier(tree, random_state=4, max_iter=4, tol=0.9).fit(X, y)
    assert np.abs(other.losses_ - ReweightedClassifier(tree, random_state=3, tol=0.9).fit(X, y).losses_).max() > 0


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (ReweightedClassifier(KNeighborsClassifier()), "must take sample_weight in fit, which KNeighborsClassifier"),
        (ReweightedClassifier(LinearSVC()), "must have predict_proba"),
        (ReweightedClassifier(objective="focal+rgd"), "with the loss 'focal': it has a loss of its own"),
        (ReweightedClassifier(objective=3), "a method's text, a method, an objective or a weight function"),
        (ReweightedClassifier(objective="rgdd"), "Did you mean"),
        (ReweightedClassifier(cv="automatic"), "`cv` must be one of"),
        (ReweightedClassifier(damping=1.0), "`damping` must be"),
        (ReweightedClassifier(max_iter=0), "`max_iter` must be"),
        (ReweightedClassifier(cv=ShuffleSplit(2, random_state=0)), "hold every row out once"),
        (RGDClassifier(objective="rgd+sam"), "with the step 'sam'"),
        (RGDClassifier(hidden_layer_sizes=(8, 0)), "`hidden_layer_sizes` must be"),
        (RGDClassifier(validation_fraction=1.0), "`validation_fraction` must be"),
        (RGDRegressor(objective="focal+rgd"), "the loss is the squared error"),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, str) else value[:20],
)
def test_errors_name_the_fix(model: Any, message: str, iris: Any) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        model.fit(*iris)


@pytest.mark.parametrize("model", [ReweightedClassifier(), RGDClassifier(**FAST)], ids=lambda m: type(m).__name__)
def test_continuous_targets_are_no_classes(model: Any, diabetes: Any) -> None:
    X, y = diabetes
    with pytest.raises(ValueError, match="Unknown label type"):
        model.fit(X, y + 0.5)


# --- the network ---


@pytest.mark.parametrize("model", [RGDClassifier(**FAST), ReweightedClassifier()], ids=lambda m: type(m).__name__)
def test_probabilities_labels_names_and_copies(model: Any, iris: Any) -> None:
    pd = pytest.importorskip("pandas")
    X, y = iris
    names = np.array(["setosa", "versicolor", "virginica"])
    frame = pd.DataFrame(X, columns=list("abcd"))
    model = clone(model).fit(frame, names[y])
    probability = model.predict_proba(frame)
    np.testing.assert_allclose(probability.sum(axis=1), 1.0, rtol=1e-12)
    np.testing.assert_allclose(np.exp(model.predict_log_proba(frame)), probability)
    assert list(model.classes_) == list(names)
    assert list(model.feature_names_in_) == list("abcd")
    assert model.n_features_in_ == 4
    assert set(model.predict(frame)) <= set(names)
    assert model.score(frame, names[y]) > 0.9
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(again.predict_proba(frame), probability)


@pytest.mark.parametrize(
    "model",
    [RGDClassifier(**FAST), ReweightedClassifier(LogisticRegression())],
    ids=lambda m: type(m).__name__,
)
def test_grid_search_over_tau_in_a_pipeline(model: Any, iris: Any) -> None:
    pipeline = make_pipeline(StandardScaler(), model)
    name = pipeline.steps[-1][0]
    search = GridSearchCV(pipeline, {f"{name}__tau": [0.5, 3.0]}, cv=2, scoring="neg_log_loss").fit(*iris)
    losses = search.cv_results_["mean_test_score"]
    assert np.isfinite(losses).all()
    assert losses[0] != losses[1]


def test_a_seed_fixes_the_result_and_leaves_the_global_one_alone(iris: Any) -> None:
    X, y = iris
    before = torch.get_rng_state()
    first = RGDClassifier(max_iter=5, random_state=1).fit(X, y).predict_proba(X)
    assert torch.equal(before, torch.get_rng_state())
    np.testing.assert_array_equal(RGDClassifier(max_iter=5, random_state=1).fit(X, y).predict_proba(X), first)
    assert np.abs(RGDClassifier(max_iter=5, random_state=2).fit(X, y).predict_proba(X) - first).max() > 1e-3


@pytest.mark.shows("scikit-learn", "objective", "row weight")
def test_one_full_batch_step_is_the_formula() -> None:
    """A linear network and one step of plain gradients: Adam's first step is the sign of the weighted gradient."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(40, 3)).astype(np.float32)
    y = rng.integers(0, 2, 40)
    own = rng.uniform(0.1, 3.0, 40)
    one = RGDClassifier(
        hidden_layer_sizes=(), max_iter=1, batch_size=40, learning_rate_init=1e-3, tau=0.3, random_state=0
    )
    start = RGDClassifier(
        hidden_layer_sizes=(), max_iter=1, batch_size=40, learning_rate_init=1e-12, tau=0.3, random_state=0
    ).fit(X, y, own)
    moved = one.fit(X, y, own)
    before = start.model_[0].weight.detach().numpy().astype(float)
    p = start.predict_proba(X)
    losses = -np.log(p[np.arange(40), y])
    w = own * np.exp(np.minimum(losses, 0.3) / 1.3)
    gradient = (w[:, None] * (p - np.eye(2)[y])).T @ X
    np.testing.assert_allclose(moved.model_[0].weight.detach().numpy() - before, -1e-3 * np.sign(gradient), atol=2e-5)
    assert moved.losses_[0] == pytest.approx(losses.mean(), rel=1e-5)


def test_scale_of_the_users_weights_is_no_learning_rate(diabetes: Any) -> None:
    X, y = diabetes
    own = np.random.default_rng(0).uniform(0.5, 1.5, len(y))
    small, large = (RGDRegressor(**FAST).fit(X, y, sample_weight=k * own).predict(X) for k in (1.0, 100.0))
    np.testing.assert_allclose(small, large, rtol=1e-3)


def test_class_weights_multiply(iris: Any) -> None:
    X, y = iris
    by_class = RGDClassifier(class_weight={0: 1.0, 1: 3.0, 2: 1.0}, **FAST).fit(X, y)
    by_row = RGDClassifier(**FAST).fit(X, y, sample_weight=np.where(y == 1, 3.0, 1.0))
    np.testing.assert_allclose(by_class.predict_proba(X), by_row.predict_proba(X), atol=1e-6)
    assert np.abs(by_class.predict_proba(X) - RGDClassifier(**FAST).fit(X, y).predict_proba(X)).max() > 0.01


def test_early_stopping_is_by_the_plain_loss_and_keeps_the_best_epoch(diabetes: Any) -> None:
    X, y = diabetes
    model = RGDRegressor(
        early_stopping=True,
        n_iter_no_change=3,
        max_iter=300,
        learning_rate_init=1e-2,
        validation_fraction=0.25,
        random_state=0,
        tau=1.0,
    ).fit(X, y)
    assert model.n_iter_ == len(model.validation_losses_) < 300
    assert model.best_epoch_ == int(np.argmin(model.validation_losses_)) + 1 == model.n_iter_ - 3
    # The held-out part is the only one whose plain error, in units of the variance, equals what was noted.
    from sklearn.model_selection import train_test_split
    from sklearn.utils import check_random_state

    random = check_random_state(0)
    random.randint(np.iinfo(np.int32).max)
    _, held = train_test_split(np.arange(len(y)), test_size=0.25, random_state=random.randint(2**31 - 1))
    error = np.mean((model.predict(X[held]) - y[held]) ** 2) / y.var()
    assert min(model.validation_losses_) == pytest.approx(error, rel=1e-4)


def test_early_stopping_with_hardly_any_rows_of_a_class(iris: Any) -> None:
    X, y = iris
    y = np.where(np.arange(len(y)) == 0, 7, y)  # one row of class 7: it cannot be on both sides
    model = RGDClassifier(early_stopping=True, **FAST).fit(X, y)
    assert list(model.classes_) == [0, 1, 2, 7]


@pytest.mark.parametrize(
    "objective", ["focal+rgd:tau=3", "term:t=0.5", reweigh.RGD(warmup=5), "absgd", "class_balanced+rgd", "ldam+rgd"]
)
def test_any_method_trains(objective: Any, iris: Any) -> None:
    assert RGDClassifier(objective=objective, max_iter=30, random_state=0).fit(*iris).score(*iris) > 0.85


@pytest.mark.shows("scikit-learn", "loss")
def test_class_weights_by_name_are_those_of_scikit_learn(iris: Any) -> None:
    X, y = iris[0][:120], iris[1][:120]  # classes of 50, 50 and 20 rows
    options = {"max_iter": 5, "batch_size": 120, "random_state": 0}
    named = RGDClassifier(objective="class_weights+rgd:tau=1", **options).fit(X, y)
    own = RGDClassifier(objective="rgd:tau=1", class_weight="balanced", **options).fit(X, y)
    np.testing.assert_allclose(named.predict_proba(X), own.predict_proba(X), atol=1e-5)
    plain = RGDClassifier(objective="rgd:tau=1", **options).fit(X, y)
    assert np.abs(named.predict_proba(X) - plain.predict_proba(X)).max() > 1e-3


@pytest.mark.refuses("scikit-learn", "sampler", "step", "average")
@pytest.mark.parametrize("part", ["sampler 'class_uniform'", "step 'sam'", "average 'ema'"])
@pytest.mark.parametrize("kind", [RGDClassifier, ReweightedClassifier])
def test_parts_without_a_place_are_refused(kind: Any, part: str, iris: Any) -> None:
    name = part.split("'")[1]
    with pytest.raises(ValueError, match=f"{kind.__name__} carries .* with the {part}: it "):
        kind(objective=f"rgd+{name}").fit(*iris)


def test_a_margin_loss_has_cosines_and_defers_its_weights(iris: Any) -> None:
    from reweigh.torch.losses import CosineLinear

    X, y = iris[0][:120], iris[1][:120]  # the third class is rarer, so that class weights matter
    before = torch.get_rng_state()
    late, never = (
        RGDClassifier(objective=f"ldam:defer={share}+rgd", max_iter=8, random_state=0).fit(X, y) for share in (0.5, 1.0)
    )
    assert torch.equal(before, torch.get_rng_state())
    assert [type(layer) for layer in late.model_ if not isinstance(layer, torch.nn.ReLU)] == [
        torch.nn.Linear,
        torch.nn.Linear,
        CosineLinear,
    ]
    assert late.losses_[:4] == never.losses_[:4]
    assert late.losses_[4:] != never.losses_[4:]
    # What the loss takes for logits is 30 times a cosine, and probabilities are of those.
    cosines = late.model_(torch.as_tensor(X.astype(np.float32)).double()).detach()
    assert cosines.abs().max() <= 1 + 1e-6
    np.testing.assert_allclose(late.predict_log_proba(X), torch.log_softmax(30 * cosines, 1).numpy(), rtol=1e-9)


def test_early_stopping_compares_epochs_by_the_same_class_weights(iris: Any) -> None:
    """With a learning rate of nothing all epochs are the same model, whether weights have started or not."""
    X, y = iris[0][:120], iris[1][:120]
    model = RGDClassifier(
        objective="ldam:defer=0.5", early_stopping=True, max_iter=4, learning_rate_init=1e-30, random_state=0
    ).fit(X, y)
    assert model.validation_losses_ == model.validation_losses_[:1] * 4


def test_tau_changes_the_fit(diabetes: Any) -> None:
    X, y = diabetes
    predictions = [RGDRegressor(tau=tau, **FAST).fit(X, y).predict(X) for tau in (1e-6, 1.0)]
    plain = RGDRegressor(objective="mean", **FAST).fit(X, y).predict(X)
    np.testing.assert_allclose(predictions[0], plain, rtol=1e-3)
    assert np.abs(predictions[1] - plain).max() > 0.01 * y.std()


# --- packages and example ---


@pytest.mark.parametrize(("hidden", "name"), [("sklearn", "ReweightedClassifier"), ("torch", "RGDClassifier")])
def test_a_missing_package_names_the_extra(hidden: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib.util

    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda module, *rest: None if module == hidden else real(module))
    import reweigh.integrations.sklearn as package

    with pytest.raises(ModuleNotFoundError, match=r'pip install "reweigh\[sklearn\]"'):
        package.__getattr__(name)


@pytest.mark.processes
def test_refits_do_not_import_torch() -> None:
    code = "import sys; from reweigh.integrations.sklearn import ReweightedClassifier; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    printed = capsys.readouterr().out
    assert "ReweightedClassifier" in printed
    assert "RGDRegressor" in printed


# --- one pass at a time, and grids ---


@pytest.mark.parametrize("objective", ["rgd", "term_ema", "class_balanced+rgd"])
def test_one_partial_fit_per_epoch_is_the_fit(objective: str, iris: Any) -> None:
    X, y = iris
    options: dict[str, Any] = {"objective": objective, "hidden_layer_sizes": 16, "random_state": 3}
    whole = RGDClassifier(max_iter=4, **options).fit(X, y)
    parts = RGDClassifier(max_iter=4, **options)
    for call in range(4):
        parts.partial_fit(X, y, classes=np.unique(y) if call == 0 else None)
        parts = pickle.loads(pickle.dumps(parts))  # training goes on in another process
    np.testing.assert_allclose(parts.predict_proba(X), whole.predict_proba(X), rtol=1e-5, atol=1e-7)
    assert parts.losses_ == pytest.approx(whole.losses_)
    assert parts.n_iter_ == 4
    further = RGDClassifier(max_iter=3, **options).fit(X, y).partial_fit(X, y)
    assert further.n_iter_ == 4
    if not objective.startswith("class_balanced"):  # whose share of training done is another
        np.testing.assert_allclose(further.predict_proba(X), whole.predict_proba(X), rtol=1e-5, atol=1e-7)
    again = parts.fit(X, y)  # starts anew
    np.testing.assert_allclose(again.predict_proba(X), whole.predict_proba(X), rtol=1e-5, atol=1e-7)


def test_partial_fit_of_a_regression_keeps_the_unit_of_the_first_rows(diabetes: Any) -> None:
    X, y = diabetes
    whole = RGDRegressor(max_iter=3, random_state=0).fit(X, y)
    parts = RGDRegressor(max_iter=3, random_state=0)
    for _ in range(3):
        parts.partial_fit(X, y)
    np.testing.assert_allclose(parts.predict(X), whole.predict(X), rtol=1e-5)
    mean = parts._mean
    assert parts.partial_fit(X[:50], y[:50] + 1000.0)._mean == mean


def test_partial_fit_names_what_it_needs(iris: Any) -> None:
    X, y = iris
    with pytest.raises(ValueError, match="`classes` must be given at the first call"):
        RGDClassifier().partial_fit(X, y)
    with pytest.raises(ValueError, match="needs all rows, got it with partial_fit"):
        RGDClassifier(class_weight="balanced").partial_fit(X, y, classes=[0, 1, 2])
    model = RGDClassifier().partial_fit(X[y < 2], y[y < 2], classes=[0, 1])
    with pytest.raises(ValueError, match="`y` holds 2, which is not one of the classes"):
        model.partial_fit(X, y)


@pytest.mark.parametrize(
    "model", [ReweightedClassifier(), RGDClassifier(max_iter=5, random_state=0)], ids=lambda m: type(m).__name__
)
def test_a_grid_over_tau_and_objectives(model: Any, iris: Any) -> None:
    grid = {"tau": [0.1, 3.0], "objective": ["rgd", "rgd:divergence=revkl", "term:t=0.5", reweigh.ChiSquare()]}
    search = GridSearchCV(model, grid, cv=2, scoring="neg_log_loss", error_score="raise").fit(*iris)
    scores = search.cv_results_["mean_test_score"]
    assert len(set(scores.round(12))) == 7  # TERM has no tau


# --- corrections after training ---


def rare_class(n=600, seed=0):
    """Two overlapping classes, one row in ten of the second."""
    rng = np.random.default_rng(seed)
    y = (rng.random(n) < 0.1).astype(int)
    return rng.normal(size=(n, 3)) + 1.2 * y[:, None], np.where(y == 1, "rare", "common")


@pytest.mark.parametrize("text", ["mean+prior", "mean+threshold", "rgd+prior:t=none"])
@pytest.mark.parametrize("kind", [RGDClassifier, ReweightedClassifier])
def test_a_correction_finds_the_rare_class(kind, text):
    X, y = rare_class()
    new_X, new_y = rare_class(seed=1)
    options = {"random_state": 0} | ({"max_iter": 15} if kind is RGDClassifier else {})
    plain = kind(objective=text.split("+")[0], **options).fit(X, y)
    chosen = kind(objective=text, **options).fit(X, y)
    assert plain.correction_ is None
    assert balanced_accuracy_score(new_y, chosen.predict(new_X)) > 0.03 + balanced_accuracy_score(
        new_y, plain.predict(new_X)
    )
    probability = chosen.predict_proba(new_X)
    assert probability.sum(axis=1) == pytest.approx(1.0)
    assert (chosen.classes_[probability.argmax(axis=1)] == chosen.predict(new_X)).all()
    np.testing.assert_allclose(np.exp(chosen.predict_log_proba(new_X)), probability, atol=1e-12)
    again = pickle.loads(pickle.dumps(chosen))
    np.testing.assert_array_equal(again.predict_proba(new_X), probability)


@pytest.mark.shows("scikit-learn", "post")
def test_the_prior_of_the_data_and_the_users_weights_cancel():
    """Balanced weights leave nothing to correct: what a row counted in training is what it counts in the shares."""
    X, y = rare_class()
    weighted = ReweightedClassifier(objective="mean+prior").fit(
        X, y, sample_weight=compute_sample_weight("balanced", y)
    )
    np.testing.assert_allclose(weighted.correction_.offset, np.full(2, np.log(2)), atol=1e-9)


def test_a_correction_is_fitted_to_rows_the_network_did_not_see():
    X, y = rare_class(200)
    model = RGDClassifier(objective="mean+temperature", max_iter=150, random_state=0).fit(X, y)
    assert model.correction_.scale[0] < 1.0  # too sure: on its own training rows it would not look so


def test_tau_norm_needs_a_network():
    X, y = rare_class(200)
    model = RGDClassifier(objective="mean+tau_norm:tau=1", max_iter=5, random_state=0).fit(X, y)
    weight = model.model_[-1].weight.detach().numpy()
    np.testing.assert_allclose(model.correction_.scale, 1 / np.linalg.norm(weight, axis=1), rtol=1e-9)
    with pytest.raises(ValueError, match="looks at the last layer of a network, which ReweightedClassifier does not"):
        ReweightedClassifier(objective="mean+tau_norm").fit(X, y)


def test_corrections_are_for_classes_and_whole_data():
    X, y = rare_class(100)
    with pytest.raises(ValueError, match="the target is a number"):
        ReweightedRegressor(objective="mean+temperature").fit(X, X[:, 0])
    with pytest.raises(ValueError, match="the loss is the squared error"):
        RGDRegressor(objective="mean+temperature").fit(X, X[:, 0])
    with pytest.raises(ValueError, match="needs all rows"):
        RGDClassifier(objective="mean+prior").partial_fit(X, y, classes=["common", "rare"])
