"""What methods share that compare queries with the support set in a learnt space."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from reweigh.bench.recipes.algorithms.meta._base import Episodes, MetaAlgorithm


@dataclass(frozen=True, kw_only=True)
class MetricAlgorithm(MetaAlgorithm):
    """Features of the images first, of all tasks at once; then a comparison within each task.

    The support images of a meta-batch go through the network as one batch and the queries as another, as in the code
    that the paper's figures come from. Normalisation that takes its statistics from a batch so takes them from all
    tasks, while training; with running statistics a task that is tested does not see the others, nor its queries one
    another.
    """

    @abstractmethod
    def compare(self, support: Tensor, support_y: Tensor, query: Tensor, ways: int) -> Tensor:
        """The outputs for the queries of one task, given the features of both sides."""

    def outputs(self, model: nn.Module, episodes: Episodes, ways: int) -> Tensor:
        """The outputs for all queries of all tasks, `(tasks, queries, outputs)`."""
        support, query = embedded(model, episodes.support_x), embedded(model, episodes.query_x)

        def one(support: Tensor, support_y: Tensor, query: Tensor) -> Tensor:
            return self.compare(support, support_y, query, ways)

        return self.each(one, support, episodes.support_y, query)

    def answer(self, model: nn.Module, support_x: Tensor, support_y: Tensor, query_x: Tensor, ways: int) -> Tensor:
        """The outputs for the queries of one task, alone."""
        return self.compare(embedded(model, support_x[None])[0], support_y, embedded(model, query_x[None])[0], ways)


def embedded(model: Any, x: Tensor) -> Tensor:
    """Features `(tasks, images, features)` of images `(tasks, images, ...)`, which go through as one batch."""
    if not hasattr(model, "embed"):
        raise TypeError(f"{type(model).__name__} has no `embed`. Use a model that exposes its features, such as conv4.")
    return model.embed(x.flatten(0, 1)).unflatten(0, x.shape[:2])
