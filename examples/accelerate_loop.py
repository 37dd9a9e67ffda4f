"""Re-weighting in an Accelerate loop, with gradient accumulation.

    accelerate launch --cpu --num_processes 2 examples/accelerate_loop.py

Accelerate averages over ranks and over micro-batches, so with micro-batches of one size the criterion needs no
change at all. Prints how far the parameters are from those of one process that sees whole batches.
"""

from __future__ import annotations

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from reweigh.torch import Reweighted

MICRO_BATCHES, STEPS, BATCH = 2, 3, 32


def make_model() -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 4))
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def main() -> None:
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=MICRO_BATCHES)
    torch.manual_seed(1)
    x, y = torch.randn(STEPS * BATCH, 8), torch.randint(4, (STEPS * BATCH,))
    criterion = Reweighted(nn.CrossEntropyLoss(), tau=3.0)  # was: nn.CrossEntropyLoss()

    size = BATCH // MICRO_BATCHES // accelerator.num_processes
    model, optimizer, loader = accelerator.prepare(*make_model(), DataLoader(TensorDataset(x, y), batch_size=size))
    for inputs, labels in loader:
        with accelerator.accumulate(model):
            accelerator.backward(criterion(model(inputs), labels))
            optimizer.step()
            optimizer.zero_grad()

    alone, optimizer_alone = make_model()
    for inputs, labels in zip(x.split(BATCH), y.split(BATCH), strict=True):
        optimizer_alone.zero_grad()
        criterion(alone(inputs), labels).backward()
        optimizer_alone.step()
    pairs = zip(model.parameters(), alone.parameters(), strict=True)
    difference = max(float((ours - whole).detach().abs().max()) for ours, whole in pairs)
    accelerator.print(
        f"Accelerate, {accelerator.num_processes} ranks, {MICRO_BATCHES} micro-batches: largest parameter difference "
        f"to one process {difference:.1e}"
    )
    accelerator.end_training()


if __name__ == "__main__":
    main()
