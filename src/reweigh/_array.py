"""The only lines that know NumPy, torch and JAX by name.

Everything above this file is written once, with the operations whose spelling is the same in all three
(`exp log where clip sum mean argsort cumsum …`). A tensor of a framework cannot exist unless that framework
is already imported, so it is looked up in `sys.modules` and never imported here.
"""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np

Array = Any  # an array of whichever framework the caller uses
ArrayT = TypeVar("ArrayT")  # the same, where what comes out is of the kind that went in
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
    return isinstance(x, (np.ndarray, np.generic)) or is_torch(x) or is_jax(x)


def namespace(x: object) -> Namespace:
    """The module whose functions act on `x`: `torch`, `jax.numpy` or `numpy`."""
    if isinstance(x, (np.ndarray, np.generic)):
        return np
    if is_torch(x):
        return sys.modules["torch"]
    if is_jax(x):
        return sys.modules["jax.numpy"]
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


def is_readable(x: Any) -> bool:
    """Whether NumPy may work on the values of `x` where they are: there is no device and no program being traced."""
    return isinstance(x, np.ndarray) or are_readable(x)


def are_readable(*tensors: Any) -> bool:
    """Whether NumPy may work on the values of all these torch tensors."""
    torch: Any = sys.modules.get("torch")
    if torch is None:
        return False
    for x in tensors:
        if type(x) is not torch.Tensor or not x.is_cpu:  # subclasses have their own way of holding values
            return False
    c = torch._C
    return not (
        torch.compiler.is_compiling()
        or c._are_functorch_transforms_active()
        or c._len_torch_dispatch_stack()
        or c._get_tracing_state()
    )


def tensor_of(value: Any) -> Array:
    """What NumPy has computed from readable tensors as a tensor, without copying an array."""
    torch: Any = sys.modules["torch"]
    return torch.from_numpy(value if isinstance(value, np.ndarray) else np.asarray(value))


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
    # By its size: what a batch has to ask a framework for takes longer than its exponentials.
    return _LARGEST_EXPONENT.get(x.dtype.itemsize) or math.log(float(namespace(x).finfo(x.dtype).max)) - 1.0


#: Of float32 and float64.
_LARGEST_EXPONENT = {4: math.log(float(np.finfo(np.float32).max)) - 1.0, 8: math.log(np.finfo(np.float64).max) - 1.0}


def clip(x: Array, low: Any, high: Any) -> Array:
    """`x` held between two bounds, each a number, a 0-d array or None."""
    if isinstance(x, (np.ndarray, np.generic)):
        # np.clip takes longer to find out what it was given than to clip a batch.
        x = x if low is None else np.maximum(x, low)
        return x if high is None else np.minimum(x, high)
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


def mean(x: Array) -> Array:
    """The mean of a vector; NumPy's own method spends microseconds in Python."""
    return np.add.reduce(x) / x.dtype.type(x.shape[0]) if isinstance(x, np.ndarray) else x.mean()


def dot(constants: Array, x: Array) -> Array:
    """The sum of products of two vectors, the first without gradient."""
    if isinstance(x, np.ndarray) or is_torch(x):
        return x.dot(constants)  # in torch one kernel forward, one backward
    return (constants * x).sum()  # XLA fuses this; its own dot may drop to lower precision


def with_gradient(value: Array, weights: Array, x: Array) -> Array:
    """The number `value`, whose gradient with respect to the vector `x` is `weights`; both are constants."""
    if is_torch(x):
        product = x.dot(weights)
        if is_torch(value) and not is_readable(value):
            return product + (value - product).detach()
        # In place: the product is not needed to differentiate it.
        product.detach().fill_(value if is_torch(value) else float(value))
        return product
    if not is_jax(x):
        return value
    # Adding a zero made from `x` gives `value` the devices that `x` varies over inside `shard_map`: JAX demands it.
    return _jax_with_gradient()(value + 0 * (x != x).sum(), weights, x)


@functools.cache
def _jax_with_gradient() -> Callable[[Array, Array, Array], Array]:
    jax: Any = sys.modules["jax"]

    @jax.custom_jvp
    def function(value: Array, weights: Array, x: Array) -> Array:
        return value

    def tangent(primals: tuple[Array, ...], tangents: tuple[Array, ...]) -> tuple[Array, Array]:
        return primals[0], (primals[1] * tangents[2]).sum()

    function.defjvp(tangent)
    return function


def reusing(function: Callable[..., Array], x: Array, *others: Any) -> Array:
    """`function(x, *others)` of the array's own namespace, in the memory of `x`, which is not needed again.

    One vector less keeps large batches in cache; only NumPy needs it, the others fuse or trace.
    """
    return function(x, *others, out=x) if isinstance(x, np.ndarray) and x.ndim else function(x, *others)


