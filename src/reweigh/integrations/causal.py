"""The last layer of a Hugging Face causal language model, taken into the chunked loss."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from reweigh.objectives import Objective
from reweigh.objectives.mean import Mean
from reweigh.torch.chunked import Chunked, chunked_tokens

__all__ = ["LastLayer", "classes_of", "last_layer", "losses_of", "next_tokens"]

#: Keywords of a Trainer's batch that are not for the body of a model.
_NOT_FOR_THE_BODY = ("labels", "shift_labels", "num_items_in_batch", "fused_lm_head", "output_router_logits")


class LastLayer(NamedTuple):
    """What makes logits of a model's hidden states: the names are those of `chunked_cross_entropy`."""

    weight: Tensor
    bias: Tensor | None
    scale: float
    softcap: float | None
    low_rank: tuple[Tensor, Tensor] | None


def last_layer(model: Any, hidden: Tensor) -> LastLayer:
    """The last layer of a causal language model, and what its configuration does to the logits.

    `hidden` is what the layer gets: a LoRA adapter of the layer makes its own numbers of it.
    """
    base: Any = _base(model)
    head = base.get_output_embeddings()
    config = base.config.get_text_config()
    return LastLayer(
        weight=_whole(head.weight),
        bias=None if getattr(head, "bias", None) is None else _whole(head.bias),
        scale=_scale(config),
        softcap=getattr(config, "final_logit_softcapping", None),
        low_rank=_low_rank(head, hidden),
    )


def next_tokens(model: nn.Module, inputs: dict[str, Any], objective: Objective, **options: Any) -> Chunked:
    """The chunked loss of the labels after the first of each row, with the facts of each of their tokens.

    `options` are those of `chunked_tokens`; what the model does to its logits is read from its configuration.
    """
    base: Any = _base(model)
    given = {name: value for name, value in inputs.items() if name not in _NOT_FOR_THE_BODY}
    hidden = base.base_model(**(given | {"use_cache": False})).last_hidden_state[:, :-1]
    hidden = hidden.to(base.get_output_embeddings().weight.device)
    labels = inputs["labels"][:, 1:].to(hidden.device)
    return chunked_tokens(hidden, targets=labels, objective=objective, **last_layer(base, hidden)._asdict(), **options)


@torch.no_grad()
def losses_of(reference: nn.Module, inputs: dict[str, Any]) -> Tensor:
    """The plain loss of each label after the first under a model that is not trained."""
    reference.to(inputs["labels"].device).eval()
    return next_tokens(reference, inputs, Mean(), reduction="none").losses


def classes_of(model: Any) -> int:
    """The size of a model's vocabulary."""
    return model.get_output_embeddings().weight.shape[0]


def _base(model: Any) -> Any:
    """The language model itself, without adapters around it."""
    base: Any = model.get_base_model() if hasattr(model, "get_base_model") else model
    if not hasattr(base, "get_output_embeddings") or base.get_output_embeddings() is None:
        raise TypeError(f"{type(base).__name__} is not a causal language model with a last layer of its own.")
    return base


def _low_rank(head: Any, hidden: Tensor) -> tuple[Tensor, Tensor] | None:
    """What PEFT's LoRA adapters of a layer add to its product, as two matrices; None where there are none."""
    if not hasattr(head, "lora_A") or head.disable_adapters or head.merged:
        return None
    names = [name for name in head.active_adapters if name in head.lora_A]
    if not names:
        return None
    down, up = [], []
    for name in names:
        first, second = head.lora_A[name], head.lora_B[name]
        variant = getattr(head, "lora_variant", {}).get(name) or getattr(head, "use_dora", {}).get(name)
        if variant or getattr(second, "bias", None) is not None:
            raise ValueError(
                f"the adapter {name!r} of the last layer is not plain LoRA (DoRA and other variants, or a bias of its "
                "own), and the loss takes two matrices. Take the layer out of `target_modules`, or merge the adapter."
            )
        seen = head.lora_dropout[name](hidden.to(first.weight.dtype))
        down.append(head.scaling[name] * torch.nn.functional.linear(seen, _whole(first.weight)))
        up.append(_whole(second.weight))
    return torch.cat(down, -1).to(hidden.dtype), torch.cat(up, -1).to(hidden.dtype)


def _whole(parameter: Tensor) -> Tensor:
    """A parameter that FSDP holds in shards as one tensor."""
    return parameter.full_tensor() if isinstance(parameter, DTensor) else parameter


def _scale(config: Any) -> float:
    """What a model multiplies its logits by: families have their own names for it, and two divide."""
    for name in ("logit_scale", "output_multiplier", "lm_head_multiplier"):
        if getattr(config, name, None) is not None:
            return float(getattr(config, name))
    scaling = getattr(config, "logits_scaling", None)
    if scaling is None:
        return 1.0
    return float(scaling) if config.model_type == "hyperclovax" else 1.0 / float(scaling)
