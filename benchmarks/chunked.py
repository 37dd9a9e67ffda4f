"""A loss without the logits: memory and time of `chunked_cross_entropy` against the plain computation and torch's own.

    python benchmarks/chunked.py [--quick] [--threads 1] [--out benchmarks/results/chunked.json]

Forward and backward of a linear layer, cross entropy and RGD for 4096 tokens of width 512. Memory is the peak of the
resident set above what inputs take, gradients included, each form in a process of its own. Time is processor time of
all forms in turns within one process, the least of the turns. Read the ratios, not the seconds.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

# bf16 matrix products kill the process on machines that advertise AMX but cannot execute it.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

import torch
import torch.nn.functional as F
from _timing import Call, console, table, write
from torch import Tensor, nn

import reweigh
from reweigh.torch import chunked_cross_entropy

TOKENS, WIDTH, CLASSES = 4096, 512, (32_000, 64_000, 128_000)
PLAIN = "F.linear + F.cross_entropy + RGD"


def plain(hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    return reweigh.rgd(F.cross_entropy(F.linear(hidden, weight), targets, reduction="none"), tau=1.0)


def of_torch(hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    losses = F.linear_cross_entropy(hidden, weight, targets, reduction="none", options=nn.LinearCrossEntropyOptions())
    return reweigh.rgd(losses, tau=1.0)


def of_torch_unweighted(hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    return F.linear_cross_entropy(hidden, weight, targets, options=nn.LinearCrossEntropyOptions())


FORMS: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    PLAIN: plain,
    "chunked, RGD": lambda h, w, y: chunked_cross_entropy(h, w, y, reweigh.RGD(tau=1.0)),
    "chunked, TERM (two passes)": lambda h, w, y: chunked_cross_entropy(
        h, w, y, reweigh.method("term:t=0.5").objective
    ),
    "chunked, TERM, frozen head": lambda h, w, y: chunked_cross_entropy(
        h, w.detach(), y, reweigh.method("term:t=0.5").objective
    ),
    "chunked, entropy": lambda h, w, y: chunked_cross_entropy(h, w, y, reweigh.method("entropy").objective),
    "chunked, RGD, packed sequences": lambda h, w, y: chunked_cross_entropy(
        h, w, y, reweigh.RGD(tau=1.0), level="sequence", segments=torch.arange(len(y)) // 100
    ),
    "chunked, RGD, soft cap": lambda h, w, y: chunked_cross_entropy(h, w, y, reweigh.RGD(tau=1.0), softcap=30.0),
    "torch F.linear_cross_entropy + RGD": of_torch,
    "torch F.linear_cross_entropy, no weights": of_torch_unweighted,
}


def inputs(classes: int) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(TOKENS, WIDTH, generator=generator).requires_grad_()
    weight = (torch.randn(classes, WIDTH, generator=generator) * 0.02).requires_grad_()
    return hidden, weight, torch.randint(classes, (TOKENS,), generator=generator)


def step(form: str, given: tuple[Tensor, Tensor, Tensor]) -> None:
    for tensor in given[:2]:
        tensor.grad = None
    FORMS[form](*given).backward()


def in_turns(calls: Mapping[str, Call], turns: int) -> dict[str, float]:
    """The fewest seconds of processor time of each call over the turns; a first one, which is not counted, warms up.

    A call takes seconds, so that a busy machine disturbs all of them alike and one turn says nearly as much as ten.
    """
    found: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(turns + 1):
        for name, call in calls.items():
            start = time.process_time()
            call()
            if turn:
                found[name].append(time.process_time() - start)
    return {name: min(values) for name, values in found.items()}


def peak(form: str, classes: int) -> float:
    """MiB above what the inputs take, in this process, which must be fresh."""
    small = inputs(64)
    step(form, small)  # what a first call loads is not the loss's
    given = inputs(classes)
    Path("/proc/self/clear_refs").write_text("5")  # the peak so far is forgotten
    before = resident("VmRSS")
    step(form, given)
    return (resident("VmHWM") - before) / 1024


def resident(name: str) -> int:
    """Kilobytes of the resident set now (`VmRSS`) or at its peak (`VmHWM`)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(name)).split()[1])


def measure_peak(form: str, classes: int, threads: int) -> float:
    """The peak of a form in a process of its own."""
    command = [sys.executable, __file__, "--peak", form, "--classes", str(classes), "--threads", str(threads)]
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one small vocabulary, few turns: checks that it runs")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "chunked.json")
    parser.add_argument("--peak", choices=FORMS, help=argparse.SUPPRESS)
    parser.add_argument("--classes", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.peak:
        print(peak(options.peak, options.classes))
        return
    results: list[dict[str, object]] = []
    for classes in (8000,) if options.quick else CLASSES:
        memory = {form: measure_peak(form, classes, options.threads) for form in FORMS}
        given = inputs(classes)
        calls = {form: (lambda form=form, given=given: step(form, given)) for form in FORMS}
        seconds = in_turns(calls, 1 if options.quick else options.turns)
        results.append({"classes": classes, "mebibytes": memory, "seconds": seconds})
        rows = [
            [form, f"{memory[form]:.0f}", f"{memory[form] / memory[PLAIN]:.3f}", f"{seconds[form]:.2f}",
             f"{seconds[form] / seconds[PLAIN]:.2f}"]
            for form in FORMS
        ]  # fmt: skip
        title = f"{TOKENS} tokens of width {WIDTH}, {classes} classes, {options.threads} thread(s)"
        console().print(table(title, ("form", "peak MiB", "of plain", "seconds", "of plain"), rows))
        content = {"tokens": TOKENS, "width": WIDTH, "threads": options.threads, "results": results}
        write(options.out, ("torch",), content)


if __name__ == "__main__":
    main()
