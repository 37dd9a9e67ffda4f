"""ms-swift with a loss that a plug-in file registers: the step of a loop by hand, from the example's own files."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("swift", reason="make test-llm-hosts has an environment for it")

import torch
import torch.nn.functional as F
import yaml
from swift.arguments import SftArguments
from swift.loss import loss_map
from swift.pipelines import sft_main
from tiny import RATE, TAU, conversations, parameters, rgd, save_model, save_rows, step_by_hand
from transformers.modeling_outputs import CausalLMOutputWithPast

from reweigh.integrations import swift as adapter
from reweigh.integrations import transformers as own

HOST = "ms-swift"
EXAMPLES = Path(__file__).parents[2] / "examples" / "llm_hosts"


@pytest.fixture
def config(tmp_path):
    """The example with a tiny model, its own rows and one step of SGD in four micro-batches."""
    plugin = (EXAMPLES / "swift_plugin.py").read_text().replace("rgd:tau=3", f"rgd:tau={TAU:g}")
    (tmp_path / "swift_plugin.py").write_text(plugin)
    return yaml.safe_load((EXAMPLES / "swift.yaml").read_text()) | {
        "external_plugins": [str(tmp_path / "swift_plugin.py")],
        "model": str(save_model(tmp_path / "model")),
        "model_type": "llama", "template": "default", "tuner_type": "full",
        "dataset": [str(save_rows(tmp_path / "rows.jsonl", conversations()))],
        "split_dataset_ratio": 0, "max_length": 64, "torch_dtype": "float32", "dataset_num_proc": 1,
        "per_device_train_batch_size": 2, "gradient_accumulation_steps": 4, "max_steps": 1, "logging_steps": 1,
        "optim": "sgd", "learning_rate": RATE, "lr_scheduler_type": "constant", "warmup_ratio": 0.0,
        "max_grad_norm": 0.0, "weight_decay": 0.0, "output_dir": str(tmp_path / "out"), "save_strategy": "no",
        "gradient_checkpointing": False, "use_cpu": True, "dataloader_num_workers": 0,
        "load_from_cache_file": False,
    }  # fmt: skip


def trained(config, monkeypatch):
    """The trainer that ms-swift makes of a configuration, after its training."""
    made = []
    follow = own.follow_and_log
    monkeypatch.setattr(adapter, "follow_and_log", lambda trainer, loss: made.append(trainer) or follow(trainer, loss))
    arguments = []
    for name, value in config.items():
        values = value if isinstance(value, list) else [value]
        arguments += [f"--{name}", *(json.dumps(one) if isinstance(one, bool) else str(one) for one in values)]
    sft_main(arguments)
    return made[0]


def rows_of(host):
    rows = [host.train_dataset[i] for i in range(len(host.train_dataset))]
    return [(list(row["input_ids"]), list(row["labels"])) for row in rows]


@pytest.mark.shows(HOST, "loss", "objective", "accumulation")
@pytest.mark.parametrize("loss", ["", "focal:gamma=1+"])
def test_the_step_is_that_of_a_loop_by_hand(loss, config, tmp_path, monkeypatch):
    plugin = tmp_path / "swift_plugin.py"
    plugin.write_text(plugin.read_text().replace('"rgd:', f'"{loss}rgd:'))
    host = trained(config, monkeypatch)
    expected = step_by_hand(tmp_path / "model", rows_of(host), rgd, focal=bool(loss))
    assert (parameters(host.model) - expected).abs().max() < 1e-6
    plain = step_by_hand(tmp_path / "model", rows_of(host), torch.ones_like)
    assert (plain - expected).abs().max() > 1e-3
    log = next(log for log in host.state.log_history if "plain_loss" in log)
    assert log["weight_mean"] > 1


@pytest.mark.shows(HOST, "packing")
@pytest.mark.parametrize("options", [{}, {"padding_free": True}])
def test_one_weight_per_sequence(options, config, tmp_path, monkeypatch):
    """Also where all sequences of a batch are joined into one row, for which ms-swift wants a GPU's attention."""
    monkeypatch.setattr(SftArguments, "_check_padding_free", lambda self: None)
    (tmp_path / "swift_plugin.py").write_text(
        "from reweigh.integrations.swift import register\n"
        f'register("rgd:tau={TAU:g}", level="sequence", name="by_sequence")\n'
    )
    host = trained(config | options | {"loss_type": "by_sequence"}, monkeypatch)
    expected = step_by_hand(tmp_path / "model", rows_of(host), rgd, level="sequence")
    assert (parameters(host.model) - expected).abs().max() < 1e-6


@pytest.mark.shows(HOST, "token weight")
def test_the_hosts_own_weights_multiply():
    """`loss_scale`, which ms-swift hands to a loss at the positions that predict, flattened."""
    adapter.register(f"rgd:tau={TAU:g}", name="scaled")
    trainer = SimpleNamespace(template=SimpleNamespace(sequence_parallel_size=1), train=None)
    function = loss_map["scaled"](SimpleNamespace(), trainer)
    torch.manual_seed(0)
    logits, labels = torch.randn(2, 5, 7, requires_grad=True), torch.randint(7, (2, 5))
    labels[0, :2] = -100
    scale = torch.rand(2, 5)
    outputs = CausalLMOutputWithPast(logits=logits)
    value = function(outputs, labels, num_items_in_batch=4, loss_scale=scale.flatten(), trainer=trainer)
    losses = F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), reduction="none")
    expected = (rgd(losses.detach()) * scale[:, :-1].flatten() * losses).sum() / 4
    torch.testing.assert_close(value, expected)
    with torch.no_grad():
        torch.testing.assert_close(function(outputs, labels, num_items_in_batch=7), losses.sum() / 7)
    trainer.template.sequence_parallel_size = 2
    with pytest.raises(ValueError, match="sequence parallelism"):
        loss_map["scaled"](SimpleNamespace(), trainer)
