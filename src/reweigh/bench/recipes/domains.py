"""Unseen domains: does re-weighting examples help where no training example came from?

Question: a model is trained on some domains (drawing styles, angles, colours) and tested on one that is left out. The
paper puts RGD on top of ERM with FRR-L, ERM with FRR, and SWAD, beside the algorithms of DomainBed, on PACS, VLCS,
OfficeHome and DomainNet with ResNet-50.

    reweigh run domains --preset smoke                       # seconds: small digits, turned
    reweigh data get mnist; reweigh data get emoji4d; reweigh data get vader; reweigh data get efficientnet_lite0
    reweigh run domains                                      # four data sets, about 45 minutes of one core in all
    reweigh run domains --set algorithm=coral --method rgd:tau=3   # any objective on any algorithm
    reweigh run domains --set selection=oracle
    reweigh run domains --preset paper --data-root DIR       # ResNet-50; PACS, VLCS, office_home, domain_net in DIR

Every run leaves each domain out in turn. One fifth of every domain is held out; checkpoint and hyper-parameters are
chosen by the mean held-out accuracy of the *training* domains (the rule called training-domain validation), and the
domain left out is looked at once, after the last step. `selection=oracle` chooses by a held-out fifth of the domain
left out instead, at the last step: an upper bound that nobody has in practice. Tuning is random search: draw 0 is the
algorithm's defaults, every other draw comes from its law.

The `cpu` preset. Emoji-4D in the place of PACS: style *and* emoji are held out; EfficientNet-Lite0 at 64 x 64,
everything before its last stage computed once and kept (so pictures are not augmented), last stage and head fine-tuned
for 80 steps of 12 a domain; all 27 rows, three draws each. ColoredMNIST by DomainBed's rules from full MNIST at 14 x
14, 1000 digits a domain, a CNN of two convolutions, 250 steps of 16 a domain, all rows but MIRO; RotatedMNIST in the
same way with 11 rows; both with the defaults and no tuning. VADER's four kinds of text as an extra: hashed words, a
small MLP, 150 steps of 32. Ten seeds, on Emoji-4D five, each with splits of its own. These are short trainings, which
tell apart what differs early; SWAD decides by two segments in place of three and six. ARM has eight of each domain in a
step, as in DomainBed.

The `paper` preset looks at held-out examples where SWAD's authors end their segments: every 100 steps, on VLCS every
50, on DomainNet every 500. DomainNet has two columns: 5,000 steps as in DomainBed, whose rows the paper quotes, and
15,000 steps as in the code of SWAD and MIRO for the other rows.

FRR-L and FRR are our own reconstructions, since their code is not public. SWAD averages weights in the average slot, so
`rgd+swad` is RGD with SWAD. Rows without an algorithm's name are ERM.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from reweigh import _validate as validate
from reweigh.bench.catalogue.domains import Domains
from reweigh.bench.draws.seeds import Seeds
from reweigh.bench.lab.recipe import LATER
from reweigh.bench.lab.table import Column, Endpoint, Row, Table
from reweigh.bench.recipes import _domains
from reweigh.bench.recipes._figures import domains_paper
from reweigh.bench.recipes.algorithms import domains as algorithms
from reweigh.bench.recipes.algorithms.domains import DomainAlgorithm, Setup, one_of, power_of_ten, power_of_two
from reweigh.bench.train.driver import fit
from reweigh.bench.train.precision import Precision
from reweigh.bench.train.programs.domains import DomainLearner, DomainProblem, LeaveOneOut, Schedule, Selection
from reweigh.bench.train.records import Record, Writer
from reweigh.method import Method

if TYPE_CHECKING:
    from reweigh.bench.lab.results import Figure, Results

Floats = np.ndarray[Any, Any]


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of the recipe.

    Parameters
    ----------
    algorithm
        A file of `reweigh.bench.recipes.algorithms.domains`.
    data, model
        Domains by name, and the network; `efficientnet_lite0:weights=imagenet` keeps all but its last stage frozen.
    hidden
        Of the network, if it has hidden layers to choose; 0 takes its own.
    lr, weight_decay, dropout, batch_size
        Of Adam, at a constant rate; of the features; examples of each domain in a step. What draw 0 has.
    draw
        Number of the random draw of hyper-parameters; 0 takes them as they are here and as the algorithm has them.
    lr_law, batch_law, regularised_law
        What other draws take: ten to the power of a number between these two as rate; two to the power of one as batch
        (empty keeps `batch_size`); and whether weight decay (1e-6 to 1e-2) and dropout (0, 0.1 or 0.5) are drawn too.
    steps, check
        Steps of each training; after how many held-out examples are looked at.
    held
        Share of every domain that is held out.
    selection
        `"training domains"`, or `"oracle"`.
    augment
        Whether pictures are changed at random while training.
    weight
        The weight of an algorithm's penalty where it has one; negative takes the algorithm's own.
    precision
        `"float32"`, or `"bfloat16"` for mixed precision.
    """

    algorithm: str = "erm"
    data: str = "rotated_digits"
    model: str = "cnn"
    hidden: int = 0
    lr: float = 1e-3
    weight_decay: float = 0.0
    dropout: float = 0.0
    batch_size: int = 32
    draw: int = 0
    lr_law: tuple[float, float] = (-4.5, -2.5)
    batch_law: tuple[float, ...] = ()
    regularised_law: bool = False
    steps: int = 150
    check: int = 30
    held: float = 0.2
    selection: Selection = "training domains"
    augment: bool = False
    weight: float = -1.0
    precision: Precision = field(default="float32", metadata=LATER)

    def __post_init__(self) -> None:
        validate.positive("lr", self.lr)
        validate.whole("draw", self.draw, 0)
        validate.fraction("held", self.held, one=False)


