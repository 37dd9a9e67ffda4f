"""Supervised fine-tuning: which weights learn a new domain, and what do they keep of the old one?

Question: a language model that knows one domain is fine-tuned on another. Plain fine-tuning, DFT, entropies, RGD on
tokens and on sequences, its own tau, rising linear weights and selection by a reference model are judged on two sides:
the loss on held-out text of the new domain (learnt) and of the old one (kept). The paper has no such experiment.

    reweigh run sft --preset smoke                             # seconds: a toy model, texts that come with scikit-learn
    reweigh data get sotu && reweigh data get imdb && reweigh run sft   # the cpu preset: half an hour of one core
    reweigh run sft --preset paper --set checkpoint=DIR --set target=new.jsonl --set text=old.jsonl   # LoRA on a GPU

The `cpu` preset: the decoder of the recipe `gpt` (2 layers of width 64, 512 tokens learnt from the old domain) is
pretrained on speeches on the State of the Union for 1000 steps, once per seed, and fine-tuned on film reviews for 150
steps of 8 sequences of 64 tokens; ten paired seeds, three trials for each row. A model of a sixth of a million
parameters: it shows which way each weight pulls, not how much that is worth in a large model.

The `paper` preset takes any causal language model that lies in a Hugging Face folder, freezes it, puts matrices of low
rank beside the linear layers of its body, and reads both domains from JSONL files with `text`, `prompt` and
`completion`, or `messages`. Every tenth row is for validation and every tenth for testing.

Half of the training documents are set aside for the reference model of `rho`, the same base fine-tuned on them plainly;
no other row sees them.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from reweigh import _validate as validate
from reweigh.bench.catalogue import texts
from reweigh.bench.catalogue.cache import cache_folder
from reweigh.bench.draws.seeds import Seeds
from reweigh.bench.errors import UserError
from reweigh.bench.files import replacing
from reweigh.bench.lab.table import Column, Row, Table
from reweigh.bench.models.blocks.low_rank import add_low_rank
from reweigh.bench.recipes import gpt
from reweigh.bench.recipes._language import Language, held_out
from reweigh.bench.recipes._language import load as load_text
from reweigh.bench.train.driver import Driver, fit
from reweigh.bench.train.instructions import Examples, TokenRow, encode, padded, read
from reweigh.bench.train.programs.tokens import TokenLoss, TokenTraining
from reweigh.bench.train.records import Record, Writer
from reweigh.bench.train.tokens import END, Tokens, encoded_by
from reweigh.method import Method, method
from reweigh.objectives.mean import Mean
from reweigh.objectives.rho import Rho
from reweigh.torch.chunked import chunked_tokens

if TYPE_CHECKING:
    from reweigh.bench.lab.results import Figure, Results

#: Raised by one whenever a change makes other base models of the same settings.
_FORMAT = 1


@dataclass(frozen=True, kw_only=True)
class Settings(Language):
    """Settings of the recipe: those of every language model, of the base model and of the new domain.

    Parameters
    ----------
    target, documents
        The new domain: a corpus, of which so many documents are taken (0 takes all), or a JSONL file beside a
        `checkpoint`. `text` is the old domain.
    base_steps, base_lr
        Steps and peak rate of the base model's training on the old domain.
    reference_lr
        Peak rate at which the reference model of `rho` is fine-tuned, whatever the rate of the row.
    checkpoint
        A Hugging Face folder with a causal language model, in place of a base model of our own.
    rank, alpha
        Rank of the matrices beside each linear layer of a checkpoint, and their factor; rank 0 trains everything.
    """

    target: str = "descriptions:capitals=true"
    documents: int = 0
    base_steps: int = 60
    base_lr: float = 3e-3
    reference_lr: float = 3e-3
    checkpoint: str = ""
    rank: int = 0
    alpha: float = 32.0

    def __post_init__(self) -> None:
        super().__post_init__()
        validate.whole("documents", self.documents, 0)
        validate.whole("base_steps", self.base_steps, 1)
        validate.whole("rank", self.rank, 0)


PRESETS = {
    "smoke": Settings(batch_size=4, steps=20, every=10, held=8),
    "cpu": Settings(
        text="sotu",
        target="imdb",
        documents=400,
        vocabulary=512,
        length=64,
        width=64,
        heads=4,
        batch_size=8,
        steps=150,
        every=30,
        lr=2e-3,
        held=64,
        base_steps=1000,
        base_lr=4e-3,
        reference_lr=2e-3,
    ),
    "paper": Settings(
        checkpoint="checkpoint",
        target="target.jsonl",
        text="old.jsonl",
        length=1024,
        batch_size=32,
        steps=1000,
        every=100,
        lr=1e-4,
        reference_lr=1e-4,
        warmup=0.03,
        weight_decay=0.0,
        clip=1.0,
        rank=16,
        held=500,
        precision="bfloat16",
    ),
}
PRIMARY = "rgd, tokens"
ROWS = {
    PRIMARY: Row(method="rgd:tau=3"),
    "rgd, sequences": Row(method="rgd:tau=5", settings={"level": "sequence"}),
}


def table(preset: str) -> Table:
    """Rows and columns."""
    smoke = preset == "smoke"
    names = {"smoke": "descriptions to capitals", "cpu": "speeches to film reviews", "paper": "your two domains"}
    others = ("dft", "entropy", "rgd, sequences", "rgd_auto", "lin_upper", "rho")
    return Table(
        title="Supervised fine-tuning",
        question="Which weights learn a new domain, and what do they keep of the old one?",
        columns=(Column(name=names[preset], settings={}),),
        methods=("mean", PRIMARY, "dft", "rho") if smoke else ("mean", PRIMARY, *others),
        rows=ROWS if not smoke else {PRIMARY: ROWS[PRIMARY]},
        metric="test/loss",
        metric_name="loss on held-out text of the new domain",
        select="val/loss",
        primary=PRIMARY,
        seeds=2 if smoke else 10,
        trials=1 if smoke else 3,
        smallest=True,
        as_written=True,
        controls=False,
        notes=(
            "Only the learning rate is tuned, for the new domain's validation loss: what is kept is not looked at.",
            "Nats per token; smaller is better on both sides.",
            "There are no scale controls: AdamW ignores a constant factor on the loss.",
            "rho has seen more text than the others, through its reference model.",
            "Tau is 3 for tokens and 5 for sequences: near the losses that the base model has on the new domain.",
        ),
        names={"mean": "SFT (plain)"},
    )


class TextDomains:
    """Both domains as token sequences; each seed draws which training documents are its own and which the reference's.

    Parameters
    ----------
    old, new
        Documents as token rows by part: `train`, `val` and `test`.
    join
        What makes sequences of some documents.
    vocabulary
        How many tokens there are.
    """

    def __init__(
        self, old: Mapping[str, Sequence[Any]], new: Mapping[str, Sequence[Any]], join: Any, vocabulary: int
    ) -> None:
        self.old, self.new, self.join, self.vocabulary = old, new, join, vocabulary

    def training(self, seeds: Seeds) -> dict[str, Examples]:
        """Sequences to train on, and those for the reference model."""
        documents = self.new["train"]
        order = seeds.numpy("data").permutation(len(documents))
        half = len(order) // 2
        parts = {"train": order[half:], "reference": order[:half]}
        return {name: self.join([documents[i] for i in rows]) for name, rows in parts.items()}

    def held(self, rows: int) -> dict[str, Examples]:
        """Held-out sequences of the new domain, for choosing and for testing, and of the old one."""
        parts = {"val": self.new["val"], "test": self.new["test"], "kept": self.old["test"]}
        return {name: _some(self.join(documents), rows) for name, documents in parts.items()}


def _some(examples: Examples, rows: int) -> Examples:
    """So many sequences, spread evenly."""
    count = len(examples.ids)
    chosen = np.unique(np.linspace(0, count - 1, min(rows, count)).astype(np.int64))
    return Examples(examples.ids[chosen], examples.targets[chosen])


def domains(settings: Settings) -> TextDomains:
    """The two domains that the settings name, once per process."""
    if settings.checkpoint:
        return _from_files(settings.checkpoint, settings.text, settings.target, settings.documents, settings.length)
    return _from_corpora(settings.text, settings.target, settings.documents, settings.vocabulary, settings.length)


@functools.lru_cache(maxsize=2)
def _from_corpora(old: str, new: str, documents: int, vocabulary: int, length: int) -> TextDomains:
    """Two corpora as tokens that were learnt from the first, in windows."""
    known, corpus = load_text(old, vocabulary), texts.corpus(new)
    if documents:
        corpus = dataclasses.replace(corpus, documents=corpus.documents[:documents])
    own = encoded_by(known.tokenizer, corpus)
    end = np.array([known.special(END)], np.int32)

    def windows(parts: Sequence[np.ndarray[Any, Any]]) -> Examples:
        stream = np.concatenate([ids for document in parts for ids in (document, end)])
        rows = held_out(stream, length, len(stream))
        return Examples(rows[:, :-1], rows[:, 1:])

    return TextDomains(_parts(known), _parts(own), windows, known.vocabulary)


def _parts(data: Tokens) -> dict[str, Sequence[Any]]:
    return {part: getattr(data, part) for part in ("train", "val", "test")}


@functools.lru_cache(maxsize=2)
def _from_files(checkpoint: str, old: str, new: str, documents: int, length: int) -> TextDomains:
    """The rows of two JSONL files as tokens of a checkpoint."""
    from transformers import AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(_folder(checkpoint), local_files_only=True)

    def rows_of(name: str) -> dict[str, list[TokenRow]]:
        rows = [encode(row, tokenizer) for row in read(Path(name))]
        if name == new and documents:
            rows = rows[:documents]
        if len(rows) < 10:
            raise UserError(f"{name} has {len(rows)} rows; every tenth is held out, so at least ten are needed.")
        return {
            "train": [row for i, row in enumerate(rows) if i % 10 not in (3, 7)],
            "val": [row for i, row in enumerate(rows) if i % 10 == 3],
            "test": [row for i, row in enumerate(rows) if i % 10 == 7],
        }

    return TextDomains(rows_of(old), rows_of(new), functools.partial(padded, length=length), len(tokenizer))


def _folder(checkpoint: str) -> str:
    if not (Path(checkpoint) / "config.json").is_file():
        raise UserError(
            f"{checkpoint!r} is not a Hugging Face folder: it has no config.json. Name one with --set checkpoint=DIR, "
            "and the two domains with --set target=new.jsonl --set text=old.jsonl."
        )
    return checkpoint


class Pretrained(nn.Module):
    """A causal language model of a Hugging Face folder, as the hidden states that its last layer sees."""

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        from transformers import AutoModelForCausalLM

        from reweigh.integrations.causal import last_layer

        whole: Any = AutoModelForCausalLM.from_pretrained(_folder(settings.checkpoint), local_files_only=True)
        self.body: Any = whole.base_model
        self.whole = whole
        if settings.rank:
            whole.requires_grad_(False)
            if not add_low_rank(self.body, rank=settings.rank, alpha=settings.alpha):
                raise UserError(
                    f"{type(whole).__name__} has no linear layers to add low-rank matrices to. Train all of it "
                    "with --set rank=0."
                )
        self._last_layer = last_layer

    def forward(self, ids: Tensor) -> Tensor:
        """The hidden states."""
        return self.body(input_ids=ids, use_cache=False).last_hidden_state

    def layer(self, hidden: Tensor) -> dict[str, Any]:
        """The last layer, as keywords of the loss."""
        return self._last_layer(self.whole, hidden)._asdict()


class SmallDecoder(gpt.Decoder):
    """The decoder of the recipe `gpt`."""

    def layer(self, hidden: Tensor) -> dict[str, Any]:
        """The last layer, as keywords of the loss."""
        return {"weight": self.head}


SftModel = Pretrained | SmallDecoder


def train(
    settings: Settings, method: Method, seed: int, writer: Writer, scale: np.ndarray[Any, Any] | None
) -> Iterator[Record]:
    """Fine-tune the seed's base model on its share of the new domain."""
    seeds, data = Seeds(seed), domains(settings)
    own = data.training(seeds)
    reference = None
    if isinstance(method.objective, Rho):
        reference = _reference(settings, seeds, data, own["reference"])
    program = FineTuning(
        settings, method, seeds, base(settings, seeds, data), own["train"], data.held(settings.held), reference
    )
    return fit(program, writer, scale=scale)


