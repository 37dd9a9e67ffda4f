"""TRL supervised fine-tuning: `reweigh_sft(trainer, tau=1.0)`."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any, Literal, TypeVar

from reweigh.integrations._missing import missing

if find_spec("trl") is None:
    raise missing("trl", "trl")

import torch
from torch import Tensor, nn

from reweigh import _validate as validate
from reweigh.integrations.transformers import WeightLog, put_in_front, warn_about_micro_batches
from reweigh.objectives import Objective
from reweigh.torch.reweighted import Reweighted

__all__ = ["reweigh_sft"]

AnyTrainer = TypeVar("AnyTrainer")


def reweigh_sft(
    trainer: AnyTrainer,
    objective: Objective | None = None,
    *,
    level: Literal["token", "sequence"] = "token",
    window: int = 32,
    **hyper_parameters: Any,
) -> AnyTrainer:
    r"""Re-weight the loss of an `SFTTrainer`: `trainer = reweigh_sft(SFTTrainer(...), tau=1.0)`.

    .. math:: \hat L = -\frac1N \sum_t \mathrm{sg}(w_t) \log p_t

    The trainer's fused head gives one log-probability a token and never builds the logits; a hook on the model
    multiplies them by their weights in training. The trainer divides by its number of tokens as always, so accumulation
    and data parallel are exact for weights that come from a unit's own loss; entropy and token accuracy are untouched,
    and evaluation is plain.

    Parameters
    ----------
    trainer
        A `trl.SFTTrainer` with its default loss.
    objective
        What turns losses into weights; `RGD(**hyper_parameters)` unless given.
    level
        Which unit gets a weight: `"token"`, or `"sequence"`, the row by its mean loss. Both divide by tokens.
    window
        Micro-batches the logged statistics look back on at most: :class:`~reweigh.integrations.transformers.WeightLog`.
    **hyper_parameters
        `tau`, `divergence` and the other fields of :class:`~reweigh.RGD`, in place of `objective`.

    Returns
    -------
    SFTTrainer
        The same trainer, which now also logs what the weights do and keeps the objective's state in its checkpoints.

    Notes
    -----
    The value TRL logs as `loss` is the weighted sum; `plain_loss` beside it is the ordinary one.
    """
    validate.one_of("level", level, ("token", "sequence"))
    _refuse_other_losses(trainer, level)
    weigher = Reweighted(_given, objective, **hyper_parameters)
    host: Any = trainer
    if not weigher.objective.separable and host.args.gradient_accumulation_steps > 1:
        warn_about_micro_batches(weigher.objective)
    host.model.register_forward_hook(_Hook(weigher, level))
    put_in_front(host, WeightLog(weigher, window=window))
    return trainer


class _Hook:
    """Multiplies the log-probabilities a model returns by their weights, in training."""

    def __init__(self, weigher: Reweighted, level: str) -> None:
        self.weigher = weigher
        self.level = level

    def __call__(self, module: nn.Module, inputs: Any, output: Any) -> Any:
        if not (module.training and torch.is_grad_enabled()):
            return output
        log_probs = getattr(output, "log_probs", None)
        if log_probs is None:
            raise RuntimeError(
                f"the model returned {type(output).__name__} without `log_probs` in training: this version of TRL has "
                "no fused head. Update it (1.16 has one), or use reweigh.integrations.transformers with a Trainer."
            )
        output.log_probs = log_probs * self._weights(-log_probs.detach(), output.label_mask)
        return output

    def _weights(self, losses: Tensor, mask: Tensor) -> Tensor:
        """A weight for each token, in the shape of the losses; ignored tokens have loss zero."""
        weigher = self.weigher
        if weigher.objective.stateful:
            weigher.to(losses.device)
        if self.level == "token":
            weigher(losses.flatten(), sample_weight=mask.flatten())
            return _last_weights(weigher).view_as(losses)
        tokens = mask.sum(1)
        weigher(losses.sum(1) / tokens.clamp(min=1), sample_weight=tokens)
        return _last_weights(weigher)[:, None]


def _given(losses: Tensor) -> Tensor:
    """A criterion for losses that are there already."""
    return losses


def _last_weights(weigher: Reweighted) -> Tensor:
    weights = weigher.weights
    assert weights is not None
    return weights


def _refuse_other_losses(trainer: Any, level: str) -> None:
    """Refuse a trainer whose loss does not come from the log-probabilities as they are."""
    arguments: Any = getattr(trainer, "args", None)
    if not hasattr(arguments, "loss_type") or not hasattr(trainer, "compute_loss_func"):
        raise TypeError(f"`reweigh_sft` needs a trl.SFTTrainer, got {type(trainer).__name__}.")
    if arguments.loss_type != "nll":
        raise ValueError(
            f"`reweigh_sft` needs SFTConfig(loss_type='nll'), got {arguments.loss_type!r}, which weighs tokens itself. "
            "The objective reweigh.objectives.dft.DFT is the same weight in this library."
        )
    if arguments.label_smoothing_factor or trainer.compute_loss_func is not None:
        raise ValueError(
            "with `label_smoothing_factor` or `compute_loss_func` the SFTTrainer takes its loss from the logits, where "
            "these weights would be without effect. Leave them out, or pass compute_loss_func="
            "reweigh.integrations.transformers.loss(tau=..., label_smoothing=...) and leave `reweigh_sft` out."
        )
    if getattr(getattr(trainer.accelerator, "parallelism_config", None), "sp_enabled", False):
        raise ValueError("`reweigh_sft` does not work with sequence parallelism, where TRL uses the model's own loss.")
    if level == "sequence" and (arguments.packing or arguments.padding_free):
        raise ValueError(
            "level='sequence' needs one sequence a row, and with `packing` or `padding_free` a row holds several. Use "
            "level='token'."
        )
