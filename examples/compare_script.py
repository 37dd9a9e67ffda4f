"""Does re-weighting help in a program of its own? It learns its method from the environment, and prints its scores.

reweigh compare --script "python examples/compare_script.py --seed {seed} --lr {lr}" --lr 0.2 \
    --metric test/accuracy --select val/accuracy

Started by hand, it is plain training.
"""

from __future__ import annotations

import argparse
import json

import torch
from sklearn.datasets import load_digits
from torch import nn

import reweigh

parser = argparse.ArgumentParser()
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--lr", type=float, default=0.2)
arguments = parser.parse_args()

run = reweigh.from_environment()  # <- which method this is a training of
data = load_digits()
x, y = torch.tensor(data.data, dtype=torch.float32) / 16, torch.tensor(data.target)
torch.manual_seed(arguments.seed)
order = torch.randperm(len(y))
model = nn.Linear(64, 10)
optimizer = torch.optim.SGD(model.parameters(), lr=arguments.lr)
criterion = run.criterion(nn.CrossEntropyLoss())  # <- re-weighted or plain
for _ in range(5):
    for batch in order[:900].split(50):
        optimizer.zero_grad()
        criterion(model(x[batch]), y[batch]).backward()
        optimizer.step()
    right = (model(x).argmax(1) == y).float()
    print(
        json.dumps(
            {"val/accuracy": right[order[900:1200]].mean().item(), "test/accuracy": right[order[1200:]].mean().item()}
        )
    )
