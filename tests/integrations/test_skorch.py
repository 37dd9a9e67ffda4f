"""skorch: the numbers of a hand-written loop, softmax and logarithm in their place, plain validation."""

from __future__ import annotations

import pickle
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from reweigh.objectives.term import TERM
from reweigh.torch import Reweighted
from reweigh.torch.losses import LDAM
from reweigh.torch.samplers import ClassUniform

pytest.importorskip("skorch")
pytest.importorskip("sklearn")

from sklearn.base import clone
from sklearn.model_selection import GridSearchCV

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from skorch import NeuralNetBinaryClassifier, NeuralNetClassifier, NeuralNetRegressor
    from skorch.dataset import Dataset
    from skorch.helper import predefined_split

    from reweigh.integrations.skorch import (
        ReweightedBCEWithLogits,
        ReweightedCrossEntropy,
        ReweightedNLL,
        SampleWeights,
        WeightLog,
    )

SIZE, BATCH, EPOCHS = 60, 20, 3


def data(seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(SIZE, 5)).astype(np.float32)
    return X, (X[:, :3] + 0.8 * rng.normal(size=(SIZE, 3))).argmax(1)


class Net(nn.Module):
    """Starts from the same parameters each time."""

    def __init__(self, outputs: int = 3, probabilities: bool = False) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(3)
        self.layer = nn.Linear(5, outputs)
        self.layer.weight.data = torch.randn(outputs, 5, generator=generator)
        self.layer.bias.data.zero_()
        self.last: nn.Module = nn.Softmax(-1) if probabilities else nn.Identity()

    def forward(self, X: Tensor) -> Tensor:
        return self.last(self.layer(X)).squeeze(-1)


def classifier(criterion: Any, kind: Any = NeuralNetClassifier, **options: Any) -> Any:
    given = {"max_epochs": EPOCHS, "lr": 0.2, "batch_size": BATCH, "train_split": None, "verbose": 0}
    return kind(Net, criterion=criterion, **given | options)


def by_hand(losses_of: Any, X: np.ndarray, y: Tensor, tau: float = 1.0, **net_options: Any) -> tuple[Net, list[Tensor]]:
    """The same training without skorch, with the formula of the weight written out."""
    net, vectors = Net(**net_options), []
    optimizer = torch.optim.SGD(net.parameters(), lr=0.2)
    for _ in range(EPOCHS):
        for start in range(0, SIZE, BATCH):
            rows = slice(start, start + BATCH)
            losses = losses_of(net(torch.tensor(X[rows])), y[rows])
            optimizer.zero_grad()
            (torch.exp(losses.detach().clamp(0, tau) / (tau + 1)) * losses).mean().backward()
            optimizer.step()
            vectors.append(losses.detach())
    return net, vectors


def cross_entropy(output: Tensor, target: Tensor) -> Tensor:
    return nn.functional.cross_entropy(output, target, reduction="none")


@pytest.mark.shows("skorch", "objective")
@pytest.mark.parametrize("tau", [1.0, 3.0])
def test_cross_entropy(tau: float) -> None:
    X, y = data()
    net = classifier(ReweightedCrossEntropy, criterion__tau=tau).fit(X, y)
    hand, _ = by_hand(cross_entropy, X, torch.tensor(y), tau)
    torch.testing.assert_close(net.module_.layer.weight, hand.layer.weight, atol=1e-6, rtol=1e-6)
    with torch.no_grad():
        expected = torch.softmax(hand(torch.tensor(X)), -1).numpy()
    np.testing.assert_allclose(net.predict_proba(X), expected, atol=1e-6)
    np.testing.assert_allclose(net.predict_proba(X).sum(1), 1.0, atol=1e-6)


@pytest.mark.shows("skorch", "loss")
def test_the_classes_of_the_training_rows_are_counted() -> None:
    X, y = data()
    shares = torch.tensor(np.bincount(y) / SIZE, dtype=torch.float32)
    options = {"criterion__criterion": "logit_adjusted+rgd:tau=1", "criterion__class_counts": "auto"}
    net = classifier(Reweighted, **options, callbacks=[WeightLog()]).fit(X, y)
    hand, _ = by_hand(lambda output, target: cross_entropy(output + torch.log(shares), target), X, torch.tensor(y))
    torch.testing.assert_close(net.module_.layer.weight, hand.layer.weight, atol=1e-6, rtol=1e-6)
    assert net.criterion_.class_counts == tuple(np.bincount(y).tolist())
    with pytest.raises(ValueError, match="WeightLog in Lightning and skorch"):
        classifier(Reweighted, **options).fit(X, y)


