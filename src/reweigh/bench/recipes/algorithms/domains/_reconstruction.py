"""Features that can be reconstructed from the outputs: what FRR-L and FRR share."""

from __future__ import annotations

from torch import Tensor

from reweigh.bench.recipes.algorithms.domains._base import DomainBatch, Learner, Setup, Weigher, mlp


class Reconstructing(Learner):
    """Plain training first, then the head with a reconstruction penalty, then, perhaps, the features under that head.

    Parameters
    ----------
    setup
        What to start from.
    weight, width
        Of the penalty; of the decoder's hidden layer.
    features, head
        Shares of training after which the first and the second phase end.
    """

    def __init__(self, setup: Setup, *, weight: float, width: int, features: float, head: float) -> None:
        super().__init__(setup)
        self.weight = weight
        self.ends = round(features * setup.steps), round(head * setup.steps)
        self.decoder = mlp(setup.classes, self.network.features, width=width, depth=1)
        self.optimizers["embed"] = setup.optimizer(self.network.embed.parameters())
        self.optimizers["head"] = setup.optimizer(self.network.head.parameters())
        self.optimizers["decoder"] = setup.optimizer(self.decoder.parameters())

    @property
    def settled(self) -> bool:
        """From the first step of the last phase on; a phase of no steps is none."""
        step = self.updates
        return step > (self.ends[1] if self.ends[1] < self.setup.steps else self.ends[0])

    def learn(self, batch: DomainBatch, weigh: Weigher) -> None:
        """A step of the phase that training is in."""
        step = self.updates
        features = self.network.embed(batch.x)
        if step < self.ends[0]:
            self.descend(self._classified(features, batch, weigh), "embed", "head")
        elif step < self.ends[1]:
            features = features.detach()
            loss = self._classified(features, batch, weigh)
            outputs = self.network.head(features)
            self.descend(loss + self.weight * reconstruction(self.decoder(outputs), features), "head", "decoder")
        else:
            self.descend(self._classified(features, batch, weigh), "embed")

    def _classified(self, features: Tensor, batch: DomainBatch, weigh: Weigher) -> Tensor:
        return weigh(weigh.losses(self.network.head(features), batch.y), batch.domain)


def reconstruction(decoded: Tensor, features: Tensor) -> Tensor:
    """The mean absolute error of features reconstructed from outputs."""
    return (features - decoded).abs().mean()
