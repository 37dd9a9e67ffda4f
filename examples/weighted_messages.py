"""Weights that come with the data: conversations with a weight per message, packed, through TRL's trainer.

    python examples/weighted_messages.py

The user's words count nothing and a corrected answer twice; RGD's weights multiply these. Nothing is downloaded.
"""

from __future__ import annotations

import argparse
import tempfile

import torch
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl import SFTConfig, SFTTrainer, pack_dataset

from reweigh.integrations.transformers import weigh_messages
from reweigh.integrations.trl import reweigh_sft

TEMPLATE = "{% for m in messages %}{{ m['role'] }} {{ m['content'] }} <eos> {% endfor %}"
PLACES = ["Paris", "Rome", "Oslo", "Lima", "Cairo", "Seoul"]


def conversations() -> list[dict[str, list[dict[str, object]]]]:
    """A question, a wrong answer, a complaint, the right answer."""
    return [
        {
            "messages": [
                {"role": "user", "content": f"where is {place}", "weight": 0},
                {"role": "assistant", "content": f"{place} is in {PLACES[i - 1]}", "weight": 0.25},
                {"role": "user", "content": "no", "weight": 0},
                {"role": "assistant", "content": f"{place} is where it is", "weight": 2},
            ]
        }
        for i, place in enumerate(PLACES)
    ]


def tokenizer() -> PreTrainedTokenizerFast:
    """The words of the conversations."""
    words = ["<pad>", "<eos>", "<unk>", "user", "assistant", "where", "is", "in", "no", "it", *PLACES]
    inner = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    made = PreTrainedTokenizerFast(tokenizer_object=inner, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>")
    made.chat_template = TEMPLATE
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=20)
    options = parser.parse_args()
    words = tokenizer()
    rows = Dataset.from_list(conversations()).map(
        weigh_messages, fn_kwargs={"tokenizer": words}, remove_columns="messages"
    )
    packed = pack_dataset(rows, seq_length=64)
    print(f"{len(rows)} conversations in {len(packed)} rows, weights {sorted(set(rows[0]['weight']))}")

    torch.manual_seed(0)
    small = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = LlamaConfig(vocab_size=len(words), **small, pad_token_id=0, bos_token_id=None, eos_token_id=1)
    with tempfile.TemporaryDirectory() as folder:
        trainer = SFTTrainer(
            LlamaForCausalLM(config),
            SFTConfig(
                output_dir=folder,
                padding_free=True,
                max_length=None,
                dataset_kwargs={"skip_prepare_dataset": True},  # the rows are tokens, and packed
                per_device_train_batch_size=1,
                gradient_accumulation_steps=2,
                max_steps=options.steps,
                learning_rate=1e-2,
                logging_steps=max(options.steps // 2, 1),
                save_strategy="no",
                report_to="none",
                disable_tqdm=True,
                use_cpu=True,
                bf16=False,
            ),
            train_dataset=packed,
            processing_class=words,
        )
        reweigh_sft(trainer, tau=3.0, level="sequence", weight_column="weight", chunked=True)
        trainer.train()
    first, last = (log["plain_loss"] for log in trainer.state.log_history[:2])
    print(f"plain loss {first:.3f} in the first half, {last:.3f} in the second")


if __name__ == "__main__":
    main()
