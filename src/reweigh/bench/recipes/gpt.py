"""Language models: does re-weighting tokens lower the perplexity of held-out text?

Question: a decoder-only transformer learns to predict the next sub-word token; hard tokens count more. The paper trains
a 6-layer decoder on lm1b for 100 000 steps, with tau = 1 and a tuned rate, and prints log-perplexities of 2.9218
(plain) and 2.8979 (RGD).

    reweigh run gpt --preset smoke            # seconds: a toy model on texts that come with scikit-learn
    reweigh data get sotu && reweigh run gpt  # the cpu preset: about three hours of one core
    reweigh run gpt --set text=imdb           # another corpus; tinyshakespeare and lm1b are read from a data root
    reweigh run gpt --preset paper            # the paper's size on lm1b: weeks of one GPU

The `cpu` preset: speeches on the State of the Union in lm1b's place; 512 tokens learnt from the training speeches; 2
layers of width 64, sequences of 64 tokens, 16 per step, 6 000 steps; ten seeds, and three trials for each row. A model
of a sixth of a million parameters that has seen 6 million tokens: small, but trained until its loss hardly falls.

The unit that is weighed is a token unless a row says sequence; the paper is silent on this. At the start every token's
loss is ln V, above any tau of the grid: there re-weighting is plain training with a larger step, which AdamW does not
even notice. The share of clipped tokens is recorded. Held-out text is always judged by its plain mean loss.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from reweigh.bench.draws.seeds import Seeds
from reweigh.bench.lab.table import Column, Endpoint, Row, Table
from reweigh.bench.models.blocks.transformer import Transformer
from reweigh.bench.recipes._language import Language, held_out, load
from reweigh.bench.train.driver import fit
from reweigh.bench.train.programs.tokens import TokenLoss, TokenTraining
from reweigh.bench.train.records import Record, Writer
from reweigh.bench.train.tokens import Tokens
from reweigh.method import Method
from reweigh.objectives.mean import Mean
from reweigh.torch import chunked_cross_entropy

if TYPE_CHECKING:
    from reweigh.bench.lab.results import ColumnResults, Figure, Results


@dataclass(frozen=True, kw_only=True)
class Settings(Language):
    """Settings of the recipe: those of every language model."""


PRESETS = {
    "smoke": Settings(),
    "cpu": Settings(
        text="sotu",
        vocabulary=512,
        length=64,
        width=64,
        heads=4,
        batch_size=16,
        steps=6000,
        every=600,
        lr=0.004,
        held=96,
    ),
    "paper": Settings(
        text="lm1b:shards=99",
        vocabulary=30_000,
        length=128,
        depth=6,
        width=512,
        heads=8,
        dropout=0.1,
        batch_size=256,
        steps=100_000,
        every=1000,
        lr=0.0016,
        warmup=0.01,
        schedule="rsqrt",
        held=2000,
        tied=True,
    ),
}
PAPER = {"mean": 2.9218, "rgd": 2.8979}
SEQUENCES = "rgd, whole sequences"


def table(preset: str) -> Table:
    """Rows, columns and the paper's figures."""
    smoke = preset == "smoke"
    names = {"smoke": "descriptions", "cpu": "State of the Union", "paper": "lm1b"}
    return Table(
        title="Language models",
        question="Does re-weighting tokens lower the perplexity of held-out text?",
        columns=(
            Column(
                name=names[preset],
                settings={},
                paper=PAPER,
                stand_in=None if preset == "paper" else "lm1b, 6 layers of width 512",
                trouble="none",
                model="transformer, tokens",
            ),
        ),
        methods=("mean", "rgd") if smoke else ("mean", "rgd", "rgd_auto", SEQUENCES),
        rows={SEQUENCES: Row(method="rgd:tau=5", settings={"level": "sequence"})},
        metric="test/loss",
        metric_name="log-perplexity of held-out text",
        select="val/loss",
        seeds=2 if smoke else 10,
        trials=2 if smoke else 3,
        smallest=True,
        endpoint=Endpoint(worth=0.01),
        as_written=True,
        notes=(
            "Only the learning rate is tuned; tau = 1 as in the paper.",
            "Nats per token; smaller is better. Log-perplexities of different tokenizers and texts cannot be compared: "
            "the paper's figures are shown for their difference alone.",
            "AdamW ignores a constant factor on the loss, so the scale controls should change nothing.",
            "A speech is wholly for training, for validation or for testing.",
        ),
    )


