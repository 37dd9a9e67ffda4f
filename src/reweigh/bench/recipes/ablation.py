"""What the scale, the clip and the divergence do: variations of RGD, one knob at a time.

Question: the paper's ablation figure (ViT-S on ImageNet) says that at tau = 1 the scale gamma matters little, that no
clip is worse, and that accuracy falls as tau grows at fixed gamma. Does that shape hold on long-tailed digits, on
long-tailed Fashion-MNIST with an MLP, and on the frozen features of long-tailed CIFAR-10?

    reweigh run ablation
    reweigh run ablation --preset smoke
    reweigh run ablation --preset paper --data-root /data   # ViT-S/16 on ImageNet: months of GPUs

With the tied scale, tau towards infinity is plain training and not "no clip"; so tau is varied both at fixed gamma
and tied. Only the learning rate is tuned, with the same trials for every row. The page draws accuracy against gamma and
against tau, as the paper's first figure does. The `paper` preset is that of `imagenet`, and like it may be started by
`torchrun`; the others are those of `longtail`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from reweigh.bench.lab.recipe import LATER, Scale
from reweigh.bench.lab.table import Column, Endpoint, Table
from reweigh.bench.recipes import imagenet, longtail
from reweigh.bench.recipes.kinds import supervised
from reweigh.bench.train import distributed as processes
from reweigh.bench.train.records import Record, Writer
from reweigh.method import Method

if TYPE_CHECKING:
    from reweigh.bench.lab.results import Figure, Results

#: `torchrun` may start the `paper` preset on several processes.
DISTRIBUTED = True
#: Settings that mean the same to `imagenet` and to `longtail`.
_SHARED = (
    "data", "model", "rows", "validation", "optimizer", "lr", "weight_decay", "batch_size", "epochs", "schedule",
    "warmup", "precision", "compiled",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Settings(longtail.Settings):
    """Settings of the recipe: those of `longtail`, and whether to train as `imagenet` does.

    Parameters
    ----------
    imagenet
        Whether to train as the `paper` preset of `imagenet` does; what both recipes have is taken from here.
    """

    imagenet: bool = field(default=False, metadata=LATER)

    def of_imagenet(self) -> imagenet.Settings:
        """The settings for `imagenet`."""
        return dataclasses.replace(_IMAGENET, **{name: getattr(self, name) for name in _SHARED})


_IMAGENET = imagenet.PRESETS["paper"]
PRESETS = {
    **{name: Settings(**dataclasses.asdict(longtail.PRESETS[name])) for name in ("smoke", "cpu")},
    "paper": Settings(imagenet=True, **{name: getattr(_IMAGENET, name) for name in _SHARED}),
}

FASHION = {"data": "fashion_mnist", "n_max": 1000, "meta": 0, "epochs": 20}
GAMMA = tuple(f"rgd:gamma={g}" for g in (0.1, 0.25, 1, 2))
UNCLIPPED = tuple(f"rgd:tau=none,gamma={g}" for g in (0.1, 0.25, 0.5, 1, 2))
FIXED_GAMMA = tuple(f"rgd:tau={t},gamma=0.5" for t in (0.5, 3, 5, 9))
TIED = tuple(f"rgd:tau={t}" for t in (0.5, 3, 5, 9, 100))
LITERAL = ("rgd:divergence=chi2", "rgd:tau=3,divergence=chi2")
#: By knob and series: which row has which value. Tau = 1 with gamma = 0.5 is the row `rgd`, in all series but no clip.
PANELS: Mapping[str, Mapping[str, Mapping[float, str]]] = {
    "gamma": {
        "tau = 1": {0.1: GAMMA[0], 0.25: GAMMA[1], 0.5: "rgd", 1.0: GAMMA[2], 2.0: GAMMA[3]},
        "no clip": dict(zip((0.1, 0.25, 0.5, 1.0, 2.0), UNCLIPPED, strict=True)),
    },
    "tau": {
        "gamma = 0.5": {1.0: "rgd", **dict(zip((0.5, 3.0, 5.0, 9.0), FIXED_GAMMA, strict=True))},
        "gamma = 1/(tau+1)": {1.0: "rgd", **dict(zip((0.5, 3.0, 5.0, 9.0, 100.0), TIED, strict=True))},
    },
}


def table(preset: str) -> Table:
    """Rows and columns; the paper prints no figures for its ablation."""
    smoke, paper = preset == "smoke", preset == "paper"
    rows = ("mean", "rgd", *GAMMA, *UNCLIPPED, *FIXED_GAMMA, *TIED, *LITERAL)
    instead = "ImageNet with ViT-S"
    digits = Column(name="digits, imbalance 100", settings={"imbalance": 100.0}, stand_in=instead)
    others = (
        Column(name="Fashion-MNIST, imbalance 100", settings={"imbalance": 100.0, **FASHION}, stand_in=instead),
        Column(
            name="CIFAR-10 features, imbalance 100",
            settings={"imbalance": 100.0, **longtail.FEATURES},
            stand_in=instead,
        ),
    )
    return Table(
        title="Scale, clip and divergence",
        question="Which part of the weight matters?",
        columns={
            "smoke": (digits,),
            "cpu": (digits, *others),
            "paper": (Column(name="ImageNet, ViT-S/16", settings={}),),
        }[preset],
        methods=("mean", "rgd", "rgd:tau=none,gamma=0.5") if smoke else rows,
        metric="test/accuracy",
        metric_name="top-1 accuracy on the test set" if paper else "accuracy on the balanced test set",
        select="val/accuracy" if paper else "val/balanced_accuracy",
        seeds={"smoke": 2, "cpu": 20, "paper": 3}[preset],
        trials={"smoke": 2, "cpu": 3, "paper": 3}[preset],
        as_written=True,
        endpoint=Endpoint(),
        notes=("The row `rgd` is tau = 1 with the tied gamma = 0.5, and belongs to all four series.",),
    )


_train, _group, train_group = supervised.recipe(longtail.task)


def train(settings: Settings, method: Method, seed: int, writer: Writer, scale: Scale) -> Iterator[Record]:
    """One training of `imagenet` or of `longtail`."""
    if settings.imagenet:
        return imagenet.train(settings.of_imagenet(), method, seed, writer, scale)
    if processes.together():
        raise ValueError("the digits are trained by one process. Start without torchrun, or take `--preset paper`.")
    return _train(settings, method, seed, writer, scale)


def group(settings: Settings, method: Method) -> str | None:
    """As in `longtail`; trainings of `imagenet` run alone."""
    return None if settings.imagenet else _group(settings, method)


def figures(results: Results) -> Sequence[Figure]:
    """Accuracy against gamma and against tau."""
    from reweigh.bench.recipes._figures import ablation

    return ablation.figures(results, PANELS)
