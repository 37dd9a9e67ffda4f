"""A tiny language model with its tokenizer in a folder, rows to fine-tune it on, and a step of SGD by hand."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import Tensor
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

TEXT = "the cat sat on a mat and saw two red birds fly over green hills at noon : . Human Assistant User"
WORDS = TEXT.split()
SPECIAL = ["<pad>", "<eos>", "<unk>", "<s>"]
TAU, RATE = 8.0, 0.1
TEMPLATE = (
    "{% for m in messages %}{% if m['role'] == 'user' %}User : {{ m['content'] }} {% elif m['role'] == 'assistant' %}"
    "{% generation %}Assistant : {{ m['content'] }}<eos>{% endgeneration %}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}Assistant :{% endif %}"
)


def save_model(folder: Path) -> Path:
    """Write the model and its tokenizer as Hugging Face does."""
    inner = Tokenizer(models.WordLevel({word: i for i, word in enumerate([*SPECIAL, *WORDS])}, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    inner.add_special_tokens(["<eos>", "<s>"])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=inner, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>", bos_token="<s>"
    )
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(SPECIAL) + len(WORDS), hidden_size=16, intermediate_size=16, num_hidden_layers=1,
        num_attention_heads=2, num_key_value_heads=2, max_position_embeddings=64, pad_token_id=0, bos_token_id=3,
        eos_token_id=1, initializer_range=0.7,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


def instructions() -> list[dict[str, str]]:
    """Eight rows in the format of Alpaca, with answers of one to six words."""
    return [
        {"instruction": " ".join(WORDS[i : i + 3]), "input": "", "output": " ".join(WORDS[i + 3 : i + 4 + i % 6])}
        for i in range(8)
    ]


def conversations() -> list[dict[str, Any]]:
    """The same rows as messages."""
    return [
        {
            "messages": [
                {"role": "user", "content": row["instruction"]},
                {"role": "assistant", "content": row["output"]},
            ]
        }
        for row in instructions()
    ]


def save_rows(path: Path, rows: Sequence[dict[str, Any]]) -> Path:
    """Write rows as JSON Lines."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def rgd(losses: Tensor) -> Tensor:
    """The weights of RGD."""
    return torch.exp(losses.clip(0, TAU) / (TAU + 1))


def step_by_hand(
    folder: Path,
    rows: Sequence[tuple[Sequence[int], Sequence[int]]],
    weight: Callable[[Tensor], Tensor],
    *,
    level: str = "token",
    focal: bool = False,
) -> Tensor:
    """The parameters after one step on all rows, each on its own: sum of weighted losses over the number of tokens.

    With `focal` a loss is (1 - p) times what it was.
    """
    model: Any = AutoModelForCausalLM.from_pretrained(folder).train()
    total, count = torch.zeros(()), 0
    for ids, labels in rows:
        targets = torch.tensor(labels)[1:]
        losses = F.cross_entropy(model(torch.tensor([ids])).logits[0, :-1], targets.clamp(min=0), reduction="none")
        losses = losses[targets != -100]
        losses = -torch.expm1(-losses) * losses if focal else losses
        seen = losses.detach()
        total = total + (weight(seen if level == "token" else seen.mean()) * losses).sum()
        count += len(losses)
    (total / count).backward()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter -= RATE * parameter.grad
    return parameters(model)


def parameters(model: Any) -> Tensor:
    """All parameters as one vector."""
    return torch.cat([parameter.detach().flatten().float() for parameter in model.parameters()])
