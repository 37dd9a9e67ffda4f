"""The transformers keep scikit-learn's contract, stand in pipelines, and are what their cards say."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer, load_iris
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from reweigh.bench.recipes.algorithms.tabular import (
    DACL,
    GBDT,
    MET,
    METR,
    METS,
    VIME,
    RandomForest,
    RandomFourier,
    RawColumns,
    SubTab,
    TabNet,
)

SMALL: dict[str, Any] = {"epochs": 1, "batch_size": 64, "random_state": 0}
BLOCKS: dict[str, Any] = {"embedding": 5, "blocks": 1, "feed_forward": 8}
LEARNING = [
    METS(**BLOCKS, **SMALL),
    MET(**BLOCKS, warmup=0, **SMALL),
    VIME(**SMALL),
    DACL(hidden=8, projection=4, **SMALL),
    SubTab(hidden=8, **SMALL),
    TabNet(**SMALL),
]
OTHERS = [
    METR(**BLOCKS, random_state=0),
    RandomFourier(features=16, random_state=0),
    RawColumns(),
    RandomForest(trees=20, random_state=0),
    GBDT(trees=20, random_state=0),
]


def name(estimator: Any) -> str:
    return type(estimator).__name__


@pytest.fixture(scope="module")
def iris() -> tuple[np.ndarray, np.ndarray]:
    X, y = load_iris(return_X_y=True)
    return StandardScaler().fit_transform(X), y


@pytest.mark.filterwarnings("ignore")
@parametrize_with_checks([*LEARNING, *OTHERS])
def test_contract_of_scikit_learn(estimator: Any, check: Any) -> None:
    check(estimator)


@pytest.mark.parametrize("transformer", LEARNING, ids=name)
def test_labels_are_ignored_and_global_randomness_is_left_alone(transformer: Any, iris: Any) -> None:
    X, y = iris
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    with_labels = clone(transformer).fit(X, y).transform(X)
    assert torch.equal(torch.rand(3), expected)
    np.testing.assert_array_equal(with_labels, clone(transformer).fit(X).transform(X))
    assert with_labels.dtype == np.float32


@pytest.mark.parametrize("transformer", [*LEARNING, *OTHERS[:3]], ids=name)
def test_features_of_a_row_do_not_depend_on_its_neighbours(transformer: Any, iris: Any) -> None:
    """Alone, in another order, or among others: at most the last bit of single precision may differ."""
    X, _ = iris
    fitted = clone(transformer).fit(X)
    together = fitted.transform(X)
    last_bit = {"rtol": np.finfo(np.float32).eps, "atol": 0.0}
    np.testing.assert_allclose(fitted.transform(X[::-1])[::-1], together, **last_bit)
    np.testing.assert_allclose(np.concatenate([fitted.transform(row[None]) for row in X]), together, **last_bit)


@pytest.mark.parametrize("transformer", LEARNING, ids=name)
def test_training_lowers_the_loss_and_the_seed_decides(transformer: Any, iris: Any) -> None:
    X, _ = iris
    trained = clone(transformer).set_params(epochs=15, lr=1e-2, batch_size=32).fit(X)
    assert len(trained.losses_) == 15
    # The losses of an adversarial step are sums of two, so steps are not alike: the whole course is looked at.
    assert np.mean(trained.losses_[-3:]) < np.mean(trained.losses_[:3])
    other = clone(transformer).set_params(random_state=1).fit(X)
    assert not np.allclose(other.transform(X), clone(transformer).fit(X).transform(X))


@pytest.mark.parametrize("transformer", [*LEARNING, *OTHERS[:3]], ids=name)
def test_in_a_pipeline_pickled_and_searched(transformer: Any, iris: Any) -> None:
    X, y = iris
    model = make_pipeline(StandardScaler(), clone(transformer), LogisticRegression(max_iter=2000)).fit(X, y)
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(again.predict_proba(X), model.predict_proba(X))
    names = model[:-1].get_feature_names_out()
    assert len(names) == model[:-1].transform(X).shape[1]


def test_objective_is_searched_like_any_parameter(iris: Any) -> None:
    X, y = iris
    model = make_pipeline(METS(**BLOCKS, **SMALL), LogisticRegression(max_iter=2000))
    search = GridSearchCV(model, {"mets__objective": ["mean", "rgd:tau=1"]}, cv=2).fit(X, y)
    assert set(search.cv_results_["param_mets__objective"]) == {"mean", "rgd:tau=1"}


@pytest.mark.parametrize("transformer", LEARNING, ids=name)
def test_weights_of_a_step_are_those_of_its_losses(transformer: Any, iris: Any, monkeypatch: Any) -> None:
    """One batch of all rows, one epoch: the mean weight is that of the formula at the untrained losses."""
    X, _ = iris
    whole = {"epochs": 1, "batch_size": len(X)}
    plain = clone(transformer).set_params(**whole).fit(X)
    seen: list[torch.Tensor] = []
    kind = type(plain.network_)
    original = kind.losses
    monkeypatch.setattr(kind, "losses", lambda *a: seen.append(original(*a)) or seen[-1])
    weighted = clone(transformer).set_params(objective="rgd:tau=0.5", **whole).fit(X)
    losses = seen[0].detach().double().numpy()
    assert weighted.losses_[0] == pytest.approx(plain.losses_[0], rel=1e-6)  # the plain mean is what is noted
    expected = np.exp(np.clip(losses, 0, 0.5) / 1.5)
    assert weighted.mean_weights_ == pytest.approx([expected.mean()], rel=1e-5)
    assert weighted.clip_shares_ == pytest.approx([(losses >= 0.5).mean()])
    assert plain.mean_weights_ == [1.0]


def test_scale_multiplies_the_loss_of_each_step(iris: Any) -> None:
    """Adam does not see a factor that is always the same, and does see one that changes."""
    X, _ = iris
    base = METS(**BLOCKS, epochs=2, batch_size=50, lr=1e-2, dropout=0.0, random_state=0)
    plain = clone(base).fit(X).transform(X)
    constant = clone(base).fit(X, scale=[3.0] * 6).transform(X)
    changing = clone(base).fit(X, scale=[1.0, 5.0, 1.0, 9.0, 1.0, 1.0]).transform(X)
    np.testing.assert_allclose(constant, plain, atol=2e-3)
    assert np.abs(changing - plain).max() > 1e-2


def test_random_twin_starts_where_met_s_starts(iris: Any) -> None:
    X, _ = iris
    started = METS(**BLOCKS, epochs=0, random_state=3).fit(X)
    assert started.losses_ == []
    np.testing.assert_array_equal(started.transform(X), METR(**BLOCKS, random_state=3).fit(X).transform(X))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"objective": "focal+rgd"}, "with the loss"),
        ({"objective": "rdg"}, "Did you mean 'rgd'"),
        ({"epochs": -1}, "`epochs` must be a whole number of at least 0, got -1"),
        ({"masked": 1.0}, r"`masked` must be a number in \(0, 1\), got 1.0"),
        ({"lr": 0.0}, "`lr` must be a positive number, got 0.0"),
    ],
)
def test_wrong_settings_are_named(change: dict[str, Any], message: str, iris: Any) -> None:
    with pytest.raises(ValueError, match=message):
        METS(**{**SMALL, **BLOCKS, **change}).fit(iris[0])


def test_gamma_of_tabnet() -> None:
    with pytest.raises(ValueError, match="`gamma` must be at least 1"):
        TabNet(gamma=0.9).fit(np.zeros((4, 2)))


def beats(learned: Any, reference: Any, seeds: range, X: np.ndarray, y: np.ndarray) -> tuple[float, float]:
    """Mean accuracy of a small head on few labelled rows, with each of two transformers fitted on all rows."""
    scores: list[list[float]] = [[], []]
    for seed in seeds:
        few = np.random.default_rng(seed).permutation(len(y))
        train, test = few[:60], few[60:]
        for found, transformer in zip(scores, (learned, reference), strict=True):
            features = clone(transformer).set_params(random_state=seed).fit(X).transform(X)
            features = StandardScaler().fit(features[train]).transform(features)
            head = LogisticRegression(C=0.1, max_iter=5000).fit(features[train], y[train])
            found.append(head.score(features[test], y[test]))
    return float(np.mean(scores[0])), float(np.mean(scores[1]))


@pytest.mark.slow
@pytest.mark.parametrize(
    "transformer",
    [
        METS(embedding=7, blocks=1, feed_forward=16, epochs=60, batch_size=32, lr=2e-3, dropout=0.0),
        MET(embedding=7, blocks=1, feed_forward=16, epochs=60, batch_size=32, lr=2e-3, dropout=0.0, warmup=20),
        VIME(epochs=100, batch_size=64, lr=3e-3),
        DACL(hidden=32, projection=16, epochs=60, batch_size=128, least=0.7),
        SubTab(hidden=32, epochs=60, batch_size=64),
        TabNet(epochs=60, batch_size=128, steps=4),
    ],
    ids=name,
)
def test_beats_chance_and_its_random_twin(transformer: Any) -> None:
    """Breast-cancer rows: features from unlabelled rows, a linear head from sixty labelled ones."""
    X, y = load_breast_cancer(return_X_y=True)
    X = StandardScaler().fit_transform(X)
    twin = clone(transformer).set_params(epochs=0)
    learned, random = beats(transformer, twin, range(3), X, y)
    assert learned > max(y.mean(), 1 - y.mean()) + 0.2  # always the larger class would be right in 63 %
    assert learned > random
