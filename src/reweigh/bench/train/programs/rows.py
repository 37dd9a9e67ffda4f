"""Self-supervision: a network learns from rows without labels, re-weighting them by their own losses."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from reweigh.bench.draws.seeds import Seeds
from reweigh.bench.train import device as devices
from reweigh.bench.train.driver import Driver, Program, StepOutput
from reweigh.bench.train.objective import LiveObjective
from reweigh.bench.train.records import Record
from reweigh.objectives import Objective

#: Rows that are encoded at a time.
CHUNK = 256


class RowNetwork(nn.Module, ABC):
    """A network that learns from rows without labels, and then encodes them."""

    @abstractmethod
    def losses(self, x: Tensor, draw: torch.Generator, epoch: int, step: int) -> Tensor:
        """One loss per row, `(rows,)`, with its gradient.

        Parameters
        ----------
        x
            Some rows, `(rows, columns)`.
        draw
            The only source of randomness besides dropout; in the processor's memory, so that all devices draw alike.
        epoch, step
            Counted from zero; steps within the epoch.
        """

    @abstractmethod
    def encode(self, x: Tensor) -> Tensor:
        """The features of some rows, `(rows, features)`."""


class RowTraining(Program):
    """A network trained by Adam on unlabelled rows.

    Parameters
    ----------
    network, rows
        The network with its initial parameters, and all rows.
    objective
        What turns the losses of a batch into the number to descend.
    lr, epochs, batch_size
        Sizes of a step and of the whole.
    seeds
        Streams for order and noise; dropout draws from torch's global generator.
    device
        Where to train; the process's own device unless given.
    """

    def __init__(
        self,
        network: RowNetwork,
        rows: Tensor,
        *,
        objective: Objective,
        lr: float,
        epochs: int,
        batch_size: int,
        seeds: Seeds,
        device: torch.device | None = None,
    ) -> None:
        self.device = devices.current() if device is None else device
        self.batch_size, self.seeds = batch_size, seeds
        self.module = self.network = network.to(self.device)
        self.rows = devices.DeviceRows(rows, self.device)
        self.every = steps_of(len(rows), batch_size)
        self.steps = self.every * epochs
        self.objectives = (LiveObjective(objective),)
        self.optimizer = torch.optim.Adam(network.parameters(), lr=lr)
        self.order, self.noise = seeds.torch("order"), seeds.torch("noise")
        self.clip_shares: list[Tensor] = []
        self._total = torch.zeros((), device=self.device)
        self._batches: Iterator[Tensor] = iter(())

    def epoch(self, number: int) -> AbstractContextManager[Any]:
        """All rows in a new order."""
        self._batches = batches(len(self.rows), self.batch_size, self.order)
        self._total = torch.zeros_like(self._total)
        return nullcontext()

    def step(self, step: int) -> StepOutput:
        """One step on the next rows."""
        (live,) = self.objectives
        losses = self.network.losses(self.rows[next(self._batches)], self.noise, *divmod(step, self.every))
        self.optimizer.zero_grad(set_to_none=True)
        live(losses).backward()
        self.optimizer.step()
        losses, level = losses.detach(), live.objective.clip_level
        self._total = self._total + losses.sum()
        clipped = torch.zeros_like(losses) if level is None else (losses >= level).float()
        self.clip_shares.append(clipped.mean())
        return StepOutput(losses, torch.ones_like(losses) if live.weights is None else live.weights)

    def evaluate(self, *, last: bool) -> Record:
        """The plain loss of the epoch, summed batch by batch."""
        return {"train/loss": float(self._total / len(self.rows))}

    def state(self) -> dict[str, Any]:
        """Network, optimiser and random streams."""
        return {
            "network": self.network.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "order": self.order.get_state(),
            "noise": self.noise.get_state(),
            "dropout": torch.get_rng_state(),
            "clip_shares": self.clip_shares,
        }

    def load(self, state: dict[str, Any]) -> None:
        """Resume."""
        self.network.load_state_dict(state["network"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.order.set_state(state["order"])
        self.noise.set_state(state["noise"])
        torch.set_rng_state(state["dropout"])
        self.clip_shares = devices.moved(state["clip_shares"], self.device)


class Pretraining(NamedTuple):
    """What a pre-training was like: plain loss of each epoch; mean weight and clipped share of each step."""

    losses: list[float]
    mean_weights: list[float]
    clip_shares: list[float]


def pretrain(program: RowTraining, scale: Any = None) -> Pretraining:
    """Train to the end, in one go; torch's global generator is left as it was.

    `scale` is a factor on the loss of every step, for the scale control.
    """
    driver, losses = Driver(program, scale), list[float]()
    with program.seeds.ambient("dropout"):
        while not driver.over:
            losses.append(driver.run_epoch()["train/loss"])
    shares = torch.stack(program.clip_shares).tolist() if program.clip_shares else []
    return Pretraining(losses, driver.mean_weights, shares)


def batches(rows: int, size: int, order: torch.Generator) -> Iterator[Tensor]:
    """All rows in a new order, so many at a time; a single last row joins those before it.

    A row on its own has no other row to be told apart from, and no variance to be normalised by.
    """
    parts = list(torch.randperm(rows, generator=order).split(size))
    if len(parts) > 1 and len(parts[-1]) == 1:
        parts[-2:] = [torch.cat(parts[-2:])]
    yield from parts


def steps_of(rows: int, size: int) -> int:
    """How many batches `batches` makes."""
    parts = -(-rows // size)
    return parts - (parts > 1 and rows - (parts - 1) * size == 1)


@torch.no_grad()
def encode(network: RowNetwork, rows: Tensor, device: torch.device) -> Tensor:
    """The features of all rows in single precision, computed on a device some at a time, in the processor's memory.

    They are computed in double precision, where the device has it, and rounded once. Single-precision kernels round
    differently from one processor, batch size and place in the batch to the next, and a row's features must not depend
    on its neighbours.
    """
    exact = devices.widest(device)
    there = copy.deepcopy(network).eval().to(device, exact)
    return torch.cat(
        [there.encode(part.to(exact)).float().cpu() for part in devices.DeviceRows(rows, device).split(CHUNK)]
    )
