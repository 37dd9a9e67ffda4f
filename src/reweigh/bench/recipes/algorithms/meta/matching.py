"""Matching networks."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor
from torch.nn import functional as F

from reweigh import _validate as validate
from reweigh.bench.recipes.algorithms.meta._metric import MetricAlgorithm

__all__ = ["MatchingNetwork"]


@dataclass(frozen=True, kw_only=True)
class MatchingNetwork(MetricAlgorithm):
    r"""Attention over the support set: a query's label is the mean of its neighbours'.

    .. math:: p(y \mid x) = \sum_i a_i [y_i = y], \qquad a = \mathrm{softmax}_i\, \big(s \cos(f(x), f(x_i))\big)

    Parameters
    ----------
    scale
        What cosines are multiplied with. At 1, as published, no probability can exceed :math:`e^2/(e^2 + n - 1)` for n
        classes with one example each: the loss has a floor (0.43 for five), which a weight takes for difficulty.

    Returns
    -------
    Tensor
        Log-probabilities.

    Notes
    -----
    Without the full-context embeddings of the paper's second half, as the few-shot literature reports it. References:
    Vinyals et al., *Matching Networks for One Shot Learning*, NeurIPS 2016.
    """

    scale: float = 1.0

    def __post_init__(self) -> None:
        validate.positive("scale", self.scale)

    def compare(self, support: Tensor, support_y: Tensor, query: Tensor, ways: int) -> Tensor:
        """The logarithm of the attention that each class gets."""
        support, query = F.normalize(support, dim=-1), F.normalize(query, dim=-1)
        attention = (self.scale * query @ support.T).log_softmax(-1)
        # log of a sum of attentions, kept in logarithms so that a class nobody looks at has no log of zero.
        outside = F.one_hot(support_y, ways) == 0
        return attention[:, :, None].masked_fill(outside, float("-inf")).logsumexp(1)