@pytest.mark.shows("skorch", "post")
def test_the_correction_knows_the_rows_trained_on_and_no_others() -> None:
    X, y = data()
    held_out = Dataset(X[40:], y[40:])
    options = {"criterion__objective": "rgd+prior", "criterion__class_counts": "auto"}
    net = classifier(
        ReweightedCrossEntropy, **options, callbacks=[WeightLog()], train_split=predefined_split(held_out)
    ).fit(X[:40], y[:40])
    logits = np.random.default_rng(1).normal(size=(4, 3))
    expected = logits - np.log(np.bincount(y[:40]) / 40)
    found = net.criterion_.reweighted.correction(logits, y[:4])(logits)
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_probabilities_get_their_logarithm() -> None:
    X, y = data()
    net = classifier(ReweightedNLL, criterion__tau=1.0, module__probabilities=True).fit(X, y)

    def losses_of(p: Tensor, target: Tensor) -> Tensor:
        return -torch.log(p + torch.finfo(p.dtype).eps)[torch.arange(len(target)), target]

    hand, _ = by_hand(losses_of, X, torch.tensor(y), probabilities=True)
    torch.testing.assert_close(net.module_.layer.weight, hand.layer.weight, atol=1e-6, rtol=1e-6)
    np.testing.assert_allclose(net.predict_proba(X).sum(1), 1.0, atol=1e-6)


def test_binary() -> None:
    X, y = data()
    y = (y == 0).astype(np.float32)
    net = classifier(ReweightedBCEWithLogits, NeuralNetBinaryClassifier, criterion__tau=1.0, module__outputs=1)
    net.fit(X, y)
    hand, _ = by_hand(
        lambda z, t: nn.functional.binary_cross_entropy_with_logits(z, t, reduction="none"),
        X,
        torch.tensor(y),
        outputs=1,
    )
    torch.testing.assert_close(net.module_.layer.weight, hand.layer.weight, atol=1e-6, rtol=1e-6)
    with torch.no_grad():
        expected = torch.sigmoid(hand(torch.tensor(X))).numpy()
    np.testing.assert_allclose(net.predict_proba(X)[:, 1], expected, atol=1e-6)


def test_regression_needs_no_class_of_its_own() -> None:
    X, _ = data()
    y = X.sum(1)
    net = classifier(
        Reweighted, NeuralNetRegressor, criterion__criterion=nn.MSELoss(), criterion__tau=1.0, module__outputs=1
    )
    net.fit(X, y)
    hand, _ = by_hand(lambda z, t: (z - t) ** 2, X, torch.tensor(y), outputs=1)
    torch.testing.assert_close(net.module_.layer.weight, hand.layer.weight, atol=1e-5, rtol=1e-5)