PRESETS = {
    "smoke": Settings(batch_size=8, steps=8, check=4),
    "cpu": Settings(),
    "paper": Settings(
        model="resnet50:weights=imagenet", lr=5e-5, lr_law=(-5.0, -3.5), batch_law=(3.0, 5.5), regularised_law=True,
        steps=5000, check=100, augment=True,
    ),
}  # fmt: skip

REVKL = "rgd:divergence=revkl"
#: Rows that are an algorithm or an average: its file, and the method.
_ROWS: Mapping[str, tuple[str, str]] = {
    "IRM": ("irm", "mean"),
    "GroupDRO": ("groupdro", "mean"),
    "Mixup": ("mixup", "mean"),
    "MLDG": ("mldg", "mean"),
    "CORAL": ("coral", "mean"),
    "MMD": ("mmd", "mean"),
    "DANN": ("dann", "mean"),
    "CDANN": ("cdann", "mean"),
    "MTL": ("mtl", "mean"),
    "SagNet": ("sagnet", "mean"),
    "ARM": ("arm", "mean"),
    "VREx": ("vrex", "mean"),
    "RSC": ("rsc", "mean"),
    "MIRO": ("miro", "mean"),
    "FRR-L": ("frr_l", "mean"),
    "FRR-L, rgd": ("frr_l", "rgd"),
    "FRR-L, revkl": ("frr_l", REVKL),
    "FRR": ("frr", "mean"),
    "FRR, rgd": ("frr", "rgd"),
    "FRR, revkl": ("frr", REVKL),
    "SWAD": ("erm", "swad"),
    "SWAD, rgd": ("erm", "rgd+swad"),
    "SWAD, revkl": ("erm", f"{REVKL}+swad"),
}
#: Rows that are ERM with an objective.
_PLAIN = ("mean", "rgd", REVKL, "rgd_auto")
METHODS = (*_PLAIN, *_ROWS)
#: Rows whose figures the paper quotes from DomainBed, where DomainNet has 5,000 steps.
QUOTED = (
    "mean", "IRM", "GroupDRO", "Mixup", "MLDG", "CORAL", "MMD", "DANN", "CDANN", "MTL", "SagNet", "ARM", "VREx", "RSC",
)  # fmt: skip
LONG_DOMAINNET = "DomainNet, 15,000 steps"
#: The plain row that each re-weighted one is to be compared with.
PLAIN_OF = {
    "rgd": "mean", REVKL: "mean", "rgd_auto": "mean", "FRR-L, rgd": "FRR-L", "FRR-L, revkl": "FRR-L",
    "FRR, rgd": "FRR", "FRR, revkl": "FRR", "SWAD, rgd": "SWAD", "SWAD, revkl": "SWAD",
}  # fmt: skip
#: Where nothing was pre-trained there is nothing to stay close to.
_FROM_SCRATCH = tuple(label for label in METHODS if label != "MIRO")
_FEW = (*_PLAIN, "GroupDRO", "CORAL", "VREx", "FRR", "FRR, rgd", "SWAD", "SWAD, rgd")


#: The settings that are concluded from.
_PRIMARY = {"cpu": ("Emoji-4D",), "paper": ("PACS",)}