def base(settings: Settings, seeds: Seeds, data: TextDomains) -> SftModel:
    """The model that is fine-tuned: a checkpoint, or a decoder trained on the old domain and kept in the cache."""
    with seeds.ambient("init"):
        if settings.checkpoint:
            return Pretrained(settings)
        model = SmallDecoder(_pretraining(settings), data.vocabulary)
    pretraining = _pretraining(settings)

    def learn() -> None:
        text = load_text(settings.text, settings.vocabulary)
        _drive(gpt.NextToken(pretraining, method("mean"), seeds, text, model))

    _learnt_once(model, "base", [dataclasses.asdict(pretraining), seeds.seed], learn)
    return model


def _pretraining(settings: Settings) -> gpt.Settings:
    """The settings of the recipe `gpt` that make the base model."""
    names = [field.name for field in dataclasses.fields(gpt.Settings)]
    changed: dict[str, Any] = {name: getattr(settings, name) for name in names}
    changed.update(steps=settings.base_steps, every=settings.base_steps, lr=settings.base_lr, level="token")
    return gpt.Settings(**changed)


def _reference(settings: Settings, seeds: Seeds, data: TextDomains, examples: Examples) -> SftModel:
    """The base model, fine-tuned plainly on documents that no row trains on."""
    model = base(settings, seeds, data)
    plain = dataclasses.replace(settings, lr=settings.reference_lr, level="token")

    def learn() -> None:
        _drive(FineTuning(plain, method("mean"), Seeds(seeds.seed), model, examples, {}, None))

    files = [settings.checkpoint, settings.target] if settings.checkpoint else []
    facts = [[name, Path(name).stat().st_mtime_ns] for name in files]
    _learnt_once(model, "reference", [dataclasses.asdict(plain), seeds.seed, facts], learn)
    return model.requires_grad_(False).eval()


