"""Masked language models: does re-weighting help to learn masked tokens and which sentence comes next?

Question: a transformer encoder learns to guess masked tokens (MLM) and whether the second of two passages follows the
first (NSP). Masked tokens and pairs are weighed by the same method, each among their own kind, and the two weighted
means are added. The paper pre-trains BERT-base on BooksCorpus and Wikipedia for 450 000 steps and prints MLM and NSP
accuracies of 71.31 and 98.01 (plain), 71.35 and 98.92 (RGD).

    reweigh run bert --preset smoke             # seconds: a toy model on texts that come with scikit-learn
    reweigh data get sotu && reweigh run bert   # the cpu preset: ten minutes of one core
    reweigh run bert --preset paper             # BERT-base, on IMDB in place of its corpora: years of one GPU

The `cpu` preset: speeches on the State of the Union; 300 tokens learnt from the training speeches, hardly more than
bytes; 2 layers of width 64, pairs of 64 tokens, 16 per step, 800 steps; five seeds, and three trials for each row. So
small a model learns how words are spelt; which passage follows is beyond it, and its NSP accuracy stays at guessing.

The `paper` preset is BERT-base as published: normalisation after each part, the last layer tied to the embedding,
linear decay after 10 000 steps, gradients clipped at 1. It departs in that sequences have 512 tokens throughout, weight
decay is for all parameters, and attention weights are not dropped out.

Masking is BERT's: 15 % of the tokens are to be guessed, of which 80 % are replaced by a mask, 10 % by another token and
10 % left. Held-out pairs are masked once, the same for every run.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from reweigh.bench.draws.seeds import Seeds
from reweigh.bench.lab.table import Column, Endpoint, Table
from reweigh.bench.models.blocks.transformer import Transformer
from reweigh.bench.recipes._language import Ids, Language, load
from reweigh.bench.train.device import moved
from reweigh.bench.train.driver import fit
from reweigh.bench.train.programs.tokens import TokenLoss, TokenTraining
from reweigh.bench.train.records import Record, Writer
from reweigh.bench.train.tokens import CLASS, MASK, SEPARATOR, SPECIAL, Tokens
from reweigh.method import Method

if TYPE_CHECKING:
    from reweigh.bench.lab.results import Figure, Results

_IGNORED = -100


@dataclass(frozen=True, kw_only=True)
class Settings(Language):
    """Settings of the recipe: those of every language model.

    Parameters
    ----------
    masked
        Share of tokens to guess.
    post_norm
        Whether layers are normalised after each part, as in BERT, and not before.
    """

    masked: float = 0.15
    post_norm: bool = False


PRESETS = {
    "smoke": Settings(),
    "cpu": Settings(
        text="sotu",
        vocabulary=300,
        length=64,
        width=64,
        heads=4,
        batch_size=16,
        steps=800,
        every=80,
        lr=0.002,
        held=256,
    ),
    "paper": Settings(
        text="imdb",
        vocabulary=30_522,
        length=512,
        depth=12,
        width=768,
        heads=12,
        dropout=0.1,
        batch_size=256,
        steps=450_000,
        every=5000,
        lr=1e-4,
        warmup=0.022,
        schedule="linear",
        weight_decay=0.01,
        clip=1.0,
        tied=True,
        post_norm=True,
        held=2000,
    ),
}
#: The paper's accuracies: masked tokens, and next passage.
PAPER = {"mean": (71.31, 98.01), "rgd": (71.35, 98.92)}


def table(preset: str) -> Table:
    """Rows, columns and the paper's figures."""
    smoke = preset == "smoke"
    names = {"smoke": "descriptions", "cpu": "State of the Union", "paper": "IMDB"}
    return Table(
        title="Masked language models",
        question="Does re-weighting help to learn masked tokens?",
        columns=(
            Column(
                name=names[preset],
                settings={},
                paper={label: figures[0] for label, figures in PAPER.items()},
                stand_in="BERT-base on BooksCorpus and Wikipedia",
            ),
        ),
        methods=("mean", "rgd") if smoke else ("mean", "rgd", "rgd_auto"),
        metric="test/mlm_accuracy",
        metric_name="accuracy on masked tokens of held-out text",
        select="val/mlm_accuracy",
        seeds=2 if smoke else 5,
        trials=2 if smoke else 3,
        endpoint=Endpoint(),
        notes=(
            "Masked tokens and pairs are weighed each among their own kind; the recorded weights are those of tokens.",
            "AdamW ignores a constant factor on the loss, so the scale controls should change nothing.",
            "The scale control multiplies the whole loss by the mean of the two mean weights.",
        ),
    )


