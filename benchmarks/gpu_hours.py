"""How long the paper's presets would take on a GPU: the plan's own runs, operations counted on the models, arithmetic.

    python benchmarks/gpu_hours.py [RECIPE ...]

Nothing is trained and no data is read: sizes of data sets are those of their makers, written below. Forward operations
are counted by torch's `FlopCounterMode` on the models as they are built; a training step takes three times as many, and
SAM twice that. An accelerator is assumed to do RATE operations per second throughout, and no step to take less than
LEAST, the time in which a processor can start a step's kernels.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from reweigh.bench import models
from reweigh.bench.lab import experiment, plan
from reweigh.bench.lab.runs import Spec
from reweigh.bench.models.blocks.transformer import Transformer
from reweigh.bench.recipes import imagenet as paper
from reweigh.bench.recipes.algorithms import tabular

#: Sustained operations per second: a tenth of the bfloat16 peak of an A100 (312e12). The least seconds per step.
RATE, LEAST = 31.2e12, 5e-3

#: Training examples, validation included, as their makers count them.
EXAMPLES = {
    "cifar10": 50_000, "cifar100": 50_000,
    "shards:path=imagenet": 1_281_167, "cars": 8_144, "food101": 75_750, "mnist": 60_000,
    "fashion_mnist": 60_000, "covtype": 464_810, "obesity": 1_690, "adult": 32_561, "criteo": 100_000,
    "hypothyroid": 2_800, "MNLI": 392_702, "QQP": 363_846, "QNLI": 104_743, "SST-2": 67_349, "MRPC": 3_668,
    "RTE": 2_490, "CoLA": 8_551, "digits": 1_797, "toxicity": 127_820,
}  # fmt: skip
#: Parameters of the model that `sft` is given, which is the user's choice.
FINE_TUNED = 7e9
DOMAINS = {"pacs": 4, "vlcs": 4, "officehome": 4, "domainnet": 6}
#: Columns of a table once categories are spread out; pictures are tables of their pixels.
COLUMNS = {
    "mnist": 784, "fashion_mnist": 784, "cifar10": 3_072, "covtype": 54, "obesity": 16, "adult": 14, "criteo": 39,
    "hypothyroid": 28,
}  # fmt: skip

Cost = tuple[float, float]  # operations and steps of one training


def forward(module: nn.Module, *inputs: Any) -> float:
    """Operations of one forward pass."""
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        module(*inputs)
    return float(counter.get_total_flops())


@functools.cache
def per_image(model: str, size: int, channels: int = 3, classes: int = 10) -> float:
    built = models.build(model.replace(":weights=imagenet", ""), (channels, size, size), classes)
    return forward(built.eval(), torch.zeros(2, channels, size, size)) / 2


@functools.cache
def per_sequence(depth: int, width: int, heads: int, length: int, predicted: float, vocabulary: int) -> float:
    body = Transformer(1000, length, depth=depth, width=width, heads=heads, causal=True)
    return forward(body, torch.zeros(1, length, dtype=torch.int64)) + 2 * width * vocabulary * predicted * length


def supervised(spec: Spec) -> Cost:
    """Image classifiers on CIFAR-10 and CIFAR-100."""
    own = spec.settings
    classes = 100 if own["data"] == "cifar100" else 10
    rows = EXAMPLES[own["data"]] * (1 - own["validation"])
    if "imbalance" in own:  # each class has a constant share of the one before it
        rows *= sum(own["imbalance"] ** (-k / (classes - 1)) for k in range(classes)) / classes
    return 3 * per_image(own["model"], 32, classes=classes) * rows * own["epochs"], rows / own["batch_size"] * own[
        "epochs"
    ]


def suspects(spec: Spec) -> Cost:
    """One training, and one for each fold."""
    operations, steps = supervised(spec)
    return operations * (1 + spec.settings["folds"]), steps * (1 + spec.settings["folds"])


def imagenet(spec: Spec) -> Cost:
    own = {"size": paper.PRESETS["paper"].size, **spec.settings}  # `ablation` leaves it to this recipe
    rows = EXAMPLES[own["data"]] * (1 - own["validation"]) * own["epochs"]
    return 3 * per_image(own["model"], own["size"], classes=1000) * rows, rows / own["batch_size"]


def domains(spec: Spec) -> Cost:
    """A training for each domain left out, on all others."""
    own = spec.settings
    count = DOMAINS[own["data"]]
    steps = count * own["steps"]
    return 3 * per_image(own["model"], 224) * own["batch_size"] * (count - 1) * steps, steps


def meta(spec: Spec) -> Cost:
    """MAML: support and queries, and the second derivatives of the inner steps; the others: one pass."""
    own = spec.settings
    size, channels = (84, 3) if own["data"] == "miniimagenet" else (28, 1)
    image = per_image(f"conv4:width={own['width']}", size, channels, own["ways"])
    steps = own["epochs"] * own["steps"]
    support, queries = own["ways"] * own["shots"], own["ways"] * own["queries"]
    if own["algorithm"] != "maml":
        return 3 * image * (support + queries) * own["tasks"] * steps, steps
    # Tasks of the paper's preset run one after another, each with kernels of its own.
    passes = 9 * own["inner_steps"] * support + 3 * queries
    return image * passes * own["tasks"] * steps, steps * own["tasks"] * (1 + own["inner_steps"])


def language(predicted: float) -> Callable[[Spec], Cost]:
    def cost(spec: Spec) -> Cost:
        own = spec.settings
        sizes = (own["depth"], own["width"], own["heads"], own["length"])
        return 3 * per_sequence(*sizes, predicted, own["vocabulary"]) * own["batch_size"] * own["steps"], own["steps"]

    return cost


def glue(spec: Spec) -> Cost:
    """BERT-base."""
    own = spec.settings
    rows = (EXAMPLES[own["text"].partition("=")[2]] - own["validation"]) * own["epochs"]
    return 3 * per_sequence(12, 768, 12, own["length"], 0.0, 0) * rows, rows / own["batch_size"]


@functools.cache
def _pretext(columns: int, embedding: int, blocks: int, feed_forward: int) -> float:
    network = tabular.METS(embedding=embedding, blocks=blocks, feed_forward=feed_forward).network(columns)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        network.losses(torch.zeros(2, columns), torch.Generator(), 0, 0)
    return counter.get_total_flops() / 2


def tabular_cost(spec: Spec) -> Cost:
    """Pre-training by MET-S and its head, for every row: most rows are as large or smaller."""
    own = spec.settings
    rows, columns = EXAMPLES[own["data"]] * (1 - own["validation"]), COLUMNS[own["data"]]
    wide = columns * (own["embedding"] + 1)
    head = 2 * sum(a * b for a, b in pairwise((wide, *own["hidden"])))
    early = _pretext(columns, own["embedding"], own["blocks"], own["feed_forward"]) * own["pretrain_epochs"]
    steps = rows * (own["pretrain_epochs"] / own["pretrain_batch"] + own["epochs"] / own["batch_size"])
    return 3 * rows * (early + head * own["epochs"]), steps


def groups(spec: Spec) -> Cost:
    """A perceptron with one hidden layer: launches are all there is."""
    own = spec.settings
    return 0.0, EXAMPLES[own["data"]] * (1 - own["validation"]) * own["epochs"] / own["batch_size"]


def sft(spec: Spec) -> Cost:
    """Low-rank matrices in a frozen model: forward, and back through activations; `rho` trains a reference too."""
    own = spec.settings
    tokens = own["batch_size"] * own["length"] * own["steps"]
    trainings = 2.5 if spec.method.startswith("rho") else 1.0  # its reference, and the reference's losses
    return 4 * FINE_TUNED * tokens * trainings, own["steps"] * trainings


def sinusoid(spec: Spec) -> Cost:
    steps = float(spec.settings["epochs"] * spec.settings["steps"])
    return 0.0, steps  # a network of some thousand numbers: launches are all there is


COSTS: dict[str, Callable[[Spec], Cost]] = {
    "longtail": supervised, "noise": supervised, "ablation": imagenet, "sam": supervised, "suspects": suspects,
    "imagenet": imagenet, "domains": domains, "meta": meta, "sinusoid": sinusoid, "tabular": tabular_cost,
    "glue": glue, "gpt": language(1.0), "bert": language(0.15), "groups": groups, "sft": sft,
}  # fmt: skip


def main() -> None:
    print("| recipe | trainings | 10^15 operations of one | hours of one | hours in all |\n|---|---|---|---|---|")
    for name in sys.argv[1:] or COSTS:
        cost = COSTS[name]
        question = experiment.question(name, experiment.Options(preset="paper"))
        final = plan.comparison(question, plan.as_written(question))
        operations: list[float] = []
        hours: list[float] = []
        for spec in [*plan.tuning(question), *final, *plan.scale_controls(question, final)]:
            own, steps = cost(spec)
            passes = 2 if "sam" in spec.method.partition(":")[0].split("+") else 1
            operations.append(passes * own / 1e15)
            hours.append(max(passes * own / RATE, LEAST * passes * steps) / 3600)
        print(f"| {name} | {len(hours)} | {span(operations)} | {span(hours)} | {sum(hours):,.0f} |")


def span(values: list[float]) -> str:
    """The smallest and the largest of some numbers, to two digits."""
    low, high = (f"{float(f'{value:.2g}'):,.12g}" for value in (min(values), max(values)))
    return low if low == high else f"{low} to {high}"


if __name__ == "__main__":
    main()
