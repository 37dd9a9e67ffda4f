"""Does re-weighting help in your Lightning module? Its criterion comes from `run`, and so does a logging callback.

python examples/compare_lightning.py
"""

from __future__ import annotations

import logging
import warnings

import torch
from lightning.pytorch import LightningModule, Trainer, seed_everything
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split

import reweigh

EPOCHS = 5


class Digits(LightningModule):
    def __init__(self, criterion: nn.Module, lr: float) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
        self.criterion, self.lr = criterion, lr

    def training_step(self, batch):
        return self.criterion(self.net(batch[0]), batch[1])

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=self.lr)


def train(run):
    warnings.filterwarnings("ignore", ".*(many workers|does not have).*")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    seed_everything(run.seed, verbose=False)
    data = load_digits()
    rows = TensorDataset(torch.tensor(data.data, dtype=torch.float32) / 16, torch.tensor(data.target))
    training, validation, test = random_split(rows, [900, 300, len(rows) - 1200])
    module = Digits(run.criterion(nn.CrossEntropyLoss()), lr=3e-3 * run.lr_factor)  # <- the run's criterion and rate
    trainer = Trainer(
        max_epochs=EPOCHS,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[run.lightning()],
    )
    trainer.fit(module, DataLoader(training, 64, shuffle=True))

    def accuracy(part):
        x, y = next(iter(DataLoader(part, len(part))))
        with torch.no_grad():
            return (module.net(x).argmax(1) == y).float().mean().item()

    return {"val/accuracy": accuracy(validation), "test/accuracy": accuracy(test)}


if __name__ == "__main__":
    result = reweigh.compare(train, metric="test/accuracy", select="val/accuracy", tune=3, out="out/compare_lightning")
    print(result.verdict)
    print("report:", result.page)