def test_validation_is_plain_and_the_history_tells_both() -> None:
    X, y = data()
    valid = Dataset(*data(1))
    net = classifier(
        ReweightedCrossEntropy, criterion__tau=1.0, train_split=predefined_split(valid), callbacks=[WeightLog()]
    ).fit(X, y)
    with torch.no_grad():
        Xv, yv = data(1)
        plain = cross_entropy(net.module_(torch.tensor(Xv)), torch.tensor(yv)).mean()
    assert net.history[-1, "valid_loss"] == pytest.approx(float(plain), rel=1e-5)

    _, vectors = by_hand(cross_entropy, X, torch.tensor(y))
    losses = torch.cat(vectors[-SIZE // BATCH :]).numpy().astype(np.float64)  # of the last epoch
    weights = np.exp(np.clip(losses, 0, 1) / 2)
    row = net.history[-1]
    assert row["train_loss"] == pytest.approx((weights * losses).mean(), rel=1e-5)
    assert row["plain_loss"] == pytest.approx(losses.mean(), rel=1e-5)
    assert row["weight_mean"] == pytest.approx(weights.mean(), rel=1e-5)
    assert row["clip_share"] == pytest.approx(np.mean(losses >= 1))
    assert row["ess_share"] == pytest.approx(weights.mean() ** 2 / (weights**2).mean(), rel=1e-5)


@pytest.mark.parametrize(
    "criterion", [{"label_smoothing": 0.2}, {"weight": torch.tensor([1.0, 5.0, 0.5])}, {"ignore_index": 1}], ids=str
)
def test_the_plain_loss_is_that_of_the_criterion_alone(criterion: dict[str, Any]) -> None:
    """Comparable with the validation loss next to it: at a rate of zero, on the same rows, they are equal."""
    X, y = data()
    net = classifier(
        ReweightedCrossEntropy,
        lr=0.0,
        batch_size=SIZE,
        max_epochs=1,
        train_split=predefined_split(Dataset(X, y)),
        callbacks=[WeightLog()],
        **{f"criterion__{name}": value for name, value in criterion.items()},
    ).fit(X, y)
    assert net.history[-1, "plain_loss"] == pytest.approx(net.history[-1, "valid_loss"], rel=1e-5)
    counted = np.ones(SIZE, bool) if "ignore_index" not in criterion else y != 1
    losses = cross_entropy(net.module_(torch.tensor(X)), torch.tensor(y)).detach().numpy()[counted]
    if "label_smoothing" not in criterion:
        weights = np.exp(np.clip(losses, 0, 1) / 2)
        assert net.history[-1, "weight_mean"] == pytest.approx(weights.mean(), rel=1e-5)


def test_the_printed_table_has_the_statistics(capsys: pytest.CaptureFixture[str]) -> None:
    classifier(ReweightedCrossEntropy, verbose=1, callbacks=[WeightLog()]).fit(*data())
    printed = capsys.readouterr().out
    assert "clip_share" in printed
    assert "plain_loss" in printed


def test_class_weights_and_other_objectives() -> None:
    X, y = data()
    class_weight = torch.tensor([1.0, 2.0, 4.0])
    net = classifier(
        ReweightedCrossEntropy, criterion__objective=TERM(t=2.0), criterion__weight=class_weight, max_epochs=1
    ).fit(X, y)
    hand = Net()
    optimizer = torch.optim.SGD(hand.parameters(), lr=0.2)
    for start in range(0, SIZE, BATCH):
        rows = slice(start, start + BATCH)
        target = torch.tensor(y[rows])
        losses = cross_entropy(hand(torch.tensor(X[rows])), target)
        own = class_weight[target]
        measure = own / own.sum()
        tilted = measure * torch.exp(2.0 * losses.detach())
        optimizer.zero_grad()
        (tilted / tilted.sum() * losses).sum().backward()
        optimizer.step()
    torch.testing.assert_close(net.module_.layer.weight, hand.layer.weight, atol=1e-5, rtol=1e-5)


def test_grid_search_over_tau() -> None:
    X, y = data()
    search = GridSearchCV(
        classifier(ReweightedCrossEntropy), {"criterion__tau": [0.5, 2.0]}, cv=2, scoring="neg_log_loss"
    ).fit(X, y)
    assert search.best_estimator_.criterion_.reweighted.objective.tau == search.best_params_["criterion__tau"]
    scores = search.cv_results_["mean_test_score"]
    assert scores[0] != scores[1]  # the value reached the criterion


def test_clone_and_pickle() -> None:
    X, y = data()
    net = classifier(ReweightedCrossEntropy, criterion__tau=2.0, callbacks=[WeightLog()]).fit(X, y)
    loaded = pickle.loads(pickle.dumps(net))
    np.testing.assert_array_equal(loaded.predict_proba(X), net.predict_proba(X))
    assert loaded.criterion_.reweighted.objective.tau == 2.0
    again = clone(net)
    assert not again.initialized_
    np.testing.assert_array_equal(again.fit(X, y).predict_proba(X), net.predict_proba(X))


def test_the_log_refuses_a_plain_criterion() -> None:
    with pytest.raises(TypeError, match="got CrossEntropyLoss"):
        classifier(nn.CrossEntropyLoss, callbacks=[WeightLog()]).fit(*data())


def test_late_class_weights_start_by_themselves() -> None:
    seen: list[float] = []

    class Progress(LDAM):
        def sample_weight(self, target: Tensor, progress: float = 1.0) -> Tensor | None:
            seen.append(progress)
            return super().sample_weight(target, progress)

    X, y = data()
    loss = Progress(class_counts=tuple(np.bincount(y, minlength=3).tolist()))
    net = classifier(Reweighted, criterion__criterion=loss, criterion__tau=1.0, callbacks=[WeightLog()], max_epochs=4)
    net.fit(X, y)
    assert list(dict.fromkeys(seen)) == [0.0, 0.25, 0.5, 0.75]


class WeightedNet(SampleWeights, NeuralNetClassifier):
    pass


class WeightedRegressor(SampleWeights, NeuralNetRegressor):
    pass


@pytest.mark.shows("skorch", "row weight")
def test_weights_of_rows_go_to_the_criterion_and_not_to_the_module() -> None:
    X, y = data()
    own = np.linspace(0.2, 3.0, SIZE)
    net = classifier(
        ReweightedCrossEntropy, WeightedNet, criterion__tau=1.0, train_split=predefined_split(Dataset(*data(1)))
    ).fit({"X": X, "sample_weight": own}, y)
    hand = Net()
    optimizer = torch.optim.SGD(hand.parameters(), lr=0.2)
    for _ in range(EPOCHS):
        for start in range(0, SIZE, BATCH):
            rows = slice(start, start + BATCH)
            losses = cross_entropy(hand(torch.tensor(X[rows])), torch.tensor(y[rows]))
            amounts = torch.tensor(own[rows], dtype=torch.float32)
            optimizer.zero_grad()
            weights = torch.exp(losses.detach().clamp(0, 1) / 2)
            ((weights * amounts * losses).sum() / amounts.sum()).backward()
            optimizer.step()
    torch.testing.assert_close(net.module_.layer.weight, hand.layer.weight, atol=1e-6, rtol=1e-6)
    np.testing.assert_array_equal(net.predict(X), net.predict({"X": X, "sample_weight": own}))
    with pytest.raises(TypeError, match="goes to a re-weighted criterion, got CrossEntropyLoss"):
        classifier(nn.CrossEntropyLoss, WeightedNet).fit({"X": X, "sample_weight": own}, y)


@pytest.mark.shows("skorch", "token weight")
def test_each_element_of_a_row_has_a_weight() -> None:
    X, _ = data()
    y = np.stack([X.sum(1), X[:, 0], -X[:, 1]], 1)
    own = np.random.default_rng(1).uniform(0.1, 2.0, (SIZE, 3))
    net = classifier(
        Reweighted, WeightedRegressor, criterion__criterion=nn.MSELoss(), criterion__tau=1.0, criterion__level="token"
    )
    net.set_params(max_epochs=1, batch_size=SIZE).fit({"X": X, "sample_weight": own}, y)
    hand, amounts = Net(), torch.tensor(own, dtype=torch.float32)
    losses = (hand(torch.tensor(X)) - torch.tensor(y)) ** 2
    ((torch.exp(losses.detach().clamp(0, 1) / 2) * amounts * losses).sum() / amounts.sum()).backward()
    assert hand.layer.weight.grad is not None
    expected = hand.layer.weight - 0.2 * hand.layer.weight.grad
    torch.testing.assert_close(net.module_.layer.weight, expected, atol=1e-6, rtol=1e-6)


@pytest.mark.shows("skorch", "accumulation")
def test_micro_batches_are_one_batch() -> None:
    """Accumulation as skorch's documentation writes it: a step after every second batch."""

    class Accumulating(NeuralNetClassifier):
        def get_loss(self, *args: Any, **kwargs: Any) -> Tensor:
            return super().get_loss(*args, **kwargs) / 2

        def train_step(self, batch: Any, **fit_params: Any) -> Any:
            self.count = getattr(self, "count", 0) + 1
            self.notify("on_grad_computed", named_parameters=[])
            step = self.train_step_single(batch, **fit_params)
            if self.count % 2 == 0:
                self.optimizer_.step()
                self.optimizer_.zero_grad()
            return step

    X, y = data()
    whole = classifier(ReweightedCrossEntropy, criterion__tau=1.0, batch_size=SIZE // 3).fit(X, y)
    halves = classifier(ReweightedCrossEntropy, Accumulating, criterion__tau=1.0, batch_size=SIZE // 6).fit(X, y)
    torch.testing.assert_close(whole.module_.layer.weight, halves.module_.layer.weight, atol=1e-6, rtol=1e-6)


@pytest.mark.shows("skorch", "AMP")
def test_accelerates_half_precision(request: pytest.FixtureRequest) -> None:
    accelerate = pytest.importorskip("accelerate")
    from skorch.hf import AccelerateMixin

    class Accelerated(AccelerateMixin, NeuralNetClassifier):
        pass

    X, y = data()
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)  # other tests leave theirs behind
    request.addfinalizer(lambda: accelerate.state.AcceleratorState._reset_state(reset_partial_state=True))
    accelerator = accelerate.Accelerator(mixed_precision="bf16", cpu=True)
    options = {"criterion__tau": 1.0, "accelerator": accelerator, "max_epochs": 1}
    net = classifier(ReweightedCrossEntropy, Accelerated, **options, device=None).fit(X, y)
    hand = Net()
    optimizer = torch.optim.SGD(hand.parameters(), lr=0.2)
    for start in range(0, SIZE, BATCH):
        rows = slice(start, start + BATCH)
        with torch.autocast("cpu", torch.bfloat16):
            output = hand(torch.tensor(X[rows]))
        losses = cross_entropy(output.float(), torch.tensor(y[rows]))
        optimizer.zero_grad()
        (torch.exp(losses.detach().clamp(0, 1) / 2) * losses).mean().backward()
        optimizer.step()
    torch.testing.assert_close(net.module_.layer.weight, hand.layer.weight, atol=1e-5, rtol=1e-5)
    assert net.criterion_.reweighted.weights.dtype == torch.float32


@pytest.mark.shows("skorch", "compile")
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")  # torch's compiler looks at it
def test_a_compiled_net_takes_the_same_steps() -> None:
    X, y = data()
    net = classifier(ReweightedCrossEntropy, criterion__tau=1.0, compile=True, compile__backend="aot_eager").fit(X, y)
    hand, _ = by_hand(cross_entropy, X, torch.tensor(y))
    torch.testing.assert_close(net.module_.layer.weight, hand.layer.weight, atol=1e-6, rtol=1e-6)


@pytest.mark.shows("skorch", "sampler")
def test_batches_of_a_sampler_with_weights_of_rows() -> None:
    X, y = data()
    own = np.linspace(0.0, 2.0, SIZE)
    options: dict[str, Any] = {"batch_size": BATCH, "targets": torch.tensor(y), "weight": own}
    drawn: Any = ClassUniform().start(SIZE, **options)
    net = classifier(
        ReweightedCrossEntropy,
        criterion__tau=1.0,
        max_epochs=1,
        iterator_train=lambda dataset, **_: DataLoader(dataset, batch_sampler=drawn),
    ).fit(X, y)
    hand = Net()
    optimizer = torch.optim.SGD(hand.parameters(), lr=0.2)
    batches = list(ClassUniform().start(SIZE, **options))
    for rows in batches:
        losses = cross_entropy(hand(torch.tensor(X[rows])), torch.tensor(y[rows]))
        optimizer.zero_grad()
        (torch.exp(losses.detach().clamp(0, 1) / 2) * losses).mean().backward()
        optimizer.step()
    torch.testing.assert_close(net.module_.layer.weight, hand.layer.weight, atol=1e-6, rtol=1e-6)
    assert 0 not in {row for batch in batches for row in batch}  # its weight is zero


@pytest.mark.refuses("skorch", "step", "average")
@pytest.mark.parametrize(
    ("part", "reason"),
    [("sam", "step 'sam': a criterion gives the loss"), ("ema", "average 'ema': a criterion does not see the model")],
)
def test_parts_without_a_place_are_refused(part: str, reason: str) -> None:
    with pytest.raises(ValueError, match=f"with the {reason}"):
        classifier(ReweightedCrossEntropy, criterion__objective=f"rgd+{part}").fit(*data())


@pytest.mark.parametrize("value", [-1.0, np.nan])
def test_weights_below_zero_are_refused(value):
    X, y = data()
    own = np.ones(len(y), np.float32)
    own[3] = value
    with pytest.raises(ValueError, match="`sample_weight` must be zero or more"):
        classifier(ReweightedCrossEntropy, WeightedNet).fit({"X": X, "sample_weight": own}, y)
