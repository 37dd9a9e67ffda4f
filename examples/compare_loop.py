"""Does re-weighting help in your own PyTorch loop? Take the criterion from `run`, report scores, compare.

python examples/compare_loop.py
"""

from __future__ import annotations

import torch
from sklearn.datasets import load_digits
from torch import nn

import reweigh


def train(run):
    data = load_digits()
    x, y = torch.tensor(data.data, dtype=torch.float32) / 16, torch.tensor(data.target)
    torch.manual_seed(run.seed)  # <- everything random follows the run
    order = torch.randperm(len(y))
    training, validation, test = order[:900], order[900:1200], order[1200:]
    model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2 * run.lr_factor)  # <- tuned for every method alike
    counts = torch.bincount(y[training], minlength=10).tolist()
    criterion = run.criterion(nn.CrossEntropyLoss(), class_counts=counts)  # <- re-weighted or plain, as the run says
    for _ in range(10):
        for batch in training[torch.randperm(900)].split(50):
            optimizer.zero_grad()
            criterion(model(x[batch]), y[batch]).backward()
            optimizer.step()
        right = (model(x).argmax(1) == y).float()
        yield {"val/accuracy": right[validation].mean(), "test/accuracy": right[test].mean()}


if __name__ == "__main__":
    result = reweigh.compare(
        train, methods=["rgd", "logit_adjusted"], metric="test/accuracy", select="val/accuracy", out="out/compare_loop"
    )
    print(result.verdict)
    print("report:", result.page)
