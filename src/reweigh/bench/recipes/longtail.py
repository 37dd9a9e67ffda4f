"""Long-tailed images: does re-weighting help the rare classes?

Question: classes are thinned exponentially, so that the largest has `imbalance` times as many images as the smallest;
the test set stays balanced. Does RGD beat plain training, class-based re-weighting and the other KL-DRO methods?
The paper's tables: ResNet-32 on long-tailed CIFAR-10 and CIFAR-100, imbalance 200 to 1.

    reweigh run longtail                      # digits, every method, 20 paired seeds
    reweigh run longtail --preset smoke       # seconds
    reweigh run longtail --set data=fashion_mnist --set model=cnn --seeds 10

Time on two cores: `smoke` seconds, `cpu` see the report. Departures from the paper: validation data chooses epochs and
hyper-parameters (the paper's sources report the best *test* epoch); every method has the same number of trials.
"""

from __future__ import annotations

from dataclasses import dataclass

from reweigh.bench.data import Dataset, longtail_indices, split
from reweigh.bench.recipes import _supervised as supervised
from reweigh.bench.recipes._supervised import Supervised
from reweigh.bench.recipes._table import Cell, Table
from reweigh.bench.seeds import Seeds
from reweigh.bench.task import Task


@dataclass(frozen=True, kw_only=True)
class Settings(Supervised):
    """Settings of the recipe: what every supervised recipe has, and the imbalance factor."""

    imbalance: float = 100.0


PRESETS = {
    "smoke": Settings(epochs=3),
    "cpu": Settings(epochs=60, lr=0.05),
    "paper": Settings(
        data="cifar10",
        model="resnet32",
        lr=0.1,
        nesterov=True,
        weight_decay=5e-4,
        batch_size=100,
        epochs=100,
        schedule="steps",
        augment=True,
    ),
}

IMBALANCES = (200.0, 100.0, 50.0, 20.0, 10.0, 1.0)
#: The paper's accuracies, CIFAR-10 with ResNet-32, by imbalance.
PAPER = {
    "mean": (65.98, 70.36, 74.81, 82.23, 86.39, 92.89),
    "rgd": (67.90, 73.75, 79.63, 85.44, 88.00, 93.27),
    "rgd:divergence=revkl": (64.16, 72.56, 77.86, 83.88, 86.84, 92.99),
    "rgd:divergence=chi2,scaled=true": (67.16, 72.20, 77.93, 84.7, 86.90, 93.00),
    "focal": (65.29, 70.38, 76.71, 82.76, 86.66, 93.03),
    "class_balanced": (68.89, 74.57, 79.27, 84.36, 87.49, 92.89),
    "label_smoothing": (61.22, 73.80, 77.95, 84.40, 86.96, 92.18),
    "large_margin": (68.67, 72.78, 78.84, 85.23, 88.26, 92.75),
}
METHODS = (
    "mean",
    "rgd",
    "rgd:divergence=revkl",
    "rgd:divergence=chi2,scaled=true",
    "rgd_auto",
    "term:t=0.5",
    "absgd",
    "focal",
    "class_balanced",
    "class_balanced+rgd",
    "label_smoothing",
    "large_margin",
)


def table(preset: str) -> Table:
    """Rows, columns and the paper's figures."""
    smoke = preset == "smoke"
    return Table(
        title="Long-tailed images",
        question="Does re-weighting by difficulty help when classes are rare?",
        cells=tuple(_cell(i, imbalance) for i, imbalance in enumerate(IMBALANCES) if not smoke or imbalance == 100),
        methods=("mean", "rgd", "focal") if smoke else METHODS,
        metric="test/accuracy",
        metric_name="accuracy on the balanced test set",
        select="val/balanced_accuracy",
        seeds=2 if smoke else 20,
        trials=2 if smoke else 5,
    )


def task(settings: Settings, dataset: Dataset, seeds: Seeds) -> Task:
    """A long-tailed training set, a validation set with the same tail, and the balanced test set."""
    draw = seeds.numpy("data")
    kept = longtail_indices(dataset.y_train, settings.imbalance, draw)
    train, val = split(dataset.y_train[kept], settings.validation, draw)
    return supervised.to_task(dataset, kept[train], kept[val])


train, group, train_group = supervised.recipe(task)


def _cell(i: int, imbalance: float) -> Cell:
    return Cell(
        name=f"imbalance {imbalance:g}",
        settings={"imbalance": imbalance},
        paper={label: figures[i] for label, figures in PAPER.items()},
        stand_in="CIFAR-10 with ResNet-32",
    )
