"""Text classification with the Hugging Face Trainer, with and without re-weighting.

    python examples/huggingface_classification.py                # plain
    python examples/huggingface_classification.py --tau 1.0      # re-weighted
    python examples/huggingface_classification.py --method class_balanced+rgd:tau=3   # weights of classes as well
    python examples/huggingface_classification.py --csv mine.csv # columns: text, label

Without a file it learns to tell which package of Python's standard library a sentence of its documentation is
from: real text of unequal classes that every machine has. The tokenizer is trained on the text, the model starts from
its configuration; nothing is downloaded. About a minute on one core.
"""

from __future__ import annotations

import argparse
import ast
import csv
import os
import random
import re
import sysconfig
from collections import Counter
from pathlib import Path

# Some processors advertise bf16 instructions that they cannot execute.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import numpy as np
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    DataCollatorWithPadding,
    EvalPrediction,
    PreTrainedTokenizerFast,
    Trainer,
    TrainingArguments,
    set_seed,
)

from reweigh.integrations.transformers import TrainerLoss, loss, watch

PACKAGES = ("asyncio", "email", "http", "importlib", "logging", "multiprocessing", "unittest", "xml")
Text = tuple[str, str]  # and its label


def parse_arguments(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--csv", type=Path, help="a file with columns `text` and `label`")
    parser.add_argument("--tau", type=float, help="re-weight with this clip level; plain training without it")
    parser.add_argument("--method", help="a whole method in place of tau; classes are counted in the training texts")
    parser.add_argument("--epochs", type=float, default=5.0)
    parser.add_argument("--max-steps", type=int, default=-1)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--accumulation", type=int, default=1)
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--max-length", type=int, default=48)
    parser.add_argument("--hidden-size", type=int, default=64)
    parser.add_argument("--logging-steps", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("out/huggingface_classification"))
    return parser.parse_args(argv)


# --- data ---


def read_csv(path: Path) -> list[Text]:
    with path.open(newline="", encoding="utf-8") as file:
        return [(row["text"], row["label"]) for row in csv.DictReader(file)]


def read_documentation() -> list[Text]:
    """The sentences of the docstrings of some packages, each with the package's name."""
    library = Path(sysconfig.get_paths()["stdlib"])
    texts: dict[str, str] = {}
    for package in PACKAGES:
        for path in sorted((library / package).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                    for sentence in re.split(r"(?<=[.:])\s+|\n\s*\n", ast.get_docstring(node) or ""):
                        if len(sentence.split()) >= 4:
                            texts.setdefault(" ".join(sentence.split()), package)
    return list(texts.items())


def split(texts: list[Text], seed: int) -> tuple[list[Text], list[Text]]:
    """Four fifths to train on, one to evaluate on."""
    texts = texts.copy()
    random.Random(seed).shuffle(texts)
    cut = len(texts) * 4 // 5
    return texts[:cut], texts[cut:]


def train_tokenizer(texts: list[Text], max_length: int) -> PreTrainedTokenizerFast:
    special = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(vocab_size=2000, special_tokens=list(special.values()), show_progress=False)
    tokenizer.train_from_iterator((text for text, _ in texts), trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=max_length, **special)


def encode(texts: list[Text], labels: list[str], tokenizer: PreTrainedTokenizerFast) -> list[dict[str, object]]:
    encoded = tokenizer([text for text, _ in texts], truncation=True)
    rows = zip(encoded["input_ids"], encoded["attention_mask"], texts, strict=True)
    return [{"input_ids": i, "attention_mask": m, "labels": labels.index(label)} for i, m, (_, label) in rows]


def compute_metrics(prediction: EvalPrediction) -> dict[str, float]:
    right = prediction.predictions.argmax(-1) == prediction.label_ids
    recall = [float(right[prediction.label_ids == label].mean()) for label in np.unique(prediction.label_ids)]
    return {"accuracy": float(right.mean()), "balanced_accuracy": float(np.mean(recall)), "worst_class": min(recall)}


# --- training ---


def make_trainer(arguments: argparse.Namespace) -> Trainer:
    set_seed(arguments.seed)
    texts = read_csv(arguments.csv) if arguments.csv else read_documentation()
    labels = sorted({label for _, label in texts})
    train, evaluation = split(texts, arguments.seed)
    tokenizer = train_tokenizer(train, arguments.max_length)
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=arguments.hidden_size,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=4 * arguments.hidden_size,
        max_position_embeddings=arguments.max_length,
        pad_token_id=tokenizer.pad_token_id,
        id2label=dict(enumerate(labels)),
        label2id={label: index for index, label in enumerate(labels)},
    )
    trainer = Trainer(
        BertForSequenceClassification(config),
        TrainingArguments(
            output_dir=str(arguments.out),
            num_train_epochs=arguments.epochs,
            max_steps=arguments.max_steps,
            per_device_train_batch_size=arguments.batch_size,
            per_device_eval_batch_size=4 * arguments.batch_size,
            gradient_accumulation_steps=arguments.accumulation,
            learning_rate=arguments.learning_rate,
            warmup_steps=20,
            weight_decay=0.01,
            eval_strategy="no",
            save_strategy="no",
            logging_steps=arguments.logging_steps,
            report_to="none",
            seed=arguments.seed,
            dataloader_pin_memory=False,
            disable_tqdm=True,
        ),
        train_dataset=encode(train, labels, tokenizer),
        eval_dataset=encode(evaluation, labels, tokenizer),
        data_collator=DataCollatorWithPadding(tokenizer),
        compute_metrics=compute_metrics,
        compute_loss_func=make_loss(arguments),  # the first line
    )
    return trainer if trainer.compute_loss_func is None else watch(trainer)  # the second, for the logs


def make_loss(arguments: argparse.Namespace) -> TrainerLoss | None:
    if arguments.method:
        return loss(arguments.method, class_counts="auto")  # counted by `watch`
    return loss(tau=arguments.tau) if arguments.tau else None


def main(argv: list[str] | None = None) -> None:
    arguments = parse_arguments(argv)
    trainer = make_trainer(arguments)
    counts = Counter(row["labels"] for row in trainer.train_dataset)
    smallest, largest = min(counts.values()), max(counts.values())
    print(f"{len(trainer.train_dataset)} texts in {len(counts)} classes of {smallest} to {largest}")
    trainer.train()
    metrics = trainer.evaluate()
    kind = arguments.method or (f"re-weighted, tau = {arguments.tau:g}" if arguments.tau else "plain")
    print(
        f"{kind}: evaluation loss {metrics['eval_loss']:.3f}, accuracy {metrics['eval_accuracy']:.3f}, "
        f"balanced {metrics['eval_balanced_accuracy']:.3f}, worst class {metrics['eval_worst_class']:.3f}"
    )


if __name__ == "__main__":
    main()