def table(preset: str) -> Table:
    """Rows, columns and the paper's figures."""
    smoke = preset == "smoke"
    return Table(
        title="Unseen domains",
        question="Does re-weighting examples help on a domain that no training example came from?",
        columns=_columns(preset),
        methods=("mean", "rgd", "IRM", "DANN", "FRR, rgd", "SWAD, rgd") if smoke else METHODS,
        rows={label: Row(method=_short(m, preset), settings={"algorithm": a}) for label, (a, m) in _ROWS.items()},
        metric="test/accuracy",
        metric_name="accuracy on the domain left out",
        select="val/accuracy",
        epoch="best",  # DomainBed's protocol: a constant rate, and the checkpoint that validation chooses
        seeds={"smoke": 2, "cpu": 10, "paper": 3}[preset],
        trials={"smoke": 2, "cpu": 1, "paper": 20}[preset],
        draws="draw",
        endpoint=None if smoke else Endpoint(ours="FRR-L, rgd", theirs="FRR-L", columns=_PRIMARY[preset]),
        notes=(
            "Each domain is left out in turn; the number is the mean over domains. Rows without an algorithm's name "
            "are ERM, whose pooled cross entropy is `mean`.",
            "Checkpoints and hyper-parameters are chosen on held-out examples of the training domains; the domain left "
            "out is looked at once, at the end.",
            "FRR-L and FRR are our own reconstructions: their authors' code is not public.",
            "Penalties and adversaries are not re-weighted; classification losses of every algorithm are.",
            "Everything is trained by Adam, which a constant factor on the loss does not affect.",
            "Seeds share most of their data, each holding out another fifth: intervals say how much trainings differ, "
            "not how much other domains would.",
            "Learning curves go through the domains left out, one training after the other.",
        ),
    )


def _short(method: str, preset: str) -> str:
    """The method; a training of few looks gives SWAD no room for its own numbers of segments."""
    return method if preset == "paper" else method.replace("swad", "swad:n_converge=2,n_tolerance=2")


def _columns(preset: str) -> tuple[Column, ...]:
    if preset == "smoke":
        return (Column(name="turned digits", settings={}),)
    if preset == "paper":
        return _paper_columns()
    small: dict[str, Any] = {"model": "cnn", "hidden": 64, "lr": 3e-3, "batch_size": 16, "steps": 250, "check": 50}
    emoji: dict[str, Any] = {
        "data": "emoji4d:size=64", "model": "efficientnet_lite0:weights=imagenet", "lr": 3e-4, "batch_size": 12,
        "lr_law": (-4.2, -2.7), "steps": 80, "check": 20,
    }  # fmt: skip
    return (
        Column(
            name="Emoji-4D", settings=emoji, paper=domains_paper.averages("PACS"), stand_in="PACS", methods=METHODS,
            trials=3, seeds=5,
        ),
        Column(
            name="ColoredMNIST",
            settings={"data": "colored_mnist:side=14,rows=1000", **small},
            methods=_FROM_SCRATCH,
        ),
        Column(name="RotatedMNIST", settings={"data": "rotated_mnist:side=14,rows=1000", **small}, methods=_FEW),
        Column(
            name="VADER", settings={"data": "vader:features=1024,rows=2000", "model": "mlp", "hidden": 64}, methods=_FEW
        ),
    )  # fmt: skip


def _paper_columns() -> tuple[Column, ...]:
    """The paper's data sets, with looks where SWAD's authors end their segments."""
    domainnet = {"data": "domainnet", "check": 500, "batch_law": (3.0, 5.0)}
    figures = domains_paper.averages("DomainNet")
    return (
        Column(name="PACS", settings={"data": "pacs"}, paper=domains_paper.averages("PACS")),
        Column(name="VLCS", settings={"data": "vlcs", "check": 50}, paper=domains_paper.averages("VLCS")),
        Column(name="OfficeHome", settings={"data": "officehome"}, paper=domains_paper.averages("OfficeHome")),
        Column(
            name="DomainNet",
            settings=domainnet,
            paper={label: figure for label, figure in figures.items() if label in QUOTED},
            methods=(*_PLAIN, *(label for label in QUOTED if label != "mean")),
        ),
        Column(
            name=LONG_DOMAINNET,
            settings={**domainnet, "steps": 15_000},
            paper={label: figure for label, figure in figures.items() if label not in QUOTED},
            methods=(*_PLAIN, *(label for label in _ROWS if label not in QUOTED)),
        ),
    )


def train(settings: Settings, method: Method, seed: int, writer: Writer, scale: Floats | None) -> Iterator[Record]:
    """Train once for each domain left out, and report all of them at the end."""
    seeds, data = Seeds(seed), _domains.load(settings.data)
    drawn, algorithm = hyperparameters(settings)
    split = _domains.parts(data, settings.held, seeds)
    count = len(data.domains)

    def start(left_out: int) -> tuple[DomainProblem, DomainLearner]:
        problem = _domains.problem(data, split, left_out, model=settings.model, augment=settings.augment)
        with seeds.ambient(f"init, {left_out} left out"):
            return problem, algorithm.start(setup(drawn, data, count - 1))

    schedule = Schedule(
        steps=drawn.steps,
        check=drawn.check,
        batch_size=drawn.batch_size,
        selection=drawn.selection,
        precision=drawn.precision,
    )
    for record in fit(LeaveOneOut(start, count, method, schedule, seeds), writer, scale=scale):
        yield record | ({"lr": drawn.lr} if "test/accuracy" in record else {})
    if seed == 0 and settings.algorithm == "erm" and str(method) == "mean":
        _keep_samples(writer, data)


