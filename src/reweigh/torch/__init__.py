"""PyTorch: the re-weighted criterion and the parts of the family that need tensors."""

from __future__ import annotations

from reweigh.torch.reweighted import Reweighted, global_count

__all__ = ["Reweighted", "global_count"]