def choose(condition: Array, one: Callable[[], Array], other: Callable[[], Array]) -> Array:
    """`one()` where the 0-d condition holds and `other()` otherwise; only that one is computed, where that is known."""
    if isinstance(condition, (bool, np.bool_)):
        return one() if condition else other()
    if is_torch(condition):
        return namespace(condition).where(condition, one(), other())
    jax: Any = sys.modules["jax"]
    return jax.lax.cond(condition, one, other)


def repeat(step: Callable[..., tuple[Array, ...]], state: tuple[Array, ...], times: int) -> tuple[Array, ...]:
    """`state = step(*state)` until its first entry, a 0-d truth value, says so; `times` at most.

    A device would have to be waited for to know it: there all steps are made, and those too many must change nothing.
    """
    known = isinstance(state[-1], np.generic) or is_readable(state[-1])
    if not known and is_jax(state[-1]):
        jax: Any = sys.modules["jax"]
        count = namespace(state[-1]).zeros((), "int32")
        _, last = jax.lax.while_loop(
            lambda loop: ~loop[1][0] & (loop[0] < times), lambda loop: (loop[0] + 1, step(*loop[1])), (count, state)
        )
        return last
    for _ in range(times):
        state = step(*state)
        if known and state[0]:
            break
    return state


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


def order_statistic(x: Array, index: int) -> Array:
    """The entry of a vector at a place of its ascending order: selected, which takes less than sorting."""
    if is_torch(x):
        return x.kthvalue(index + 1).values
    return _jax_order_statistic(x, index) if is_jax(x) else np.partition(x, index)[index]


def _jax_order_statistic(x: Array, index: int) -> Array:
    """By halving what its bits can be; XLA sorts on a processor many times as slowly, and `top_k` sorts."""
    jax: Any = sys.modules["jax"]
    jnp = namespace(x)
    bits = 8 * x.dtype.itemsize
    kind = jnp.dtype(f"int{bits}")

    def flip(code: Array) -> Array:
        """Between the bits of a float and a whole number of the same order; its own inverse."""
        return code ^ ((code >> (bits - 1)) & jnp.iinfo(kind).max)

    codes = flip(jax.lax.bitcast_convert_type(x, kind))
    reach = x.shape[0] - index

    def raise_if_reached(i: Array, least: Array) -> Array:
        raised = least + (jnp.ones((), kind) << (bits - 1 - i).astype(kind))
        return jnp.where((codes >= raised).sum() >= reach, raised, least)

    least = jax.lax.fori_loop(0, bits, raise_if_reached, jnp.full((), jnp.iinfo(kind).min, kind))
    return jax.lax.bitcast_convert_type(flip(least), x.dtype)


def sort(x: Array) -> Array:
    """The entries of a vector, ascending."""
    return x[argsort(x)]


def argsort(x: Array) -> Array:
    """Indices that sort a vector ascending; ties keep their order."""
    return namespace(x).argsort(x, stable=True)


def log_cumsum_exp(x: Array) -> Array:
    """Logarithms of the running sums of `exp(x)` along a vector; none of them overflows or vanishes."""
    if is_torch(x):
        return x.logcumsumexp(0)
    if is_jax(x):
        jax: Any = sys.modules["jax"]
        return jax.lax.cumlogsumexp(x)
    return np.logaddexp.accumulate(x)


def put(x: Array, index: Array, values: Array) -> Array:
    """A copy of the vector `x` with `values` at the places `index`; where one is named twice, either may be there."""
    values = cast(values, x.dtype)
    if is_torch(x):
        return x.scatter(0, index, values)
    if is_jax(x):
        return x.at[index].set(values)
    copy = x.copy()
    copy[index] = values
    return copy


def segment_sum(values: Array, segments: Array, size: int) -> Array:
    """The sum of `values` within each of `size` integer `segments`."""
    if is_torch(values):
        return values.new_zeros(size).index_add(0, cast(segments, namespace(values).int64), values)
    if is_jax(values):
        return namespace(values).zeros(size, values.dtype).at[segments].add(values)
    return np.bincount(segments, weights=values, minlength=size).astype(values.dtype)[:size]


def segment_counts(segments: Array, size: int, like: Array) -> Array:
    """How many entries each of `size` integer `segments` has, in the dtype of `like`."""
    if isinstance(segments, np.ndarray):
        return np.bincount(segments, minlength=size).astype(like.dtype)[:size]
    return segment_sum(namespace(like).ones_like(like), segments, size)


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
# torch has one process per rank. Under JAX's `jit` with sharded arrays a plain sum is already global; inside
# `shard_map` and `pmap` it is not, and the axis that holds the batch must be named. NumPy knows one process only.