def _drive(program: TokenTraining) -> None:
    driver = Driver(program)
    while not driver.over:
        driver.run_epoch()
    program.module.cpu()


def _learnt_once(model: nn.Module, what: str, facts: Any, learn: Any) -> None:
    """Train the parameters of a model that are trained, or take them from the cache if it was done before."""
    key = hashlib.sha256(json.dumps([_FORMAT, torch.__version__, what, facts], sort_keys=True).encode()).hexdigest()
    path = cache_folder() / "trained" / f"{what}-{key[:16]}.safetensors"
    if not path.exists():
        learn()
        with replacing(path) as temporary:
            save_file({name: value.detach().contiguous() for name, value in _trained(model).items()}, temporary)
    kept, own = load_file(path), _trained(model)
    with torch.no_grad():
        for name, value in own.items():
            value.copy_(kept[name])


def _trained(model: nn.Module) -> dict[str, Tensor]:
    return {name: value for name, value in model.named_parameters() if value.requires_grad}


class FineTuning(TokenTraining):
    """Sequences of the new domain, drawn without replacement; scores on both domains.

    Parameters
    ----------
    settings, method, seeds
        Of the run.
    model
        The base model.
    training
        Sequences to train on.
    held
        Held-out sequences by name.
    reference
        The model whose losses objectives such as `rho` weigh by.
    """

    def __init__(
        self,
        settings: Settings,
        method: Method,
        seeds: Seeds,
        model: SftModel,
        training: Examples,
        held: Mapping[str, Examples],
        reference: SftModel | None,
    ) -> None:
        self.model, self.training, self.held = model, training, held
        self.token_loss = TokenLoss(method, settings.level, ignores=bool(settings.checkpoint))
        super().__init__(model, [self.token_loss], seeds=seeds, **settings.training())
        self.reference = None if reference is None else reference.to(self.device)
        self.rows = _passes(len(training.ids), settings.steps, settings.batch_size, seeds.numpy("order"))
        self.before = {f"before/{name}": value for name, value in self.scores().items()}

    def loss(self, step: int) -> Tensor:
        """The loss on this step's sequences."""
        batch = self.training.take(torch.from_numpy(self.rows[step]))
        ids, targets = (part.to(self.device, non_blocking=True) for part in batch)
        reference = None if self.reference is None else self._losses(self.reference, ids, targets)
        hidden = self.model(ids)
        return self.token_loss(hidden, targets=targets, reference=reference, **self.model.layer(hidden))

    def evaluate(self, *, last: bool) -> Record:
        """The plain loss of held-out sequences of both domains."""
        return {f"{name}/loss": value for name, value in self.scores().items()}

    def facts(self) -> Record:
        """What the base model scored."""
        return self.before

    def scores(self) -> dict[str, float]:
        """The plain loss per token of each set of held-out sequences."""
        training = self.module.training
        self.module.eval()
        with self.context():
            values = {name: self._mean(examples) for name, examples in self.held.items()}
        self.module.train(training)
        return values

    def state(self) -> dict[str, Any]:
        """What is trained, and the optimiser: a frozen model is read from its own folder."""
        return {"model": dict(_trained(self.module)), "optimizer": self.optimizer.state_dict()}

    def load(self, state: dict[str, Any]) -> None:
        """Resume."""
        self.module.load_state_dict(state["model"], strict=False)
        self.optimizer.load_state_dict(state["optimizer"])

    def _mean(self, examples: Examples) -> float:
        total, count = 0.0, 0
        for start in range(0, len(examples.ids), 32):
            ids, targets = (part.to(self.device) for part in examples.take(slice(start, start + 32)))
            total += float(self._losses(self.model, ids, targets).double().sum())
            count += int((targets != -100).sum())
        return total / count

    @torch.no_grad()
    def _losses(self, model: SftModel, ids: Tensor, targets: Tensor) -> Tensor:
        """The plain loss of each target; zero where it does not count."""
        hidden = model(ids)
        layer = model.layer(hidden)
        return chunked_tokens(hidden, targets=targets, objective=Mean(), reduction="none", **layer).losses


def _passes(rows: int, steps: int, batch: int, draw: np.random.Generator) -> np.ndarray[Any, Any]:
    """The rows of each step: as many passes over all of them as it takes, each in an order of its own."""
    passes = -(-steps * batch // rows)
    order = np.concatenate([draw.permutation(rows) for _ in range(passes)])
    return order[: steps * batch].reshape(steps, batch)


def figures(results: Results) -> Sequence[Figure]:
    """What is learnt against what is kept."""
    from reweigh.bench.recipes._figures import sft

    return sft.figures(results)


def answer(results: Results) -> Sequence[str]:
    """Both sides of each row in one sentence, then the verdict on the declared comparison."""
    from reweigh.bench.recipes._figures import sft

    return sft.answer(results)
