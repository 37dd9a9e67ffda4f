"""LLaMA-Factory with the block `reweigh`: the step of a loop by hand, from the example's own file."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

pytest.importorskip("llamafactory", reason="make test-llm-hosts has an environment for it")

import yaml
from tiny import RATE, TAU, instructions, parameters, rgd, save_model, step_by_hand

from reweigh.integrations import _plugin, llamafactory

HOST = "LLaMA-Factory"
EXAMPLE = Path(__file__).parents[2] / "examples" / "llm_hosts" / "llamafactory.yaml"


@pytest.fixture
def config(tmp_path):
    """The example with a tiny model, its own rows and one step of SGD in four micro-batches."""
    (tmp_path / "rows.json").write_text(json.dumps(instructions()))
    (tmp_path / "dataset_info.json").write_text(json.dumps({"rows": {"file_name": "rows.json"}}))
    return yaml.safe_load(EXAMPLE.read_text()) | {
        "model_name_or_path": str(save_model(tmp_path / "model")),
        "dataset_dir": str(tmp_path), "dataset": "rows", "template": "default", "cutoff_len": 64,
        "preprocessing_num_workers": 1, "overwrite_cache": True,
        "finetuning_type": "full", "output_dir": str(tmp_path / "out"), "plot_loss": False,
        "per_device_train_batch_size": 2, "gradient_accumulation_steps": 4, "max_steps": 1, "logging_steps": 1,
        "learning_rate": RATE, "lr_scheduler_type": "constant", "warmup_ratio": 0.0, "optim": "sgd",
        "max_grad_norm": 0.0, "bf16": False, "use_cpu": True, "save_strategy": "no",
        "disable_gradient_checkpointing": True,
    }  # fmt: skip


def trained(config, tmp_path, monkeypatch):
    """What the command makes of a configuration: its trainer."""
    made = []
    monkeypatch.setattr(llamafactory, "attach", lambda host, block: made.append(host) or _plugin.attach(host, block))
    path = tmp_path / "train.yaml"
    path.write_text(yaml.safe_dump(config))
    monkeypatch.setattr(sys, "argv", ["llamafactory", str(path)])
    llamafactory.main()
    return made[0]


def rows_of(host):
    return [(row["input_ids"], row["labels"]) for row in host.train_dataset]


@pytest.mark.shows(HOST, "loss", "objective", "accumulation")
@pytest.mark.parametrize(("loss", "level"), [("", "token"), ("focal:gamma=1+", "token"), ("", "sequence")])
def test_the_step_is_that_of_a_loop_by_hand(loss, level, config, tmp_path, monkeypatch):
    config["reweigh"] = {"method": f"{loss}rgd:tau={TAU:g}", "level": level}
    host = trained(config, tmp_path, monkeypatch)
    expected = step_by_hand(tmp_path / "model", rows_of(host), rgd, level=level, focal=bool(loss))
    assert (parameters(host.model) - expected).abs().max() < 1e-6
    plain = step_by_hand(tmp_path / "model", rows_of(host), lambda losses: losses * 0 + 1, level=level)
    assert (plain - expected).abs().max() > 1e-3
    log = next(log for log in host.state.log_history if "plain_loss" in log)
    assert log["weight_mean"] > 1


@pytest.mark.shows(HOST, "packing")
def test_packed_sequences_are_weighed_on_their_own(config, tmp_path, monkeypatch):
    """Their `neat_packing`: attention and weights keep to each sequence."""
    config |= {"reweigh": {"method": f"rgd:tau={TAU:g}", "level": "sequence"}, "packing": True, "neat_packing": True}
    host = trained(config | {"per_device_train_batch_size": 1, "gradient_accumulation_steps": 1}, tmp_path, monkeypatch)
    packed = host.train_dataset[0]
    rows, start = [], 0
    numbers = packed["attention_mask"]
    while start < len(numbers) and numbers[start] > 0:
        end = start + numbers[start:].count(numbers[start])
        rows.append((packed["input_ids"][start:end], packed["labels"][start:end]))
        start = end
    assert len(rows) > 1
    expected = step_by_hand(tmp_path / "model", rows, rgd, level="sequence")
    assert (parameters(host.model) - expected).abs().max() < 1e-6


def test_what_is_wrong_is_told(config, tmp_path, monkeypatch):
    with pytest.raises(ValueError, match="has a loss function already"):
        trained(config | {"use_dft_loss": True}, tmp_path, monkeypatch)
    with pytest.raises(ValueError, match="only the stages sft and pt"):
        trained(config | {"stage": "rm"}, tmp_path, monkeypatch)
    with pytest.raises(ValueError, match="'tau' among them"):
        trained(config | {"reweigh": {"method": "rgd", "tau": 3}}, tmp_path, monkeypatch)
    del config["reweigh"]
    with pytest.raises(SystemExit, match="with a block `reweigh`"):
        trained(config, tmp_path, monkeypatch)