def _keep_samples(writer: Writer, data: Domains, count: int = 10) -> None:
    """Some pictures of each domain, the same things where domains show the same, for the page."""
    if data.domains[0].x.dtype != np.uint8:
        return
    pictures: list[Floats] = []
    for domain in data.domains:
        # As many of each class as there is room for, in turn.
        number = max(1, count // len(data.classes))
        firsts = [np.flatnonzero(domain.y == label)[:number] for label in range(len(data.classes))]
        pictures.append(np.asarray(domain.x[np.sort(np.concatenate(firsts))[:count]]))
    least = min(len(one) for one in pictures)
    writer.array("samples", np.stack([one[:least] for one in pictures]))


def hyperparameters(settings: Settings) -> tuple[Settings, DomainAlgorithm]:
    """Settings and algorithm with what the random draw changes; draw 0 changes nothing."""
    own = {"weight": settings.weight} if settings.weight >= 0 else {}
    algorithm = algorithms.build(settings.algorithm, **own)
    if not settings.draw:
        return _with_batch_of(algorithm, settings), algorithm
    # What all algorithms have is drawn alike for all of them, so that rows differ in their own parameters alone.
    rng = Seeds(settings.draw).numpy("hyper-parameters")
    rate = power_of_ten(*settings.lr_law)
    changes: dict[str, Any] = {"lr": rate(rng)}
    decay, dropout = power_of_ten(-6, -2)(rng), one_of(0.0, 0.1, 0.5)(rng)
    if settings.regularised_law:
        changes |= {"weight_decay": decay, "dropout": dropout}
    if settings.batch_law:
        low, high = settings.batch_law
        changes["batch_size"] = power_of_two(low, high)(rng)
    drawn = algorithm.drawn(Seeds(settings.draw).numpy(f"law of {settings.algorithm}"), {"lr": rate})
    return _with_batch_of(algorithm, dataclasses.replace(settings, **changes)), dataclasses.replace(drawn, **own)


def _with_batch_of(algorithm: DomainAlgorithm, settings: Settings) -> Settings:
    """The settings with the batch that an algorithm asks for, if it does."""
    size = algorithm.batch_size
    return settings if size is None else dataclasses.replace(settings, batch_size=size)


def setup(settings: Settings, data: Domains, count: int) -> Setup:
    """What an algorithm starts from."""
    shape = _input_shape(data, settings.model)
    options = {} if not settings.hidden else {"hidden": _hidden(settings)}
    build = functools.partial(
        _domains.network, settings.model, shape, len(data.classes), dropout=settings.dropout, options=options
    )
    return Setup(
        network=build,
        optimizer=functools.partial(_adam, settings.lr, settings.weight_decay),
        domains=count,
        classes=len(data.classes),
        steps=settings.steps,
        shape=shape,
    )


def _hidden(settings: Settings) -> Any:
    return (settings.hidden,) if settings.model.startswith("mlp") else settings.hidden


def _input_shape(data: Domains, model: str) -> tuple[int, ...]:
    """Of one input as the network takes it: channels first."""
    if _domains.is_cached(model):
        return tuple(_domains.activations(data, 0, model).shape[1:])
    *rest, last = data.domains[0].x.shape[1:]
    return (last, *rest)


def _adam(lr: float, weight_decay: float, parameters: Iterable[Any], **options: Any) -> torch.optim.Optimizer:
    """Adam; a group of parameters may have a factor on the rate, or a rate and a decay of its own."""
    given = list(parameters)
    groups: list[dict[str, Any]] = given if given and isinstance(given[0], dict) else [{"params": given}]
    for group in groups:
        group["lr"] = group.get("lr", lr) * group.pop("rate", 1.0)
    return torch.optim.Adam(groups, lr=lr, weight_decay=weight_decay, fused=True, **options)


def figures(results: Results) -> Sequence[Figure]:
    """Every domain next to the paper's, gaps, re-weighted rows against their plain ones, confusions and pictures."""
    from reweigh.bench.catalogue.domains.emoji4d import ATTRIBUTION
    from reweigh.bench.recipes._figures import domains

    printed = {
        name: domains.Printed(names=domains_paper.DOMAINS[data], rows=domains_paper.FIGURES[data])
        for name, data in {
            "Emoji-4D": "PACS",
            LONG_DOMAINNET: "DomainNet",
            **{data: data for data in domains_paper.FIGURES},
        }.items()
    }
    return domains.figures(results, printed, PLAIN_OF, {"Emoji-4D": ATTRIBUTION})
