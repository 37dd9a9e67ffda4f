"""TabNet: decide in steps, each of which looks at few columns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from reweigh import _validate as validate
from reweigh.bench.recipes.algorithms.tabular._sparsemax import sparsemax
from reweigh.bench.recipes.algorithms.tabular.self_supervised import SelfSupervised
from reweigh.bench.train.programs.rows import RowNetwork
from reweigh.method import ObjectiveLike

__all__ = ["TabNet", "TabNetClassifier"]


@dataclass(kw_only=True, eq=False, repr=False)
class TabNet(SelfSupervised):
    r"""Attentive steps over columns, pre-trained by telling hidden cells: `TabNet().fit(X).transform(X)`.

    A step s chooses columns by :math:`M_s = \mathrm{sparsemax}(P_{s-1} \cdot h(a_{s-1}))`, where the prior
    :math:`P_s = \prod_{r \le s} (\gamma - M_r)` lowers columns that were used, and turns the chosen cells into a
    decision :math:`d_s` and what guides the next step, :math:`a_s`. In pre-training each cell is hidden with
    probability `hidden` (it is zero, and its prior too), and a decoder reconstructs the hidden ones from all decisions:

    .. math:: \ell = \frac{\sum_j S_j (\hat x_j - x_j)^2}{\max(1, \sum_j S_j)}

    Features are the rectified decisions of all steps, `steps × decision` of them.

    Parameters
    ----------
    objective
        What re-weights rows by their loss; `"mean"` for none.
    decision, attention
        Widths of :math:`d_s` and :math:`a_s`.
    steps, gamma
        Number of steps, and how much a column may be used again (1: never).
    sparsity
        Weight of the masks' entropy, in fine-tuning only.
    ghost_batch
        Rows that are normalised together.
    hidden
        Probability of a cell to be hidden in pre-training.
    lr, epochs, batch_size
        Training by Adam.
    random_state, device
        As in :class:`METS`.

    Attributes
    ----------
    network_, losses_, mean_weights_, clip_shares_
        As in :class:`METS`.

    Notes
    -----
    Departs from the paper and the authors' code: squared errors of hidden cells are not divided by the batch variance
    of their column, since columns are standardised; a row's loss is their mean over its hidden cells, where the paper
    adds up all cells of the batch, so that rows have losses to be weighed by; running statistics follow faster (a tenth
    per step in place of a fiftieth for each of eight ghost batches), since small tables have few steps; the rate is
    constant, where theirs decays exponentially; gradients are not clipped, where theirs are at 2,000; categories are
    columns as given, where theirs are learnt numbers; and sizes are small (their CovType has decisions and attention 64
    wide, six steps, a gamma of 1.5 and batches of 16,384). The authors' code has no pre-training. The paper fine-tunes
    the encoder with labels, see :class:`TabNetClassifier`. References: Arik and Pfister, TabNet, AAAI 2021.
    """

    objective: ObjectiveLike = "mean"
    decision: int = 8
    attention: int = 8
    steps: int = 3
    gamma: float = 1.3
    sparsity: float = 1e-3
    ghost_batch: int = 128
    hidden: float = 0.2
    lr: float = 2e-2
    epochs: int = 50
    batch_size: int = 1024
    random_state: Any = None
    device: str | None = None

    def check_settings(self) -> None:
        """Refuse settings that make no sense, by name."""
        super().check_settings()
        for name in ("decision", "attention", "steps", "ghost_batch"):
            validate.whole(name, getattr(self, name), 1)
        validate.fraction("hidden", self.hidden, one=False)
        validate.non_negative("sparsity", self.sparsity)
        if not self.gamma >= 1:
            raise ValueError(f"`gamma` must be at least 1, got {self.gamma!r}. At 1 no column is used twice.")

    def network(self, columns: int) -> RowNetwork:
        """The untrained encoder and decoder."""
        encoder = TabNetEncoder(
            columns,
            decision=self.decision,
            attention=self.attention,
            steps=self.steps,
            gamma=self.gamma,
            ghost_batch=self.ghost_batch,
        )
        return HiddenCells(encoder, self.hidden)


class TabNetClassifier(nn.Module):
    """A TabNet encoder with a linear layer on the sum of its decisions, to be trained with labels.

    After each call, `penalty` is the weighted entropy of the masks, for the training loop to add to the loss.
    """

    def __init__(self, encoder: TabNetEncoder, classes: int, sparsity: float) -> None:
        super().__init__()
        self.encoder, self.sparsity = encoder, sparsity
        self.out = nn.Linear(encoder.decision, classes, bias=False)
        self.penalty: Tensor | float = 0.0

    def forward(self, x: Tensor) -> Tensor:
        """Logits of the classes."""
        decisions, masks = self.encoder(x)
        entropy = -(masks * (masks + 1e-15).log()).sum(-1).mean()
        self.penalty = self.sparsity * entropy
        return self.out(decisions.sum(0))


class RowNorm(nn.BatchNorm1d):
    """Batch normalisation that takes the running statistics for a row alone, which has no variance of its own."""

    def forward(self, input: Tensor) -> Tensor:
        """Rows normalised by each other in training."""
        if self.training and len(input) > 1 and self.momentum is None:
            return self._noted(input)
        if not self.training or len(input) > 1:
            return super().forward(input)
        return nn.functional.batch_norm(
            input, self.running_mean, self.running_var, self.weight, self.bias, training=False, eps=self.eps
        )

    def _noted(self, input: Tensor) -> Tensor:
        """The rows normalised, and taken into the mean over all batches; torch reads the count of those on the host."""
        mean, variance, batches = self.running_mean, self.running_var, self.num_batches_tracked
        assert mean is not None
        assert variance is not None
        assert batches is not None
        with torch.no_grad():
            batches.add_(1)
            own_variance, own_mean = torch.var_mean(input, 0)
            share = batches.to(input.dtype).reciprocal()
            mean.lerp_(own_mean, share)
            variance.lerp_(own_variance, share)
        return nn.functional.batch_norm(input, None, None, self.weight, self.bias, training=True, eps=self.eps)


class GhostNorm(nn.Module):
    """Batch normalisation over pieces of the batch, so that large batches keep the noise of small ones."""

    def __init__(self, width: int, rows: int) -> None:
        super().__init__()
        self.rows = rows
        self.norm = RowNorm(width, momentum=0.1)

    def forward(self, x: Tensor) -> Tensor:
        """Rows normalised by those beside them; by the running statistics in evaluation."""
        if not self.training:
            return self.norm(x)
        # As even as can be, so that no piece is a single row.
        return torch.cat([self.norm(part) for part in x.chunk(max(1, len(x) // self.rows))])


class Gated(nn.Module):
    """A linear layer, ghost normalisation and a gated linear unit."""

    def __init__(self, linear: nn.Linear, ghost_batch: int) -> None:
        super().__init__()
        self.linear = linear
        self.norm = GhostNorm(linear.out_features, ghost_batch)

    def forward(self, x: Tensor) -> Tensor:
        """Half of the outputs, gated by the other half."""
        return nn.functional.glu(self.norm(self.linear(x)))


class FeatureTransformer(nn.Module):
    """Two gated layers whose linear parts all steps share and two of this step's own, with residuals after the first.

    Normalisation is each step's own: what steps see is distributed differently.
    """

    def __init__(self, shared: nn.ModuleList, width: int, ghost_batch: int) -> None:
        super().__init__()
        linears: list[Any] = [*shared, *(_gate(width, width) for _ in range(2))]
        self.layers = nn.ModuleList(Gated(linear, ghost_batch) for linear in linears)

    def forward(self, x: Tensor) -> Tensor:
        """Cells or decisions to features."""
        first, *others = self.layers
        x = first(x)
        for layer in others:
            x = (x + layer(x)) * 0.5**0.5
        return x


def _gate(inputs: int, width: int) -> nn.Linear:
    return nn.Linear(inputs, 2 * width, bias=False)


def _shared(inputs: int, width: int) -> nn.ModuleList:
    return nn.ModuleList([_gate(inputs, width), _gate(width, width)])


class TabNetEncoder(nn.Module):
    """The steps: which columns each looks at, and what it decides."""

    def __init__(
        self, columns: int, *, decision: int, attention: int, steps: int, gamma: float, ghost_batch: int
    ) -> None:
        super().__init__()
        self.decision, self.gamma, self.ghost_batch = decision, gamma, ghost_batch
        width = decision + attention
        self.norm = RowNorm(columns, momentum=None)  # the mean over all batches: rows do not change
        shared = _shared(columns, width)
        self.transformers = nn.ModuleList(FeatureTransformer(shared, width, ghost_batch) for _ in range(steps + 1))
        self.attend = nn.ModuleList(
            nn.Sequential(nn.Linear(attention, columns, bias=False), GhostNorm(columns, ghost_batch))
            for _ in range(steps)
        )

    def forward(self, x: Tensor, prior: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Rectified decisions `(steps, rows, decision)` and masks `(steps, rows, columns)`.

        `prior` says how willingly each cell is looked at, at first: one unless given.
        """
        x = self.norm(x)
        prior = torch.ones_like(x) if prior is None else prior
        start, *others = self.transformers
        guide = start(x)[:, self.decision :]
        decisions: list[Tensor] = []
        masks: list[Tensor] = []
        for attend, transform in zip(self.attend, others, strict=True):
            mask = sparsemax(prior * attend(guide))
            prior = prior * (self.gamma - mask)
            features = transform(mask * x)
            decisions.append(features[:, : self.decision].relu())
            guide = features[:, self.decision :]
            masks.append(mask)
        return torch.stack(decisions), torch.stack(masks)


