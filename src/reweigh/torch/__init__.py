"""PyTorch: the re-weighted criterion and the parts of the family that need tensors."""

from __future__ import annotations

from importlib.util import find_spec

if find_spec("torch") is None:
    raise ModuleNotFoundError(
        'reweigh.torch needs PyTorch, which is not installed. Install it with `pip install "reweigh[torch]"`.',
        name="torch",
    )

from reweigh.torch.chunked import chunked_cross_entropy
from reweigh.torch.reweighted import Reweighted, global_count

__all__ = ["Reweighted", "chunked_cross_entropy", "global_count"]
