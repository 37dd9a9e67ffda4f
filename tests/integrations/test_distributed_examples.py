"""The example scripts run, and print the proof they promise."""

from __future__ import annotations

import csv
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import children
import pytest
import torch

ROOT = Path(__file__).parent.parent.parent
EXAMPLES = ROOT / "examples"


def run(script: str, *options: str, ranks: int = 0) -> str:
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"] if ranks else []

    def launch() -> subprocess.CompletedProcess[str]:
        return children.run(
            [sys.executable, *launcher, EXAMPLES / script, *options],
            seconds=100,
            env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"},
        )

    try:
        done = launch()
    except subprocess.TimeoutExpired:
        # Threads of a process group now and then keep a finished interpreter from ending: that is not ours to test.
        done = launch()
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def numbers(text: str) -> list[float]:
    return [float(number) for number in re.findall(r"\d\.\de[+-]\d\d", text)]


@pytest.mark.processes
@pytest.mark.parametrize("script", ["ddp.py", "fsdp.py", "accelerate_loop.py"])
def test_two_processes_are_one(script):
    printed = run(script, ranks=2)
    assert "2 ranks" in printed
    (difference,) = numbers(printed)
    assert difference < 1e-6


@pytest.mark.processes
def test_four_devices_are_one_inside_shard_map(monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "--xla_force_host_platform_device_count=4")
    lines = run("jax_shard_map.py").splitlines()
    assert [line.split(":")[0] for line in lines] == [
        f"{name}, 4 devices, check_vma={check}" for name in ("RGD", "TERMEma") for check in (True, False)
    ]
    assert all(difference < 1e-6 for difference in numbers("\n".join(lines)))


def test_compiled_step_is_the_eager_one(capsys):
    program = runpy.run_path(str(EXAMPLES / "compile.py"), run_name="compile")
    program["main"](["--backend", "aot_eager"])
    (difference,) = numbers(capsys.readouterr().out)
    assert difference < 1e-6


def test_mixed_precision(capsys):
    """Re-weighting is as exact as plain training is, in each precision, and its weights are in float32."""
    runpy.run_path(str(EXAMPLES / "amp.py"), run_name="__main__")
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in lines] == ["bf16", "fp16 with GradScaler"]
    for line, resolution in zip(lines, (2.0**-8, 2.0**-11), strict=True):
        plain, reweighted = numbers(line)
        assert 0 < reweighted < min(1.2 * plain, 20 * resolution)
        assert "torch.float32" in line


@pytest.fixture(scope="module")
def image():
    return runpy.run_path(str(EXAMPLES / "image_loop.py"), run_name="image_loop")


@pytest.mark.parametrize("options", [[], ["--tau", "1.0"]], ids=["plain", "re-weighted"])
def test_image_loop_learns(image, options, capsys):
    image["main"](["--epochs", "4", "--warmup-epochs", "1", "--width", "16", "--ema-decay", "0.8", *options])
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith("re-weighted" if options else "plain")
    assert float(last.rsplit(" ", 1)[1]) > 0.6  # chance is 0.1


def test_image_loop_has_the_schedule_and_the_mixing_it_says(image):
    factor = image["warmup_then_cosine"](4, 12)
    assert [factor(step) for step in (0, 1, 3)] == [0.25, 0.5, 1.0]
    assert factor(8) == pytest.approx(0.5)
    assert factor(12) == pytest.approx(0.0)
    images, targets = image["Mixup"](0.5, 3, seed=0)(torch.arange(4.0).reshape(4, 1), torch.tensor([0, 1, 2, 0]))
    share = float(targets[1, 1])
    assert 0 < share < 1
    torch.testing.assert_close(targets.sum(1), torch.ones(4))
    torch.testing.assert_close(images[1], torch.tensor([share * 1 + (1 - share) * 2]))


@pytest.mark.parametrize("method", [["--tau", "2.0"], ["--method", "class_balanced+rgd:tau=3"]])
def test_text_classification_learns_from_a_file(method, tmp_path, capsys):
    """The whole program on a small file, re-weighted: three topics that one word gives away."""
    program = runpy.run_path(str(EXAMPLES / "huggingface_classification.py"), run_name="huggingface_classification")
    topics = {"sea": "waves", "air": "wings", "land": "roots"}
    with (tmp_path / "texts.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["text", "label"])
        for i in range(120):
            topic = list(topics)[i % 3]
            writer.writerow([f"it has {topics[topic]} and number {i // 3}", topic])
    arguments = ["--csv", str(tmp_path / "texts.csv"), "--epochs", "6", "--batch-size", "16", "--hidden-size", "32"]
    arguments += ["--logging-steps", "3", "--learning-rate", "5e-3", "--out", str(tmp_path), *method]
    program["main"](arguments)
    printed = capsys.readouterr().out
    assert "'clip_share'" in printed
    assert float(re.findall(r"accuracy (\d\.\d+), balanced", printed)[0]) > 0.9


def test_text_classification_has_texts_of_its_own():
    program = runpy.run_path(str(EXAMPLES / "huggingface_classification.py"), run_name="huggingface_classification")
    texts = program["read_documentation"]()
    assert len(texts) > 1000
    assert {label for _, label in texts} == set(program["PACKAGES"])
    train, evaluation = program["split"](texts, 0)
    assert not {text for text, _ in train} & {text for text, _ in evaluation}
