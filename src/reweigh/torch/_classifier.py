"""The last layer of a classifier: what turns features into one output per class."""

from __future__ import annotations

from torch import nn

__all__ = ["last_layer"]


def last_layer(model: nn.Module, who: str) -> nn.Linear:
    """The model's last linear layer, or an error that says who needs one."""
    layers = list(model.modules())
    # The last module that holds parameters of its own: activations and pooling after a layer change nothing.
    own = [layer for layer in layers if next(layer.parameters(recurse=False), None) is not None]
    if not own or not isinstance(own[-1], nn.Linear):
        last = type(own[-1]).__name__ if own else "no parameters"
        raise ValueError(
            f"{who} needs a model whose last layer is an nn.Linear, got {last}. Use the linear head, or leave it out."
        )
    return own[-1]
