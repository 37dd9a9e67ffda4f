"""skorch: handwritten digits, the clip level chosen by a grid search; the lines that changed are marked.

python examples/skorch_digits.py
"""

from __future__ import annotations

import os

os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")  # some machines advertise what they cannot execute

import numpy as np
import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import GridSearchCV, train_test_split
from skorch import NeuralNetClassifier
from torch import nn

from reweigh.integrations.skorch import ReweightedCrossEntropy, WeightLog


class Net(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


def main() -> None:
    torch.manual_seed(0)
    data = load_digits()
    x, y = (data.data / 16).astype(np.float32), data.target
    x, x_test, y, y_test = train_test_split(x, y, test_size=0.25, random_state=0, stratify=y)
    net = NeuralNetClassifier(
        Net,
        criterion=ReweightedCrossEntropy,  # <- was nn.CrossEntropyLoss
        criterion__tau=1.0,  # <- new
        callbacks=[WeightLog()],  # <- new, and optional
        optimizer=torch.optim.Adam,
        lr=3e-3,
        max_epochs=8,
        batch_size=64,
        train_split=None,
        verbose=0,
    )
    search = GridSearchCV(net, {"criterion__tau": [0.5, 2.0]}, cv=2, scoring="neg_log_loss").fit(x, y)
    print(f"tau {search.best_params_['criterion__tau']}")
    print(f"accuracy {np.mean(search.predict(x_test) == y_test):.3f}")
    last = search.best_estimator_.history[-1]
    print(f"last epoch: plain loss {last['plain_loss']:.3f}, clipped {last['clip_share']:.1%}")


if __name__ == "__main__":
    main()
