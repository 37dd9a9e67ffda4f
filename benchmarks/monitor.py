"""What watching costs: training steps of a small CNN with `monitor.update` in each, against the same without.

    python benchmarks/monitor.py [--quick] [--out benchmarks/results/monitor.json]

Blocks of steps with and without the monitor take turns within one run, on one thread and in processor time, so that a
busy machine disturbs little and both alike. A block is as long as the monitor's interval, so each holds exactly one
look at the values. The median of the turns' differences is reported, and, since that is small against the noise of a
busy machine, the cost of the monitor alone.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

# bf16 matrix products kill the process on machines that advertise AMX but cannot execute it.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

import torch
from torch import nn

import reweigh
from reweigh.integrations.logging import CSVWriter
from reweigh.torch import Reweighted

BATCH, EVERY = 64, 50


def network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * 7 * 7, 10),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few turns: checks that it runs, not how fast")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "monitor.json")
    options = parser.parse_args()
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(BATCH, 1, 28, 28, generator=generator)
    y = torch.randint(0, 10, (BATCH,), generator=generator)
    net, criterion = network(), Reweighted(nn.CrossEntropyLoss(), tau=1.0)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    folder = Path(tempfile.mkdtemp())
    monitor = reweigh.Monitor(tau=1.0, every=EVERY, on_stats=CSVWriter(folder / "weights.csv"))

    def block(watched: bool) -> float:
        """Processor seconds per step."""
        start = time.process_time()
        for _ in range(EVERY):
            optimizer.zero_grad(set_to_none=True)
            criterion(net(x), y).backward()
            optimizer.step()
            if watched:
                monitor.update(criterion.losses, criterion.weights)
        return (time.process_time() - start) / EVERY

    def watching() -> float:
        """Processor seconds of the watching alone, on the last step's values."""
        start = time.process_time()
        for _ in range(EVERY):
            monitor.update(criterion.losses, criterion.weights)
        return (time.process_time() - start) / EVERY

    block(True), block(False)  # warm
    without, with_monitor, alone = [], [], []
    for turn in range(4 if options.quick else 24):
        for watched in (False, True) if turn % 2 else (True, False):
            (with_monitor if watched else without).append(block(watched))
        alone.append(watching())
    step = statistics.median(without)
    difference = statistics.median(w - p for w, p in zip(with_monitor, without, strict=True))
    cost = statistics.median(alone)
    result = {
        "step_microseconds": step * 1e6,
        "difference_microseconds": difference * 1e6,
        "difference_share": difference / step,
        "update_microseconds": cost * 1e6,
        "update_share": cost / step,
        "batch": BATCH,
        "every": EVERY,
        "torch": torch.__version__,
        "machine": platform.processor() or platform.machine(),
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    print(f"step of a small CNN, batch {BATCH}: {step * 1e6:.0f} µs")
    print(f"with the monitor, in turns:   {difference * 1e6:+.0f} µs per step, {difference / step:+.2%}")
    print(
        f"the monitor alone:            {cost * 1e6:.0f} µs per step, {cost / step:.2%}, looking every {EVERY} included"
    )


if __name__ == "__main__":
    main()
