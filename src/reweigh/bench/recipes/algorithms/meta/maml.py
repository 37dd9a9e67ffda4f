"""Model-agnostic meta-learning."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from reweigh import _validate as validate
from reweigh.bench.recipes.algorithms.meta._adapt import adapt
from reweigh.bench.recipes.algorithms.meta._base import MetaAlgorithm

__all__ = ["MAML"]


@dataclass(frozen=True, kw_only=True)
class MAML(MetaAlgorithm):
    r"""Parameters from which a few gradient steps solve a task.

    .. math:: \ell_k(\theta) = L^{query}_k(\phi_k), \qquad \phi_k = \theta - \alpha \nabla L^{support}_k(\theta),
              \qquad \hat L = \frac1K \sum_k \mathrm{sg}(w_k)\, \ell_k(\theta)

    The inner steps are unweighted; the weight of a task is made of its query loss and carries no gradient; the gradient
    of the query loss goes through the inner steps, second derivatives included.

    Parameters
    ----------
    inner_lr, inner_steps
        Step size and number of steps on the support set.
    first_order
        Whether the inner gradients count as constants, which leaves the second derivatives out.

    Notes
    -----
    References: Finn, Abbeel and Levine, *Model-Agnostic Meta-Learning*, ICML 2017; with re-weighting, Kumar et al.,
    TMLR 2024, which does not say at which of the two levels the weights act: that they act on tasks is our reading.
    """

    inner_lr: float = 0.4
    inner_steps: int = 1
    first_order: bool = False

    def __post_init__(self) -> None:
        validate.positive("inner_lr", self.inner_lr)
        validate.whole("inner_steps", self.inner_steps, 0)

    def adapted(
        self, model: nn.Module, parameters: Mapping[str, Tensor], support_x: Tensor, support_y: Tensor
    ) -> dict[str, Tensor]:
        """The parameters after the inner steps on one task's support set."""
        start = {name: p.detach() for name, p in parameters.items()} if self.first_order else parameters
        end = adapt(model, start, self.loss, [(support_x, support_y)] * self.inner_steps, self.inner_lr)
        if not self.first_order:
            return end
        # The way from start to end as a constant, added to what is learnt.
        return {name: p + (end[name] - start[name]) for name, p in parameters.items()}

    def query_loss(
        self,
        model: nn.Module,
        parameters: Mapping[str, Tensor],
        support_x: Tensor,
        support_y: Tensor,
        query_x: Tensor,
        query_y: Tensor,
    ) -> Tensor:
        """The mean query loss of one task, as a function of the parameters."""
        adapted = self.adapted(model, parameters, support_x, support_y)
        return self.loss(torch.func.functional_call(model, adapted, (query_x,)), query_y).mean()

    def answer(self, model: nn.Module, support_x: Tensor, support_y: Tensor, query_x: Tensor, ways: int) -> Tensor:
        """The outputs of the adapted model."""
        adapted = self.adapted(model, dict(model.named_parameters()), support_x, support_y)
        return torch.func.functional_call(model, adapted, (query_x,))