def world_size(x: Array) -> int:
    """How many ranks hold a shard of the batch that `x` belongs to."""
    if isinstance(x, np.ndarray) or not is_torch(x):
        return 1
    torch: Any = sys.modules["torch"]
    distributed = torch.distributed
    if not (distributed.is_available() and distributed.is_initialized()):
        return 1
    return int(distributed.get_world_size())


def spans_ranks(x: Array, sync: bool | str) -> bool:
    """Whether the batch that `x` belongs to, as far as `sync` lets it, is more than what this process holds."""
    return bool(sync) and (world_size(x) > 1 or _named_axis(x, sync) is not None)


def sum_over_ranks(x: Array, sync: bool | str = True) -> Array:
    """The elementwise sum of `x` over all ranks, or over the JAX axis that `sync` names."""
    return _all_reduce(x, sync, "SUM")


def max_over_ranks(x: Array, sync: bool | str = True) -> Array:
    """The elementwise maximum of `x` over all ranks, or over the JAX axis that `sync` names."""
    return _all_reduce(x, sync, "MAX")


def _all_reduce(x: Array, sync: bool | str, operation: str) -> Array:
    if not sync:
        return x
    if axis := _named_axis(x, sync):
        lax: Any = sys.modules["jax"].lax
        return {"SUM": lax.psum, "MAX": lax.pmax}[operation](x, axis)
    if world_size(x) == 1:
        return x
    torch: Any = sys.modules["torch"]
    total = x.clone()
    torch.distributed.all_reduce(total, op=getattr(torch.distributed.ReduceOp, operation))
    return total


def _named_axis(x: Array, sync: bool | str) -> str | None:
    """The axis of a JAX mesh to reduce over; None where a plain sum, or torch's collectives, do."""
    if sync is True and isinstance(x, np.ndarray):
        return None
    if isinstance(sync, str):
        if not is_jax(x):
            raise ValueError(
                f"sync={sync!r} names an axis of a JAX mesh, and these losses are of {type(x).__module__}. Use "
                "sync=True for all ranks, or sync=False for this one alone."
            )
        return sync
    if is_jax(x) and (axes := _manual_axes()):
        names = " or ".join(f"sync={axis!r}" for axis in axes)
        raise ValueError(
            f"sync=True cannot see beyond this device inside shard_map or pmap. Name the axis that holds the batch, "
            f"{names}, or pass sync=False to keep every device to its own shard."
        )
    return None


def _manual_axes() -> tuple[str, ...]:
    """The mesh axes that `shard_map` or `pmap` has split the program over."""
    jax: Any = sys.modules["jax"]
    mesh = getattr(jax.sharding, "get_abstract_mesh", lambda: None)()
    return tuple(getattr(mesh, "manual_axes", ()))


def pool_over_ranks(
    vectors: Sequence[Array | None], sync: bool | str = True
) -> tuple[tuple[Array | None, ...], Callable[[Array], Array]]:
    """Vectors concatenated over ranks, and the function that cuts this rank's part back out.

    All vectors of one rank have the same length; ranks may differ. `None` stays `None`.
    """
    first = next(v for v in vectors if v is not None)
    if not sync:
        return tuple(vectors), lambda pooled: pooled
    if axis := _named_axis(first, sync):
        return _pool_over_axis(vectors, first.shape[0], axis)
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


def _pool_over_axis(
    vectors: Sequence[Array | None], size: int, axis: str
) -> tuple[tuple[Array | None, ...], Callable[[Array], Array]]:
    """The same inside `shard_map`, where all shards have one size."""
    jax: Any = sys.modules["jax"]
    start = jax.lax.axis_index(axis) * size

    def pool(vector: Array | None) -> Array | None:
        if vector is None:
            return None
        # A sum and not a gather: its result is known to be the same on every device, and so may be the state.
        whole = namespace(vector).zeros(size * jax.lax.axis_size(axis), vector.dtype)
        return jax.lax.psum(jax.lax.dynamic_update_slice(whole, vector, (start,)), axis)

    return tuple(pool(v) for v in vectors), lambda pooled: jax.lax.dynamic_slice(pooled, (start,), (size,))


def to_numpy(x: Any) -> np.ndarray[Any, Any]:
    """`x` as a NumPy array on the host. Waits for the device: not for the hot path."""
    if is_torch(x):
        x = widen(x) if is_floating(x) else x
        return x.detach().cpu().numpy()
    if is_jax(x) and is_floating(x):
        x = widen(x)
    return np.asarray(x)
