"""Re-weighting with automatic mixed precision: bf16, and fp16 with a gradient scaler.

    python examples/amp.py

Losses come out of autocast in float32 and weights are computed there, so mixed precision costs re-weighting nothing.
The weight is a constant factor below e, which a gradient scaler undoes along with its own. Prints how far the
gradients are from float32, with re-weighting and without.
"""

from __future__ import annotations

import os

# Some processors advertise bf16 instructions that they cannot execute.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

from collections.abc import Callable

import torch
from torch import Tensor, nn

from reweigh.torch import Reweighted


def gradient(criterion: Callable[[Tensor, Tensor], Tensor], dtype: torch.dtype) -> Tensor:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    x, y = torch.randn(256, 64), torch.randint(10, (256,))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", enabled=dtype == torch.float16)
    with torch.autocast("cpu", dtype=dtype, enabled=dtype != torch.float32):
        loss = criterion(model(x), y)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    flat = torch.cat([parameter.grad.flatten() for parameter in model.parameters()])
    scaler.step(optimizer)
    scaler.update()
    return flat


def main() -> None:
    torch.set_num_threads(1)
    criteria = {"plain": nn.CrossEntropyLoss(), "re-weighted": Reweighted(nn.CrossEntropyLoss(), tau=5.0)}
    for dtype, name in ((torch.bfloat16, "bf16"), (torch.float16, "fp16 with GradScaler")):
        errors = []
        for kind, criterion in criteria.items():
            exact = gradient(criterion, torch.float32)
            error = float((gradient(criterion, dtype) - exact).norm() / exact.norm())
            errors.append(f"{kind} {error:.1e}")
        weights = criteria["re-weighted"].weights
        print(f"{name}: relative gradient difference to float32 {', '.join(errors)}; weights in {weights.dtype}")


if __name__ == "__main__":
    main()