class HiddenCells(RowNetwork):
    """Pre-training: hide cells, and reconstruct them from the decisions."""

    def __init__(self, encoder: TabNetEncoder, hidden: float) -> None:
        super().__init__()
        self.encoder, self.hidden = encoder, hidden
        steps, columns = len(encoder.attend), encoder.norm.num_features
        width = encoder.decision
        shared = _shared(width, width)
        self.decoders = nn.ModuleList(
            nn.Sequential(FeatureTransformer(shared, width, encoder.ghost_batch), nn.Linear(width, columns, bias=False))
            for _ in range(steps)
        )

    def losses(self, x: Tensor, draw: torch.Generator, epoch: int, step: int) -> Tensor:
        """Hide some cells of each row, and reconstruct those."""
        hidden = (torch.rand(x.shape, generator=draw) < self.hidden).to(x.device, x.dtype, non_blocking=True)
        decisions, _ = self.encoder((1 - hidden) * x, 1 - hidden)
        reconstructed = torch.stack([d(decision) for d, decision in zip(self.decoders, decisions, strict=True)]).sum(0)
        return ((reconstructed - x).square() * hidden).sum(1) / hidden.sum(1).clamp(min=1)

    def encode(self, x: Tensor) -> Tensor:
        """The decisions of all steps, side by side."""
        decisions, _ = self.encoder(x)
        return decisions.transpose(0, 1).flatten(1)
