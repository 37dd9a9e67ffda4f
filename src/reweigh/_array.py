"""The only lines that know NumPy, torch and JAX by name.

Everything above this file is written once, with the operations whose spelling is the same in all three
(`exp log where clip sum mean argsort cumsum …`). A tensor of a framework cannot exist unless that framework
is already imported, so it is looked up in `sys.modules` and never imported here.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

Array = Any  # an array of whichever framework the caller uses
Namespace = Any  # the module with that framework's operations


def is_torch(x: object) -> bool:
    """Whether `x` is a torch tensor (any subclass, any device, real or fake)."""
    torch: Any = sys.modules.get("torch")
    return torch is not None and isinstance(x, torch.Tensor)


def is_jax(x: object) -> bool:
    """Whether `x` is a JAX array or a tracer of one."""
    jax: Any = sys.modules.get("jax")
    return jax is not None and isinstance(x, jax.Array)


def is_array(x: object) -> bool:
    """Whether `x` is an array of one of the three frameworks."""
    return is_torch(x) or is_jax(x) or isinstance(x, (np.ndarray, np.generic))


def namespace(x: object) -> Namespace:
    """The module whose functions act on `x`: `torch`, `jax.numpy` or `numpy`."""
    if is_torch(x):
        return sys.modules["torch"]
    if is_jax(x):
        return sys.modules["jax.numpy"]
    if isinstance(x, (np.ndarray, np.generic)):
        return np
    raise TypeError(
        f"expected a NumPy array, torch tensor or JAX array, got {type(x).__name__}. "
        "Convert it first, for example with numpy.asarray(...)."
    )


def stop_gradient(x: Array) -> Array:
    """`x` as a constant for automatic differentiation."""
    if is_torch(x):
        return x.detach()
    if is_jax(x):
        jax: Any = sys.modules["jax"]
        return jax.lax.stop_gradient(x)
    return x


def is_floating(x: Array) -> bool:
    """Whether `x` holds real floating-point numbers (half precision included)."""
    if is_torch(x):
        return bool(x.is_floating_point())
    if is_jax(x):
        jnp = namespace(x)
        return bool(jnp.issubdtype(x.dtype, jnp.floating))
    return x.dtype.kind == "f"


def is_traced(x: object) -> bool:
    """Whether `x` has no values yet because JAX or torch is only tracing the program."""
    if is_jax(x):
        jax: Any = sys.modules["jax"]
        return isinstance(x, jax.core.Tracer)
    if is_torch(x):
        torch: Any = sys.modules["torch"]
        return bool(torch.compiler.is_compiling())
    return False


def cast(x: Array, dtype: Any) -> Array:
    """`x` in another dtype of its own framework."""
    if x.dtype == dtype:
        return x
    return x.to(dtype) if is_torch(x) else x.astype(dtype)


def widen(x: Array) -> Array:
    """`x` in float32 if its own precision is less: exponentials are never taken in half precision."""
    return cast(x, namespace(x).float32) if x.dtype.itemsize < 4 else x


def largest_exponent(x: Array) -> float:
    """The largest `e` for which `exp(e)` is a number in the dtype of `x`, less one for headroom."""
    return math.log(float(namespace(x).finfo(x.dtype).max)) - 1.0


def clip(x: Array, low: Any, high: Any) -> Array:
    """`x` held between two bounds, each a number, a 0-d array or None."""
    xp = namespace(x)
    if is_torch(x) and (is_torch(low) or is_torch(high) or xp.compiler.is_compiling()):
        # torch.clip wants both bounds of one kind, and torch.compile would make one graph for each value of a
        # number given to it. A number that is added to a tensor may change without a new graph.
        if low is not None:
            x = xp.maximum(x, low if is_torch(low) else x.new_zeros(()) + low)
        return x if high is None else xp.minimum(x, high if is_torch(high) else x.new_zeros(()) + high)
    return xp.clip(x, low, high)


def flatten(x: Array) -> Array:
    """`x` as a vector; one that is a vector already costs no node in the autograd graph."""
    return x if x.ndim == 1 else x.reshape(-1)


def dot(constants: Array, x: Array) -> Array:
    """The sum of products of two vectors, the first without gradient."""
    if is_torch(x):
        return namespace(x).dot(constants, x)  # one kernel forward, one backward
    return (constants * x).sum()  # XLA fuses this; its own dot may drop to lower precision


def constant_like(value: Any, x: Array) -> Array:
    """`value` (a number or array) as an array of the framework, device and at least float32 dtype of `x`.

    Arrays already of that framework keep their dtype: a state that has met its framework stays as it is.
    """
    if is_torch(x):
        if is_torch(value):
            return value
        torch: Any = sys.modules["torch"]
        dtype = torch.int32 if _is_integral(value) else widen(x).dtype
        return torch.as_tensor(value, dtype=dtype, device=x.device)
    if is_jax(x):
        if is_jax(value):
            return value
        jnp = namespace(x)
        return jnp.asarray(value, dtype=jnp.int32 if _is_integral(value) else widen(x).dtype)
    return np.asarray(value, dtype=np.int32 if _is_integral(value) else widen(x).dtype)


def _is_integral(value: Any) -> bool:
    # Numbers first: torch.compile can follow that, and cannot follow NumPy's dtypes.
    return isinstance(value, int) or (not isinstance(value, float) and np.asarray(value).dtype.kind in "iub")


def as_array_like(value: Any, x: Array) -> Array:
    """`value` (a list or array of any framework) in the framework and on the device of `x`, in its own dtype."""
    xp = namespace(x)
    if is_array(value) and namespace(value) is xp:
        return value
    return xp.asarray(value, device=x.device) if is_torch(x) else xp.asarray(value)


def quantile(x: Array, q: float | Array) -> Array:
    """The linearly interpolated `q`-quantile of a vector of any length.

    `torch.quantile` refuses more than 16 million entries and half precision; sorting does not.
    """
    xp = namespace(x)
    ordered = sort(x)
    n = x.shape[0]
    position = q * (n - 1)
    if isinstance(position, (int, float)):
        low = min(int(position), n - 1)
        high = min(low + 1, n - 1)
        share = position - low
        return ordered[low] * (1.0 - share) + ordered[high] * share
    low = xp.floor(position)
    share = position - low
    index = cast(low, xp.int32)
    above = xp.clip(index + 1, 0, n - 1)
    return ordered[index] * (1.0 - share) + ordered[above] * share


def sort(x: Array) -> Array:
    """The entries of a vector, ascending."""
    return x[argsort(x)]


def argsort(x: Array) -> Array:
    """Indices that sort a vector ascending; ties keep their order."""
    return namespace(x).argsort(x, stable=True)


def unsort(values: Array, order: Array) -> Array:
    """The inverse of `x[order]`: `unsort(x[order], order)` is `x`."""
    return values[argsort(order)]


def segment_sum(values: Array, segments: Array, size: int) -> Array:
    """The sum of `values` within each of `size` integer `segments`."""
    if is_torch(values):
        return values.new_zeros(size).index_add(0, cast(segments, namespace(values).int64), values)
    if is_jax(values):
        return namespace(values).zeros(size, values.dtype).at[segments].add(values)
    return np.bincount(segments, weights=values, minlength=size).astype(values.dtype)[:size]


def segment_max(values: Array, segments: Array, size: int) -> Array:
    """The largest of `values` within each of `size` integer `segments`; minus infinity where there is none."""
    if is_torch(values):
        torch = namespace(values)
        return values.new_full((size,), -math.inf).scatter_reduce(0, cast(segments, torch.int64), values, "amax")
    if is_jax(values):
        return namespace(values).full(size, -math.inf, values.dtype).at[segments].max(values)
    largest = np.full(size, -math.inf, values.dtype)
    np.maximum.at(largest, segments, values)
    return largest


# --- ranks: what a batch normaliser needs to mean the whole batch and not one worker's shard of it ---
#
# torch has one process a rank; under JAX's `jit` with sharded arrays a plain sum is already global, and NumPy
# knows one process only.


def world_size(x: Array) -> int:
    """How many ranks hold a shard of the batch that `x` belongs to."""
    if not is_torch(x):
        return 1
    torch: Any = sys.modules["torch"]
    distributed = torch.distributed
    if not (distributed.is_available() and distributed.is_initialized()):
        return 1
    return int(distributed.get_world_size())


def sum_over_ranks(x: Array) -> Array:
    """The elementwise sum of `x` over all ranks."""
    return _all_reduce(x, "SUM")


def max_over_ranks(x: Array) -> Array:
    """The elementwise maximum of `x` over all ranks."""
    return _all_reduce(x, "MAX")


def _all_reduce(x: Array, operation: str) -> Array:
    if world_size(x) == 1:
        return x
    torch: Any = sys.modules["torch"]
    total = x.clone()
    torch.distributed.all_reduce(total, op=getattr(torch.distributed.ReduceOp, operation))
    return total


def pool_over_ranks(
    vectors: Sequence[Array | None],
) -> tuple[tuple[Array | None, ...], Callable[[Array], Array]]:
    """Vectors concatenated over ranks, and the function that cuts this rank's part back out.

    All vectors of one rank have the same length; ranks may differ. `None` stays `None`.
    """
    first = next(v for v in vectors if v is not None)
    if world_size(first) == 1:
        return tuple(vectors), lambda pooled: pooled
    torch: Any = sys.modules["torch"]
    dist = torch.distributed
    size = first.shape[0]
    sizes = [torch.zeros(1, dtype=torch.int64, device=first.device) for _ in range(world_size(first))]
    dist.all_gather(sizes, torch.full((1,), size, dtype=torch.int64, device=first.device))
    lengths = [int(s) for s in torch.cat(sizes).tolist()]

    def pool(vector: Array | None) -> Array | None:
        if vector is None:
            return None
        # all_gather wants equal lengths: pad to the longest shard, then cut the padding away.
        padded = vector.new_zeros(max(lengths))
        padded[:size] = vector
        shards = [torch.empty_like(padded) for _ in lengths]
        dist.all_gather(shards, padded)
        return torch.cat([shard[:length] for shard, length in zip(shards, lengths, strict=True)])

    start = sum(lengths[: dist.get_rank()])
    return tuple(pool(v) for v in vectors), lambda pooled: pooled[start : start + size]


def to_numpy(x: Any) -> np.ndarray[Any, Any]:
    """`x` as a NumPy array on the host. Waits for the device: not for the hot path."""
    if is_torch(x):
        x = widen(x) if is_floating(x) else x
        return x.detach().cpu().numpy()
    if is_jax(x) and is_floating(x):
        x = widen(x)
    return np.asarray(x)
