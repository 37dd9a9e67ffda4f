"""Lightning: handwritten digits with a re-weighted criterion; the two lines are marked.

python examples/lightning_digits.py
"""

from __future__ import annotations

import logging
import os
import warnings

os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")  # some machines advertise what they cannot execute

import torch
from lightning.pytorch import LightningModule, Trainer, seed_everything
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split

from reweigh.integrations.lightning import WeightLog
from reweigh.torch import Reweighted


class Digits(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
        self.loss = Reweighted(nn.CrossEntropyLoss(), tau=1.0)  # <- was nn.CrossEntropyLoss()

    def training_step(self, batch):
        x, y = batch
        return self.loss(self.net(x), y)

    def validation_step(self, batch):
        x, y = batch
        output = self.net(x)
        self.log_dict({"val_loss": self.loss(output, y), "val_acc": (output.argmax(1) == y).float().mean()})

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=3e-3)


def main() -> None:
    warnings.filterwarnings("ignore", ".*(many workers|does not have).*")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    seed_everything(0, verbose=False)
    data = load_digits()
    x, y = torch.tensor(data.data, dtype=torch.float32) / 16, torch.tensor(data.target)
    train, valid = random_split(TensorDataset(x, y), [1400, len(x) - 1400])
    weights = WeightLog()
    trainer = Trainer(
        max_epochs=8,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[weights],  # <- new, and optional
    )
    trainer.fit(Digits(), DataLoader(train, 64, shuffle=True), DataLoader(valid, 512))
    print(f"plain validation loss {trainer.callback_metrics['val_loss']:.3f}")
    print(f"accuracy {trainer.callback_metrics['val_acc']:.3f}")
    print(weights.monitors["loss"])


if __name__ == "__main__":
    main()
