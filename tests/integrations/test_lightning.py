"""Lightning: the numbers of a hand-written loop, and rows of statistics at the logger's frequency."""

from __future__ import annotations

import copy
import os
import sys
import warnings
from pathlib import Path
from typing import Any, ClassVar

import children
import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import reweigh
from reweigh.objectives.term_ema import TERMEma
from reweigh.torch import Reweighted, segments
from reweigh.torch.losses import LDAM
from reweigh.torch.samplers import ClassUniform

pytest.importorskip("lightning")

with warnings.catch_warnings():  # torchmetrics and friends greet with deprecations of their own
    warnings.simplefilter("ignore")
    from lightning.pytorch import LightningModule, Trainer
    from lightning.pytorch.loggers.logger import DummyLogger

    from reweigh.integrations.lightning import WeightLog

#: What Lightning says of small runs on a small machine; nothing of it is about re-weighting.
pytestmark = [
    pytest.mark.filterwarnings("ignore::lightning.fabric.utilities.warnings.PossibleUserWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]

SIZE, BATCH = 48, 8


def data(seed: int = 0) -> TensorDataset:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(SIZE, 6, generator=generator)
    return TensorDataset(x, (x[:, :3] + 0.7 * torch.randn(SIZE, 3, generator=generator)).argmax(1))


def network() -> nn.Module:
    generator = torch.Generator().manual_seed(1)
    net = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    for parameter in net.parameters():
        parameter.data = torch.randn(parameter.shape, generator=generator) * 0.5
    return net


class Classifier(LightningModule):
    def __init__(self, criterion: nn.Module, net: nn.Module | None = None) -> None:
        super().__init__()
        self.net = network() if net is None else net
        self.criterion = criterion

    def training_step(self, batch: Any) -> Tensor:
        return self.criterion(self.net(batch[0]), batch[1])

    def validation_step(self, batch: Any) -> None:
        self.log("val_loss", self.criterion(self.net(batch[0]), batch[1]))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.3)


class Rows(DummyLogger):
    """A logger that keeps what it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[tuple[int | None, dict[str, float]]] = []

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        self.rows.append((step, dict(metrics)))

    @property
    def weights(self) -> list[tuple[int | None, dict[str, float]]]:
        return [(step, row) for step, row in self.rows if any(key.startswith("reweigh/") for key in row)]


def trainer(tmp_path: Path, **options: Any) -> Trainer:
    given: dict[str, Any] = {
        "accelerator": "cpu",
        "max_epochs": 1,
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "default_root_dir": tmp_path,
        "num_sanity_val_steps": 0,
    }
    return Trainer(**given | options)


def by_hand(epochs: int = 1, accumulate: int = 1, autocast: bool = False) -> tuple[nn.Module, list[Tensor]]:
    """The same training without Lightning, with the formula of the weight written out."""
    net, vectors = network(), []
    optimizer = torch.optim.SGD(net.parameters(), lr=0.3)
    for _ in range(epochs):
        for index, (x, y) in enumerate(DataLoader(data(), BATCH)):
            with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
                losses = nn.functional.cross_entropy(net(x), y, reduction="none")
                weights = torch.exp(losses.detach().float().clamp(0, 1) / 2)
                loss = (weights * losses).mean() / accumulate
            loss.backward()
            vectors.append(losses.detach())
            if (index + 1) % accumulate == 0:
                optimizer.step()
                optimizer.zero_grad()
    return net, vectors


def assert_same(one: nn.Module, other: nn.Module, tolerance: float = 1e-6) -> None:
    for a, b in zip(one.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(a, b, atol=tolerance, rtol=tolerance)


@pytest.mark.shows("Lightning", "objective", "accumulation")
@pytest.mark.parametrize("accumulate", [1, 2])
def test_the_numbers_of_a_hand_written_loop(tmp_path: Path, accumulate: int) -> None:
    model = Classifier(Reweighted(nn.CrossEntropyLoss(), tau=1.0))
    fit = trainer(tmp_path, max_epochs=2, accumulate_grad_batches=accumulate, callbacks=[WeightLog()])
    fit.fit(model, DataLoader(data(), BATCH))
    net, _ = by_hand(epochs=2, accumulate=accumulate)
    assert_same(model.net, net)


@pytest.mark.shows("Lightning", "loss")
def test_the_classes_of_the_training_data_are_counted(tmp_path: Path) -> None:
    """Also where validation is tried out with the same criterion before training starts."""
    model = Classifier(Reweighted("logit_adjusted+rgd:tau=1+prior", class_counts="auto"))
    labels = data().tensors[1]
    counts = torch.bincount(labels)
    fit = trainer(tmp_path, callbacks=[WeightLog()], num_sanity_val_steps=1)
    fit.fit(model, DataLoader(data(), BATCH), DataLoader(data(1), SIZE))
    net = network()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.3)
    for x, y in DataLoader(data(), BATCH):
        losses = nn.functional.cross_entropy(net(x) + torch.log(counts / SIZE), y, reduction="none")
        optimizer.zero_grad()
        (torch.exp(losses.detach().clamp(0, 1) / 2) * losses).mean().backward()
        optimizer.step()
    assert_same(model.net, net)
    assert model.criterion.class_counts == tuple(counts.tolist())
    logits = torch.randn(4, 3)  # the loss has corrected for the classes: nothing is left to do
    np.testing.assert_allclose(model.criterion.correction(logits, labels[:4])(logits), logits, atol=1e-6)


@pytest.mark.shows("Lightning", "post")
def test_the_correction_knows_the_counted_classes(tmp_path: Path) -> None:
    model = Classifier(Reweighted("rgd+prior", class_counts="auto"))
    trainer(tmp_path, callbacks=[WeightLog()], max_steps=1).fit(model, DataLoader(data(), BATCH))
    labels, logits = data().tensors[1], torch.randn(4, 3)
    expected = logits - torch.log(torch.bincount(labels) / SIZE)
    np.testing.assert_allclose(model.criterion.correction(logits, labels[:4])(logits), expected, atol=1e-5)


def test_classes_of_several_loaders_are_not_counted(tmp_path: Path) -> None:
    model = Classifier(Reweighted("logit_adjusted+rgd", class_counts="auto"))
    with pytest.raises(ValueError, match="counts the data set of one DataLoader, got list to train on"):
        trainer(tmp_path, callbacks=[WeightLog()]).fit(model, [DataLoader(data(), BATCH), DataLoader(data(1), BATCH)])
    with pytest.raises(ValueError, match="WeightLog in Lightning and skorch"):
        trainer(tmp_path).fit(model, DataLoader(data(), BATCH))


def test_two_micro_batches_are_one_batch(tmp_path: Path) -> None:
    whole, halves = (Classifier(Reweighted(nn.CrossEntropyLoss(), tau=1.0)) for _ in range(2))
    trainer(tmp_path).fit(whole, DataLoader(data(), 2 * BATCH))
    trainer(tmp_path, accumulate_grad_batches=2).fit(halves, DataLoader(data(), BATCH))
    assert_same(whole.net, halves.net)


@pytest.mark.shows("Lightning", "AMP")
def test_half_precision(tmp_path: Path) -> None:
    model = Classifier(Reweighted(nn.CrossEntropyLoss(), tau=1.0))
    trainer(tmp_path, precision="bf16-mixed").fit(model, DataLoader(data(), BATCH))
    net, _ = by_hand(autocast=True)
    assert_same(model.net, net, 1e-6)
    assert model.criterion.weights.dtype == torch.float32
    full, _ = by_hand()
    with pytest.raises(AssertionError):  # it was half precision indeed
        assert_same(model.net, full, 1e-6)


def test_validation_is_plain(tmp_path: Path) -> None:
    model = Classifier(Reweighted(nn.CrossEntropyLoss(), tau=1.0))
    fit = trainer(tmp_path, max_epochs=1)
    fit.fit(model, DataLoader(data(), BATCH), DataLoader(data(1), SIZE))
    x, y = data(1).tensors
    with torch.no_grad():
        plain = nn.functional.cross_entropy(model.net(x), y)
    assert float(fit.callback_metrics["val_loss"]) == pytest.approx(float(plain), rel=1e-6)


@pytest.mark.parametrize("accumulate", [1, 2])
def test_rows_at_the_loggers_frequency(tmp_path: Path, accumulate: int) -> None:
    rows, log = Rows(), WeightLog()
    fit = trainer(
        tmp_path,
        logger=rows,
        log_every_n_steps=4,
        max_epochs=accumulate,
        accumulate_grad_batches=accumulate,
        callbacks=[log],
    )
    fit.fit(Classifier(Reweighted(nn.CrossEntropyLoss(), tau=1.0)), DataLoader(data(), BATCH))
    _, vectors = by_hand(epochs=accumulate, accumulate=accumulate)
    first, second = vectors[: 4 * accumulate], vectors[4 * accumulate :]
    assert [step for step, _ in rows.weights] == [3, 5]  # six steps: a full interval, and what was left
    for (_, row), interval in zip(rows.weights, (first, second), strict=True):
        losses = torch.cat(interval).numpy().astype(np.float64)
        weights = np.exp(np.clip(losses, 0, 1) / 2)
        assert row["reweigh/loss"] == pytest.approx(losses.mean(), rel=1e-6)
        assert row["reweigh/weight_mean"] == pytest.approx(weights.mean(), rel=1e-6)
        assert row["reweigh/clip_share"] == pytest.approx(np.mean(losses >= 1))
        assert row["reweigh/ess_share"] == pytest.approx(weights.sum() ** 2 / (weights**2).sum() / len(weights))
    assert float(fit.callback_metrics["reweigh/loss"]) == pytest.approx(rows.weights[-1][1]["reweigh/loss"])
    assert log.monitors["criterion"].stats()["units"] == SIZE * accumulate


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_the_plain_loss_is_that_of_the_criterion_alone(tmp_path: Path, smoothing: float) -> None:
    rows, seen = Rows(), data()
    plain = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 5.0, 0.5]), label_smoothing=smoothing)
    fit = trainer(tmp_path, logger=rows, log_every_n_steps=1, max_steps=1, callbacks=[WeightLog()])
    fit.fit(Classifier(Reweighted(plain, tau=1.0)), DataLoader(seen, SIZE))
    expected = plain(network()(seen.tensors[0]), seen.tensors[1]).detach()
    assert rows.weights[0][1]["reweigh/loss"] == pytest.approx(float(expected), rel=1e-5)


def test_values_are_fetched_when_a_row_is_due_and_not_before(tmp_path: Path, monkeypatch: Any) -> None:
    looks: list[int] = []
    look = reweigh.Monitor._look

    def counted(self: Any) -> None:
        looks.append(self.steps)
        look(self)

    monkeypatch.setattr(reweigh.Monitor, "_look", counted)
    model = Classifier(Reweighted(nn.CrossEntropyLoss(), tau=1.0))
    trainer(tmp_path, logger=Rows(), log_every_n_steps=3, callbacks=[WeightLog()]).fit(model, DataLoader(data(), BATCH))
    assert sorted(set(looks)) == [3, 6]


def test_every_of_its_own_and_two_criteria(tmp_path: Path) -> None:
    class Two(Classifier):
        def __init__(self) -> None:
            super().__init__(Reweighted(nn.CrossEntropyLoss(), tau=1.0))
            self.other = Reweighted(nn.CrossEntropyLoss(), tau=3.0)

        def training_step(self, batch: Any) -> Tensor:
            output = self.net(batch[0])
            loss = self.criterion(output, batch[1])
            # The second criterion is used on the first batch only.
            return loss + self.other(output, batch[1]) if self.global_step == 0 else loss

    rows = Rows()
    log = WeightLog(every=2, prefix="w/")
    trainer(tmp_path, logger=rows, callbacks=[log]).fit(Two(), DataLoader(data(), BATCH))
    rows = [(step, sorted(row)) for step, row in rows.rows if any("/" in key for key in row)]
    assert [step for step, _ in rows] == [1, 3, 5]
    assert "w/other/clip_share" in rows[0][1]
    assert "w/criterion/clip_share" in rows[0][1]
    assert not any(name.startswith("w/other") for name in rows[1][1])  # not called since
    assert log.monitors["other"].stats()["units"] == BATCH


def test_a_stateful_objective_resumes_where_it_was(tmp_path: Path) -> None:
    objective = TERMEma(t=2.0)
    straight = Classifier(Reweighted(nn.CrossEntropyLoss(), objective))
    trainer(tmp_path, max_epochs=2).fit(straight, DataLoader(data(), BATCH))

    half = Classifier(Reweighted(nn.CrossEntropyLoss(), objective))
    fit = trainer(tmp_path, max_epochs=1)
    fit.fit(half, DataLoader(data(), BATCH))
    fit.save_checkpoint(tmp_path / "half.ckpt")
    resumed = Classifier(Reweighted(nn.CrossEntropyLoss(), objective))
    start = copy.deepcopy(dict(resumed.criterion.named_buffers()))
    trainer(tmp_path, max_epochs=2).fit(resumed, DataLoader(data(), BATCH), ckpt_path=tmp_path / "half.ckpt")

    assert_same(resumed, straight, 0.0)
    for name, value in straight.criterion.named_buffers():
        torch.testing.assert_close(dict(resumed.criterion.named_buffers())[name], value, atol=0, rtol=0)
        assert not torch.equal(value, start[name])


def test_a_stateful_objective_moves_with_the_optimiser(tmp_path: Path) -> None:
    """Six batches an epoch and four a step: the second step of an epoch has two."""
    model = Classifier(Reweighted(nn.CrossEntropyLoss(), TERMEma(), accumulation=4))
    fit = trainer(tmp_path, max_epochs=3, accumulate_grad_batches=4, callbacks=[WeightLog()])
    fit.fit(model, DataLoader(data(), BATCH))
    assert fit.global_step == 6
    assert int(model.criterion.state_step) == 6


class Progress(LDAM):
    """LDAM that writes down how far training is said to be."""

    seen: ClassVar[list[float]] = []

    def sample_weight(self, target: Tensor, progress: float = 1.0) -> Tensor | None:
        self.seen.append(progress)
        return super().sample_weight(target, progress)


@pytest.mark.parametrize(("options", "expected"), [({"max_epochs": 4}, [0.0, 0.25, 0.5, 0.75])])
def test_late_class_weights_start_by_themselves(tmp_path: Path, options: Any, expected: list[float]) -> None:
    Progress.seen.clear()
    model = Classifier(Reweighted(Progress(class_counts=(30, 10, 8)), tau=1.0))
    trainer(tmp_path, callbacks=[WeightLog()], **options).fit(model, DataLoader(data(), BATCH))
    assert list(dict.fromkeys(Progress.seen)) == expected


def test_it_says_when_there_is_nothing_to_log(tmp_path: Path) -> None:
    fit = trainer(tmp_path, logger=Rows(), callbacks=[WeightLog()])
    with pytest.warns(UserWarning, match="no Reweighted criterion"):
        fit.fit(Classifier(nn.CrossEntropyLoss()), DataLoader(data(), BATCH))


def test_it_says_when_re_weighting_did_nothing(tmp_path: Path) -> None:
    fit = trainer(tmp_path, logger=Rows(), callbacks=[WeightLog()])
    with pytest.warns(UserWarning, match="criterion: saturated"):
        fit.fit(Classifier(Reweighted(nn.CrossEntropyLoss(), tau=1e-6)), DataLoader(data(), BATCH))


def test_no_logging_at_all(tmp_path: Path) -> None:
    log = WeightLog()
    fit = trainer(tmp_path, log_every_n_steps=0, callbacks=[log])
    fit.fit(Classifier(Reweighted(nn.CrossEntropyLoss(), tau=1.0)), DataLoader(data(), BATCH))
    assert log.monitors["criterion"].stats() == {}
    with pytest.raises(ValueError, match="`every` must be a whole number"):
        WeightLog(every=0)


@pytest.mark.shows("Lightning", "DDP")
@pytest.mark.processes
def test_two_processes_are_one() -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    done = children.run(
        [*command, Path(__file__).parent / "workers" / "lightning_ddp.py"],
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count("agrees") == 2


class Weighted(Classifier):
    """Batches hold weights of rows as their third part."""

    def training_step(self, batch: Any) -> Tensor:
        return self.criterion(self.net(batch[0]), batch[1], sample_weight=batch[2])


@pytest.mark.shows("Lightning", "row weight")
def test_weights_of_rows(tmp_path: Path) -> None:
    own = torch.linspace(0.2, 3.0, SIZE)
    model = Weighted(Reweighted(nn.CrossEntropyLoss(), tau=1.0))
    loader = DataLoader(TensorDataset(*data().tensors, own), BATCH)
    trainer(tmp_path, callbacks=[WeightLog()]).fit(model, loader)
    net = network()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.3)
    for x, y, amounts in loader:
        losses = nn.functional.cross_entropy(net(x), y, reduction="none")
        optimizer.zero_grad()
        ((torch.exp(losses.detach().clamp(0, 1) / 2) * amounts * losses).sum() / amounts.sum()).backward()
        optimizer.step()
    assert_same(model.net, net)


class Tagger(Classifier):
    """Classes of tokens; batches hold weights of tokens, or where sequences start."""

    def training_step(self, batch: Any) -> Tensor:
        x, y, beside = batch
        option = {"segments": segments(beside)} if beside.dtype == torch.int64 else {"sample_weight": beside}
        return self.criterion(self.net(x).movedim(-1, 1), y, **option)


def tokens() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(5)
    return torch.randn(4, 6, 6, generator=generator), torch.randint(0, 3, (4, 6), generator=generator)


@pytest.mark.shows("Lightning", "token weight")
def test_weights_of_tokens(tmp_path: Path) -> None:
    x, y = tokens()
    own = torch.rand(4, 6, generator=torch.Generator().manual_seed(6))
    model = Tagger(Reweighted(nn.CrossEntropyLoss(), tau=1.0, level="token"))
    trainer(tmp_path).fit(model, DataLoader(TensorDataset(x, y, own), 4))
    net = network()
    losses = nn.functional.cross_entropy(net(x).movedim(-1, 1), y, reduction="none")
    ((torch.exp(losses.detach().clamp(0, 1) / 2) * own * losses).sum() / own.sum()).backward()
    torch.optim.SGD(net.parameters(), lr=0.3).step()
    assert_same(model.net, net)


@pytest.mark.shows("Lightning", "packing")
def test_packed_sequences_are_weighted_on_their_own(tmp_path: Path) -> None:
    x, y = tokens()
    starts = torch.tensor([[0, 1, 2, 3, 0, 1], [0, 1, 0, 1, 0, 1], [0, 1, 2, 3, 4, 5], [0, 0, 1, 2, 3, 4]])
    model = Tagger(Reweighted(nn.CrossEntropyLoss(), tau=1.0, level="sequence"))
    trainer(tmp_path).fit(model, DataLoader(TensorDataset(x, y, starts), 4))
    net, lengths = network(), [4, 2, 2, 2, 2, 6, 1, 5]
    losses = nn.functional.cross_entropy(net(x.flatten(0, 1)), y.flatten(), reduction="none").split(lengths)
    (sum(torch.exp(part.detach().mean().clamp(0, 1) / 2) * part.sum() for part in losses) / 24).backward()
    torch.optim.SGD(net.parameters(), lr=0.3).step()
    assert_same(model.net, net)


@pytest.mark.shows("Lightning", "compile")
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")  # torch's compiler looks at it
def test_a_compiled_module_takes_the_same_steps(tmp_path: Path) -> None:
    model = Classifier(Reweighted(nn.CrossEntropyLoss(), tau=1.0))
    model.criterion.compile(backend="aot_eager")
    model.net.compile(backend="aot_eager")
    trainer(tmp_path).fit(model, DataLoader(data(), BATCH))
    assert_same(model.net, by_hand()[0])


@pytest.mark.shows("Lightning", "sampler")
def test_batches_of_a_sampler_with_weights_of_rows(tmp_path: Path) -> None:
    own = torch.linspace(0.0, 2.0, SIZE)
    x, y = data().tensors
    options: dict[str, Any] = {"batch_size": BATCH, "targets": y, "weight": own}
    model = Classifier(Reweighted(nn.CrossEntropyLoss(), tau=1.0))
    loader: Any = DataLoader(data(), batch_sampler=ClassUniform().start(SIZE, **options))  # pyright: ignore
    trainer(tmp_path).fit(model, loader)
    net = network()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.3)
    batches = list(ClassUniform().start(SIZE, **options))
    for rows in batches:
        losses = nn.functional.cross_entropy(net(x[rows]), y[rows], reduction="none")
        optimizer.zero_grad()
        (torch.exp(losses.detach().clamp(0, 1) / 2) * losses).mean().backward()
        optimizer.step()
    assert_same(model.net, net)
    assert 0 not in {row for batch in batches for row in batch}  # its weight is zero


@pytest.mark.refuses("Lightning", "step", "average")
@pytest.mark.parametrize(
    ("part", "reason"),
    [("sam", "step 'sam': a criterion gives the loss"), ("ema", "average 'ema': a criterion does not see the model")],
)
def test_parts_without_a_place_are_refused(part: str, reason: str) -> None:
    with pytest.raises(ValueError, match=f"with the {reason}"):
        Reweighted(f"focal+rgd+{part}")
