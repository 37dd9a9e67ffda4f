"""Many meta-trainings of a small model as one program: parameters stacked, objectives and rates each one's own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap

from reweigh.bench.algorithms.meta._base import Episodes
from reweigh.bench.algorithms.meta._fit import Floats, Tasks, Watch, objective_of
from reweigh.bench.algorithms.meta.maml import MAML
from reweigh.bench.optimizers import Training
from reweigh.bench.runs import Record
from reweigh.bench.seeds import Seeds
from reweigh.bench.sweep import StackedOptimizer
from reweigh.bench.tally import EpochTally
from reweigh.method import Method
from reweigh.objectives._base import state_like


@dataclass(frozen=True, kw_only=True)
class Member:
    """One meta-training of a group: what it may have of its own."""

    method: Method
    training: Training
    seeds: Seeds
    scale: Floats | None = None


class _Kept(dict[str, Floats]):
    """Larger results of one member, until a record takes them along."""

    def array(self, name: str, values: Floats) -> None:
        self[name] = values


def fit_many(
    members: Sequence[Member], tasks: Tasks, algorithm: MAML, build: Callable[[], nn.Module], steps: int
) -> Iterator[list[Record]]:
    """Meta-train all members at once, yielding their records epoch by epoch; see `_fit.fit` for what is in one.

    Parameters
    ----------
    members
        Trainings with the same optimiser, epochs and number of tasks; methods, learning rates and seeds may differ.
    tasks, algorithm
        The same for all of them.
    build
        Makes one model; it is called once a member, with that member's initialisation stream.
    steps
        Meta-batches of an epoch.
    """
    group = _Group(members, tasks, algorithm, build, steps)
    for epoch in range(members[0].training.epochs):
        yield group.run_epoch(epoch)


class _Group:
    def __init__(
        self, members: Sequence[Member], tasks: Tasks, algorithm: MAML, build: Callable[[], nn.Module], steps: int
    ) -> None:
        self.members, self.tasks, self.algorithm, self.steps = members, tasks, algorithm, steps
        models: list[nn.Module] = []
        for member in members:
            with member.seeds.ambient("init"):
                models.append(build())
        self.model = models[0]
        stacked, _ = stack_module_state(models)
        self.names, self.parameters = list(stacked), [p.detach() for p in stacked.values()]
        total = steps * members[0].training.epochs
        self.objectives = [objective_of(member.method, algorithm, total) for member in members]
        self.states = [objective.init() for objective in self.objectives]
        self.optimizer = StackedOptimizer(self.parameters, [member.training for member in members], total)
        self.tally = EpochTally(len(members), steps * members[0].training.batch_size)
        self.watches = [Watch(tasks, algorithm) for _ in members]
        self.mean_weights: list[Tensor] = []

    def run_epoch(self, epoch: int) -> list[Record]:
        """Learn from some meta-batches, and look at the results."""
        count = self.members[0].training.batch_size
        streams = {m.seeds.seed: m.seeds.numpy(f"tasks of epoch {epoch}") for m in self.members}
        for k in range(self.steps):
            drawn = {seed: self.tasks.draw(rng, count) for seed, rng in streams.items()}
            losses, weights = self.take([drawn[m.seeds.seed] for m in self.members], epoch * self.steps + k)
            places = torch.arange(k * count, (k + 1) * count).expand(len(self.members), -1)
            self.tally.update(places, losses, weights)
        return self._records(epoch)

    def take(self, drawn: Sequence[Episodes], step: int) -> tuple[Tensor, Tensor]:
        """One step of every member; returns losses and weights, `(members, tasks)`."""
        leaves = [p.detach().requires_grad_() for p in self.parameters]
        parts = [torch.stack([getattr(e, name) for e in drawn]) for name in _PARTS]
        found = vmap(vmap(self._loss, in_dims=(None, 0, 0, 0, 0)))(dict(zip(self.names, leaves, strict=True)), *parts)
        losses = found.detach()
        weights = torch.stack([self._weigh(k, losses[k]) for k in range(len(self.members))])
        factors = [1.0 if m.scale is None else float(m.scale[step]) for m in self.members]
        share = weights * torch.tensor(factors)[:, None] / losses.shape[1]
        # No parameter enters the losses of two members, so one pass back serves all of them.
        gradients = torch.autograd.grad(found, leaves, share)
        with torch.no_grad():
            self.optimizer.update(self.parameters, list(gradients), self.optimizer.state, *self.optimizer.rates(step))
        return losses, weights

    def _loss(
        self, parameters: dict[str, Tensor], support_x: Tensor, support_y: Tensor, query_x: Tensor, query_y: Tensor
    ) -> Tensor:
        """The query loss of one task of one member."""
        adapted = self.algorithm.adapted(self.model, parameters, support_x, support_y)
        return self.algorithm.loss(functional_call(self.model, adapted, (query_x,)), query_y).mean()

    def _weigh(self, k: int, losses: Tensor) -> Tensor:
        weighed = self.objectives[k].weigh(losses, state_like(self.states[k], losses))
        self.states[k] = weighed.state
        return weighed.weights

    def _records(self, epoch: int) -> list[Record]:
        statistics, mean_weights = self.tally.close(self._taus())
        self.mean_weights.append(mean_weights)
        epochs = self.members[0].training.epochs
        records: list[Record] = []
        for k, own in enumerate(statistics):
            kept = _Kept()
            with torch.no_grad():
                for parameter, values in zip(self.model.parameters(), self.parameters, strict=True):
                    parameter.copy_(values[k])
            found = self.watches[k].look(self.model, kept, last=epoch + 1 == epochs)
            if epoch + 1 == epochs:
                kept["mean_weight"] = torch.cat(self.mean_weights)[:, k].float().numpy()
            if getattr(self.objectives[k], "tau", None) is None:
                own.pop("weights/clip_share", None)
            records.append(
                {
                    "epoch": epoch + 1,
                    "step": (epoch + 1) * self.steps,
                    "progress": (epoch + 1) / epochs,
                    **own,
                    **(self.tasks.facts() if epoch == 0 else {}),
                    **found,
                    "arrays": dict(kept),
                }
            )
        return records

    def _taus(self) -> Tensor:
        taus = [getattr(objective, "tau", None) for objective in self.objectives]
        return torch.tensor([float("inf") if tau is None else float(tau) for tau in taus])


_PARTS = ("support_x", "support_y", "query_x", "query_y")
