"""`--device`, `--precision`, `--compile`: refused in one sentence where they make no sense, else part of the plan."""

from __future__ import annotations

import dataclasses

import pytest
from rich.console import Console

from reweigh.bench.cli import devices
from reweigh.bench.cli.main import run_command
from reweigh.bench.lab import experiment
from reweigh.bench.lab import recipe as recipes
from reweigh.bench.lab.executors import ray as ray_executor
from reweigh.bench.train import device as placing


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("run", "sam", "--device", "gpu"),
            "`device` must be auto, cpu, or an accelerator such as cuda, cuda:1 or mps",
        ),
        (("run", "toy", "--precision", "bfloat16"), "recipe 'toy' does not use `--precision`. Leave it out."),
        (("run", "domains", "--compile"), "recipe 'domains' does not use `--compile`. Leave it out."),
        (("run", "sma", "--precision", "bfloat16"), "there is no recipe named 'sma'"),
        (("predict", "model", "rows.csv", "-o", "out.csv", "--device", "gpu"), "`device` must be auto, cpu, or"),
        (("compare", "--device", "gpu"), "`device` must be auto, cpu, or"),
    ],
)
def test_wrong_options_are_one_sentence(arguments, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run_command(arguments) == 2
    shown = capsys.readouterr().err
    assert message in shown
    assert len(shown.strip().splitlines()) == 1


def test_a_machine_without_accelerators(monkeypatch, capsys):
    import torch

    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)
    with pytest.raises(ValueError, match=r"device 'cuda:1' is not there: this machine has no accelerator\. Use auto"):
        devices.chosen("cuda:1", None, Console())
    assert devices.chosen("auto", "bfloat16", Console()) == "cpu"
    assert capsys.readouterr().out == "Device: cpu\n"


def test_precision_and_compilation_are_settings_of_a_run():
    def settings(*changes: tuple[str, str]) -> dict[str, object]:
        return dict(experiment.question("gpt", experiment.Options(preset="smoke", changes=changes)).settings)

    assert devices.settings("gpt", "bfloat16", True) == (("precision", "bfloat16"), ("compiled", "true"))
    changed = settings(*devices.settings("gpt", "bfloat16", True))
    assert (changed.pop("precision"), changed.pop("compiled")) == ("bfloat16", True)
    # A run that has what there was before there was a choice is the run it was.
    assert changed == settings()


def test_later_settings_count_where_they_are_changed():
    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Settings:
        lr: float = 0.1
        precision: str = dataclasses.field(default="float32", metadata=recipes.LATER)

    assert recipes.plain(Settings()) == {"lr": 0.1}
    assert recipes.plain(Settings(precision="float16")) == {"lr": 0.1, "precision": "float16"}


def test_ray_asks_for_gpus_where_there_are_some():
    assert ray_executor.placement("auto", 16, 2) == ("cuda", 2, {"num_cpus": 1, "num_gpus": 1})
    assert ray_executor.placement("cuda", 1, 4) == ("cuda", 1, {"num_cpus": 1, "num_gpus": 1})
    assert ray_executor.placement("cpu", 16, 2) == ("cpu", 16, {"num_cpus": 1})
    assert ray_executor.placement("auto", 16, 0) == ("cpu", 16, {"num_cpus": 1})
    with pytest.raises(ValueError, match=r"the Ray cluster has no GPU, got `--device cuda`"):
        ray_executor.placement("cuda", 16, 0)
    with pytest.raises(ValueError, match=r"must be auto, cpu or cuda here, got 'cuda:1'"):
        ray_executor.RayWorkers(1, device="cuda:1")


@pytest.mark.parametrize(
    ("name", "visible", "number", "expected"),
    [
        ("cuda", None, 3, "1"),
        ("cuda", "4,7", 1, "7"),
        ("cuda", "GPU-a,GPU-b", 2, "GPU-a"),
        ("cuda:1", "4,7", 0, "7"),
    ],
)
def test_a_process_sees_its_own_gpu_only(monkeypatch, name, visible, number, expected):
    import os

    used: list[str] = []
    monkeypatch.setattr(placing, "use", used.append)
    if visible is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    placing.use_one_of(name, 2, number)
    assert used == ["cuda:0"]
    assert os.environ["CUDA_VISIBLE_DEVICES"] == expected
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")  # what a test sets itself is not put back


def test_one_process_per_accelerator(monkeypatch):
    import reweigh.torch.devices

    monkeypatch.setattr(reweigh.torch.devices, "count", lambda: 4)
    assert devices.processes(None, "cuda") == 4
    assert devices.processes(None, "cuda:1") == 1
    assert devices.processes(6, "cuda") == 6
