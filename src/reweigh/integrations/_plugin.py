"""The block `reweigh` of a fine-tuning program's configuration, and the loss that it stands for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from reweigh.integrations.transformers import TrainerLoss, loss, watch

__all__ = ["attach", "loss_of"]

_OPTIONS = ("method", "level", "reference")


def loss_of(block: Any) -> TrainerLoss:
    """The loss that a block of a configuration asks for.

    Parameters
    ----------
    block
        A method's text, such as `rgd:tau=3`, or a mapping with `method`, `level` (`token` or `sequence`) and
        `reference`, a Hugging Face folder with the model whose losses objectives such as `rho` weigh by.
    """
    options: dict[str, Any] = {"method": block} if isinstance(block, str) else {}
    if isinstance(block, Mapping):
        options = {str(name): value for name, value in block.items() if value is not None}  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    unknown = sorted(set(options) - set(_OPTIONS))
    if unknown or not isinstance(options.get("method"), str):
        got = f"{unknown[0]!r} among them" if unknown else f"{block!r}"
        raise ValueError(
            "the block `reweigh` takes a method's text, such as rgd:tau=3, or a mapping with `method` and, if need be, "
            f"`level` and `reference`; got {got}."
        )
    reference = options.get("reference")
    if reference is not None:
        from transformers import AutoModelForCausalLM

        reference = AutoModelForCausalLM.from_pretrained(reference)
        reference.requires_grad_(False)
    return loss(options["method"], level=options.get("level"), reference=reference)


def attach(trainer: Any, block: Any) -> TrainerLoss:
    """Let a `transformers.Trainer` descend the loss that a block asks for, and log what the weights do."""
    taken = getattr(trainer, "compute_loss_func", None)
    if taken is not None:
        raise ValueError(
            f"the trainer has a loss function already, {taken!r}: another option of the configuration sets one. Leave "
            "that option or the block `reweigh` out."
        )
    trainer.compute_loss_func = loss_of(block)
    watch(trainer)
    return trainer.compute_loss_func
