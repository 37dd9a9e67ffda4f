"""TRL supervised fine-tuning: `reweigh_sft(trainer, tau=1.0)`."""

from __future__ import annotations

import functools
import math
from importlib.util import find_spec
from typing import Any, Literal, TypeVar

from reweigh.integrations._missing import missing

if find_spec("trl") is None:
    raise missing("trl", "trl")

import torch
from torch import Tensor, nn

from reweigh import _validate as validate
from reweigh._carry import carried, with_hyper_parameters
from reweigh.integrations._batch_segments import segments_of
from reweigh.integrations._batch_signal import BatchSignal, check_signal
from reweigh.integrations._step_weights import StepWeights
from reweigh.integrations.causal import classes_of, next_tokens
from reweigh.integrations.transformers import WeightLog, put_in_front, warn_about_micro_batches
from reweigh.method import ObjectiveLike
from reweigh.objectives import Objective
from reweigh.objectives.entropy import Entropy
from reweigh.objectives.mean import Mean
from reweigh.torch._segments import sum_by_segment
from reweigh.torch.reweighted import Reweighted

__all__ = ["reweigh_sft"]

AnyTrainer = TypeVar("AnyTrainer")

#: Why a trainer with a fused head has no place for the other parts of a method.
_WHY = {
    "sampler": "the trainer has drawn its batches; override its `get_train_dataloader`",
    "loss": "the fused head computes the cross entropy. A Trainer that builds logits takes other losses: pass "
    "compute_loss_func=reweigh.integrations.transformers.loss(...) to the SFTTrainer",
    "step": "the trainer calls backward once per micro-batch and steps by itself",
    "average": "a hook on the model's outputs does not see its weights over time",
    "post": "corrections are for classes, and a language model is not used as a classifier of tokens",
}


