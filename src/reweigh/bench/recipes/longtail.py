"""Long-tailed images: does re-weighting help the rare classes?

Question: classes are thinned exponentially, so that the largest has `imbalance` times as many images as the smallest;
the test set stays balanced. Does RGD beat plain training, class-based re-weighting and the other KL-DRO methods?
The paper's tables: ResNet-32 on long-tailed CIFAR-10 and CIFAR-100, imbalance 200 to 1.

    reweigh run longtail                      # every column below; the others' data must be in the cache
    reweigh run longtail --only digits        # the columns with this in their names
    reweigh run longtail --preset smoke       # seconds, digits
    reweigh run longtail --preset paper       # the paper's settings: weeks of one GPU

The `cpu` preset: digits with an MLP at six imbalances, all methods, 20 paired seeds, three rates each. CIFAR-10 as the
frozen features of an EfficientNet-Lite0 that was trained on ImageNet, under a head of two layers, at five imbalances,
20 seeds, three rates, all methods but those that need meta data; computing the features takes one core a quarter of an
hour, once. Fashion-MNIST with an MLP at two imbalances, 1 000 images of the largest class, 20 epochs, all methods, 20
seeds. With fewer methods: Fashion-MNIST, 3 000 images of the largest class, with a CNN of half the usual width for 6
epochs, 20 seeds, three rates; QuickDraw-345 in CIFAR-100's place, with a small CNN for 8 epochs, 4 seeds, two rates;
CIFAR-10 with ResNet-32 for 20 epochs, 3 seeds, untuned; this column alone takes two cores about three hours.

Departures from the paper: validation data chooses hyper-parameters, and the last epoch counts (the paper's sources
report the best *test* epoch); every method is tuned over the same rates; on the digits and on Fashion-MNIST with an MLP
ten images per class are set aside as meta data for all methods alike. With the `paper` preset, on CIFAR-10 and
CIFAR-100, hyper-parameters are chosen on a fifth of the images and all rows then trained on all of them, so that
choosing costs the rare classes nothing; only the rows that need meta data give ten images per class away for it, as in
their source.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from reweigh.bench.draws import longtail_indices, rank_within_class
from reweigh.bench.draws.seeds import Seeds
from reweigh.bench.lab.table import Column, Endpoint, Row, Table
from reweigh.bench.recipes.kinds import supervised
from reweigh.bench.recipes.kinds.supervised import EncodableSettings
from reweigh.bench.train.task import Task


@dataclass(frozen=True, kw_only=True)
class Settings(EncodableSettings):
    """Settings of the recipe: what every supervised recipe has, and the long tail.

    Parameters
    ----------
    imbalance
        Size of the largest class over that of the smallest.
    n_max
        Size of the largest class; 0 takes as many as every class has.
    meta
        Images per class set aside, before thinning, for the methods that learn from clean and balanced data.
    """

    imbalance: float = 100.0
    n_max: int = 0
    meta: int = 10


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
#: The paper's accuracies, CIFAR-10 with ResNet-32, by imbalance. Those of TERM and ABSGD are from its comparison of
#: KL-DRO methods, where plain training has 71.75 and 87.64 and RGD 73.71 and 87.78 at imbalance 100 and 10.
PAPER: dict[str, tuple[float | None, ...]] = {
    "mean": (65.98, 70.36, 74.81, 82.23, 86.39, 92.89),
    "rgd": (67.90, 73.75, 79.63, 85.44, 88.00, 93.27),
    "rgd:divergence=revkl": (64.16, 72.56, 77.86, 83.88, 86.84, 92.99),
    "rgd:divergence=chi2,scaled=true": (67.16, 72.20, 77.93, 84.7, 86.90, 93.00),
    "focal": (65.29, 70.38, 76.71, 82.76, 86.66, 93.03),
    "class_balanced": (68.89, 74.57, 79.27, 84.36, 87.49, 92.89),
    "label_smoothing": (61.22, 73.80, 77.95, 84.40, 86.96, 92.18),
    "large_margin": (68.67, 72.78, 78.84, 85.23, 88.26, 92.75),
    "term:t=0.5": (None, 72.20, None, None, 87.52, None),
    "absgd": (None, 72.43, None, None, 87.93, None),
    "fine_tune": (66.08, 71.33, 77.42, 83.37, 86.42, 93.23),
    "l2rw": (66.51, 74.16, 78.93, 82.12, 85.19, 89.25),
    "meta_weight_net": (68.91, 75.21, 80.06, 84.94, 87.84, 92.66),
}
#: The same for CIFAR-100; plain training and RGD beside TERM and ABSGD: 38.35 and 41.47, 56.91 and 58.49.
PAPER_100: dict[str, tuple[float | None, ...]] = {
    "mean": (34.84, 38.32, 43.85, 51.14, 55.71, 70.50),
    "rgd": (38.62, 41.89, 46.40, 53.48, 58.5, 71.30),
    "rgd:divergence=revkl": (36.22, 39.87, 43.74, 51.86, 56.9, 70.80),
    "rgd:divergence=chi2,scaled=true": (35.96, 39.70, 43.88, 51.29, 56.92, 70.73),
    "focal": (35.62, 38.41, 44.32, 51.95, 55.78, 70.52),
    "class_balanced": (36.23, 39.60, 45.32, 52.59, 57.99, 70.50),
    "label_smoothing": (37.14, 41.05, 44.76, 50.67, 57.74, 70.97),
    "large_margin": (36.77, 40.38, 45.24, 51.25, 56.9, 71.01),
    "term:t=0.5": (None, 39.75, None, None, 57.91, None),
    "absgd": (None, 39.77, None, None, 57.44, None),
    "fine_tune": (38.22, 41.83, 46.40, 52.11, 57.44, 70.72),
    "l2rw": (33.38, 40.23, 44.44, 51.64, 53.73, 64.11),
    "meta_weight_net": (37.91, 42.09, 46.74, 54.37, 58.46, 70.37),
}
METHODS = (
    "mean",
    "rgd",
    "rgd:divergence=revkl",
    "rgd:divergence=chi2,scaled=true",
    "rgd_auto",
    "term:t=0.5",
    "focal",
    "class_balanced",
    "class_balanced+rgd",
    "absgd",
    "class_weights",
    "deferred",
    "ldam",
    "logit_adjusted",
    "vs",
    "mean+prior",
    "rgd+prior",
    "mean+threshold",
    "mean+tau_norm",
    "crt",
    "weight_decay",
    "label_smoothing",
    "large_margin",
    "importance",
    "fine_tune",
    "l2rw",
    "meta_weight_net",
)
#: Rows and columns other than the digits, cheap enough for two cores.
FEWER = (
    "mean", "rgd", "rgd_auto", "term:t=0.5", "focal", "class_balanced", "class_balanced+rgd", "deferred",
    "logit_adjusted", "mean+prior", "rgd+prior",
)  # fmt: skip
FASHION: dict[str, Any] = {"data": "fashion_mnist", "n_max": 1000, "epochs": 20}
FASHION_CNN = {"data": "fashion_mnist", "model": "cnn:width=8", "n_max": 3000, "epochs": 6, "lr": 0.05, "meta": 0}
QUICKDRAW = {
    "data": "quickdraw345", "model": "cnn", "imbalance": 20.0, "epochs": 8, "lr": 1e-3, "optimizer": "adam", "meta": 0,
}  # fmt: skip
FEATURES: dict[str, Any] = {
    "data": "cifar10", "encoder": "efficientnet_lite0:weights=imagenet", "hidden": (64,), "batch_size": 128,
    "epochs": 20, "meta": 0,
}  # fmt: skip
#: What needs no meta data.
FEATURE_METHODS = tuple(label for label in METHODS if label not in ("fine_tune", "l2rw", "meta_weight_net"))
CIFAR = {
    "data": "cifar10", "model": "resnet32", "nesterov": True, "weight_decay": 5e-4, "batch_size": 100, "epochs": 20,
    "lr": 0.1, "schedule": "steps", "augment": True, "meta": 0,
}  # fmt: skip
CIFAR_METHODS = ("mean", "rgd", "mean+prior", "rgd+prior", "logit_adjusted")


#: Meta-Weight-Net as its authors set it for imbalance, whatever the preset.
_WEIGHT_NET = "meta_weight_net:setting=imbalance"


def _rows(preset: str) -> dict[str, Row]:
    """Rows that learn from clean and balanced data; with the `paper` preset they alone set it aside."""
    meta = {"meta": 10} if preset == "paper" else {}
    texts = {"fine_tune": "fine_tune", "l2rw": "l2rw", "meta_weight_net": _WEIGHT_NET}
    return {label: Row(method=text, settings=meta) for label, text in texts.items()}


def table(preset: str) -> Table:
    """Rows, columns and the paper's figures."""
    return Table(
        title="Long-tailed images",
        question="Does re-weighting by difficulty help when classes are rare?",
        columns=_columns(preset),
        methods=("mean", "rgd", "focal", "mean+prior", "logit_adjusted") if preset == "smoke" else METHODS,
        metric="test/accuracy",
        metric_name="accuracy on the balanced test set",
        select="val/balanced_accuracy",
        seeds={"smoke": 2, "cpu": 20, "paper": 5}[preset],
        trials={"smoke": 2, "cpu": 3, "paper": 5}[preset],
        rows=_rows(preset),
        refit={"validation": 0.0} if preset == "paper" else {},
        endpoint=Endpoint(columns=("digits", "CIFAR-10 features") if preset == "cpu" else ()),
        notes=(
            "On the digits and on Fashion-MNIST with an MLP, ten images per class are set aside before thinning, for "
            "every method; only fine_tune, l2rw and meta_weight_net learn from them.",
            "`prior`, `threshold` and `tau_norm` change outputs after training and nothing before it; cuts and powers "
            "are chosen on validation data.",
            "The paper's figures are for ResNet-32 and 100 epochs or more, best test epoch; those of TERM and ABSGD "
            "are from a table in which plain training and RGD have other figures too.",
        ),
    )


