"""The three array frameworks, for tests that must hold in each of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch


@dataclass(frozen=True)
class Framework:
    name: str
    array: Callable[[Any, str], Any]  # values and the name of a dtype

    def __repr__(self) -> str:
        return self.name


def _torch(values: Any, dtype: str = "float64") -> torch.Tensor:
    return torch.as_tensor(np.asarray(values), dtype=getattr(torch, dtype))


def _jax(values: Any, dtype: str = "float64") -> jax.Array:
    return jnp.asarray(np.asarray(values), dtype=dtype)


def _numpy(values: Any, dtype: str = "float64") -> np.ndarray:
    return np.asarray(values, dtype=dtype)


NUMPY = Framework("numpy", _numpy)
TORCH = Framework("torch", _torch)
JAX = Framework("jax", _jax)
ALL = (NUMPY, TORCH, JAX)


def numbers(x: Any) -> np.ndarray:
    """Any array as float64 on the host."""
    if isinstance(x, torch.Tensor):
        return x.detach().double().numpy()
    return np.asarray(x, dtype=np.float64)


def gradient(function: Callable[[Any], Any], values: Any, framework: Framework, dtype: str = "float64") -> np.ndarray:
    """The gradient of a scalar function of one array, by the framework's own automatic differentiation."""
    x = framework.array(values, dtype)
    if framework is JAX:
        return numbers(jax.grad(function)(x))
    x.requires_grad_()
    (result,) = torch.autograd.grad(function(x), x)
    return numbers(result)
