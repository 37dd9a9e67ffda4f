"""The contrastive loss: a row should be more like its other view than like anything else in the batch."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F


def nt_xent(first: Tensor, second: Tensor, temperature: float) -> Tensor:
    r"""The normalised-temperature cross entropy of each row, `(rows,)`.

    .. math:: \ell_i = \tfrac12 \sum_{(a, b)} -\log
              \frac{\exp(\cos(z_i^a, z_i^b)/T)}{\sum_{(k, c) \ne (i, a)} \exp(\cos(z_i^a, z_k^c)/T)}

    over both orders of the two views, with T the temperature. Views `(rows, width)` need not be normalised.
    """
    rows = len(first)
    both = F.normalize(torch.cat([first, second]), dim=1)
    alike = both @ both.T / temperature
    alike = alike.masked_fill(torch.eye(2 * rows, dtype=torch.bool, device=both.device), -torch.inf)
    partner = torch.arange(2 * rows, device=both.device).roll(rows)
    return F.cross_entropy(alike, partner, reduction="none").view(2, rows).mean(0)
