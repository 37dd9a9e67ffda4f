"""axolotl with the plug-in in its configuration: the step of a loop by hand, from the example's own file."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

pytest.importorskip("axolotl", reason="make test-llm-hosts has an environment for it")

import torch
import torch.nn.functional as F
import yaml
from axolotl.cli.config import load_cfg
from axolotl.common.datasets import load_datasets
from axolotl.train import train
from tiny import RATE, TAU, instructions, parameters, rgd, save_model, save_rows, step_by_hand
from transformers import AutoModelForCausalLM

from reweigh.integrations import axolotl as adapter
from reweigh.integrations._plugin import attach

HOST = "axolotl"
EXAMPLE = Path(__file__).parents[2] / "examples" / "llm_hosts" / "axolotl.yaml"


@pytest.fixture
def config(tmp_path):
    """The example with a tiny model, its own rows and one step of SGD in four micro-batches."""
    given = yaml.safe_load(EXAMPLE.read_text())
    for name in ("adapter", "lora_r", "lora_alpha", "lora_target_linear", "attn_implementation"):
        del given[name]
    return given | {
        "base_model": str(save_model(tmp_path / "model")),
        "datasets": [
            {"path": str(save_rows(tmp_path / "rows.jsonl", instructions())), "ds_type": "json", "type": "alpaca"}
        ],
        "dataset_prepared_path": str(tmp_path / "prepared"), "output_dir": str(tmp_path / "out"),
        "sequence_len": 256, "sample_packing": False, "micro_batch_size": 2, "gradient_accumulation_steps": 4,
        "max_steps": 1, "optimizer": "sgd", "lr_scheduler": "constant", "learning_rate": RATE, "max_grad_norm": 0.0,
        "bf16": False, "fp16": False, "tf32": False, "save_strategy": "no", "shuffle_merged_datasets": False,
        "use_cpu": True, "special_tokens": {"pad_token": "<pad>"}, "weight_decay": 0.0, "warmup_steps": 0,
        "dataset_num_proc": 1, "dataset_processes": 1,
    }  # fmt: skip


def trained(config, tmp_path):
    """What axolotl makes of a configuration: its trainer."""
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(config))
    cfg = load_cfg(str(path))
    _, _, trainer = train(cfg=cfg, dataset_meta=load_datasets(cfg=cfg))
    return trainer


def rows_of(host):
    return [(row["input_ids"], row["labels"]) for row in host.train_dataset]


@pytest.mark.shows(HOST, "loss", "objective", "accumulation")
@pytest.mark.parametrize(("loss", "level"), [("", "token"), ("focal:gamma=1+", "token"), ("", "sequence")])
def test_the_step_is_that_of_a_loop_by_hand(loss, level, config, tmp_path):
    config["reweigh"] = {"method": f"{loss}rgd:tau={TAU:g}", "level": level}
    host = trained(config, tmp_path)
    expected = step_by_hand(tmp_path / "model", rows_of(host), rgd, level=level, focal=bool(loss))
    assert (parameters(host.model) - expected).abs().max() < 1e-6
    plain = step_by_hand(tmp_path / "model", rows_of(host), torch.ones_like, level=level)
    assert (plain - expected).abs().max() > 1e-3
    assert any("plain_loss" in log for log in host.state.log_history)


@pytest.mark.shows(HOST, "packing")
def test_packed_samples_are_weighed_on_their_own(config, tmp_path, monkeypatch):
    """The loss of a packed batch as the model sees it: one weight for each run of positions."""
    batches = []

    def remembering(trainer, block):
        attach(trainer, block)
        compute = trainer.compute_loss

        def compute_loss(model, inputs, *arguments, **keywords):
            batches.append({name: value.clone() for name, value in inputs.items() if torch.is_tensor(value)})
            return compute(model, inputs, *arguments, **keywords)

        trainer.compute_loss = compute_loss

    monkeypatch.setattr(adapter, "attach", remembering)
    changes = {"sample_packing": True, "pad_to_sequence_len": True, "micro_batch_size": 1, "sequence_len": 512}
    changes |= {"gradient_accumulation_steps": 1, "attn_implementation": "sdpa"}
    config["reweigh"] = {"method": f"rgd:tau={TAU:g}", "level": "sequence"}
    host = trained(config | changes, tmp_path)
    (batch,) = batches
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "model").train()
    labels, positions = batch.pop("labels")[0], batch["position_ids"][0]
    losses = F.cross_entropy(model(**batch, use_cache=False).logits[0, :-1], labels[1:].clamp(min=0), reduction="none")
    starts = [0, *(i for i in range(1, len(positions)) if positions[i] <= positions[i - 1]), len(positions)]
    total, count = torch.zeros(()), 0
    for start, end in itertools.pairwise(starts):
        real = [i - 1 for i in range(max(start, 1), end) if labels[i] != -100]
        if real:
            total = total + rgd(losses.detach()[real].mean()) * losses[real].sum()
            count += len(real)
    assert len(starts) > 5
    (total / count).backward()
    expected = torch.cat([(p - RATE * p.grad).detach().flatten() for p in model.parameters()])
    assert (parameters(host.model) - expected).abs().max() < 1e-6


def test_what_is_wrong_is_told(config, tmp_path):
    with pytest.raises(ValueError, match="has no block `reweigh`"):
        trained({name: value for name, value in config.items() if name != "reweigh"}, tmp_path)
    with pytest.raises(ValueError, match="'tau' among them"):
        trained(config | {"reweigh": {"method": "rgd", "tau": 3}}, tmp_path)