def reweigh_sft(
    trainer: AnyTrainer,
    objective: ObjectiveLike | None = None,
    *,
    level: Literal["token", "sequence"] = "token",
    chunked: bool = False,
    weight_column: str | None = None,
    reference: nn.Module | None = None,
    signal_column: str | None = None,
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
        What turns losses into weights, as a value or a text such as `"rho:keep=0.6"`; `RGD(**hyper_parameters)` unless
        given.
    level
        Which unit gets a weight: `"token"`, or `"sequence"`, the sequence by its mean loss. Both divide by tokens.
        Under `packing` and `padding_free` sequences are separated by their positions.
    chunked
        Whether to replace the trainer's fused head, in training, by :func:`reweigh.torch.chunked_cross_entropy`, which
        makes the gradients of most objectives from the logits of the forward pass and needs no second ones. The last
        layer may be frozen, have a bias or carry a LoRA adapter.
    weight_column
        The column of the data that holds weights, one per row or one per token, which multiply those of the objective.
        The loss is divided by their sum over all micro-batches and ranks of the step. The trainer's own `packing` drops
        columns: pack tokens and weights with `trl.pack_dataset` beforehand, and train with `padding_free`.
    reference
        A causal language model of the same tokens, whose losses are the signal of
        :class:`~reweigh.objectives.rho.Rho`; it is run without gradients on every batch.
    signal_column
        The column of the data that holds these losses instead, one number per row or one per token.
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
    The value TRL logs as `loss` is the weighted sum; `plain_loss` next to it is the ordinary one.
    """
    validate.one_of("level", level, ("token", "sequence"))
    validate.boolean("chunked", chunked)
    _refuse_other_losses(trainer, level)
    named = None if objective is None else carried(objective, ("objective",), "`reweigh_sft`", why=_WHY)
    weigher = Reweighted(_given, with_hyper_parameters(named, hyper_parameters).objective)
    host: Any = trainer
    if not weigher.objective.separable and host.args.gradient_accumulation_steps > 1:
        warn_about_micro_batches(weigher.objective)
    check_signal(weigher.objective, signal_column, reference)
    beside = None
    if signal_column is not None or reference is not None:
        beside = BatchSignal(host, signal_column, reference)
    step = None if weight_column is None else StepWeights(host, weight_column)
    weights = _TokenWeights(weigher, level, beside, step)
    if chunked:
        _replace_head(host, weights)
    else:
        host.model.register_forward_hook(_Hook(weights), with_kwargs=True)
    put_in_front(host, WeightLog(weigher, window=window))
    return trainer


class _TokenWeights:
    """What an objective makes of the tokens of a batch; what it takes besides their losses is determined here."""

    def __init__(
        self,
        weigher: Reweighted,
        level: Literal["token", "sequence"],
        beside: BatchSignal | None,
        step: StepWeights | None,
    ) -> None:
        self.weigher = weigher
        self.level: Literal["token", "sequence"] = level
        self.beside = beside
        self.step = step

    @property
    def objective(self) -> Objective:
        """What turns losses into weights."""
        return self.weigher.objective

    def segments(self, inputs: dict[str, Any]) -> Tensor | None:
        """The sequence of each label after the first, where rows hold several."""
        numbers = None if self.level == "token" else segments_of(inputs)
        return None if numbers is None else numbers[:, 1:]

    def amounts(self, device: torch.device) -> Tensor | None:
        """The weight that the data give each label after the first, of mean one over the step; None without any."""
        if self.step is None:
            return None
        if self.step.current is None:
            raise ValueError(
                "the batch has no weights: its rows have no such column, or another collator was set after reweigh_sft."
            )

        def amount(labels: Tensor, weights: Tensor | None) -> Tensor:
            assert weights is not None
            return torch.where(labels[:, 1:] == -100, 0.0, weights.to(labels.device)[:, 1:]).sum().to(device)

        return self.step.factor(amount) * self.step.current[:, 1:].to(device)

    def signal(self) -> Tensor | None:
        """What comes with the labels after the first: a column of the data, or the losses of the reference model."""
        if self.beside is None:
            return None
        if self.beside.current is None:
            raise ValueError(
                "the batch has no signal: its rows have no such column, or another collator was set after reweigh_sft."
            )
        return self.beside.current[:, 1:]

    def __call__(
        self, losses: Tensor, mask: Tensor, numbers: Tensor | None, signal: Tensor | None, amounts: Tensor | None
    ) -> Tensor:
        """A weight for each token, in the shape of the losses, without gradient; ignored tokens have loss zero."""
        weigher = self.weigher
        if weigher.objective.stateful:
            weigher.to(losses.device)
        seen, real, rows = losses.flatten(), mask.flatten().to(losses.dtype), None
        shares = real if amounts is None else real * amounts.flatten()
        if self.level == "sequence":
            of_rows = torch.arange(losses.shape[0], device=losses.device)[:, None].expand(losses.shape)
            rows = (of_rows if numbers is None else numbers).flatten()
            sizes = sum_by_segment(real, rows).clamp(min=1)
            seen = sum_by_segment(seen, rows) / sizes
            if signal is not None:
                signal = sum_by_segment((signal * mask).flatten(), rows) / sizes
            shares = sum_by_segment(shares, rows)
        weigher(seen, sample_weight=shares, signal=signal)
        weights = weigher.weights
        assert weights is not None
        weights = (weights if rows is None else weights[rows]).view_as(losses)
        return weights if amounts is None else weights * amounts


class _Hook:
    """Multiplies the log-probabilities a model returns by their weights, in training."""

    def __init__(self, weights: _TokenWeights) -> None:
        self.weights = weights

    def __call__(self, module: nn.Module, inputs: Any, keywords: dict[str, Any], output: Any) -> Any:
        if not (module.training and torch.is_grad_enabled()):
            return output
        log_probs = getattr(output, "log_probs", None)
        if log_probs is None:
            raise RuntimeError(
                f"the model returned {type(output).__name__} without `log_probs` in training: this version of TRL has "
                "no fused head. Update it (1.16 has one), or use reweigh.integrations.transformers with a Trainer."
            )
        weights = self.weights
        signal = weights.signal()
        if isinstance(weights.objective, Entropy):
            signal = output.entropy.detach() / math.log(classes_of(module))
        losses, amounts = -log_probs.detach(), weights.amounts(log_probs.device)
        output.log_probs = log_probs * weights(losses, output.label_mask, weights.segments(keywords), signal, amounts)
        return output


def _replace_head(host: Any, weights: _TokenWeights) -> None:
    """Let a model's own forward, called for its fused head in training, use the chunked loss instead."""
    from transformers.integrations.deepspeed import is_deepspeed_zero3_enabled
    from trl.trainer.utils import FusedCausalLMOutput

    if host.aux_loss_enabled or is_deepspeed_zero3_enabled():
        what = "the auxiliary loss of a router" if host.aux_loss_enabled else "DeepSpeed ZeRO-3"
        raise ValueError(f"`chunked=True` replaces the trainer's head, which handles {what}. Leave it out here.")
    model = host.model.get_base_model() if hasattr(host.model, "get_base_model") else host.model
    fused = model.forward

    @functools.wraps(fused)
    def forward(*arguments: Any, fused_lm_head: bool = False, **inputs: Any) -> Any:
        if arguments or not (fused_lm_head and model.training and torch.is_grad_enabled()):
            return fused(*arguments, fused_lm_head=fused_lm_head, **inputs)
        objective, numbers, signal = weights.objective, weights.segments(inputs), weights.signal()
        amounts = weights.amounts(model.get_output_embeddings().weight.device)
        options: dict[str, Any] = {"level": weights.level, "segments": numbers, "signal": signal, "reduction": "sum"}
        options["sample_weight"] = amounts
        if objective.stateful:
            objective, options = Mean(), {"reduction": "none"}
        chunked = next_tokens(model, inputs, objective, entropies=True, **options)
        mask = inputs["labels"][:, 1:].to(chunked.losses.device) != -100
        if isinstance(objective, Entropy):
            signal = chunked.entropies / math.log(classes_of(model))
        factors = weights(chunked.losses, mask, numbers, signal, amounts)
        if weights.objective.stateful:
            log_probs = -chunked.loss * factors
        else:
            # The trainer takes the sum: the values are those of the tokens, the gradient is that of their sum.
            log_probs = (chunked.loss.detach() - chunked.loss) / mask.numel() - chunked.losses * factors
        return FusedCausalLMOutput(
            log_probs=log_probs, entropy=chunked.entropies, is_top1=chunked.correct, label_mask=mask
        )

    model.forward = forward


def _given(losses: Tensor) -> Tensor:
    """A criterion for losses that are there already."""
    return losses


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
    if level == "sequence" and arguments.packing and arguments.packing_strategy == "wrapped":
        raise ValueError(
            "level='sequence' needs to know where sequences start, and packing_strategy='wrapped' cuts a stream of "
            "tokens without regard to them. Use packing_strategy='bfd', or level='token'."
        )
