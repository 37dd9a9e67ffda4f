"""Does re-weighting help in your Hugging Face script? `run.transformers(trainer)` gives the Trainer the run's loss.

python examples/compare_trainer.py

A small BERT, from its configuration, reads handwritten digits as sequences of 64 grey levels.
"""

from __future__ import annotations

import os

os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")  # some machines advertise what they cannot execute

import numpy as np
from sklearn.datasets import load_digits
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments, set_seed

import reweigh

STEPS = 120


def train(run):
    data = load_digits()
    rows = [
        {"input_ids": pixels.astype(int).tolist(), "labels": int(label)}
        for pixels, label in zip(data.data, data.target, strict=True)
    ]
    order = np.random.default_rng(run.seed).permutation(len(rows))
    training, validation, test = ([rows[i] for i in part] for part in np.split(order, [900, 1200]))
    set_seed(run.seed)
    size = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
    model = BertForSequenceClassification(BertConfig(vocab_size=17, max_position_embeddings=64, num_labels=10, **size))
    arguments = TrainingArguments(
        output_dir=str(run.directory),
        seed=run.seed,
        max_steps=STEPS,
        per_device_train_batch_size=32,
        learning_rate=3e-3,
        report_to="none",
        save_strategy="no",
        disable_tqdm=True,
        use_cpu=True,
    )
    trainer = run.transformers(Trainer(model=model, args=arguments, train_dataset=training))  # <- the only new line
    trainer.train()

    def accuracy(part):
        outputs = trainer.predict(part)
        return float((outputs.predictions.argmax(1) == outputs.label_ids).mean())

    return {"val/accuracy": accuracy(validation), "test/accuracy": accuracy(test)}


if __name__ == "__main__":
    result = reweigh.compare(train, metric="test/accuracy", select="val/accuracy", tune=3, out="out/compare_trainer")
    print(result.verdict)
    print("report:", result.page)