class Decoder(torch.nn.Module):
    """A causal transformer and its last layer."""

    def __init__(self, settings: Settings, vocabulary: int) -> None:
        super().__init__()
        self.body = Transformer(
            vocabulary,
            settings.length,
            depth=settings.depth,
            width=settings.width,
            heads=settings.heads,
            causal=True,
            dropout=settings.dropout,
        )
        own = torch.nn.Parameter(torch.randn(vocabulary, settings.width) * 0.02)
        self.head = self.body.tokens.weight if settings.tied else own

    def forward(self, ids: Tensor) -> Tensor:
        """The hidden states that the last layer sees."""
        return self.body(ids)


def train(
    settings: Settings, method: Method, seed: int, writer: Writer, scale: np.ndarray[Any, Any] | None
) -> Iterator[Record]:
    """Next-token prediction on windows drawn at random from the training text."""
    seeds, data = Seeds(seed), load(settings.text, settings.vocabulary)
    with seeds.ambient("init"):
        model = Decoder(settings, data.vocabulary)
    return fit(NextToken(settings, method, seeds, data, model), writer, scale=scale)


class NextToken(TokenTraining):
    """Windows of text, each token predicted from those before it."""

    def __init__(self, settings: Settings, method: Method, seeds: Seeds, data: Tokens, model: Decoder) -> None:
        self.settings, self.data, self.model = settings, data, model
        self.token_loss = TokenLoss(method, settings.level)
        super().__init__(model, [self.token_loss], seeds=seeds, **settings.training())
        self.newest = 0
        self.stream = data.stream("train")
        self.starts = seeds.numpy("order").integers(
            len(self.stream) - settings.length, size=(settings.steps, settings.batch_size)
        )
        self.held = {part: held_out(data.stream(part), settings.length, settings.held) for part in ("val", "test")}

    def loss(self, step: int) -> Tensor:
        """The loss on this step's windows."""
        self.newest = step
        windows = self.stream[self.starts[step][:, None] + np.arange(self.settings.length + 1)]
        ids = torch.from_numpy(windows.astype(np.int64)).to(self.device, non_blocking=True)
        return self.token_loss(self.model(ids[:, :-1]), self.model.head, ids[:, 1:])

    def evaluate(self, *, last: bool) -> Record:
        """The plain loss of held-out text; early and late also what weights look at."""
        record: Record = {f"{part}/loss": float(self._losses(windows).mean()) for part, windows in self.held.items()}
        if (self.newest < self.every or last) and self.settings.level == "token":
            record |= self._view(self.held["val"][:1])
        return record

    @torch.no_grad()
    def _losses(self, windows: Tensor) -> Tensor:
        """The plain loss of each token."""
        parts = (ids.to(self.device, non_blocking=True) for ids in windows.split(64))
        model, plain = self.model, Mean()
        with self.context():
            return torch.cat(
                [
                    chunked_cross_entropy(model(ids[:, :-1]), model.head, ids[:, 1:], plain, reduction="none")
                    for ids in parts
                ]
            )

    def _view(self, window: Tensor) -> Record:
        """A held-out text, with the loss of each token and the weight that training would give it now."""
        losses = self._losses(window)[0]
        return {
            "view/tokens": self.data.pieces(window[0, 1:].tolist()),
            "view/losses": [round(x, 4) for x in losses.tolist()],
            "view/weights": [round(x, 4) for x in self.token_loss.of(losses).tolist()],
        }


def figures(results: Results) -> Sequence[Figure]:
    """The token view, early and late, of each row that weighs tokens."""
    from reweigh.bench.lab.results import Figure

    drawn: list[Figure] = []
    for column in results.columns:
        for label in (results.table.primary, "rgd_auto"):
            shown = _views(column, label)
            if shown:
                drawn.append(
                    Figure(
                        title=f"What the weights look at: {label}, {column.name}",
                        markup=shown,
                        caption="One held-out passage of validation text after the first part of training and at its "
                        "end (first seed); a token is the darker the larger its weight. While all losses lie above "
                        "tau all weights are equal; later the words that follow from their neighbours fade.",
                    )
                )
    return drawn


def _views(column: ColumnResults, label: str) -> str:
    from reweigh.bench.recipes._figures.tokens import token_view

    row = column.rows.get(label)
    if row is None:
        return ""
    outcome = row.outcomes[min(row.outcomes)]
    return "".join(
        f"<h3 class='of-panel'>After {record['step']} steps</h3>"
        f"{token_view(record['view/tokens'], record['view/weights'], record['view/losses'])}"
        for record in outcome.records
        if "view/tokens" in record
    )