class PassagePairs(NamedTuple):
    """Pairs of passages: tokens with masks in them, which passage each belongs to, what to guess, who follows whom."""

    ids: Tensor
    segments: Tensor
    targets: Tensor
    follows: Tensor


class PretrainingTransformer(nn.Module):
    """A transformer with the two heads of pre-training."""

    def __init__(self, settings: Settings, vocabulary: int) -> None:
        super().__init__()
        self.body = Transformer(
            vocabulary,
            settings.length,
            depth=settings.depth,
            width=settings.width,
            heads=settings.heads,
            causal=False,
            dropout=settings.dropout,
            segments=2,
            post_norm=settings.post_norm,
        )
        width = settings.width
        self.transform = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.LayerNorm(width))
        self.tokens = nn.Linear(width, vocabulary)
        if settings.tied:
            self.tokens.weight = self.body.tokens.weight
        self.pooler = nn.Sequential(nn.Linear(width, width), nn.Tanh())
        self.next = nn.Linear(width, 2)

    def forward(self, batch: PassagePairs) -> tuple[Tensor, Tensor, Tensor]:
        """The hidden state of each token to guess, its target, and the pooled state of each pair.

        The batch is in the processor's memory, where it was drawn: which tokens to guess is known without asking a
        device.
        """
        device = self.next.weight.device
        targets = batch.targets.flatten()
        wanted = (targets != _IGNORED).nonzero().squeeze(1)
        ids, segments, targets, wanted = moved((batch.ids, batch.segments, targets[wanted], wanted), device)
        hidden = self.body(ids, segments)
        # Tokens that are not to be guessed are left out before the vocabulary is met: six in seven of them.
        return self.transform(hidden.flatten(0, 1)[wanted]), targets, self.pooler(hidden[:, 0])


def train(
    settings: Settings, method: Method, seed: int, writer: Writer, scale: np.ndarray[Any, Any] | None
) -> Iterator[Record]:
    """Masked tokens and next passages, each weighed by the method, added."""
    if settings.level != "token":
        raise ValueError(f"masked tokens are weighed one by one and pairs one by one, got level={settings.level!r}.")
    seeds, data = Seeds(seed), load(settings.text, settings.vocabulary)
    with seeds.ambient("init"):
        model = PretrainingTransformer(settings, data.vocabulary)
    return fit(MaskedPairs(settings, method, seeds, data, model), writer, scale=scale)


class MaskedPairs(TokenTraining):
    """Pairs of passages: masked tokens to guess, and whether the second follows the first."""

    def __init__(
        self, settings: Settings, method: Method, seeds: Seeds, data: Tokens, model: PretrainingTransformer
    ) -> None:
        self.settings, self.data, self.model = settings, data, model
        self.of_tokens, self.of_pairs = TokenLoss(method, "token"), TokenLoss(method, "token")
        super().__init__(model, [self.of_tokens, self.of_pairs], seeds=seeds, **settings.training())
        self.held = {
            part: pairs(data, part, settings, settings.held, np.random.default_rng(0)) for part in ("val", "test")
        }

    def loss(self, step: int) -> Tensor:
        """The two losses of this step's pairs, added."""
        draw = self.seeds.numpy(f"batch {step}")
        batch = pairs(self.data, "train", self.settings, self.settings.batch_size, draw)
        hidden, targets, pooled = self.model(batch)
        tokens, following = self.model.tokens, self.model.next
        guessed = self.of_tokens(hidden, tokens.weight, targets, tokens.bias)
        follows = batch.follows.to(self.device, non_blocking=True)
        return guessed + self.of_pairs(pooled, following.weight, follows, following.bias)

    def evaluate(self, *, last: bool) -> Record:
        """Accuracy and plain loss on held-out pairs."""
        with self.context():
            return {
                f"{part}/{name}": value
                for part, batch in self.held.items()
                for name, value in score(self.model, batch).items()
            }