def task(settings: Settings, seeds: Seeds) -> Task:
    """A long-tailed training set, a validation set with the same tail, and the balanced test set."""
    dataset, draw = supervised.load(settings.data, settings.encoder), seeds.numpy("data")
    order = draw.permutation(len(dataset.y_train))
    rank = rank_within_class(dataset.y_train[order])
    meta, rest = order[rank < settings.meta], order[rank >= settings.meta]
    kept = rest[longtail_indices(dataset.y_train[rest], settings.imbalance, draw, n_max=settings.n_max or None)]
    train, val = supervised.held_out(dataset.y_train[kept], settings.validation, draw)
    return supervised.to_task(dataset, kept[train], kept[val], meta=meta if settings.meta else None)


train, group, train_group = supervised.recipe(task)


def _columns(preset: str) -> tuple[Column, ...]:
    paper = "CIFAR-10 with ResNet-32"
    if preset == "smoke":
        return (_column(100.0, "digits", paper, {}),)
    if preset == "paper":
        return (
            *(_column(i, "CIFAR-10", None, {"meta": 0}) for i in IMBALANCES),
            *(_column(i, "CIFAR-100", None, {"meta": 0, "data": "cifar100"}, PAPER_100) for i in IMBALANCES),
        )
    return (
        *(_column(i, "digits", paper, {}) for i in IMBALANCES),
        *(_column(i, "CIFAR-10 features", paper, FEATURES, methods=FEATURE_METHODS) for i in IMBALANCES if i > 1),
        *(_column(i, "Fashion-MNIST", paper, FASHION) for i in (100.0, 10.0)),
        _column(100.0, "Fashion-MNIST CNN", paper, FASHION_CNN, methods=FEWER),
        Column(
            name="QuickDraw-345, imbalance 20",
            settings=QUICKDRAW,
            paper={"mean": 51.14, "rgd": 53.48, "class_balanced": 52.59, "focal": 51.95},
            stand_in="CIFAR-100 with ResNet-32",
            methods=("mean", "rgd", "focal", "class_balanced", "logit_adjusted", "mean+prior"),
            seeds=4,
            trials=2,
            trouble="rare classes",
            model="CNN",
        ),
        _column(100.0, "CIFAR-10, 20 epochs", None, CIFAR, methods=CIFAR_METHODS, seeds=3, trials=1),
    )


def _column(
    imbalance: float,
    data: str,
    stand_in: str | None,
    settings: dict[str, Any],
    printed: dict[str, tuple[float | None, ...]] = PAPER,
    **fewer: Any,
) -> Column:
    i = IMBALANCES.index(imbalance)
    return Column(
        name=f"{data}, imbalance {imbalance:g}",
        settings={**settings, "imbalance": imbalance},
        paper={label: figure for label, figures in printed.items() if (figure := figures[i]) is not None},
        stand_in=stand_in,
        trouble="rare classes" if imbalance > 1 else "none",
        model=_kind(settings),
        **fewer,
    )


def _kind(settings: Mapping[str, Any]) -> str:
    """The kind of model that a column trains, in words."""
    if "encoder" in settings:
        return "head on frozen features"
    return {"mlp": "MLP", "cnn": "CNN", "resnet32": "ResNet-32"}[settings.get("model", "mlp").partition(":")[0]]
