"""Two ranks of Lightning's DDP take the steps of one process; run by torchrun with two processes."""

from __future__ import annotations

import os

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from reweigh.integrations.lightning import WeightLog
from reweigh.torch import Reweighted
from reweigh.torch.samplers import ClassUniform

GENERATOR = torch.Generator().manual_seed(0)
X = torch.randn(24, 4, generator=GENERATOR)
Y = torch.randint(0, 3, (24,), generator=GENERATOR)
START = torch.randn(3, 4, generator=GENERATOR)


class Classifier(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(4, 3, bias=False)
        self.net.weight.data = START.clone()
        self.loss = Reweighted(nn.CrossEntropyLoss(), tau=1.0)

    def training_step(self, batch):
        return self.loss(self.net(batch[0]), batch[1])

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.5)


def by_hand(batches=None) -> torch.Tensor:
    """Batches of eight on one process: the ranks' batches of four together."""
    weight = START.clone().requires_grad_()
    for rows in torch.arange(24).split(8) if batches is None else batches:
        x, y = X[rows], Y[rows]
        losses = nn.functional.cross_entropy(x @ weight.T, y, reduction="none")
        (gradient,) = torch.autograd.grad((torch.exp(losses.detach().clamp(0, 1) / 2) * losses).mean(), weight)
        weight = (weight - 0.5 * gradient).detach().requires_grad_()
    return weight


def trainer_with(log: WeightLog) -> Trainer:
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    return Trainer(
        max_epochs=1,
        accelerator="cpu",
        devices=2,
        strategy="ddp",
        use_distributed_sampler=False,  # Lightning's own would shuffle
        enable_model_summary=False,
        callbacks=[log],
        **quiet,
    )


def check_drawn_batches() -> None:
    """A sampler with weights of rows: the ranks' halves are the batches of one process."""
    options = {"targets": Y, "weight": torch.linspace(0.0, 2.0, 24)}
    model, drawn = Classifier(), ClassUniform().start(24, batch_size=4, **options)
    trainer_with(WeightLog()).fit(model, DataLoader(TensorDataset(X, Y), batch_sampler=drawn))
    alone = ClassUniform().start(24, batch_size=8, num_replicas=1, rank=0, **options)
    torch.testing.assert_close(model.net.weight, by_hand(alone), atol=1e-6, rtol=1e-6)


if __name__ == "__main__":
    torch.set_num_threads(1)
    data, log, model = TensorDataset(X, Y), WeightLog(every=3), Classifier()
    trainer = trainer_with(log)
    sampler = DistributedSampler(data, 2, int(os.environ["RANK"]), shuffle=False)
    trainer.fit(model, DataLoader(data, 4, sampler=sampler))
    torch.testing.assert_close(model.net.weight, by_hand(), atol=1e-6, rtol=1e-6)
    assert log.monitors["loss"].stats()["units"] == 12, "each rank watches its own half"
    check_drawn_batches()
    print(f"rank {trainer.global_rank} agrees", flush=True)
    torch.distributed.barrier()
    # Threads of the process group now and then keep a finished interpreter from ending.
    os._exit(0)
