"""torchtune: `loss: {_component_: reweigh.integrations.torchtune.CEWithChunkedOutputLoss, method: rgd:tau=3}`."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Literal

if find_spec("torchtune") is None:
    raise ModuleNotFoundError(
        "this loss is for torchtune, which is not installed: pip install torchtune torchao.", name="torchtune"
    )

import torch
import torch.nn.functional as F
from torch import Tensor
from torchtune.modules import loss as own_losses  # pyright: ignore[reportMissingImports]

from reweigh import _validate as validate
from reweigh._carry import carried
from reweigh.objectives.entropy import Entropy
from reweigh.torch import entropy
from reweigh.torch.reweighted import Reweighted

__all__ = ["CEWithChunkedOutputLoss"]


class CEWithChunkedOutputLoss(own_losses.CEWithChunkedOutputLoss):  # pyright: ignore[reportUntypedBaseClass]
    """torchtune's cross entropy of logits in chunks, re-weighted. Its recipes know it by its name, which is theirs.

    The sum of the weighted losses is divided by the number of tokens, as theirs is, so that accumulation stays exact
    for weights that come from a unit's own loss.

    Parameters
    ----------
    method
        A method's text, such as `rgd:tau=3`; an objective and nothing else.
    level
        Which unit gets a weight: a token, or a sequence by its mean loss. The loss is not told where packed sequences
        start, so that sequences need `packed: False`.
    accumulation
        Micro-batches per optimiser step, for objectives with a state: `${gradient_accumulation_steps}`.
    num_output_chunks, ignore_index
        As in torchtune.
    """

    def __init__(
        self,
        method: str = "rgd",
        level: Literal["token", "sequence"] = "token",
        accumulation: int = 1,
        num_output_chunks: int = 8,
        ignore_index: int = -100,
    ) -> None:
        super().__init__(num_output_chunks=num_output_chunks, ignore_index=ignore_index)
        validate.one_of("level", level, ("token", "sequence"))
        self.level = level
        self.reweighted = Reweighted(_given, carried(method, ("objective",), "a loss of torchtune").objective)
        self.reweighted.accumulation = accumulation
        objective = self.reweighted.objective
        self._weighs_entropy = isinstance(objective, Entropy)
        if objective.takes and not self._weighs_entropy:
            raise ValueError(
                f"{objective!r} weighs by more than losses and logits, which is all that a loss of torchtune is given."
            )

    def compute_cross_entropy(self, logits: Tensor, labels: Tensor, normalize: bool = True) -> Tensor:
        """The loss of each token of a chunk; what torchtune compiles."""
        return F.cross_entropy(logits.float(), labels, ignore_index=self.ignore_index, reduction="none")

    def forward(self, logits: list[Tensor] | Tensor, labels: Tensor) -> Tensor:
        """The loss to descend, from logits in chunks along the sequence or in one piece."""
        rows = labels.view(1, -1) if labels.ndim == 1 else labels
        chunks = [logits.reshape(*rows.shape, -1)] if isinstance(logits, Tensor) else logits
        targets = rows.split([chunk.shape[1] for chunk in chunks], dim=1)
        losses = torch.cat(
            [
                self.compute_cross_entropy(chunk.reshape(-1, chunk.shape[-1]), target.reshape(-1)).view_as(target)
                for chunk, target in zip(chunks, targets, strict=True)
            ],
            dim=1,
        )
        mask = (rows != self.ignore_index).to(losses.dtype)
        signal = torch.cat([entropy(chunk.detach().float()) for chunk in chunks], 1) if self._weighs_entropy else None
        if self.level == "sequence":
            if labels.ndim == 1:
                raise ValueError("level='sequence' needs rows, and this recipe joins them into one vector of labels.")
            sizes = mask.sum(1)
            means = losses.sum(1) / sizes.clamp(min=1)
            if signal is not None:
                signal = (signal * mask).sum(1) / sizes.clamp(min=1)
            return self.reweighted(means, sample_weight=sizes, signal=signal)
        signal = None if signal is None else signal.flatten()
        return self.reweighted(losses.flatten(), sample_weight=mask.flatten(), signal=signal)


def _given(losses: Tensor) -> Tensor:
    """A criterion for losses that are there already."""
    return losses