def pairs(data: Tokens, part: str, settings: Settings, rows: int, draw: np.random.Generator) -> PassagePairs:
    """Pairs of passages, the second from where the first ends or, half of the time, from another document."""
    documents = [ids for ids in getattr(data, part) if len(ids) >= settings.length]
    if not documents:
        raise ValueError(f"the {part} text has no document of {settings.length} tokens; take shorter sequences.")
    sizes = np.array([len(ids) for ids in documents], np.float64)
    room = settings.length - 3
    first, second = room // 2, room - room // 2
    ids = np.empty((rows, settings.length), np.int64)
    segments = np.zeros((rows, settings.length), np.int64)
    segments[:, first + 2 :] = 1
    follows = draw.integers(2, size=rows)
    chosen = draw.choice(len(documents), size=rows, p=sizes / sizes.sum())
    for row, document in enumerate(chosen):
        start = draw.integers(len(documents[document]) - room + 1)
        after, at = document, start + first
        if not follows[row]:
            after = (document + draw.integers(1, max(len(documents), 2))) % len(documents)
            at = draw.integers(len(documents[after]) - second + 1)
        ids[row] = np.concatenate(
            [
                [data.special(CLASS)],
                documents[document][start : start + first],
                [data.special(SEPARATOR)],
                documents[after][at : at + second],
                [data.special(SEPARATOR)],
            ]
        )
    shown, targets = mask(ids, settings.masked, data, draw)
    return PassagePairs(shown, torch.from_numpy(segments), targets, torch.from_numpy(follows))


def mask(ids: Ids, share: float, data: Tokens, draw: np.random.Generator) -> tuple[Tensor, Tensor]:
    """Tokens with some of them masked, and what to guess there; tokens that are no part of a text stay."""
    ordinary = ids >= len(SPECIAL)
    wanted = ordinary & (draw.random(ids.shape) < share)
    targets = np.where(wanted, ids, _IGNORED)
    fate = draw.random(ids.shape)
    others = draw.integers(len(SPECIAL), data.vocabulary, size=ids.shape)
    shown = np.where(wanted & (fate < 0.8), data.special(MASK), np.where(wanted & (fate >= 0.9), others, ids))
    return torch.from_numpy(shown), torch.from_numpy(targets)


@torch.no_grad()
def score(model: PretrainingTransformer, batch: PassagePairs, rows: int = 64) -> dict[str, float]:
    """Accuracy and plain loss on masked tokens and on pairs."""
    values: dict[str, list[Tensor]] = {"mlm": [], "mlm_right": [], "nsp": [], "nsp_right": []}
    for parts in zip(*(part.split(rows) for part in batch), strict=True):
        few = PassagePairs(*parts)
        hidden, targets, pooled = model(few)
        for name, logits, truth in (
            ("mlm", model.tokens(hidden), targets),
            ("nsp", model.next(pooled), few.follows.to(pooled.device)),
        ):
            values[name].append(F.cross_entropy(logits, truth, reduction="none"))
            values[f"{name}_right"].append((logits.argmax(1) == truth).float())
    means = {name: float(torch.cat(own).mean()) for name, own in values.items()}
    return {
        "mlm_accuracy": means["mlm_right"],
        "nsp_accuracy": means["nsp_right"],
        "loss": means["mlm"] + means["nsp"],
        "mlm_loss": means["mlm"],
        "nsp_loss": means["nsp"],
    }


def figures(results: Results) -> Sequence[Figure]:
    """The second accuracy of the paper's table, at the step that validation on masked tokens chose."""
    from reweigh.bench.lab.results import Figure
    from reweigh.bench.report.markup import table

    return [
        Figure(
            title=f"Which passage comes next, {column.name}",
            markup=table(
                ["row", "accuracy, %", "deviation over seeds", "paper"],
                [
                    _next_row(label, [o.records[o.chosen] for o in row.outcomes.values()])
                    for label, row in column.rows.items()
                ],
            ),
            caption="Accuracy on held-out pairs, half of which follow each other: 50 % is guessing.",
        )
        for column in results.columns
    ]


def _next_row(label: str, records: Sequence[Record]) -> list[str]:
    values = 100 * np.array([record["test/nsp_accuracy"] for record in records])
    deviation = f"{values.std(ddof=1):.2f}" if len(values) > 1 else "–"
    return [label, f"{values.mean():.2f}", deviation, f"{PAPER[label][1]:.2f}" if label in PAPER else "–"]
