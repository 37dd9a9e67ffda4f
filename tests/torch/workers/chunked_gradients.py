"""One rank of a data-parallel step whose loss is chunked: its gradients are those of the whole batch.

Run by `torchrun`. The reference is computed alone, in float64, from logits that are all there.
"""

from __future__ import annotations

import os
import sys

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import reweigh
from reweigh.torch import chunked_cross_entropy, global_count

CLASSES, TOKENS, WIDTH = 9, 4, 6
T = 0.5


class Model(nn.Module):
    """A layer and the chunked loss behind it, in one forward, as data parallel wants it."""

    def __init__(self, text: str, level: str) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.body = nn.Linear(5, WIDTH).double()
        self.head = nn.Linear(WIDTH, CLASSES).double()
        self.objective, self.level = reweigh.method(text).objective, level

    def forward(self, x: Tensor, y: Tensor, count: Tensor | None = None) -> Tensor:
        hidden = torch.tanh(self.body(x))
        return chunked_cross_entropy(
            hidden, self.head.weight, y, self.objective, bias=self.head.bias, level=self.level, count=count, chunk=4
        )


def batch() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(8, TOKENS, 5, dtype=torch.float64, generator=generator)
    y = torch.randint(0, CLASSES, (8, TOKENS), generator=generator)
    y[1, 2] = y[6, 0] = y[7, 1] = -100  # ranks hold different numbers of real tokens
    return x, y


def alone(text: str, level: str) -> Tensor:
    """The gradient of the whole batch in one process, with the formulas written out."""
    x, y = batch()
    model = Model(text, level)
    logits = model.head(torch.tanh(model.body(x)))
    losses = F.cross_entropy(logits.flatten(0, 1), y.flatten(), reduction="none").view(y.shape)
    real = (y != -100).double()
    units = losses if level == "token" else (losses.sum(1) / real.sum(1)).unsqueeze(1)
    shares = real if level == "token" else real.sum(1, keepdim=True)
    if text == "rgd":
        weights = torch.exp(units.detach().clip(0, 1) / 2)
        loss = (weights * losses).sum() / real.sum()
    else:
        loss = torch.log((shares * torch.exp(T * units)).sum() / shares.sum()) / T
    loss.backward()
    return flat(model)


def flat(module: nn.Module) -> Tensor:
    found: list[Tensor] = []
    for parameter in module.parameters():
        gradient = parameter.grad
        assert gradient is not None
        found.append((gradient.full_tensor() if hasattr(gradient, "full_tensor") else gradient).reshape(-1))
    return torch.cat(found)


def main() -> None:
    dist.init_process_group("gloo")
    wrong: list[str] = []
    x, y = batch()
    mine = slice(0, 5) if dist.get_rank() == 0 else slice(5, None)
    for text in ("rgd", f"term:t={T}"):
        for level in ("token", "sequence"):
            # FSDP gives a module its parameters while its own forward runs, so the root must hold them all.
            for wrap in (DistributedDataParallel, fully_shard):
                model = wrap(Model(text, level))
                model(x[mine], y[mine], global_count((y[mine] != -100).sum())).backward()
                error = float((flat(model) - alone(text, level)).abs().max())
                if not error < 1e-12:
                    wrong.append(f"{text}, {level}, {wrap.__name__}: off by {error:.1e}")
    dist.barrier()
    dist.destroy_process_group()
    if wrong:
        sys.exit("\n".join(wrong))
    # Threads of the process group now and then keep a finished interpreter from ending.
    os._exit(0)


if __name__ == "__main__":
    main()
